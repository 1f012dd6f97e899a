"""Run folders of HELM: `scenario_state.json`, `per_instance_stats.json` and `run_spec.json`.

The confidence is HELM's own `max_prob`: the probability of the generated text, or the largest softmax of the scores of
the choices. Models without log-probabilities have 0 for every one of them, which is no confidence.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant._core.foreign import parse_json
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.logs.confidences import find_stated_confidence
from calibrant.io.logs.rows import LogAnswer, LogContent, LogOptions, Record, select_single_name

HELM = "HELM"
REQUIRED_FILES = ("scenario_state.json", "per_instance_stats.json")
MAIN_SCORE = "exact_match"  # of multiple choice
CONFIDENCE_STAT = "max_prob"
_ADAPTER = {"method": str, "model": str}
SPEC_SHAPE = {"name": str, "adapter_spec": _ADAPTER, "scenario_spec": {"args": dict}}
STATE_SHAPE = {
    "adapter_spec": _ADAPTER,
    "request_states": [
        {"instance": dict, "output_mapping": dict, "train_trial_index": int, "result": {"completions": [{"text": str}]}}
    ],
}
STATS_SHAPE = [{"stats": [{"name": {"name": str}, "count": (int, float), "sum": (int, float)}]}]
NON_SCORES = (CONFIDENCE_STAT, "predicted_index", "prompt_truncated", "finish_reason", "num_", "logprob", "inference_")


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run."""
    return path.is_dir() and all((path / name).is_file() for name in REQUIRED_FILES)


def read_run(path: Path, options: LogOptions) -> LogContent:
    """Return the answers of a run. Perturbed instances and trials are further epochs of a question."""
    shapes = STATE_SHAPE, STATS_SHAPE
    state, stats = (_read_json_file(path / name, shape) for name, shape in zip(REQUIRED_FILES, shapes, strict=True))
    spec_path = path / "run_spec.json"
    spec = _read_json_file(spec_path, SPEC_SHAPE) if spec_path.is_file() else {}
    if options.confidence not in (None, "stated", CONFIDENCE_STAT):
        raise InputError(
            f"Expected {CONFIDENCE_STAT!r} or 'stated' as confidence of a log of {HELM}, got {options.confidence!r}.",
            code="unknown_confidence",
        )
    adapter = spec.get("adapter_spec") or state.get("adapter_spec") or {}
    task = str(spec.get("name") or path.name).split(":")[0]  # before its arguments, as in mmlu:subject=anatomy
    subject = ((spec.get("scenario_spec") or {}).get("args") or {}).get("subject")
    is_choice = str(adapter.get("method", "")).startswith("multiple_choice")
    # The last of several requests for an instance: each may be one of its choices
    requests = {_key(request["instance"], request): request for request in state["request_states"]}
    # An entry of the statistics has the fields of its instance itself
    means = {_key(entry, entry): _stat_means(entry["stats"]) for entry in stats}
    score = _select_score(list(means.values()), options.score, is_choice=is_choice)
    # HELM sets the log-probabilities of a model without any to 0, which gives the probability 1 everywhere
    has_log_probs = any(mean.get(CONFIDENCE_STAT) not in (None, 1.0) for mean in means.values())
    answers = [
        _read_answer(
            request,
            means.get(key, {}),
            score,
            task=task,
            subject=None if subject is None else str(subject),
            is_stated=options.confidence == "stated",
            has_log_probs=has_log_probs,
        )
        for key, request in requests.items()
    ]
    notes = [f"Answers are graded by {score!r}."]
    if not has_log_probs:
        notes.append("All log-probabilities are 0, as of models without any, so there is no confidence.")
    return LogContent(HELM, answers, adapter.get("model"), tuple(notes))


def _read_json_file(path: Path, shape: Any) -> Any:
    """Return the JSON value of a file of a run, which has a shape."""
    with prefix_errors(path.name):
        return parse_json(path.read_text("utf-8"), shape)


def _key(instance: Record, record: Record) -> tuple[str, str, int]:
    """Return the id of an instance, its perturbation and the trial, which identify an answer."""
    name = instance.get("id") or instance.get("instance_id")  # as requests and statistics call it
    perturbation = json.dumps(instance.get("perturbation"), sort_keys=True)  # a text, because keys must be hashable
    return str(name), perturbation, int(record.get("train_trial_index") or 0)


def _stat_means(stats: Sequence[Record]) -> dict[str, float]:
    """Return the mean of each statistic of an instance by name, for those that have values."""
    return {
        stat["name"]["name"]: float(stat["sum"]) / stat["count"]
        for stat in stats
        if stat.get("count") and stat.get("sum") is not None
    }


def _max_probability(means: Mapping[str, float]) -> float | None:
    """Return the probability of the response, cut to 1 after rounding, or None without a valid one."""
    value = means.get(CONFIDENCE_STAT)
    return min(value, 1.0) if value is not None and 0 <= value <= 1 + 1e-6 else None


def _select_score(instance_means: Sequence[Mapping[str, float]], candidates: Sequence[str], *, is_choice: bool) -> str:
    """Return the statistic that grades answers: the first candidate in the log, or else its only score in [0, 1].

    Without candidates, it is `MAIN_SCORE` for multiple choice (`is_choice`).

    Args:
        instance_means: For each instance, the mean of each statistic by name.
        candidates: Names that the caller chose.
        is_choice: Whether the task is multiple choice.
    """
    names = sorted({name for means in instance_means for name in means if not name.startswith(NON_SCORES)})
    names = [name for name in names if all(0 <= means.get(name, 0.0) <= 1 for means in instance_means)]
    if not candidates and is_choice and MAIN_SCORE in names:
        return MAIN_SCORE
    return select_single_name(candidates, names, "score", "--correct")


def _read_answer(
    request: Record,
    means: Mapping[str, float],
    score: str,
    *,
    task: str,
    subject: str | None,
    is_stated: bool,
    has_log_probs: bool,
) -> LogAnswer:
    """Return the answer to a request.

    Args:
        request: The request with its response.
        means: Mean of each statistic of the request's instance, by name.
        score: Name of the statistic that grades the answer.
        task: Name of the task.
        subject: Subject of the run, None without one.
        is_stated: Whether the confidence is stated in the text. Otherwise it is a statistic.
        has_log_probs: Whether the model has log-probabilities; without them, this statistic means nothing.
    """
    instance, result = request["instance"], request.get("result") or {}
    completions = result.get("completions") or []
    text = str(completions[0].get("text", "")) if completions else ""
    is_scored_by_choice = request.get("reference_index") is not None  # the request is one choice, without a response
    mapping = request.get("output_mapping")  # from the letters of choices, such as A, to their texts
    reason = ""
    if result and not result.get("success", True):
        reason = "request failed"
    elif not is_scored_by_choice and not text.strip():
        reason = "empty response"
    elif mapping and text.strip() not in mapping and means.get(score) == 0:  # unless it was graded right all the same
        reason = "response is no choice"
    return LogAnswer(
        task,
        str(instance.get("id")),
        means.get(score),
        # The option `subject` may name one of these keys
        data=(instance.get("extra_data") or {}) | {"sub_split": instance.get("sub_split")},
        reason=reason,
        stated=find_stated_confidence(text) if is_stated else None,
        confidence=_max_probability(means) if has_log_probs and not is_stated else None,
        subject=subject,
    )
