"""Following the advice of refused logs works."""

import zipfile

import pytest
from advised import Case, follow
from evaluation_logs import choice_record, inspect_log, inspect_sample, write_inspect, write_lines

from calibrant import EvaluationLog
from calibrant.language_models.cards import card

ANSWERS = [{"id": i, "confidence": 0.5, "correct": i % 2} for i in range(4)]
ZAP = [{"id": i, "confidence": 0.5, "zap": i % 2} for i in range(4)]
PERCENTAGES = [{"id": i, "confidence": 5 * i, "correct": 1} for i in range(4)]
UNSURE = [{"id": i, "sureness": 0.5, "correct": i % 2} for i in range(4)]
CHOICES = [choice_record(i, [-1.0, -3.0], ["yes", "no"], i % 2) for i in range(4)]
OTHER_TEXTS = [record | {"acc_norm": 1 - record["acc_norm"]} for record in CHOICES]
PROMPTS = {f"gen_args_{i}": {"arg_0": f"Is it {i}?", "arg_1": " yes"} for i in range(2)}
ONE_CONTINUATION = [record | {"arguments": PROMPTS} for record in CHOICES]
INSPECT = inspect_log([inspect_sample(i, 1, {"match": {"value": "C"}}, log_probs=[-0.1]) for i in range(4)])

LOGS = [  # code, records and options that are refused, and those that follow the advice
    ("no_score", ZAP, {}, lambda t: (ZAP, {"score": "zap"})),
    ("percent", PERCENTAGES, {}, lambda t: (PERCENTAGES, t.keywords())),
    ("unreadable", [*ANSWERS, 3], {}, lambda t: (ANSWERS, {})),
    ("no_confidence", UNSURE, {}, lambda t: (UNSURE, {"confidence": "sureness"})),
    ("mixed_lines", [*CHOICES, *ANSWERS], {}, lambda t: (CHOICES, {})),
    ("score_mismatch", OTHER_TEXTS, {"score": "acc_norm"}, lambda t: (OTHER_TEXTS, t.keywords())),
    ("unknown_score", ONE_CONTINUATION, {"score": "acc_norm"}, lambda t: (ONE_CONTINUATION, t.keywords())),
    ("unknown_score", CHOICES, {"score": "acc_mutual_info"}, lambda t: (CHOICES, {"score": "acc_norm"})),
]


@pytest.mark.parametrize(("code", "records", "options", "change"), LOGS, ids=[log[0] for log in LOGS])
def test_advice_on_logs_works(tmp_path, code, records, options, change):
    def read(records, options):
        return EvaluationLog.read(write_lines(tmp_path / "log.jsonl", records), **options).predictions

    follow(Case(code, lambda: read(records, options), lambda t: read(*change(t))))


def test_advice_on_files_of_logs_works(tmp_path):
    log = write_lines(tmp_path / "log.jsonl", ANSWERS)
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "headless.eval", "w") as archive:
        archive.writestr("samples/1_epoch_1.json", "{}")
    answers_to_one = [{**record, "id": 1, "epoch": i} for i, record in enumerate(ANSWERS)]
    for case in (
        Case("no_log", lambda: EvaluationLog.read(tmp_path / "empty"), lambda t: EvaluationLog.read(log)),
        Case("repeated_log", lambda: EvaluationLog.read([log, log]), lambda t: EvaluationLog.read([log])),
        Case(
            "unknown_log",
            lambda: EvaluationLog.read(tmp_path / "headless.eval"),
            lambda t: EvaluationLog.read(write_inspect(tmp_path / "log.eval", INSPECT)),
        ),
        Case(
            "one_question",
            lambda: card(EvaluationLog.read(write_lines(tmp_path / "one.jsonl", answers_to_one))),
            lambda t: card(EvaluationLog.read(log)),
        ),
    ):
        follow(case)
