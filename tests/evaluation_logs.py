"""Small evaluation logs in the shapes that packages write."""

import json
import struct
import tempfile
import zlib
from pathlib import Path

import polars


def choice_record(doc_id, log_likelihoods, choices, answer, *, subject=None, delimiter=" ", **changes):
    """Return a line of lm-evaluation-harness for a multiple-choice question."""
    pairs = [[str(float(value)), "False"] for value in log_likelihoods]
    prompt = f"Question {doc_id}\nAnswer:"
    arguments = {f"gen_args_{i}": {"arg_0": prompt, "arg_1": delimiter + text} for i, text in enumerate(choices)}
    record = {
        "doc_id": doc_id,
        "doc": {"question": f"Question {doc_id}", "answer": answer} | ({"subject": subject} if subject else {}),
        "target": str(answer),
        "arguments": arguments,
        "resps": [[pair] for pair in pairs],
        "filtered_resps": pairs,
        "filter": "none",
        "metrics": ["acc", "acc_norm"],
        "acc": float(_argmax(log_likelihoods) == answer),
        "acc_norm": float(_argmax([v / len(c) for v, c in zip(log_likelihoods, choices, strict=True)]) == answer),
    }
    return record | changes


def _argmax(values):
    return max(range(len(values)), key=lambda i: values[i])


def generation_record(doc_id, response, score, *, filter="none", resps=None, metric="exact_match"):
    """Return a line of lm-evaluation-harness for a generated answer."""
    return {
        "doc_id": doc_id,
        "doc": {"question": f"Question {doc_id}"},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": "Question", "arg_1": {"until": ["\n"]}}},
        "resps": [[response if resps is None else resps]],
        "filtered_resps": [response],
        "filter": filter,
        "metrics": [metric],
        metric: score,
    }


def write_lines(path: Path, records) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_harness(folder: Path, task, records, *, model="my-model", date="2026-01-02T03-04-05.000006") -> Path:
    """Write a file as lm-evaluation-harness names it."""
    return write_lines(folder / model / f"samples_{task}_{date}.jsonl", records)


def inspect_sample(name, epoch, scores, *, metadata=None, log_probs=None, completion="A", error=None):
    """Return a sample of Inspect."""
    content = [{"token": "A", "logprob": value, "bytes": [65], "top_logprobs": []} for value in log_probs or ()]
    choice = {"message": {"role": "assistant", "content": completion}, "stop_reason": "stop"}
    choice |= {"logprobs": {"content": content}} if log_probs else {}
    sample = {"id": name, "epoch": epoch, "input": "?", "target": "A", "scores": scores, "metadata": metadata or {}}
    return sample | {"output": {"model": "m", "choices": [choice]}} | ({"error": error} if error else {})


def inspect_log(samples, *, task="quiz", model="hf/tiny"):
    """Return a log of Inspect."""
    return {"version": 2, "status": "success", "eval": {"task": task, "model": model}, "samples": samples}


def write_inspect(path: Path, log) -> Path:
    """Write a log of Inspect as `.json`, or as `.eval`, which is compressed by Zstandard."""
    if path.suffix == ".json":
        path.write_text(json.dumps(log))
        return path
    members = {f"samples/{s['id']}_epoch_{s['epoch']}.json": s for s in log["samples"]}
    members["header.json"] = {name: value for name, value in log.items() if name != "samples"}
    local, central = b"", b""
    for name, value in members.items():
        text = json.dumps(value).encode()
        packed, encoded = compress_zstandard(text), name.encode()
        fields = (20, 0, 93, 0, 0x21, zlib.crc32(text), len(packed), len(text), len(encoded), 0)
        central += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, *fields, 0, 0, 0, 0, len(local)) + encoded
        local += struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields) + encoded + packed
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(members), len(members), len(central), len(local), 0)
    path.write_bytes(local + central + end)
    return path


def compress_zstandard(text: bytes) -> bytes:
    """Compress a text."""
    options = {"include_header": False, "quote_style": "never", "line_terminator": ""}
    with tempfile.NamedTemporaryFile() as file:
        frame = polars.DataFrame({"text": [text.decode()]})
        frame.write_csv(file.name, compression="zstd", check_extension=False, **options)
        return Path(file.name).read_bytes()


def write_helm(folder: Path, answers, *, subject="anatomy", model="me/tiny") -> Path:
    """Write a run of HELM; an answer is (id, text, logprob, score), and may have a perturbation."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {"A": "left", "B": "right"}
    states, stats = [], []
    for name, text, log_prob, score, *perturbation in answers:
        changes = {"perturbation": {"name": perturbation[0]}} if perturbation else {}
        instance = {"id": name, "input": {"text": "?"}, "references": [], "split": "test"} | changes
        completion = {"text": text, "logprob": log_prob, "tokens": [{"text": text, "logprob": log_prob}]}
        states.append({
            "instance": instance, "train_trial_index": 0, "output_mapping": mapping,
            "result": {"success": True, "completions": [completion], "cached": False},
        })  # fmt: skip
        means = {
            "exact_match": score,
            "max_prob": 2.718281828459045**log_prob,
            "num_references": 2,
            "logprob": log_prob,
        }
        entries = [{"name": {"name": key, "split": "test"}, "count": 1, "sum": value} for key, value in means.items()]
        stats.append({"instance_id": name, "train_trial_index": 0, "stats": entries} | changes)
    spec = {
        "name": f"mmlu:subject={subject},model={model}",
        "scenario_spec": {"class_name": "MMLUScenario", "args": {"subject": subject}},
        "adapter_spec": {"method": "multiple_choice_joint", "model": model},
    }
    contents = {"run_spec": spec, "per_instance_stats": stats}
    contents["scenario_state"] = {"adapter_spec": spec["adapter_spec"], "request_states": states}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
