"""A contract: a calibrator, what it was tested on, and what was promised for it, sealed in one file."""

import hashlib
import json
import math
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant import calibrators
from calibrant._text import format_percent
from calibrant.decisions import CertifiedThreshold, Sets, SetScore, certify_threshold
from calibrant.io import atomic_write
from calibrant.io.formats import CONTRACT_SUFFIX
from calibrant.io.results import check_suffix, provenance
from calibrant.monitoring import CheckResult, check
from calibrant.predictions import EventSelector, Predictions, as_predictions
from calibrant.types import InputError

CONTRACT_FORMAT = "calibrant-contract"
CONTRACT_VERSION = "1"
_MANIFEST = "contract.json"
_PARTS = _CALIBRATOR, _SETS = "calibrator.safetensors", "sets.json"
_ORIGIN_KEYS = ("calibrator", "data")  # digests of what a part was derived from
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError),
    *(ValueError, LookupError, TypeError, AttributeError, RuntimeError),
)
_MAX_BYTES = 1 << 30  # of a member, unpacked
_SEAL_CHARACTERS = 12  # of the seal in texts


@dataclass(frozen=True, eq=False)
class Contract:
    """A fitted calibrator with the requirements, the threshold and the sets that were tested on a reference.

    `create` tests a calibrator on labeled predictions that are new to it, and `save` seals the parts in one file.
    The seal is the SHA-256 digest of the manifest, which holds the digest of every part and, for what was derived,
    those of the calibrator and the reference that it was derived from. A file that was changed, or whose parts come
    from several contracts, is refused. The seal protects against accidents and mistakes; against forgery, compare it
    with one that was noted elsewhere.
    """

    calibrator: Any
    requirements: tuple[str, ...]  # that held on the reference
    level: float  # probability that a verdict on a requirement is not wrong
    threshold: CertifiedThreshold | None
    sets: Sets | None
    of: EventSelector  # event of requirements and threshold
    k: int
    class_names: tuple[str, ...] | None
    manifest: Mapping[str, Any] = field(repr=False)
    parts: Mapping[str, bytes] = field(repr=False)  # content of the files of the calibrator and the sets

    @classmethod
    def create(
        cls,
        calibrator: Any,
        predictions: Predictions,
        *,
        require: Sequence[str] = (),
        level: float = 0.95,
        risk: float | None = None,
        delta: float = 0.1,
        alpha: float | None = None,
        score: SetScore = "lac",
        of: str | int | None = None,
    ) -> "Contract":
        """Test a calibrator on new labeled predictions, and return the contract on what held.

        Args:
            calibrator: A fitted calibrator.
            predictions: Labeled predictions as the network gives them, which neither the network nor the calibrator
                has seen.
            require: Requirements as for `check`, relative ones excepted. All must hold.
            level: Probability that the verdict on a requirement is not wrong.
            risk: Largest share of errors among the predictions that are acted on; see `certify_threshold`.
            delta: Probability that the promise of the threshold is broken.
            alpha: Probability that a prediction set misses the true class; see `Sets.fit`.
            score: Nonconformity score of the sets.
            of: Event of the requirements and the threshold. Default: class 1 of two, else that of the predictions.

        Raises:
            InputError: If the calibrator has seen the predictions, a requirement does not hold, or no threshold can
                be certified.
        """
        with as_predictions(predictions) as p:
            calibrated = calibrators.calibrate(calibrator, p.double())
            calibrated = calibrated.with_default_event(of)
            held = _check_holds(check(calibrated, require, of=calibrated.of, level=level)) if require else []
            threshold = None if risk is None else certify_threshold(calibrated, risk=risk, delta=delta)
            if threshold is not None and not threshold.is_certified:
                raise InputError(threshold.reason, code="not_certified")
            sets = None if alpha is None else Sets.fit(calibrated, alpha=alpha, score=score)
            parts = _write_parts(calibrator, sets)
            digests = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
            origin = {"calibrator": digests[_CALIBRATOR], "data": p.digest}
            manifest = {
                "format": CONTRACT_FORMAT,
                "version": CONTRACT_VERSION,
                "of": calibrated.of,
                "k": p.k,
                "class_names": None if p.class_names is None else list(p.class_names),
                "parts": digests,
                "reference": origin | {"n": p.num_examples},
                "requirements": origin | {"texts": list(require), "level": level, "held": held},
                "threshold": None if threshold is None else origin | asdict(threshold),
                "sets": None if sets is None else origin,
                "provenance": provenance(),
            }
        return cls._from_parts(manifest | {"seal": _seal(manifest)}, parts)

    def __str__(self) -> str:
        lines = [
            f"Contract {self.seal[:_SEAL_CHARACTERS]}: {type(self.calibrator).__name__} for {self.k} classes, tested "
            f"on {self.manifest['reference']['n']:,} examples."
        ]
        lines += [f"Required, and held: {text}" for text in self.manifest["requirements"]["held"]]
        lines += [] if self.threshold is None else [self.threshold.reason]
        if self.sets is not None:
            lines.append(f"Prediction sets contain the class with probability {format_percent(1 - self.sets.alpha)}.")
        return "\n".join(lines)

    @property
    def seal(self) -> str:
        """SHA-256 digest of the manifest, as hex digits."""
        return self.manifest["seal"]

    # Use

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Return new predictions, as the network gives them, calibrated.

        Raises:
            InputError: If the classes are others, or the calibrator was fitted on these predictions.
        """
        p = predictions.reorder_classes(self.class_names)
        if p.k != self.k:
            raise InputError(f"Expected predictions of {self.k} classes, got {p.k}.", code="num_classes")
        return calibrators.calibrate(self.calibrator, p.double()).with_event(self.of)

    def check(self, predictions: Predictions, *, by_group: bool = False) -> CheckResult:
        """Check the requirements on new labeled predictions, as the network gives them.

        Raises:
            InputError: If there are no requirements.
        """
        requirements = _promise(self.requirements, "requirements", "require=...", "no_requirement")
        calibrated = self.calibrate(predictions)
        return check(calibrated, requirements, of=self.of, by_group=by_group, level=self.level)

    def acts_on(self, predictions: Predictions) -> Tensor:
        """Return whether to act on each new prediction (n), as the network gives it, or to abstain.

        Raises:
            InputError: If there is no threshold.
        """
        threshold = _promise(self.threshold, "a threshold", "risk=0.05", "no_threshold")
        return threshold.acts_on(self.calibrate(predictions))

    def prediction_sets(self, predictions: Predictions) -> Tensor:
        """Return the prediction sets (n, k) of new predictions, as the network gives them.

        Raises:
            InputError: If there are no sets.
        """
        sets = _promise(self.sets, "prediction sets", "alpha=0.1", "no_sets")
        return sets.apply(self.calibrate(predictions))

    # Files

    def save(self, path: str | Path) -> None:
        """Write the contract to a .contract file, a zip archive of its parts."""
        path = Path(path)
        check_suffix(path, (CONTRACT_SUFFIX,))
        with atomic_write(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(self.manifest, indent=1) + "\n")
            for name, content in self.parts.items():
                archive.writestr(name, content)

    @classmethod
    def load(cls, path: str | Path) -> "Contract":
        """Read a contract.

        Raises:
            InputError: If the file is none, is damaged or was changed, or its parts do not belong together.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: There is no such file.", code="no_file")
        try:
            return cls._from_parts(*_read_archive(path))
        except InputError as error:
            raise InputError(f"{path}: {error}", code=error.code) from None
        except _DAMAGE:
            raise InputError(
                f"{path}: Expected a contract that Contract.save wrote, got another or a damaged file.",
                code="contract_file",
            ) from None

    @classmethod
    def _from_parts(cls, manifest: dict[str, Any], parts: dict[str, bytes]) -> "Contract":
        """Build from the manifest and the content of the parts, after checking that they belong together."""
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder) / name for name in parts}
            for name, content in parts.items():
                paths[name].write_bytes(content)
            try:
                calibrator = calibrators.load(paths[_CALIBRATOR])
                sets = None if manifest["sets"] is None else Sets.load(paths[_SETS])
            except InputError as error:
                raise InputError(str(error).replace(f"{folder}/", ""), code=error.code) from None
        requirements, threshold = manifest["requirements"], manifest["threshold"]
        facts = {key: value for key, value in (threshold or {}).items() if key not in _ORIGIN_KEYS}
        contract = cls(
            calibrator=calibrator,
            requirements=tuple(requirements["texts"]),
            level=requirements["level"],
            threshold=None if threshold is None else CertifiedThreshold(**facts),
            sets=sets,
            of=manifest["of"],
            k=manifest["k"],
            class_names=None if manifest["class_names"] is None else tuple(manifest["class_names"]),
            manifest=manifest,
            parts=parts,
        )
        contract._check_parts()
        return contract

    def _check_parts(self) -> None:
        """Raise `InputError` unless all parts are of the same calibrator, reference and classes."""
        manifest = self.manifest
        origin = {"calibrator": manifest["parts"][_CALIBRATOR], "data": manifest["reference"]["data"]}
        derived = ("reference", "requirements", "threshold", "sets")
        mixed = {name for name in derived if manifest[name] and not origin.items() <= manifest[name].items()}
        if calibrators.num_classes(self.calibrator) not in (None, 0, self.k):
            mixed.add("calibrator")
        if self.threshold is not None and not _is_consistent(self.threshold, manifest["reference"]["n"]):
            mixed.add("threshold")
        if (_SETS in self.parts) != (self.sets is not None):
            mixed.add("sets")
        if self.sets is not None and (self.sets.k, self.sets.class_names) != (self.k, self.class_names):
            mixed.add("sets")
        if mixed:
            raise InputError(
                f"Expected parts that belong together, got {', '.join(sorted(mixed))} of another contract. Try "
                "creating the contract again.",
                code="parts_mismatch",
            )


def _promise(part: Any, name: str, option: str, code: str) -> Any:
    """Return a part of a contract; raise `InputError` if it was not promised."""
    if not part:
        raise InputError(f"Expected a contract with {name}, got none. Try Contract.create(..., {option}).", code=code)
    return part


def _check_holds(result: CheckResult) -> list[str]:
    """Return the values and bounds of all conditions; raise `InputError` unless all hold."""
    if result.status != "holds":
        failed = [str(condition) for condition in result.conditions if condition.status != "holds"]
        raise InputError(
            f"Expected requirements that hold, got {'; '.join(' '.join(text.split()) for text in failed)}.",
            code="requirement_not_met",
        )
    return [condition.description for condition in result.conditions]


def _is_consistent(threshold: CertifiedThreshold, n: int) -> bool:
    return (
        0 <= threshold.errors <= threshold.n <= n
        and 0 < threshold.risk < 1
        and 0 < threshold.delta < 1
        and 0 < threshold.threshold <= 1
        and math.isclose(threshold.share * n, threshold.n, rel_tol=1e-9)
    )


def _write_parts(calibrator: Any, sets: Sets | None) -> dict[str, bytes]:
    """Return the content of the files of all parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibrators.save(calibrator, folder / _CALIBRATOR)
        if sets is not None:
            sets.save(folder / _SETS)
        return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def _seal(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 digest of a manifest without the seal."""
    unsealed = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True).encode()).hexdigest()


def _read_archive(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the content of the parts of a contract's file, after checking all digests."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(info.filename for info in archive.infolist())
        if _MANIFEST not in names:
            raise ValueError(names)
        manifest = json.loads(_read_member(archive, _MANIFEST))
        _check_manifest(manifest)
        parts = manifest["parts"]
        if names != sorted([_MANIFEST, *parts]) or not {_CALIBRATOR} <= set(parts) <= set(_PARTS):
            raise InputError(
                f"Expected the parts {', '.join(parts)}, got {', '.join(names)}. Try another copy.", code="parts"
            )
        contents = {name: _read_member(archive, name) for name in parts}
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != parts[name]:
            raise InputError(
                f"Expected {name} as it was sealed, got a damaged or changed part. Try another copy.", code="checksum"
            )
    return manifest, contents


def _check_manifest(manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != CONTRACT_FORMAT:
        raise ValueError
    if manifest.get("version") != CONTRACT_VERSION:
        raise InputError(
            f"Expected a contract of version {CONTRACT_VERSION}, got {manifest.get('version')!r}. Try upgrading "
            "calibrant.",
            code="newer_format",
        )
    if manifest.get("seal") != _seal(manifest):
        raise InputError(
            "Expected the manifest as it was sealed, got a damaged or changed one. Try another copy.", code="seal"
        )


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a part; one that is too large to be genuine counts as damage."""
    with archive.open(name) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(name)
    return content
