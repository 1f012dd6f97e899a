"""All calibrators as functions of numpy arrays, whose text becomes a part of every exported .py file.

A calibrator takes logits z (n, k) in float64 and the fitted values by name, and returns calibrated logits (n, k).
"""

from typing import Any

import numpy as np

Array = np.ndarray
Fitted = dict[str, Any]
LOG_FLOOR = -87.0  # smallest log-probability of `beta`
MAX_SCORE = 10_000.0  # largest size of log-odds
TOP_LEAD = 1e-6  # relative, of the predicted class before all others
SCORE_ROUNDING = 1e-12  # of nonconformity scores
TIE_ROUNDING = 2.0**-48  # relative difference up to which two values are equal


def log_sum_exp(z: Array) -> Array:
    """Return the log-sum-exp of each row, (n, 1)."""
    top = z.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)  # as -inf - (-inf) is NaN
    return top + np.log(np.exp(z - top).sum(-1, keepdims=True))


def log_softmax(z: Array) -> Array:
    """Return log-probabilities."""
    return z - log_sum_exp(z)


def softmax(z: Array) -> Array:
    """Return probabilities."""
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def snap(x: Array, values: Array) -> Array:
    """Return the values, each replaced by the nearest point of the sorted x if it differs from it only by rounding."""
    upper = np.clip(np.searchsorted(x, values), 1, max(len(x) - 1, 1))
    low, high = x[upper - 1], x[np.minimum(upper, len(x) - 1)]
    nearest = np.where(values - low < high - values, low, high)
    return np.where(np.abs(values - nearest) <= TIE_ROUNDING * np.abs(nearest), nearest, values)


def log_sigmoid(x: Array) -> Array:
    """Return log(1 / (1 + exp(-x)))."""
    return -np.logaddexp(0.0, -x)


def scaled(z: Array, fitted: Fitted) -> Array:
    """Return z / T, in which no value is below the largest of its row plus `floor`, a negative number."""
    x = z / fitted["temperature"]
    return np.maximum(x, x.max(-1, keepdims=True) + fitted["floor"])


def smoothed(z: Array, fitted: Fitted) -> Array:
    """Return log((n p + 1/k) / (n + 1)) with p = softmax(z / T), where n is the `count` of fitted examples.

    This is p after one more example of uniform probabilities, which makes it positive.
    """
    share = 1 / (fitted["count"] + 1)
    return np.log(np.exp(log_softmax(z / fitted["temperature"])) * (1 - share) + share / z.shape[-1])


def score(z: Array, fitted: Fitted) -> Array:
    """Return the log-odds of class 1 of two, z_1 - z_0, clipped to `limit` in size, (n)."""
    return np.clip(z[:, 1] - z[:, 0], -fitted["limit"], fitted["limit"])


def score_to_logits(s: Array) -> Array:
    """Return logits (n, 2) with the log-odds s (n): -s/2 and s/2."""
    return np.stack([-s / 2, s / 2], -1)


def interpolate(x: Array, value: Array, query: Array) -> Array:
    """Interpolate linearly between points (x, value), sorted by x. Beyond the first and last point, stay constant."""
    return np.interp(snap(x, query), x, value)


def log_shares(p: Array) -> Array:
    """Return log(p / sum of its row), with equal shares for a row of zeros."""
    total = p.sum(-1, keepdims=True)
    return np.log(np.where(total > 0, p / np.where(total > 0, total, 1.0), 1 / p.shape[-1]))


def matrix(z: Array, fitted: Fitted) -> Array:
    """Return W x + b, with x = z / T centered in each row."""
    x = scaled(z, fitted)
    return (x - x.mean(-1, keepdims=True)) @ fitted["weight"].T + fitted["bias"]


def structured_matrix(z: Array, fitted: Fitted) -> Array:
    """Return (u + W u + b) / T for smoothed log-probabilities u (Berta et al. 2025).

    W is a matrix or a number, and T, the field "final", is the temperature of the result.
    """
    u, weight = smoothed(z, fitted), fitted["weight"]
    return (u + (u @ weight.T if weight.ndim == 2 else u * weight) + fitted["bias"]) / fitted["final"]


def ensemble_temperature(z: Array, fitted: Fitted) -> Array:
    """Return the log of a mixture of softmax(z / T), softmax(z) and the uniform distribution (Zhang et al. 2020)."""
    scaled_p, p = np.exp(log_softmax(z / fitted["temperature"])), np.exp(log_softmax(z))
    scaled_weight, weight, uniform_weight = fitted["weights"]
    return np.log(scaled_weight * scaled_p + weight * p + uniform_weight / z.shape[-1])


def logistic_line(z: Array, fitted: Fitted) -> Array:
    """Map the log-odds to slope times log-odds plus bias."""
    return score_to_logits(fitted["slope"] * score(z, fitted) + fitted["bias"])


def beta(z: Array, fitted: Fitted) -> Array:
    """Map the log-odds to a log p - b log q + c, with q = 1 - p (Kull et al. 2017)."""
    s = score(z, fitted)
    log_p, log_q = np.maximum(log_sigmoid(s), LOG_FLOOR), np.maximum(log_sigmoid(-s), LOG_FLOOR)
    return score_to_logits(fitted["a"] * log_p - fitted["b"] * log_q + fitted["c"])


def quadratic(z: Array, fitted: Fitted) -> Array:
    """Map the log-odds s by a function whose slope is linear between two ends, and constant beyond.

    `slopes` are the slopes at the lower and at the upper end, and `bias` is the value at the lower end.
    """
    s = score(z, fitted)
    low, high = fitted["ends"]
    length = high - low if high > low else 1.0  # equal ends make the position 0
    position = (np.clip(s, low, high) - low) / length
    rising = length * position**2 / 2  # integral of a slope that rises from 0 to 1
    falling = length * position - rising  # integral of a slope that falls from 1 to 0
    # How much each of the two slopes adds from the lower end to s; beyond an end, its slope goes on
    columns = np.stack([falling - np.maximum(low - s, 0), rising + np.maximum(s - high, 0)], 1)
    return score_to_logits(columns @ fitted["slopes"] + fitted["bias"])


def monotone(z: Array, fitted: Fitted) -> Array:
    """Map v = -log p by an increasing function that is linear between knots, and return minus its values.

    With slope s_j from knot e_j on, the function is v s_J + sum_{j < J} (s_j - s_{j+1}) min(v, e_{j+1}).
    """
    v = -log_softmax(z / fitted["temperature"])
    total = v * fitted["slopes"][-1]
    for knot, change in zip(fitted["knots"][1:], fitted["slopes"][:-1] - fitted["slopes"][1:]):
        total += np.minimum(v, knot) * change
    return -total


def intra_order_preserving(z: Array, fitted: Fitted) -> Array:
    """Map v = -log p by a function that has the slope s_r between v_(r) and v_(r+1), the r-th smallest v and the next.

    The slopes of a row are interpolated at two contexts: v_(2) - v_(1), the lead of the top class, and the mean of v.
    Up to a number per row, the function is v s_R + sum_{r < R} (s_r - s_{r+1}) min(v, v_(r+1)), with R slopes.
    `knots` are (2, j), j values of each context, and `slopes` are (R, 2, j), what each knot adds to each slope.
    """
    v, knots, slopes = -log_softmax(apply(fitted["monotone"], z)), fitted["knots"], fitted["slopes"]
    lowest = np.sort(np.minimum(v, 1e4), 1)[:, : max(len(slopes), 2)]  # at most 1e4, as v is inf at probability 0
    lead = np.diff(np.minimum(lowest[:, :2], 100.0))[:, 0]  # contexts are clipped at 100 as in the fit
    contexts = np.stack([lead, np.minimum(v, 100.0).mean(1)], 1)  # (n, 2)
    # Linear interpolation between knots: `above` is the position of a context in each interval, 0 before and 1 after
    # it, and the weight of a knot is the position in the interval to its left minus the one to its right
    above = np.clip((contexts[:, :, None] - knots[:, :-1]) / np.maximum(np.diff(knots), 1e-9), 0, 1)  # (n, 2, j - 1)
    knot_weights = np.pad(above, ((0, 0), (0, 0), (1, 0)), constant_values=1) - np.pad(above, ((0, 0), (0, 0), (0, 1)))
    row_slopes = knot_weights.reshape(len(z), knots.size) @ slopes.reshape(len(slopes), -1).T  # (n, R)
    total = v * row_slopes[:, -1:]
    for r in range(min(len(slopes), z.shape[1]) - 1):
        total = total + (row_slopes[:, r] - row_slopes[:, r + 1])[:, None] * np.minimum(v, lowest[:, r + 1 : r + 2])
    return -total


def focal_map(z: Array, gamma: Any) -> Array:
    """Return the log of the focal calibration map, p proportional to q / g (Komisarenko & Kull 2024, eq. 1).

    Here q = softmax(z). With o = 1 - q and r = -q log q / o, from 0 at q = 0 to 1 at q = 1, g is o^gamma (1 + gamma r).
    The top class is computed from its log-odds, as 1 - q would lose its digits near q = 1.
    """
    top = np.zeros(z.shape, dtype=bool)
    np.put_along_axis(top, z.argmax(-1)[:, None], True, -1)
    relative_z = z - z.max(-1, keepdims=True)
    # At least -1e30, so that log-odds and log o stay finite if no other class is possible
    top_log_odds = -log_sum_exp(np.where(top, -np.inf, np.maximum(relative_z, -1e30)))
    log_q = relative_z + log_sigmoid(top_log_odds)
    other_log_q = np.where(top, -np.inf, log_q)
    log_o = np.where(top, log_sigmoid(-top_log_odds), np.log1p(-np.exp(other_log_q)))
    d = np.minimum(top_log_odds, 80.0)  # q / o = exp(d); above 80, r is 1, and exp may overflow
    other_r = -np.maximum(other_log_q, -1e4) * np.exp(other_log_q - log_o)  # finite, as inf * 0 is NaN
    r = np.where(top, -log_sigmoid(d) * np.exp(d), other_r)
    log_g = gamma * log_o + np.log1p(gamma * r)
    top_log_g = (log_g * top).sum(-1, keepdims=True)
    return log_softmax(np.minimum(relative_z - (log_g - top_log_g), 0.0))  # no class exceeds the top one


def isotonic(z: Array, fitted: Fitted) -> Array:
    """Map the probability of each class j by its points, those from index start[j] to start[j + 1]."""
    p, points, values, bounds = softmax(z), fitted["p"], fitted["value"], fitted["start"]
    columns = [interpolate(points[i:j], values[i:j], column) for i, j, column in zip(bounds[:-1], bounds[1:], p.T)]
    return log_shares(np.maximum(np.stack(columns, 1), fitted["floor"]))


def shared_isotonic(z: Array, fitted: Fitted) -> Array:
    """Map the probabilities of all classes by the same points, plus epsilon p to keep their order."""
    p = softmax(z)
    return log_shares(interpolate(fitted["p"], fitted["value"], p) + fitted["epsilon"] * p)


def venn_abers(z: Array, fitted: Fitted) -> Array:
    """Return the log of high / (1 - low + high) for each class, divided by the sum of the row (Vovk et al. 2015).

    low and high are the values of two isotonic fits at the probability of the class: with the new example labeled as
    another class, and labeled as this class.
    """
    p, bounds, columns = softmax(z), fitted["start"], []
    for i, j, column in zip(bounds[:-1], bounds[1:], p.T):
        x, low, high = (fitted[name][i:j] for name in ("p", "low", "high"))
        # Below all x, low is 0; above all x, high is 1. Probabilities that differ by rounding are equal
        low = np.append(0.0, low)[np.searchsorted(x, column * (1 + TIE_ROUNDING), side="right")]
        high = np.append(high, 1.0)[np.searchsorted(x, column * (1 - TIE_ROUNDING), side="left")]
        columns.append(high / (1 - low + high))
    return log_shares(np.stack(columns, 1))


def confidence(z: Array, event: Any) -> Array:
    """Return the probability of the predicted class, or of one class."""
    p = softmax(z)
    return p.max(-1) if event == "top" else p[:, event]


def look_up(edges: Array, value: Array, c: Array) -> Array:
    """Return the value of each confidence's bin, or the confidence itself if the bin is empty."""
    in_bin = value[np.clip(np.searchsorted(edges, c) - 1, 0, len(value) - 1)]
    return np.where(np.isnan(in_bin), c, in_bin)


def replace_confidence(z: Array, c: Array, event: Any) -> Array:
    """Return log p (n, k) with a new probability c (n,) of the predicted class or, if binary, of the event.

    The event is "top", the predicted class, or 0 or 1, one class of two. The other classes share 1 - c in their old
    ratios, but none may exceed c (1 - TOP_LEAD): the argmax stays.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if event != "top":
            pair = np.stack([np.log1p(-c), np.log(c)], -1)
            return pair if event == 1 else pair[:, ::-1]
        log_p, top = log_softmax(z), np.zeros(z.shape, dtype=bool)
        np.put_along_axis(top, z.argmax(-1)[:, None], True, -1)
        rest = np.where(top, -np.inf, log_p)
        log_rest = log_sum_exp(rest)
        uniform = -np.log(z.shape[-1] - 1.0)  # log of equal shares, if no other class has a probability
        share = np.where(np.isneginf(log_rest), uniform, rest - log_rest)
        replaced = np.where(top, -np.inf, np.log1p(-c)[:, None] + share)
        limit = np.log(c) + np.log1p(-TOP_LEAD)
        for i in np.flatnonzero(replaced.max(-1) > limit):
            replaced[i] = cap(replaced[i], limit[i])
        return np.where(top, np.log(c)[:, None], replaced)


def cap(log_p: Array, log_limit: float) -> Array:
    """Lower the probabilities of a row (k,) that exceed the limit to it, and raise the others by one factor.

    The sum stays the same. A row is unchanged if its sum exceeds k times the limit.
    """
    limit, p = np.exp(log_limit), np.sort(np.exp(log_p))[::-1]
    # Entry m of each array is for m classes at the limit. The sum of the others, p[m:], is `other_sum`; it must become
    # `sum_left`, what the m classes leave of the whole sum
    other_sum = np.cumsum(p[::-1])[::-1]
    sum_left = other_sum[0] - limit * np.arange(len(p))
    factor = sum_left / other_sum
    feasible = np.flatnonzero((factor * p <= limit) & (sum_left >= 0))  # the largest of the others, p[m], fits
    # The smallest feasible m lowers the fewest classes
    return np.minimum(log_p + np.log(factor[feasible[0]]), log_limit) if len(feasible) else log_p


def data_bins(z: Array, fitted: Fitted, name: str = "value") -> Array:
    """Replace the confidence by the value of its bin, which the fitted field `name` holds."""
    return replace_confidence(z, look_up(fitted["edges"], fitted[name], confidence(z, fitted["of"])), fitted["of"])


def top_label_binning(z: Array, fitted: Fitted) -> Array:
    """Replace the confidence by the accuracy of its bin.

    The bins divide the log-odds of the predicted class, or of class `of` of two. `group` is the index of the set of
    bins of each class, as rare classes share one, and `edges` and `accuracy` have a row per set.
    """
    event_class = z.argmax(-1) if fitted["of"] == "top" else np.full(len(z), fitted["of"])
    rows = np.arange(len(z))
    other_z = z.copy()
    other_z[rows, event_class] = -np.inf
    odds = z[rows, event_class] - log_sum_exp(other_z)[:, 0]  # log-odds against all other classes
    group = fitted["group"][event_class]
    bins = [int(np.searchsorted(fitted["edges"][g], x)) for g, x in zip(group, odds)]
    in_bin = fitted["accuracy"][group, bins]
    c = confidence(z, fitted["of"])
    return replace_confidence(z, np.where(np.isnan(in_bin), c, in_bin), fitted["of"])  # an empty bin changes nothing


def auto(z: Array, fitted: Fitted) -> Array:
    """Return the log of the weighted mean of the members' probabilities, or their weighted log-odds for two classes.

    Beyond the log-odds of the fit, the mixture changes at most as fast as the log-odds do.
    """
    if z.shape[-1] > 2:
        members = zip(fitted["members"], fitted["weights"])
        log_p = np.stack([log_softmax(apply(member, z)) + np.log(w) for member, w in members])
        top = log_p.max(0)
        return top + np.log(np.exp(log_p - top).sum(0))
    low, high = fitted["ends"]
    odds, mixed = log_odds(z), mixed_log_odds(z, fitted)
    excess = odds - np.clip(odds, low, high)  # beyond the ends, 0 between them
    # The mixture at the two ends, from logits with these log-odds
    at_low, at_high = mixed_log_odds(np.array([[-low / 2, low / 2], [-high / 2, high / 2]]), fitted)
    at_end = np.where(excess < 0, at_low, at_high)
    # The change from the end on, limited to lie between 0 and the excess
    change = np.minimum(np.maximum(mixed - at_end, np.minimum(excess, 0)), np.maximum(excess, 0))
    return score_to_logits(np.where(excess == 0, mixed, at_end + change))


def mixed_log_odds(z: Array, fitted: Fitted) -> Array:
    """Return the weighted sum of the log-odds that the members give."""
    return np.sum([w * log_odds(apply(member, z)) for member, w in zip(fitted["members"], fitted["weights"])], axis=0)


def log_odds(z: Array) -> Array:
    """Return the log-odds of class 1 of two."""
    log_p = np.maximum(log_softmax(z), -MAX_SCORE)
    return log_p[:, 1] - log_p[:, 0]


def check_logits(logits: Any, k: int) -> Array:
    """Return logits (n, k) in float64, with at least 2 classes if k is 0. One score per row is the logit of class 1.

    Raise `ValueError` for another shape, NaN, +inf, rows of -inf, and probabilities.
    """
    z = np.asarray(logits, dtype=np.float64)
    if (z.ndim == 1 and k == 2) or (z.ndim == 2 and z.shape[1] == 1 and k in (0, 2)):
        z = from_binary_logits(z)
    if z.ndim != 2 or z.shape[1] < 2 or k not in (0, z.shape[1]):
        hint = " Try logits[None] for one row, or from_binary_logits(scores) for one score per row."
        raise ValueError(f"Expected logits (n, {k or 'k'}), got {z.shape}.{hint if z.ndim == 1 else ''}")
    if not np.isfinite(z.max(1)).all():
        raise ValueError("Expected logits with a finite maximum in each row, got NaN or infinity. Try dropping them.")
    total, num_mixed = z.sum(1), ((z != 0).sum(1) > 1).sum()  # one-hot rows may be logits
    if num_mixed >= 2 and (z >= 0).all():
        # Probabilities with two decimals of not too many classes, or with more of them
        is_rounded = z.shape[1] <= 50 and (np.abs(100 * z - np.round(100 * z)) < 1e-4).all()
        if (np.abs(total - 1) < (0.030001 if is_rounded else 1e-3)).all() or (np.abs(total - 100) < 0.1).all():
            raise ValueError("Expected logits, got probabilities. Try from_probs(probs), with probs / 100 for percent.")
    return z


def from_binary_logits(scores: Any, *, logits: bool = False) -> Array:
    """Return logits (n, 2) of one score per row, the logit of class 1, (n) or (n, 1).

    Raise `ValueError` for several scores that all lie in [0, 1], as probabilities do, unless `logits`.
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim not in (1, 2) or s.shape[1:] not in ((), (1,)):
        raise ValueError(f"Expected one score per row (n), got {s.shape}.")
    s = s.reshape(len(s))
    if not logits and ((s >= 0) & (s <= 1)).all() and ((s > 0) & (s < 1)).sum() >= 3:
        raise ValueError(
            "Expected logits, got scores that all lie in [0, 1]. Try from_probs(scores), or "
            "from_binary_logits(scores, logits=True) if they are logits all the same."
        )
    is_certain = np.isposinf(s)  # [-inf, 0] in place of [0, inf]
    return np.stack([np.where(is_certain, -np.inf, 0.0), np.where(is_certain, 0.0, s)], -1)


def from_probs(probs: Any) -> Array:
    """Return logits (n, k) of probabilities (n, k), or of the probability of class 1 of two, (n) or (n, 1).

    Raise `ValueError` for anything that is no probability.
    """
    p = np.asarray(probs)
    max_error = 2e-2 if p.dtype == np.float16 else 1e-3
    p = p.astype(np.float64)
    if p.ndim not in (1, 2):
        raise ValueError(f"Expected probabilities (n, k), or (n) of class 1 of two, got {p.shape}.")
    if not ((p >= -1e-6) & (p <= 1 + 1e-6)).all():  # NaN too
        raise ValueError("Expected probabilities in [0, 1], got other numbers or NaN.")
    p = np.clip(p, 0.0, 1.0)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.concatenate([1 - p.reshape(-1, 1), p.reshape(-1, 1)], 1)
    if not (np.abs(p.sum(1) - 1) <= max_error).all():
        raise ValueError("Expected probabilities that sum to 1 in each row, got other sums. Try dividing by them.")
    with np.errstate(divide="ignore"):
        return np.log(p)


def group_index(groups: Any, names: Any, n: int) -> Array:
    """Return the index of each row's group among the names (n). A new group has the number of names as index."""
    values = np.asarray(groups, dtype=object)  # texts as they are: other arrays of texts drop trailing "\\0"
    if values.shape != (n,):  # None, too
        raise ValueError("Expected the group of each row: calibrate(logits, groups).")
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]
    # A group of the same text takes precedence over a group of the same number
    position = {to_number(name): i for i, name in enumerate(names)} | {name: i for i, name in enumerate(names)}
    index = [position.get(text, position.get(to_number(text), len(names))) for text in texts]
    return np.array(index, dtype=np.int64)


def to_number(text: str) -> Any:
    """Return the number in a text, so that "2.0" equals "2", or another text unchanged."""
    try:
        return float(text)
    except ValueError:
        return text


def group_calibrated(z: Array, fitted: Fitted, groups: Any) -> Array:
    """Apply the common calibrator, then the slope and biases of each row's group if there are groups."""
    common = apply(fitted["pooled"], z)
    if not len(fitted["names"]):
        return common
    index = group_index(groups, fitted["names"], len(z))
    # The last entries, slope 1 and biases 0, leave rows of new groups as they are
    slopes, biases = np.append(fitted["slopes"], 1.0), np.concatenate([fitted["biases"], np.zeros((1, z.shape[1]))])
    return common * slopes[index, None] + biases[index]


MAPS: dict[str, Any] = {
    "Auto": auto,
    "BayesianBinning": data_bins,
    "Beta": beta,
    "BiasCorrectedTemperature": lambda z, fitted: z / fitted["temperature"] + fitted["bias"],
    "Dirichlet": lambda z, fitted: np.maximum(log_softmax(z), fitted["floor"]) @ fitted["weight"].T + fitted["bias"],
    "EnsembleTemperature": ensemble_temperature,
    "FocalMap": lambda z, fitted: focal_map(z, fitted["gamma"]),
    "FocalTemperature": lambda z, fitted: focal_map(z / fitted["temperature"], fitted["gamma"]),
    "HistogramBinning": lambda z, fitted: data_bins(z, fitted, "accuracy"),
    "Identity": lambda z, fitted: z,
    "IntraOrderPreserving": intra_order_preserving,
    "Intercept": logistic_line,
    "Isotonic": isotonic,
    "Logistic": logistic_line,
    "Matrix": matrix,
    "Monotone": monotone,
    "Platt": logistic_line,
    "PriorShift": lambda z, fitted: apply(fitted["calibrator"], z) + fitted["shift"],
    "Quadratic": quadratic,
    "ScalingBinning": lambda z, fitted: data_bins(apply(fitted["scaler"], z), fitted),
    "SharedIsotonic": shared_isotonic,
    "SmoothedTemperature": smoothed,
    "Spline": lambda z, fitted: replace_confidence(
        z, interpolate(fitted["confidence"], fitted["value"], confidence(z, fitted["of"])), fitted["of"]
    ),
    "StructuredMatrix": structured_matrix,
    "StructuredVector": lambda z, fitted: (
        (smoothed(z, fitted) * (1 + fitted["scale"]) + fitted["bias"]) / fitted["final"]
    ),
    "Temperature": lambda z, fitted: z / fitted["temperature"],
    "TopLabelBinning": top_label_binning,
    "Vector": lambda z, fitted: scaled(z, fitted) * fitted["scale"] + fitted["bias"],
    "VennAbers": venn_abers,
}


def apply(fitted: Fitted, z: Array, groups: Any = None) -> Array:
    """Return the calibrated logits (n, k) of a fitted calibrator, by the map for its class.

    `fitted` holds the name of the class and the learned values. `groups` has the group of each row, which only
    "GroupCalibrated" needs.
    """
    arrays = {name: np.asarray(value) if isinstance(value, list) else value for name, value in fitted.items()}
    if "members" in fitted:
        arrays["members"] = fitted["members"]  # a list of calibrators, not of numbers
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        if fitted["class"] == "Chain":
            return apply(fitted["second"], apply(fitted["first"], z, groups), groups)
        if fitted["class"] == "GroupCalibrated":
            return group_calibrated(z, arrays, groups)
        return MAPS[fitted["class"]](z, arrays)


def class_scores(z: Array, sets: Fitted) -> Array:
    """Return the nonconformity score of every class, (n, k): the larger, the less a class fits the logits.

    "lac" is 1 - p. "aps" is the sum of p from the most probable class down to this one, less 1 - u of its own p, and
    "raps" adds a penalty for each rank. "saps" uses only the largest p, and a penalty for each further rank. u is a
    pseudorandom value in [0, 1) for each row.
    """
    if not np.isfinite(z.max(1)).all():  # NaN and infinity would be in no set
        raise ValueError("Expected logits with a finite maximum in each row, got NaN or infinity.")
    p = softmax(z)
    if sets["score"] == "lac":
        return 1 - p
    order = np.argsort(-p, axis=1, kind="stable")
    in_order = np.take_along_axis(p, order, 1)
    u, rank = uniforms(z, sets)[:, None], np.arange(p.shape[1])
    if sets["score"] == "saps":
        by_rank = np.where(rank == 0, u * in_order, in_order[:, :1] + sets["penalty"] * (rank - 1 + u))
    else:
        by_rank = np.cumsum(in_order, 1) - (1 - u) * in_order  # u p of the class itself, which the sum holds once
        if sets["score"] == "raps":
            by_rank = by_rank + sets["penalty"] * (rank + 1)
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, by_rank, 1)
    return scores


def uniforms(z: Array, sets: Fitted) -> Array:
    """Return a pseudorandom value in [0, 1) for every row: a hash of its logits in float32 and of the seed.

    A word is the bits of two logits. The sum of all words, each times a key, is mixed (splitmix64, Steele et al. 2014).
    """
    values = np.ascontiguousarray(z.astype(np.float32) + np.float32(0))  # -0 becomes 0
    values = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))  # to whole words
    with np.errstate(over="ignore"):  # all products are modulo 2^64
        x = (values.view(np.int64) * np.array(sets["keys"], dtype=np.int64)).sum(1).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        # The seed changes all values
        x = x + np.uint64(sets["seed"] * 0x9E3779B97F4A7C15 % 2**64)
        x ^= x >> np.uint64(31)
        x = x * np.uint64(0x9E3779B97F4A7C15)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53  # the 53 bits of a float64


def sets_of(z: Array, sets: Fitted, groups: Any = None) -> Array:
    """Return the prediction sets (n, k) of calibrated logits, True for the classes in the set.

    With thresholds by group, new groups use the threshold that is named "".
    """
    thresholds = np.array(sets["thresholds"], dtype=np.float64)
    if sets["by"] == "groups":
        of_new_groups = thresholds[sets["names"].index("")]
        thresholds = np.append(thresholds, of_new_groups)[group_index(groups, sets["names"], len(z)), None]
    return class_scores(z, sets) <= thresholds + SCORE_ROUNDING


def cross_sets_of(z: Array, sets: Fitted) -> Array:
    """Return the cross-conformal sets (n, k) of logits as the network gives them, True for the classes in the set.

    A class is in the set if more than the share alpha of the scores is at least as large as its own score. Each fold
    of the fit is compared under the calibrator that was fitted without it.
    """
    # Number of scores at least as large as the score of the class, itself included
    num_at_least = np.ones(z.shape, dtype=np.int64)
    for fitted, scores in zip(sets["calibrators"], sets["scores"]):
        new_scores = class_scores(apply(fitted, z), sets)
        num_at_least += len(scores) - np.searchsorted(scores, new_scores - SCORE_ROUNDING)
    return num_at_least > sets["alpha"] * (sum(map(len, sets["scores"])) + 1)
