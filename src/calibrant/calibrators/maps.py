"""The map of every calibrator, for arrays of numpy and for tensors. The text becomes a part of every exported .py file.

A map takes logits z (n, k) of any precision and the learned fields by name, and returns calibrated logits (n, k). The
functions that it needs beside the array API standard come from `array_functions`, and in exported files from
`deployment/_numpy_functions.py`.
"""

import math
from typing import Any

from calibrant.calibrators.array_functions import (
    apply,
    class_indices,
    confidence,
    double,
    log_softmax,
    log_sum_exp,
    namespace,
    numbers_like,
    rank,
    single,
    smallest,
    softmax,
)

Array = Any
Fitted = Any  # the learned fields by name
LOG_PROB_FLOOR = -87.0  # log of the smallest float32; lower log-probabilities are raised to it
MAX_LOG_ODDS = 1e4  # at which log-odds and -log p are clipped
MAX_CONTEXT = 100.0  # -log p is clipped here in the contexts of ranks, where impossible classes are all alike
MIN_KNOT_DISTANCE = 1e-9  # replaces the distance 0 of equal quantiles as a divisor
MIN_TOP_LEAD = 1e-6  # relative lead of the predicted class over any other; more in coarser precision
TIE_ROUNDING = 2.0**-48  # relative difference up to which two values are equal
TINY_DIVISOR = 1e-300  # replaces a divisor of 0, so that 0 / 0 becomes 0 instead of nan


def identity(z: Array, fitted: Fitted) -> Array:
    """Return z."""
    return z


def temperature(z: Array, fitted: Fitted) -> Array:
    """Return z / T."""
    return single(z) / fitted["temperature"]


def bias_corrected_temperature(z: Array, fitted: Fitted) -> Array:
    """Return z / T + c."""
    return double(z) / fitted["temperature"] + fitted["bias"]


def scale(z: Array, temperature: Any, floor: float) -> Array:
    """Return z / T, raised to at least the floor, a negative number, below the top of its row."""
    xp, x = namespace(z), double(z) / temperature
    return xp.maximum(x, xp.max(x, axis=-1, keepdims=True) + floor)


def center(x: Array) -> Array:
    """Return x less the mean of its row."""
    return x - namespace(x).mean(x, axis=-1, keepdims=True)


def vector(z: Array, fitted: Fitted) -> Array:
    """Return v x + c, with x = z / T."""
    return scale(z, fitted["temperature"], fitted["floor"]) * fitted["scale"] + fitted["bias"]


def matrix(z: Array, fitted: Fitted) -> Array:
    """Return W x + c, with x = z / T centered in each row."""
    return center(scale(z, fitted["temperature"], fitted["floor"])) @ fitted["weight"].T + fitted["bias"]


def raised_log_probs(z: Array, floor: float) -> Array:
    """Return log-probabilities, each raised to at least the floor."""
    return log_softmax(z).clip(min=floor)


def dirichlet(z: Array, fitted: Fitted) -> Array:
    """Return W log p + c."""
    return raised_log_probs(z, fitted["floor"]) @ fitted["weight"].T + fitted["bias"]


def smooth(z: Array, temperature: Any, count: Any) -> Array:
    """Return log((n p + 1/k) / (n + 1)) with p = softmax(z / T), where n is the `count` of fitted examples.

    This is p after one more example of uniform probabilities, which makes it positive.
    """
    share = 1 / (count + 1)
    return namespace(z).log(softmax(double(z) / temperature) * (1 - share) + share / z.shape[-1])


def smoothed_temperature(z: Array, fitted: Fitted) -> Array:
    """Return the log of the smoothed probabilities."""
    return smooth(z, fitted["temperature"], fitted["count"])


def structured_vector(z: Array, fitted: Fitted) -> Array:
    """Return (u + v u + c) / T for smoothed log-probabilities u, with the field "final" as T (Berta et al. 2025)."""
    u = smooth(z, fitted["temperature"], fitted["count"])
    return (u * (1 + fitted["scale"]) + fitted["bias"]) / fitted["final"]


def structured_matrix(z: Array, fitted: Fitted) -> Array:
    """Return (u + W u + c) / T for smoothed log-probabilities u, with the field "final" as T (Berta et al. 2025)."""
    u = smooth(z, fitted["temperature"], fitted["count"])
    return (u + (u @ fitted["weight"].T + fitted["bias"])) / fitted["final"]


def ensemble_temperature(z: Array, fitted: Fitted) -> Array:
    """Return the log of a mixture of softmax(z / T), softmax(z) and the uniform distribution (Zhang et al. 2020)."""
    xp, log_p = namespace(z), log_softmax(z)
    uniform = xp.zeros_like(log_p) - math.log(z.shape[-1])
    members = xp.stack([log_softmax(double(z) / fitted["temperature"]), log_p, uniform])
    return log_sum_exp(members + xp.log(fitted["weights"])[:, None, None], 0)


def binary_score(z: Array, limit: Any) -> Array:
    """Return the score of each row of two classes, z_1 - z_0, clipped to +-limit, (n)."""
    x = double(z)
    return namespace(z).clip(x[:, 1] - x[:, 0], -limit, limit)


def score_to_logits(s: Array) -> Array:
    """Return the logits -s/2 and s/2, (n, 2), of scores s (n)."""
    return namespace(s).stack([-s / 2, s / 2], axis=-1)


def log_sigmoid(x: Array) -> Array:
    """Return log(1 / (1 + exp(-x)))."""
    xp = namespace(x)
    return x.clip(max=0.0) - xp.log1p(xp.exp(-xp.abs(x)))


def logistic_line(z: Array, fitted: Fitted) -> Array:
    """Map the score to slope times score plus bias."""
    return score_to_logits(fitted["slope"] * binary_score(z, fitted["limit"]) + fitted["bias"])


def beta_features(s: Array) -> Array:
    """Return log p and -log(1 - p) of p = sigmoid(s), (n, 2)."""
    xp = namespace(s)
    log_p, log_q = (log_sigmoid(x).clip(min=LOG_PROB_FLOOR) for x in (s, -s))
    return xp.stack([log_p, -log_q], axis=1)


def beta(z: Array, fitted: Fitted) -> Array:
    """Map the score to a log p - b log q + c, with q = 1 - p (Kull et al. 2017)."""
    features = beta_features(binary_score(z, fitted["limit"]))
    return score_to_logits(fitted["a"] * features[:, 0] + fitted["b"] * features[:, 1] + fitted["c"])


def quadratic_features(s: Array, ends: Any) -> Array:
    """Return features (n, 2) of scores s. Times the slopes at both ends they are the quadratic map, but for a bias.

    At position t from 0 to 1 between the ends, the slope is (1 - t) first + t second, and outside it is constant. Each
    feature is the integral of the share of one slope from the low end to s.
    """
    xp, (low, high) = namespace(s), ends
    length = high - low + TINY_DIVISOR  # above 0 if all scores are equal
    position = (s.clip(low, high) - low) / length  # 0 at the low end, 1 at the high end
    rising = length * position**2 / 2  # integral of t
    falling = length * position - rising  # integral of 1 - t
    return xp.stack([falling - (low - s).clip(min=0.0), rising + (s - high).clip(min=0.0)], axis=1)


def quadratic(z: Array, fitted: Fitted) -> Array:
    """Map the score by a function whose slope is linear between two ends, and constant beyond."""
    features = quadratic_features(binary_score(z, fitted["limit"]), fitted["ends"])
    return score_to_logits(features @ fitted["slopes"] + fitted["bias"])


def monotone(z: Array, fitted: Fitted) -> Array:
    """Map v = -log p by an increasing function that is linear between knots, and return minus its values.

    With slope s_j from knot e_j on, the function is v s_J + sum_{j < J} (s_j - s_{j+1}) min(v, e_{j+1}).
    """
    xp, v, slopes = namespace(z), -log_softmax(double(z) / fitted["temperature"]), fitted["slopes"]
    mapped = v * slopes[-1]
    for knot, change in zip(fitted["knots"][1:], slopes[:-1] - slopes[1:]):
        mapped += xp.minimum(v, knot) * change
    return -mapped


def lowest_and_contexts(v: Array, ranks: int) -> tuple[Array, Array]:
    """Return the max(ranks, 2) lowest v of every row in increasing order, and the two contexts of its slopes, (n, 2).

    The contexts are v_(2) - v_(1), the lead of the top class, and the mean of v.
    """
    xp = namespace(v)
    lowest = smallest(v.clip(max=MAX_LOG_ODDS), min(max(ranks, 2), v.shape[1]))
    lead = lowest[:, 1].clip(max=MAX_CONTEXT) - lowest[:, 0].clip(max=MAX_CONTEXT)
    return lowest, xp.stack([lead, xp.mean(v.clip(max=MAX_CONTEXT), axis=1)], axis=1)


def position_in_pieces(contexts: Array, knots: Array) -> Array:
    """Return the position of both contexts (n, 2) in the j - 1 pieces between their knots (2, j), (n, 2, j - 1).

    It is 0 at or below a piece, and 1 above it.
    """
    width = (knots[:, 1:] - knots[:, :-1]).clip(min=MIN_KNOT_DISTANCE)
    return ((contexts[:, :, None] - knots[:, :-1]) / width).clip(0.0, 1.0)


def intra_order_preserving(z: Array, fitted: Fitted) -> Array:
    """Map v = -log p by a function that has the slope s_r between v_(r) and v_(r+1), the r-th smallest v and the next.

    The slopes of a row are interpolated at its two contexts. Up to a number per row, the function is
    v s_R + sum_{r < R} (s_r - s_{r+1}) min(v, v_(r+1)), with R slopes. `knots` are (2, j), j values of each context,
    and `slopes` are (R, 2, j), what each knot adds to each slope.
    """
    xp, knots, slopes = namespace(z), fitted["knots"], fitted["slopes"]
    v = -log_softmax(apply(fitted["monotone"], double(z)))
    lowest, contexts = lowest_and_contexts(v, len(slopes))
    size = knots.shape[0] * (knots.shape[1] - 1)
    positions = xp.reshape(position_in_pieces(contexts, knots), (z.shape[0], size))
    rises = xp.reshape(slopes[:, :, 1:] - slopes[:, :, :-1], (len(slopes), size))  # from knot to knot
    row_slopes = positions @ rises.T + xp.sum(slopes[:, :, 0], axis=1)  # (n, R)
    mapped = v * row_slopes[:, -1:]
    for r in range(min(len(slopes), z.shape[1]) - 1):
        mapped += (row_slopes[:, r] - row_slopes[:, r + 1])[:, None] * xp.minimum(v, lowest[:, r + 1, None])
    return -mapped


def top_class(z: Array) -> Array:
    """Return which class is predicted in each row, (n, k) bool, the first one in a tie."""
    return class_indices(z) == namespace(z).argmax(z, axis=-1)[:, None]


def focal_map(z: Array, gamma: Any) -> Array:
    """Return the log of the focal calibration map, p proportional to q / g (Komisarenko & Kull 2024, eq. 1).

    Here q = softmax(z). With o = 1 - q and r = -q log q / o, from 0 at q = 0 to 1 at q = 1, g is o^gamma (1 + gamma r).
    The top class is computed from its log-odds, as 1 - q would lose its digits near q = 1.
    """
    xp, top = namespace(z), top_class(z)
    relative_z = z - xp.max(z, axis=-1, keepdims=True)
    # At least -1e30, so that log-odds and log o stay finite if no other class is possible
    top_log_odds = -log_sum_exp(xp.where(top, -math.inf, relative_z.clip(min=-1e30)), -1)[:, None]
    log_q = relative_z + log_sigmoid(top_log_odds)
    other_log_q = xp.where(top, -math.inf, log_q)
    other_q = xp.exp(other_log_q)  # at most 1/2, so that 1 - q and log1p(-q) are accurate
    log_o = xp.where(top, log_sigmoid(-top_log_odds), xp.log1p(-other_q))
    # q / o is exp(d) with the log-odds d; above 80, r is 1, and exp may overflow
    top_r = log1p_ratio(top_log_odds.clip(max=80.0))
    other_r = -other_log_q.clip(min=-1e4) * other_q / (1 - other_q)  # log q is finite, as inf * 0 is NaN
    log_g = gamma * log_o + xp.log1p(gamma * xp.where(top, top_r, other_r))
    top_log_g = xp.sum(xp.where(top, log_g, 0.0), axis=-1, keepdims=True)
    mapped = (relative_z - (log_g - top_log_g)).clip(max=0.0)  # no class exceeds the top one
    return mapped - log_sum_exp(mapped, -1)[:, None]


def log1p_ratio(d: Array) -> Array:
    """Return log(1 + t) / t with t = exp(-d), by a Taylor series for small t: in ONNX, log1p(t) is log(1 + t)."""
    xp = namespace(d)
    t = xp.exp(-d)
    series = 1 - t * (1 / 2 - t * (1 / 3 - t * (1 / 4 - t * (1 / 5 - t * (1 / 6 - t / 7)))))
    return xp.where(t < 1e-2, series, -log_sigmoid(d) * xp.exp(d))  # -log sigmoid(d) is log(1 + t)


def fixed_focal_map(z: Array, fitted: Fitted) -> Array:
    """Return log p after the focal calibration map."""
    return focal_map(single(z), fitted["gamma"])


def focal_temperature(z: Array, fitted: Fitted) -> Array:
    """Return log p after the temperature and the focal calibration map."""
    return focal_map(single(z) / fitted["temperature"], fitted["gamma"])


def interpolate(x: Array, value: Array, query: Array) -> Array:
    """Interpolate linearly between the points (x, value) with strictly increasing x, and constantly beyond them.

    A query that differs from a point by rounding has its value: points may lie as close as `TIE_ROUNDING`.
    """
    xp = namespace(query)
    if len(x) == 1:
        return xp.zeros_like(query) + value
    upper = rank(x, query).clip(1, len(x) - 1)  # index of the point above the query
    low, high = x[upper - 1], x[upper]
    position = ((query - low) / (high - low)).clip(0.0, 1.0)  # 0 at the point below, 1 at the one above
    nearest = xp.where(position < 0.5, low, high)
    is_equal = xp.abs(query - nearest) <= TIE_ROUNDING * xp.abs(nearest)
    position = xp.where(is_equal, xp.round(position), position)
    start, end = value[upper - 1], value[upper]
    return xp.where(position < 0.5, start + position * (end - start), end - (1 - position) * (end - start))


def log_shares(p: Array) -> Array:
    """Divide each row of p (n, k) by its sum and return the logarithm. A row of zeros becomes uniform."""
    xp = namespace(p)
    total = xp.sum(p, axis=-1, keepdims=True)
    return xp.log(xp.where(total > 0, p / total, 1 / p.shape[-1]))


def points_by_class(fitted: Fitted, *names: str) -> Any:
    """Yield the fields of each class, which are stored one class after the other from index start[j] on."""
    start = fitted["start"].tolist()
    for j in range(len(start) - 1):
        yield tuple(fitted[name][start[j] : start[j + 1]] for name in names)


def isotonic(z: Array, fitted: Fitted) -> Array:
    """Map the probability of each class by its points."""
    xp, p = namespace(z), softmax(z)
    curves = points_by_class(fitted, "p", "value")
    columns = [interpolate(x, value, p[:, j]) for j, (x, value) in enumerate(curves)]
    return log_shares(xp.stack(columns, axis=1).clip(min=fitted["floor"]))


def shared_isotonic(z: Array, fitted: Fitted) -> Array:
    """Map the probabilities of all classes by the same points, plus epsilon p to keep their order."""
    p = softmax(z)
    return log_shares(interpolate(fitted["p"], fitted["value"], p) + fitted["epsilon"] * p)


def venn_abers_interval(z: Array, fitted: Fitted) -> tuple[Array, Array]:
    """Return the values of two isotonic fits at the probability of each class, both (n, k) (Vovk et al. 2015).

    They are for the new example labeled as another class, and labeled as this class. Probabilities that differ by
    rounding are equal.
    """
    xp, p, lows, highs = namespace(z), softmax(z), [], []
    for j, (x, low, high) in enumerate(points_by_class(fitted, "p", "low", "high")):
        below = rank(x, p[:, j] * (1 + TIE_ROUNDING), side="right")
        above = rank(x, p[:, j] * (1 - TIE_ROUNDING)) - x.shape[0]  # counted from the end
        lows.append(xp.where(below > 0, low[below - 1], 0.0))  # low is 0 below all x
        highs.append(xp.where(above < 0, high[above], 1.0))  # high is 1 above all x
    return xp.stack(lows, axis=1), xp.stack(highs, axis=1)


def venn_abers(z: Array, fitted: Fitted) -> Array:
    """Return the log of high / (1 - low + high) for each class, divided by the sum of the row."""
    low, high = venn_abers_interval(z, fitted)
    return log_shares(high / (1 - low + high))


def fill_nan(value: Array, fallback: Array) -> Array:
    """Return the values, or the fallback where they are NaN."""
    xp = namespace(value)
    return xp.where(xp.isnan(value), fallback, value)


def replace_confidence(z: Array, c: Array, event: Any = "top") -> Array:
    """Return log p (n, k) with a new probability c (n) of the predicted class or, if binary, of the event.

    The event is "top", the predicted class, or 0 or 1, one class of two. The other classes keep their proportions, but
    none exceeds the predicted class: the surplus goes to smaller ones. The predicted class changes only if its new
    probability is 1/k or less, or too few classes are possible.
    """
    xp = namespace(z)
    log_c, log_rest = xp.log(c), xp.log1p(-c)
    if event != "top":  # there are two classes
        return xp.stack([log_rest, log_c] if event == 1 else [log_c, log_rest], axis=-1)
    top = top_class(z)
    other_z = xp.where(top, -math.inf, z)
    # If all others have probability 0, they have no proportions and get equal shares
    is_certain = xp.max(other_z, axis=-1, keepdims=True) == -math.inf
    log_share = xp.where(is_certain, -math.log(z.shape[-1] - 1), log_softmax(other_z))
    replaced = xp.where(top, -math.inf, log_rest[:, None] + log_share)
    # The others stay below the confidence by a relative lead that survives rounding to the precision of the logits
    limit = log_c + math.log1p(-max(MIN_TOP_LEAD, 8 * float(xp.finfo(z.dtype).eps)))
    exceeds = xp.max(replaced, axis=-1) > limit
    if xp.any(exceeds):
        replaced[exceeds] = cap(replaced[exceeds], limit[exceeds][:, None])
    return xp.where(top, log_c[:, None], replaced)


def cap(log_p: Array, log_limit: Array) -> Array:
    """Lower probabilities above the limit of their row to it, and raise the others in proportion to keep row sums.

    Rows in which the limit is too low for that stay unchanged. Column m of the arrays (n, k) below is the case that the
    m largest probabilities are at the limit; the first feasible case is taken.
    """
    xp = namespace(log_p)
    limit, sorted_p = xp.exp(log_limit), xp.sort(xp.exp(log_p), axis=-1)
    tail = xp.flip(sorted_p.cumsum(-1), axis=-1)  # sum of the probabilities that are not at the limit
    # What m probabilities at the limit leave to the others, and the factor that raises these to it
    remaining_mass = tail[:, :1] - limit * class_indices(log_p)
    factor = remaining_mass / tail
    feasible = (factor * xp.flip(sorted_p, axis=-1) <= limit) & (remaining_mass >= 0)
    first_feasible = xp.argmax(1 * feasible, axis=-1)[:, None]
    raised = log_p + xp.log(xp.take_along_axis(factor, first_feasible, axis=-1))
    return xp.where(xp.any(feasible, axis=-1)[:, None], xp.minimum(raised, log_limit), log_p)


def data_bins(z: Array, fitted: Fitted, name: str = "value") -> Array:
    """Replace the confidence by the value of its bin, which the field `name` holds, or keep it in an empty bin."""
    c = confidence(z, fitted["of"])
    return replace_confidence(z, fill_nan(fitted[name][rank(fitted["edges"][1:-1], c)], c), fitted["of"])


def histogram_binning(z: Array, fitted: Fitted) -> Array:
    """Replace the confidence by the accuracy of its bin."""
    return data_bins(z, fitted, "accuracy")


def scaling_binning(z: Array, fitted: Fitted) -> Array:
    """Scale the logits, and replace the confidence by the value of its bin."""
    return data_bins(apply(fitted["scaler"], z), fitted)


def binned_class(z: Array, event: Any) -> Array:
    """Return the class of every row whose probability is binned, (n): the predicted class, or always the same one."""
    top = namespace(z).argmax(z, axis=-1)
    return top if event == "top" else 0 * top + event


def class_log_odds(z: Array, index: Array) -> Array:
    """Return the log-odds log(c / (1 - c)) of one class per row, with probability c, (n).

    Computed from the logits, so that they differ between rows whose probabilities round to 1.
    """
    xp, x = namespace(z), double(z)
    other_logits = xp.where(class_indices(z) == index[:, None], -math.inf, x)
    return xp.take_along_axis(x, index[:, None], axis=-1)[:, 0] - log_sum_exp(other_logits, -1)


def top_label_binning(z: Array, fitted: Fitted) -> Array:
    """Replace the confidence by the accuracy of its bin.

    The bins divide the log-odds of the predicted class, or of class `of` of two. `group` is the index of the set of
    bins of each class, as rare classes share one, and `edges` and `accuracy` have a row per set.
    """
    xp, index = namespace(z), binned_class(z, fitted["of"])
    row, odds = fitted["group"][index], class_log_odds(z, index)
    bin_index = xp.sum(fitted["edges"][row] < odds[:, None], axis=1)
    c = confidence(z, fitted["of"])
    return replace_confidence(z, fill_nan(fitted["accuracy"][row, bin_index], c), fitted["of"])


def spline(z: Array, fitted: Fitted) -> Array:
    """Replace the confidence by the slope of the spline there."""
    c = confidence(z, fitted["of"])
    return replace_confidence(z, interpolate(fitted["confidence"], fitted["value"], c), fitted["of"])


def log_odds(z: Array) -> Array:
    """Return the log-odds of class 1 of two, (n), from log-probabilities clipped at -10,000."""
    log_p = log_softmax(z).clip(min=-MAX_LOG_ODDS)
    return log_p[:, 1] - log_p[:, 0]


def mixed_log_odds(z: Array, fitted: Fitted) -> Array:
    """Return the weighted sum of the log-odds that the members give, (n)."""
    return sum(float(w) * log_odds(apply(member, z)) for member, w in zip(fitted["members"], fitted["weights"]))


def auto(z: Array, fitted: Fitted) -> Array:
    """Return the log of the weighted mean of the members' probabilities, or their weighted log-odds for two classes.

    Beyond the log-odds of the fit, the mixture of log-odds is that at the end plus a change that has the sign of the
    excess of the input over the end and is no larger.
    """
    xp, z = namespace(z), double(z)
    if z.shape[-1] > 2:
        members = zip(fitted["members"], fitted["weights"])
        return log_sum_exp(xp.stack([log_softmax(apply(member, z)) + math.log(w) for member, w in members]), 0)
    low, high = (float(end) for end in fitted["ends"])
    odds, mixed = log_odds(z), mixed_log_odds(z, fitted)
    excess = odds - odds.clip(low, high)  # beyond the ends, 0 between them
    logits_at_ends = numbers_like([[-low / 2, low / 2], [-high / 2, high / 2]], z)  # whose log-odds are the ends
    at_low, at_high = mixed_log_odds(logits_at_ends, fitted)
    at_end = xp.where(excess < 0, at_low, at_high)
    change = xp.maximum(mixed - at_end, excess.clip(max=0.0))
    change = xp.minimum(change, excess.clip(min=0.0))
    return score_to_logits(xp.where(excess == 0, mixed, at_end + change))


def chain(z: Array, fitted: Fitted) -> Array:
    """Return the second calibrator's map of the first one's."""
    return apply(fitted["second"], apply(fitted["first"], double(z)))


def prior_shift(z: Array, fitted: Fitted) -> Array:
    """Return the calibrated logits plus the log ratio of new and old class shares."""
    return apply(fitted["calibrator"], double(z)) + fitted["shift"]


def group_calibrated(common: Array, fitted: Fitted, index: Array) -> Array:
    """Return logits of the common calibrator with the correction of each row's group.

    `index` (n) is that of the group's slope and biases. Rows of new groups, with larger ones, stay as they are.
    """
    xp, m = namespace(common), len(fitted["slopes"])
    if not m:
        return common
    row, is_known = index.clip(0, m - 1), (index < m)[:, None]
    return xp.where(is_known, common * fitted["slopes"][row][:, None] + fitted["biases"][row], common)


MAPS: dict[str, Any] = {
    "Auto": auto,
    "BayesianBinning": data_bins,
    "Beta": beta,
    "BiasCorrectedTemperature": bias_corrected_temperature,
    "Chain": chain,
    "Dirichlet": dirichlet,
    "EnsembleTemperature": ensemble_temperature,
    "FocalMap": fixed_focal_map,
    "FocalTemperature": focal_temperature,
    "HistogramBinning": histogram_binning,
    "Identity": identity,
    "IntraOrderPreserving": intra_order_preserving,
    "Intercept": logistic_line,
    "Isotonic": isotonic,
    "Logistic": logistic_line,
    "Matrix": matrix,
    "Monotone": monotone,
    "Platt": logistic_line,
    "PriorShift": prior_shift,
    "Quadratic": quadratic,
    "ScalingBinning": scaling_binning,
    "SharedIsotonic": shared_isotonic,
    "SmoothedTemperature": smoothed_temperature,
    "Spline": spline,
    "StructuredMatrix": structured_matrix,
    "StructuredVector": structured_vector,
    "Temperature": temperature,
    "TopLabelBinning": top_label_binning,
    "Vector": vector,
    "VennAbers": venn_abers,
}
