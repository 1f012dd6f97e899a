"""Logs of Inspect: `.eval`, a zip of JSON files that are compressed by Zstandard, and `.json`.

A value of a score is C, I, P or N, a number, or an object such as {"score": "C", "confidence": "85%"}. NaN and null
mean that the answer was not graded.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calibrant._core.expansion import check_expansion
from calibrant._core.foreign import check_shape, parse_json
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.encoding import read_zstandard
from calibrant.io.logs.confidences import as_object, find_stated_confidence, read_grade
from calibrant.io.logs.rows import LogAnswer, LogContent, LogOptions, Record, from_tokens, select_single_name
from calibrant.io.logs.tokens import TOKEN_SOURCES, find_response_text, token_confidence

FINISHED = "success"
ZSTANDARD_METHOD = 93  # of zip files; Python reads it from 3.14 on
NO_ANSWER = "N"
ANSWER_KEYS = ("score", "correct", "accuracy")  # of a value that is an object
UNGRADED_REASONS = ("grader_failed", "scoring_failed")
_TEXT = (str, int, float)
HEADER_SHAPE = {"eval": {"task": str, "model": str}, "status": str}
SAMPLE_SHAPE = {"id": _TEXT, "epoch": int, "scores": dict}
SCORE_SHAPE = {"reason": _TEXT}


def is_log(content: Any) -> bool:
    """Whether a JSON value is a log of Inspect."""
    return isinstance(content, dict) and "samples" in content and "eval" in content


def read_archive(path: Path, options: LogOptions) -> LogContent:
    """Return the answers of an `.eval` log."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        members = {info.filename: info for info in archive.infolist()}  # the last of several versions
        check_expansion(path.stat().st_size, sum(info.file_size for info in members.values()))
        _check_number_of_members(file, len(archive.infolist()))
        for info in archive.infolist():
            _check_local_header(file, info)

        def load(name: str) -> Any:
            """Return the JSON value of a member."""
            with prefix_errors(name):
                return parse_json(_read_member(archive, file, members[name]))

        if "header.json" in members:
            header = load("header.json")
        elif "_journal/start.json" in members:  # of an evaluation that has not ended
            header = load("_journal/start.json") | {"status": "started"}
        else:
            raise InputError("Expected header.json in this archive, got none. Try another file.", code="unknown_log")
        names = [name for name in members if name.startswith("samples/") and name.endswith(".json")]
        return read_samples(header, map(load, names), path, options)


def _check_number_of_members(file: Any, count: int) -> None:
    """Raise `InputError` if the end of a zip file tells another number of members than were found.

    A damaged length in the directory hides the members behind it.
    """
    file.seek(-22, io.SEEK_END)
    end = file.read()
    stated = int.from_bytes(end[10:12], "little")
    if end[:4] == b"PK\x05\x06" and stated not in (count, 0xFFFF):  # the last if there are more than it can tell
        raise InputError(
            f"Expected {stated:,} entries in this archive, got {count:,}. Try another copy of the file.",
            code="unreadable",
        )


def _check_local_header(file: Any, info: zipfile.ZipInfo) -> None:
    """Raise `InputError` if the name of a member differs from the one before its bytes.

    A damaged name would hide a sample, or replace another one.
    """
    file.seek(info.header_offset)
    header = file.read(30)
    name = file.read(int.from_bytes(header[26:28], "little"))
    if header[:4] != b"PK\x03\x04" or name != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"):
        raise InputError(
            f"Expected {info.filename} in this archive under one name, got a damaged entry. Try another copy of the "
            "file.",
            code="unreadable",
        )


def _read_member(archive: zipfile.ZipFile, file: Any, info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member of a zip file, decompressed.

    Python before 3.14 cannot read members that are compressed by Zstandard. Their bytes are found here by the format of
    zip files, and polars decompresses them.
    """
    if info.compress_type != ZSTANDARD_METHOD:
        return archive.read(info)
    file.seek(info.header_offset)
    # The last two numbers of this header, of 2 bytes each, are the lengths of a name and of extra fields after it
    header = file.read(30)
    name_length, extra_length = (int.from_bytes(field, "little") for field in (header[26:28], header[28:30]))
    file.seek(name_length + extra_length, io.SEEK_CUR)
    text = read_zstandard(io.BytesIO(file.read(info.compress_size)))
    if zlib.crc32(text) != info.CRC:
        raise InputError(
            f"Expected {info.filename} with its checksum, got a damaged entry. Try another copy of the file.",
            code="unreadable",
        )
    return text


def read_samples(header: Record, samples: Iterable[Record], path: Path, options: LogOptions) -> LogContent:
    """Return the answers to the samples of a log, in the order of their ids and epochs.

    Raises:
        InputError: If there are no samples, several scorers, or no confidence in the chosen field.
    """
    check_shape(header, HEADER_SHAPE, "header")
    records = list(samples)
    check_shape(records, [SAMPLE_SHAPE], "samples")
    for sample in records:
        for score in (sample.get("scores") or {}).values():
            if score is not None:  # as of a scorer that did not grade the sample
                check_shape(score, SCORE_SHAPE, "scores")
    if not records:
        raise InputError("Expected samples in this log, got none.", code="no_rows")
    # The log lists samples as they finished; repeats of a question are counted in the order of epochs
    records.sort(key=lambda sample: (str(sample.get("id")), int(sample.get("epoch") or 1)))
    evaluation: Record = header.get("eval") or {}
    task = str(evaluation.get("task") or path.stem)
    scorer, key = _select_scorer(records, options.score)
    answers = [_read_sample(sample, task, scorer, key, options) for sample in records]
    notes = [f"Answers are graded by {f'{scorer}/{key}' if key else scorer!r}."]
    if (status := header.get("status", FINISHED)) != FINISHED:
        notes.append(f"The evaluation has not finished: its status is {status!r}.")
    is_field = options.confidence not in (None, "stated", *TOKEN_SOURCES)
    if is_field and all(answer.stated is None for answer in answers):
        raise InputError(
            f"Expected a key of scores or metadata, 'stated' or 'tokens' as confidence, got {options.confidence!r}.",
            code="unknown_confidence",
        )
    return LogContent("Inspect", answers, evaluation.get("model"), tuple(notes))


def _select_scorer(samples: Sequence[Record], candidates: Sequence[str]) -> tuple[str, str | None]:
    """Return the scorer, and the key of the grade if its values are objects, else None.

    A candidate is SCORER or SCORER/KEY. If it names no key, the key is the first of `ANSWER_KEYS` that the values have,
    or else their only key. Without candidates, the only scorer is taken.

    Raises:
        InputError: If there are several scorers or keys, or none of the candidates.
    """
    scorers = list(dict.fromkeys(scorer for sample in samples for scorer in sample.get("scores") or {}))
    keys = {scorer: _value_keys(samples, scorer) for scorer in scorers}
    full_names = [f"{scorer}/{key}" for scorer in scorers for key in keys[scorer]]
    name = select_single_name(candidates, [*scorers, *full_names] if candidates else scorers, "score", "--correct")
    scorer, key = (name, "") if name in scorers else name.rsplit("/", 1)
    key = key or next((candidate for candidate in ANSWER_KEYS if candidate in keys[scorer]), "")
    if keys[scorer] and not key:
        name = select_single_name([], [f"{scorer}/{key}" for key in keys[scorer]], "score", "--correct")
        key = name.removeprefix(f"{scorer}/")
    return scorer, key or None


def _value_keys(samples: Sequence[Record], scorer: str) -> list[str]:
    """Return the keys of a scorer's values, as far as the values are objects."""
    values = [((sample.get("scores") or {}).get(scorer) or {}).get("value") for sample in samples]
    return list(dict.fromkeys(key for value in values for key in as_object(value)))


def _read_sample(sample: Record, task: str, scorer: str, key: str | None, options: LogOptions) -> LogAnswer:
    """Return the answer of a sample, with its confidence if there is one.

    Args:
        sample: A question with its response and scores.
        task: Name of the task.
        scorer: Name of the scorer whose score grades the answer.
        key: Key of the grade if the scorer's values are objects, else None.
        options: Options for reading.
    """
    score: Record = (sample.get("scores") or {}).get(scorer) or {}  # empty if the scorer did not grade the sample
    value = score.get("value")
    grade = value.get(key) if isinstance(value, dict) else value
    correct, reason = _read_grade(grade, score)
    if sample.get("error") and not score:  # the sample failed before it was graded
        correct, reason = None, "sample error"
    confidence: dict[str, Any] = {}  # a number only from tokens; a stated confidence is parsed later
    if options.confidence in TOKEN_SOURCES:
        confidence = from_tokens(token_confidence(sample.get("output"), options.confidence))
    return LogAnswer(
        task,
        str(sample.get("id")),
        correct,
        data=as_object(sample.get("metadata")),
        reason=reason,
        stated=_find_stated(sample, score, options.confidence),
        **confidence,
    )


def _read_grade(grade: Any, score: Record) -> tuple[float | None, str]:
    """Return a grade as a number or None, and the reason why there is no answer, or "".

    An answer that was not graded has no number. A question that is graded N, or 0 for an empty answer, has the number 0
    and a reason.

    Args:
        grade: The grade as the log spells it.
        score: The scorer's object that holds it, which may state a reason.

    Raises:
        InputError: If the grade is neither a word such as C nor a number in [0, 1].
    """
    reason = str(score.get("reason") or as_object(score.get("metadata")).get("unscored_reason") or "")
    number = None if reason in UNGRADED_REASONS else read_grade(grade)
    if number is None:
        return None, reason or "no score"
    if reason:
        return number, reason
    if grade == NO_ANSWER:
        return number, "no answer"
    is_empty = number == 0 and score.get("answer") == ""
    return number, "empty answer" if is_empty else ""


def _find_stated(sample: Record, score: Record, source: str | None) -> Any:
    """Return the confidence that is stated at `source`, or None without one.

    It is in the response if `source` is "stated", and nowhere if tokens are the source. Otherwise it is the field of
    this name, by default "confidence", in the value or metadata of the score, or in the metadata of the sample.
    """
    if source == "stated":
        return find_stated_confidence(find_response_text(sample.get("output")) or "")
    if source in TOKEN_SOURCES:
        return None
    name = source or "confidence"
    records = map(as_object, (score.get("value"), score.get("metadata"), sample.get("metadata")))
    return next((record[name] for record in records if name in record), None)
