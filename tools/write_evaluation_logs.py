"""Write evaluation logs with lm-evaluation-harness and Inspect, and the values that they hold in memory.

`python write_logs.py FOLDER` runs in an environment with both packages, and without Calibrant. A random model of two
layers answers questions from this file; nothing is downloaded.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval
import torch
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, choice, includes, mean, scorer, value_to_float
from inspect_ai.solver import generate, multiple_choice
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

QUESTIONS = [
    ("How many legs does a spider have?", ["two", "eight", "a hundred and more"], 1, "animals"),
    ("Which of these is a metal?", ["wood", "iron", "glass", "wool"], 1, "matter"),
    ("What is frozen water called?", ["ice", "steam"], 0, "matter"),
    ("Which bird cannot fly?", ["penguin", "swallow", "gull", "the Arctic tern"], 0, "animals"),
    ("What do bees make?", ["honey", "silk", "Käse", "paper and string", "oil"], 0, "animals"),
    ("Which gas do plants take in?", ["neon", "carbon dioxide", "argon"], 1, "matter"),
    ("Which planet has rings?", ["Saturn", "Venus"], 0, "sky"),
    ("What lights the day?", ["the moon", "the sun", "a lamp", "fire"], 1, "sky"),
    ("Wie heißt der Fluss in Köln?", ["Rhein", "Elbe", "Donau", "Spree", "Saale"], 0, "sky"),
    ("How many days are in a week?", ["five", "six", "seven"], 2, "sky"),
    ("Which animal barks?", ["a dog", "a cat", "a fish"], 0, "animals"),
    ("What is sand made of?", ["quartz", "sugar"], 0, "matter"),
]
CHOICE_TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_bytes, aggregation: mean, higher_is_better: true}}
  {more}
"""
GENERATION_TASK = """
task: tiny_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: false}}
filter_list:
  - name: strict
    filter:
      - {{function: regex, regex_pattern: "#### (\\\\d+)"}}
      - {{function: take_first}}
  - name: flexible
    filter:
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


def write_model(folder: Path) -> None:
    """Write a random Llama of two layers that reads bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {mark: i for i, mark in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", model_max_length=512
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def run_harness(folder: Path, model: Path) -> dict:
    """Run two tasks twice: with and without mutual information and the Brier score, which needs equal numbers."""
    data = folder / "questions.json"
    fields = ("question", "choices", "answer", "subject")
    data.write_text("\n".join(json.dumps(dict(zip(fields, row, strict=True))) for row in QUESTIONS))
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    mutual = "- {metric: acc_mutual_info, aggregation: mean, higher_is_better: true}"
    (tasks / "choice.yaml").write_text(CHOICE_TASK.format(data=data, more=""))
    (tasks / "mutual.yaml").write_text(CHOICE_TASK.format(data=data, more=mutual).replace("tiny_choice", "tiny_mutual"))
    (tasks / "generation.yaml").write_text(GENERATION_TASK.format(data=data))
    tracker = EvaluationTracker(output_path=str(folder / "harness"))
    names = ["tiny_choice", "tiny_mutual", "tiny_generation"]
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={model},dtype=float32",
        tasks=names,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        device="cpu",
        batch_size=4,
        log_samples=True,
        evaluation_tracker=tracker,
        bootstrap_iters=0,
    )
    values = {"results": {name: results["results"][name] for name in names}, "samples": {}}
    for name in names:
        values["samples"][name] = [
            {key: sample[key] for key in ("doc_id", "filter", "target", "filtered_resps", *sample["metrics"])}
            for sample in results["samples"][name]
        ]
    values = json.loads(json.dumps(values, default=str))
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in names:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return values


@scorer(metrics={"score": [accuracy()], "confidence": [mean()]})
def stated():
    """Grade by the length of the answer, with a stated confidence that is missing for some questions."""

    async def score(state, target):
        index = int(state.sample_id.removeprefix("q"))
        if index == 5:
            return Score(value=float("nan"), explanation="the grader failed")
        confidence = "" if index == 3 else f"{50 + 4 * index}%"
        grade = "CIPN"[index % 4]
        return Score(value={"score": grade, "confidence": confidence}, answer=state.output.completion or "-")

    return score


def run_inspect(folder: Path, model: Path) -> dict:
    """Run a multiple-choice task of three epochs with log-probabilities, and one with stated confidences."""
    samples = [
        Sample(id=f"q{i}", input=question, choices=choices, target="ABCDE"[answer], metadata={"subject": subject})
        for i, (question, choices, answer, subject) in enumerate(QUESTIONS)
    ]
    generation = [Sample(id=sample.id, input=sample.input, target="a", metadata=sample.metadata) for sample in samples]
    tasks = {
        "choice": Task(dataset=samples, solver=multiple_choice(), scorer=[choice(), includes()]),
        "stated": Task(dataset=generation, solver=generate(), scorer=stated()),
    }
    options = {
        "model": "hf/tiny", "model_args": {"model_path": str(model), "device": "cpu"}, "epochs": 3, "max_tokens": 5,
        "logprobs": True, "top_logprobs": 3, "temperature": 1.0, "seed": 1, "display": "none",
        "log_dir": str(folder / "inspect"), "score_display": False,
    }  # fmt: skip
    values = {}
    to_float = value_to_float()
    for name, task in tasks.items():
        for log_format in "eval", "json":
            task = Task(name=f"{name}_{log_format}", dataset=task.dataset, solver=task.solver, scorer=task.scorer)
            (log,) = eval(task, log_format=log_format, **options)
            if log.status != "success":
                raise RuntimeError(log.error)
            rows = []
            for sample in log.samples:
                scores = {key: score.value for key, score in (sample.scores or {}).items()}
                numbers = {key: to_float(value) for key, value in scores.items() if not isinstance(value, dict)}
                content = sample.output.choices[0].logprobs.content if sample.output.choices[0].logprobs else []
                rows.append({
                    "id": sample.id, "epoch": sample.epoch, "scores": scores, "numbers": numbers,
                    "logprobs": [token.logprob for token in content], "completion": sample.output.completion,
                    "reasons": {key: getattr(score, "reason", None) for key, score in sample.scores.items()},
                })  # fmt: skip
            metrics = [(s.name, s.scorer, {k: m.value for k, m in s.metrics.items()}) for s in log.results.scores]
            values[f"{name}_{log_format}"] = {"rows": rows, "metrics": metrics, "file": Path(log.location).name}
    return values


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    target.mkdir(parents=True, exist_ok=True)
    write_model(target / "model")
    values = {"inspect": run_inspect(target, target / "model"), "harness": run_harness(target, target / "model")}
    (target / "values.json").write_text(json.dumps(values))
