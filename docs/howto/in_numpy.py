"""Apply a saved calibrator in plain numpy, without torch or calibrant: `pip install numpy safetensors`."""

import json

import numpy as np
from safetensors import safe_open


def _log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def _unit(z, a):
    x = z / a["temperature"]
    return np.maximum(x, x.max(-1, keepdims=True) + a["floor"])


def _matrix(z, a):
    x = _unit(z, a)
    return (x - x.mean(-1, keepdims=True)) @ a["weight"].T + a["bias"]


def _smoothed(z, a):
    n, k = a["count"], z.shape[-1]
    return np.log((n * np.exp(_log_softmax(z / a["temperature"])) + 1 / k) / (n + 1))


def _structured_matrix(z, a):
    u = _smoothed(z, a)
    return (u + u @ a["weight"].T + a["bias"]) / a["final"]


def _ensemble(z, a):
    members = (np.exp(_log_softmax(z / a["temperature"])), np.exp(_log_softmax(z)), np.full_like(z, 1 / z.shape[-1]))
    return np.log(sum(w * p for w, p in zip(a["weights"], members, strict=True)))


def _score(z, a):
    return np.clip(z[:, 1] - z[:, 0], -a["limit"], a["limit"])


def _pair(s):
    return np.stack([-s / 2, s / 2], -1)


def _beta(z, a):
    s = _score(z, a)
    log_p, log_q = (np.maximum(-np.logaddexp(0, x), -87.0) for x in (-s, s))
    return _pair(a["a"] * log_p - a["b"] * log_q + a["c"])


MAPS = {
    "Identity": lambda z, a: z,
    "Temperature": lambda z, a: z / a["temperature"],
    "BiasCorrectedTemperature": lambda z, a: z / a["temperature"] + a["bias"],
    "Vector": lambda z, a: _unit(z, a) * a["scale"] + a["bias"],
    "Matrix": _matrix,
    "Dirichlet": lambda z, a: np.maximum(_log_softmax(z), a["floor"]) @ a["weight"].T + a["bias"],
    "SmoothedTemperature": _smoothed,
    "StructuredVector": lambda z, a: (_smoothed(z, a) * (1 + a["scale"]) + a["bias"]) / a["final"],
    "StructuredMatrix": _structured_matrix,
    "EnsembleTemperature": _ensemble,
    "Platt": lambda z, a: _pair(a["slope"] * _score(z, a) + a["bias"]),
    "Beta": _beta,
}


def load(path):
    """Return the function from logits (n, k) to calibrated logits that a file contains."""
    with safe_open(path, "np") as file:
        tree = json.loads(file.metadata()["calibrator"])
        learned = {name.lstrip("."): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    numbers = {name: value for name, value in tree["fields"].items() if isinstance(value, float)}
    return lambda logits: MAPS[tree["class"]](np.asarray(logits, dtype=float), numbers | learned)
