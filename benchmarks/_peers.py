"""Other packages, each in a few lines of its own interface, by job. All start from float32 logits.

A contender has the name of its package, with a comma before a variant. `missing` lists packages that are not installed
or cannot be imported.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._harness import quiet, reason

PACKAGES = {  # package -> module to import
    "scikit-learn": "sklearn.calibration",
    "torchmetrics": "torchmetrics.functional.classification",
    "netcal": "netcal.scaling",
    "probmetrics": "probmetrics.calibrators",
    "torch-uncertainty": "torch_uncertainty.post_processing",
    "uncertainty-calibration": "calibration",
    "relplot": "relplot",
    "betacal": "betacal",
    "pytorch-ood": "pytorch_ood.detector",
    "mapie": "mapie.calibration",
}
Map = Callable[[Tensor], Tensor]  # logits to log-probabilities
_WORK: dict[str, dict[str, Callable[..., Any]]] = {}


def does(job: str, contender: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of (logits, labels) for a job."""

    def enroll(work: Callable[..., Any]) -> Callable[..., Any]:
        _WORK.setdefault(job, {})[contender] = work
        return work

    return enroll


@cache
def failure(package: str) -> str:
    """Return why a package cannot be imported; empty if it can."""
    try:
        with quiet():
            _declare_torchvision()
            importlib.import_module(PACKAGES[package])
    except Exception as error:
        return reason(error)
    return ""


def missing() -> dict[str, str]:
    """Return the packages that cannot be used, with the reason."""
    return {package: why for package in PACKAGES if (why := failure(package))}


def available(job: str) -> dict[str, Callable[..., Any]]:
    """Return the contenders of a job that can be used."""
    return {contender: work for contender, work in _WORK.get(job, {}).items() if not failure(contender.split(",")[0])}


@cache
def _declare_torchvision() -> Any:
    """Let torchvision import with another build of torch, by declaring two operators that are not used here."""
    library = torch.library.Library("torchvision", "DEF")
    for name in "nms", "qnms":
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library


def probs(z: Tensor) -> np.ndarray:
    """Return probabilities in float32."""
    return z.softmax(-1).numpy()


# Metrics: (logits, labels) -> number


@does("ece", "torchmetrics")
def _(z: Tensor, y: Tensor) -> float:
    from torchmetrics.functional.classification import multiclass_calibration_error

    return float(multiclass_calibration_error(z.softmax(-1), y, num_classes=z.shape[1], n_bins=15))


@does("ece", "torch-uncertainty")
def _(z: Tensor, y: Tensor) -> float:
    from torch_uncertainty.metrics.classification import CalibrationError

    metric = CalibrationError(task="multiclass", num_classes=z.shape[1], num_bins=15)
    metric.update(z.softmax(-1), y)
    return float(metric.compute())


@does("ece", "netcal")
def _(z: Tensor, y: Tensor) -> float:
    from netcal.metrics import ECE

    return float(ECE(15).measure(probs(z), y.numpy()))


@does("ece", "uncertainty-calibration")
def _(z: Tensor, y: Tensor) -> float:
    import calibration

    return float(calibration.get_ece(probs(z), y.numpy(), num_bins=15))


@does("ece", "relplot")
def _(z: Tensor, y: Tensor) -> float:
    import relplot

    c, a = relplot.multiclass_logits_to_confidences(z.numpy(), y.numpy())
    return float(relplot.metrics.binnedECE(c, a, nbins=15))


@does("ece", "mapie")
def _(z: Tensor, y: Tensor) -> float:
    from mapie.metrics.calibration import expected_calibration_error

    p = probs(z)
    correct = (p.argmax(1) == y.numpy()).astype(int)
    return float(expected_calibration_error(correct, p.max(1), num_bins=16, split_strategy="uniform"))


@does("ece", "probmetrics")
def _(z: Tensor, y: Tensor) -> float:
    from probmetrics.metrics import Metrics

    return float(Metrics.from_names(["ece-15"]).compute_all_from_labels_logits(y, z)["ece-15"])


@does("adaptive_ece", "torch-uncertainty")
def _(z: Tensor, y: Tensor) -> float:
    from torch_uncertainty.metrics.classification import AdaptiveCalibrationError

    metric = AdaptiveCalibrationError(task="multiclass", num_classes=z.shape[1], num_bins=15)
    metric.update(z.softmax(-1), y)
    return float(metric.compute())


@does("adaptive_ece", "netcal")
def _(z: Tensor, y: Tensor) -> float:
    from netcal.metrics import ECE

    return float(ECE(15, equal_intervals=False).measure(probs(z), y.numpy()))


@does("adaptive_ece", "uncertainty-calibration")
def _(z: Tensor, y: Tensor) -> float:
    import calibration

    return float(calibration.get_ece_em(probs(z), y.numpy(), num_bins=15))


@does("adaptive_ece", "mapie")
def _(z: Tensor, y: Tensor) -> float:
    from mapie.metrics.calibration import expected_calibration_error

    p = probs(z)
    correct = (p.argmax(1) == y.numpy()).astype(int)
    return float(expected_calibration_error(correct, p.max(1), num_bins=16, split_strategy="quantile"))


@does("adaptive_ece", "pytorch-ood")
def _(z: Tensor, y: Tensor) -> float:
    from pytorch_ood.metrics.functional import calibration_error

    c, predicted = z.softmax(-1).max(-1)
    return float(calibration_error(c, predicted == y, p="1", beta=len(y) // 15))


@does("classwise_ece", "torch-uncertainty")
def _(z: Tensor, y: Tensor) -> float:
    from torch_uncertainty.metrics.classification import ClasswiseCalibrationError

    metric = ClasswiseCalibrationError(num_classes=z.shape[1], num_bins=15)
    metric.update(z.softmax(-1), y)
    return float(metric.compute())


@does("classwise_ece", "uncertainty-calibration")
def _(z: Tensor, y: Tensor) -> float:
    import calibration

    return float(calibration.get_ece(probs(z), y.numpy(), num_bins=15, mode="marginal"))


@does("classwise_ece", "mapie")
def _(z: Tensor, y: Tensor) -> float:
    from mapie.metrics.calibration import expected_calibration_error

    options = {"num_bins": 16, "split_strategy": "uniform", "class_labels": y.numpy()}
    return float(expected_calibration_error(y.numpy(), probs(z), classwise=True, **options))


@does("smooth_ece", "relplot")
def _(z: Tensor, y: Tensor) -> float:
    import relplot

    return float(relplot.smECE(*relplot.multiclass_logits_to_confidences(z.numpy(), y.numpy())))


@does("smooth_ece", "torch-uncertainty")
def _(z: Tensor, y: Tensor) -> float:
    from torch_uncertainty.metrics.classification import SmoothCalibrationError

    metric = SmoothCalibrationError(kernel_type="reflected")
    metric.update(z.softmax(-1), y)
    return float(metric.compute())


@does("smooth_ece", "probmetrics")
def _(z: Tensor, y: Tensor) -> float:
    from probmetrics.metrics import Metrics

    return float(Metrics.from_names(["smece"]).compute_all_from_labels_logits(y, z)["smece"])


@does("interval", "uncertainty-calibration")
def _(z: Tensor, y: Tensor) -> float:
    import calibration

    return float(calibration.get_top_calibration_error_uncertainties(probs(z), y.numpy(), p=2)[1])


# Temperature: (logits, labels) -> T


@does("temperature", "scikit-learn")
def _(z: Tensor, y: Tensor) -> float:
    from sklearn.calibration import _TemperatureScaling

    return 1 / float(_TemperatureScaling().fit(z.numpy(), y.numpy()).beta_)


def _probmetrics_temperature(z: Tensor, y: Tensor, **options: Any) -> float:
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    fitted = get_calibrator("temp-scaling", **options)
    fitted.fit_torch(CategoricalLogits(z), y)
    return 1 / float(fitted.invtemp_)


@does("temperature", "probmetrics")
def _(z: Tensor, y: Tensor) -> float:
    return _probmetrics_temperature(z, y)


@does("temperature", "probmetrics, L-BFGS")
def _(z: Tensor, y: Tensor) -> float:
    return _probmetrics_temperature(z, y, ts_opt="lbfgs_line_search")


@does("temperature", "netcal")
def _(z: Tensor, y: Tensor) -> float:
    from netcal.scaling import TemperatureScaling

    fitted = TemperatureScaling()
    fitted.fit(probs(z.double()), y.numpy())
    return 1 / float(np.ravel(fitted.temperature)[0])


@does("temperature", "netcal, float32")
def _(z: Tensor, y: Tensor) -> float:
    from netcal.scaling import TemperatureScaling

    fitted = TemperatureScaling()
    fitted.fit(probs(z), y.numpy())
    return 1 / float(np.ravel(fitted.temperature)[0])


def _loader(z: Tensor, y: Tensor) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(z, y), batch_size=len(y))


@does("temperature", "torch-uncertainty")
def _(z: Tensor, y: Tensor) -> float:
    from torch_uncertainty.post_processing import TemperatureScaler

    fitted = TemperatureScaler()
    fitted.fit(_loader(z, y), progress=False)
    return float(fitted.temperature[0])


@does("temperature", "pytorch-ood")
def _(z: Tensor, y: Tensor) -> float:
    from pytorch_ood.detector import TemperatureScaling

    fitted = TemperatureScaling(torch.nn.Identity())
    fitted.fit_logits(z, y)
    return float(fitted.t.detach())


# Calibrators: (logits, labels) -> map to log-probabilities


def _log(p: Any) -> Tensor:
    p = torch.from_numpy(np.asarray(p, dtype=np.float64))
    return (p / p.sum(1, keepdim=True)).log()


def _scikit_learn(method: str) -> Callable[[Tensor, Tensor], Map]:
    def fit(z: Tensor, y: Tensor) -> Map:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Logits(ClassifierMixin, BaseEstimator):
            """A classifier that returns its input as scores."""

            def fit(self, x, y):
                self.classes_ = np.arange(x.shape[1])
                self.n_features_in_ = x.shape[1]
                return self

            def predict(self, x):
                return x.argmax(1)

            def decision_function(self, x):
                return x if x.shape[1] > 2 else x[:, 1] - x[:, 0]

        base = FrozenEstimator(Logits().fit(z.numpy(), y.numpy()))
        fitted = CalibratedClassifierCV(base, method=method).fit(z.numpy(), y.numpy())
        return lambda z: _log(fitted.predict_proba(z.numpy()))

    return fit


def _netcal(module: str, name: str) -> Callable[[Tensor, Tensor], Map]:
    def fit(z: Tensor, y: Tensor) -> Map:
        fitted = getattr(importlib.import_module(f"netcal.{module}"), name)()
        fitted.fit(probs(z.double()), y.numpy())
        return lambda z: _log(fitted.transform(probs(z.double())))

    return fit


def _probmetrics(name: str) -> Callable[[Tensor, Tensor], Map]:
    def fit(z: Tensor, y: Tensor) -> Map:
        from probmetrics import calibrators
        from probmetrics.distributions import CategoricalLogits

        fitted = getattr(calibrators, name)() if "Calibrator" in name else calibrators.get_calibrator(name)
        fitted.fit_torch(CategoricalLogits(z.double()), y)
        return lambda z: fitted.predict_proba_torch(CategoricalLogits(z.double())).get_logits().log_softmax(-1)

    return fit


def _torch_uncertainty(name: str, *, counts: bool) -> Callable[[Tensor, Tensor], Map]:
    def fit(z: Tensor, y: Tensor) -> Map:
        from torch_uncertainty import post_processing

        fitted = getattr(post_processing, name)(**({"num_classes": z.shape[1]} if counts else {}))
        fitted.fit(_loader(z.float(), y), progress=False)
        return lambda z: fitted(z.float()).detach().log_softmax(-1)

    return fit


def _uncertainty_calibration(name: str) -> Callable[[Tensor, Tensor], Map]:
    def fit(z: Tensor, y: Tensor) -> Map:
        import calibration

        fitted = getattr(calibration, name)(len(y), num_bins=15)
        fitted.train_calibration(probs(z.double()), y.numpy())
        return lambda z: _log(fitted.calibrate(probs(z.double())))

    return fit


@does("calibrator", "betacal, one against the rest")
def _(z: Tensor, y: Tensor) -> Map:
    from betacal import BetaCalibration

    p = probs(z.double())
    fitted = [BetaCalibration("abm").fit(p[:, [j]], (y.numpy() == j).astype(int)) for j in range(p.shape[1])]
    return lambda z: _log(
        np.stack([class_map.predict(q) for class_map, q in zip(fitted, probs(z.double()).T[..., None])], 1)
    )


for _method in "temperature", "sigmoid", "isotonic":
    does("calibrator", f"scikit-learn, {_method}")(_scikit_learn(_method))
for _module, _name in (
    ("scaling", "TemperatureScaling"),
    ("scaling", "LogisticCalibration"),
    ("scaling", "BetaCalibration"),
    ("binning", "HistogramBinning"),
    ("binning", "IsotonicRegression"),
    ("binning", "BBQ"),
):
    does("calibrator", f"netcal, {_name}")(_netcal(_module, _name))
for _name in "ts-mix", "svs", "sms", "VectorScalingCalibrator", "ETSCalibrator", "isotonic":
    does("calibrator", f"probmetrics, {_name}")(_probmetrics(_name))
for _name, _counts in (
    ("TemperatureScaler", False),
    ("VectorScaler", True),
    ("MatrixScaler", True),
    ("DirichletScaler", True),
    ("HistogramBinningScaler", False),
    ("IsotonicRegressionScaler", False),
):
    does("calibrator", f"torch-uncertainty, {_name}")(_torch_uncertainty(_name, counts=_counts))
for _name in "HistogramMarginalCalibrator", "PlattBinnerMarginalCalibrator":
    does("calibrator", f"uncertainty-calibration, {_name}")(_uncertainty_calibration(_name))


# Losses: () -> (logits, labels) -> mean loss


@does("focal", "torch-uncertainty")
def _() -> Callable[[Tensor, Tensor], Tensor]:
    from torch_uncertainty.losses import FocalLoss

    return FocalLoss(gamma=3.0)


@does("mmce", "netcal")
def _() -> Callable[[Tensor, Tensor], Tensor]:
    from netcal.regularization import MMCEPenalty

    return MMCEPenalty()


def versions() -> Iterator[tuple[str, str]]:
    """Yield the version of every package, or why it is missing."""
    from importlib.metadata import PackageNotFoundError, version

    for package in PACKAGES:
        try:
            yield package, f"{version(package)}{f' ({why})' if (why := failure(package)) else ''}"
        except PackageNotFoundError:
            yield package, "not installed"
