"""Following the advice of refused calibrators, exports, fusions and features works."""

import json
import runpy
from dataclasses import dataclass

import numpy as np
import pytest
from advised import Case, follow
from commands import restored_registries
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from calibrant import Predictions, assess, calibrators, measure
from calibrant._core.kernels.digests import arrays_digest
from calibrant.calibrators import subgroups
from calibrant.deployment import export
from calibrant.integrations import sklearn
from calibrant.language_models.fusion import Fusion
from calibrant.planning import few_labels

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 120)
LOGITS = RNG.normal(size=(120, 3)) + 2 * np.eye(3)[LABELS]
P = Predictions(LOGITS, LABELS)
BINARY = Predictions.from_binary_logits(LOGITS[:, 0], LABELS % 2)
TEMPERATURE = calibrators.fit("Temperature", P)
ONE_CLASS = Predictions(LOGITS, np.zeros(120, int))
ORDER = RNG.permutation(120)
SIGNAL = 1 / (1 + np.exp(-LOGITS[:, 0]))
MODEL = LogisticRegression().fit(LOGITS, LABELS > 0)


@dataclass(frozen=True)
class Halved:
    """Half of the logits, and something to remember."""

    memory: object = ()

    @classmethod
    def fit(cls, logits, labels):
        return cls()

    def __call__(self, logits):
        return logits / 2

    @staticmethod
    def numpy_map(z, fitted):
        return z / 2


CASES = [
    Case(
        "grid_range",
        lambda: calibrators.Temperature.fit(P, grid=[]),
        lambda t: calibrators.Temperature.fit(P, grid=[float(x) for x in t.removeprefix("numbers such as").split(",")]),
    ),
    Case(
        "unknown_method",
        lambda: calibrators.fit("MultiCalibrated", P),
        lambda t: t.evaluate("subgroups", subgroups=subgroups, predictions=BINARY, features={"a": SIGNAL}),
    ),
    Case(
        "signal_name",
        lambda: Fusion.fit({"intercept": SIGNAL, "b": LOGITS[:, 1]}, LABELS > 0),
        lambda t: Fusion.fit({"constant": SIGNAL, "b": LOGITS[:, 1]}, LABELS > 0),
    ),
    Case(
        "one_class",
        lambda: assess(ONE_CLASS, calibrators=["Vector"], choose="Vector"),
        lambda t: assess(ONE_CLASS, calibrators=[t.split()[2].strip(",")]),
    ),
    Case("no_calibrators", lambda: assess(P, calibrators=[]), lambda t: eval(t.split("`")[1], {"measure": measure})(P)),
    Case(
        "accuracy_kind",
        lambda: few_labels.gap_interval(SIGNAL, 0.9),
        lambda t: few_labels.gap_interval(
            SIGNAL, getattr(few_labels, t.rstrip("."))(SIGNAL, ORDER[:50], LABELS[ORDER[:50]] > 0)
        ),
    ),
    Case(
        "cv_prefit",
        lambda: sklearn.CalibratedClassifier(MODEL, "Platt", cv="prefit").fit(LOGITS, LABELS > 0),
        lambda t: t.evaluate(
            "CalibratedClassifier",
            CalibratedClassifier=sklearn.CalibratedClassifier,
            FrozenEstimator=FrozenEstimator,
            model=MODEL,
        ).fit(LOGITS, LABELS > 0),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_advice_works(case):
    with restored_registries():
        follow(case)


@pytest.mark.parametrize("name", ["intercept", "b is high", "group size", "a x b"])
def test_signals_with_the_name_of_a_coefficient_are_refused(name):
    columns = dict(zip(["a", "b", name], LOGITS.T, strict=True))
    follow(
        Case(
            "signal_name",
            lambda: Fusion.fit(columns, LABELS > 0),
            lambda t: Fusion.fit(columns | {"c": columns.pop(name)}, LABELS > 0),
        )
    )


def test_advice_on_files_works(tmp_path):
    path, named = tmp_path / "a.safetensors", {}
    for order in ("abc", "cba"):
        named[order] = Predictions(LOGITS, np.array(list("abc"))[LABELS], class_names=list(order))
        calibrators.save(
            calibrators.fit("Vector", named[order]), tmp_path / f"{order}.safetensors", fitted_on=named[order]
        )
    test = Predictions(RNG.normal(size=(90, 3)), np.array(list("abc"))[LABELS[:90]], class_names=list("abc"))
    files = [str(tmp_path / f"{order}.safetensors") for order in named]
    follow(
        Case(
            "class_order",
            lambda: assess(named["abc"], test, files),
            lambda t: [assess(named["abc"], test, [file]) for file in files],
        )
    )
    with restored_registries():
        calibrators.register(Halved)
        follow(
            Case(
                "field_kind",
                lambda: calibrators.save(Halved({1: 2}), path),
                lambda t: calibrators.save(Halved(((1, 2),)), path),
            )
        )
    calibrators.save(TEMPERATURE, path)
    with safe_open(path, "np") as file:
        meta = {key: value for key, value in file.metadata().items() if key != "sha256"}
    meta["calibrator"] = json.dumps({"class": "Temperature", "fields": {}})
    save_file({}, path, meta | {"sha256": arrays_digest(meta, {})})
    follow(
        Case(
            "field_names",
            lambda: calibrators.load(path),
            lambda t: (calibrators.save(TEMPERATURE, path), calibrators.load(path)),
        )
    )


def test_advice_on_exports_works(tmp_path):
    path = tmp_path / "map.py"

    def exports_half():
        calibrators.register(Halved)
        export(Halved(), path)
        np.testing.assert_array_equal(runpy.run_path(str(path))["calibrate"](LOGITS), LOGITS / 2)

    with restored_registries():
        follow(Case("custom_calibrator", lambda: export(Halved(), path), lambda t: exports_half()))
    follow(
        Case(
            "suffix",
            lambda: export(TEMPERATURE, tmp_path / "map.java"),
            lambda t: export(TEMPERATURE, tmp_path / t.rstrip(".")),
        )
    )


def test_advice_on_exports_by_torch_works(torch, tmp_path):
    path, by_hand, spline = tmp_path / "map.pt2", calibrators.Temperature(2.0), calibrators.fit("Spline", BINARY)
    follow(
        Case(
            "not_exportable",
            lambda: export(spline, path),
            lambda t: export(spline, tmp_path / "map.py", to=t.rstrip(".")),
        )
    )
    follow(Case("no_num_classes", lambda: export(by_hand, path), lambda t: export(by_hand, path, **t.keywords())))
