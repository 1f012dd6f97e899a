"""Kernels compiled by numba. `backend.dispatch` chooses between these and the plain versions in their callers.

Kernels fill arrays. An array of length 0 skips an output. Numba compiles on first use, which takes
seconds, and caches the result on disk. Few classes are processed in columns of `BLOCK_ROWS` rows, many classes row by
row, so that sums over classes use vector instructions and never depend on the neighbors of a row.

The file is long because kernels write out loops that are single calls in torch.
"""

import math
from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
from numba import njit, types  # pyright: ignore
from numba.extending import intrinsic, overload  # pyright: ignore

from calibrant._core.kernels import minorant

MANY_CLASSES = 128  # number from which a row fills the vectors by itself and columns of rows would not stay in cache
BLOCK_ROWS = 64
_LANES = 16  # numbers compared at a time
_ROUNDING_SHIFT = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest integer
_LOG2_E = 1 / math.log(2)
_LN_2 = math.log(2)
# 2^f for f in [-1/2, 1/2], interpolated at Chebyshev nodes: relative error 4e-18 before rounding, exactly 1 at 0
_EXP2_COEFFICIENTS = (
    1.0, 0.6931471805599453, 0.24022650695910158, 0.055504108664821625, 0.009618129107587256, 0.001333355814640647,
    0.00015403530463724353, 1.5252733841556773e-05, 1.3215432535912375e-06, 1.0178057087733941e-07,
    7.074194297288521e-09, 4.4558179083360645e-10,
)  # fmt: skip

# 2 (atanh(s) / s - 1) / s^2 in powers of s^2, for log m = 2 atanh(s) with s = (m - 1) / (m + 1), m in [.7, 1.42]
_LOG_COEFFICIENTS = (
    0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508, 0.18182889125261723,
    0.15331721600556042, 0.14616449685043406,
)  # fmt: skip
# 2^f in single precision: relative error 2e-7, exactly 1 at 0
_SINGLE_EXP2_COEFFICIENTS = tuple(
    map(np.float32, (1.0, 0.6931471805599451, 0.24022349038020377, 0.05550381013797239, 0.009666368515384414,
                     0.0013381302536962971))
)  # fmt: skip
_SINGLE_ROUNDING_SHIFT = np.float32(1.5 * 2.0**23)
_MIN_EXPONENT = np.float32(-126.0)  # 2^-126 is as good as 0 beside 1, the largest term of every sum
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)


def _compile(function: Callable[..., Any]) -> Any:
    """Compile a kernel that keeps the order of its operations, so that results are the same on all processors."""
    return njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)


def _compile_sums(function: Callable[..., Any]) -> Any:
    """Compile with sums in any order, so that they use vector instructions."""
    return njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})(function)


@intrinsic
@no_type_check
def _use_long_vectors(_):
    """Let the kernel that calls this use vectors of 512 bits, if the processor has them.

    LLVM prefers 256 bits on most of these processors. Kernels that mainly compute exponentials take up to a third less
    time with 512. llvmlite has no name for this function attribute, so that its text is added to the set of names.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@_compile
@no_type_check
def _exp2(x):
    """Return 2^x for x in [-1020, 1020]. The compiler can vectorize it, unlike the library's function.

    x is an integer plus f in [-1/2, 1/2], and 2^x is 2^f, by a polynomial, times the power of the integer. That power
    is the float64 whose 52 bits of mantissa are 0 and whose exponent bits are the integer plus 1023.
    """
    t = x + _ROUNDING_SHIFT  # whose lowest bits are the nearest integer
    f = x - (t - _ROUNDING_SHIFT)
    value = _EXP2_COEFFICIENTS[11]
    for i in range(11):
        value = value * f + _EXP2_COEFFICIENTS[10 - i]
    return value * np.int64((np.float64(t).view(np.int64) << 52) + (1023 << 52)).view(np.float64)


@_compile
@no_type_check
def _single_exp2(x):
    """Return 2^x in single precision for x in [-126, 126], as `_exp2` does: 23 bits of mantissa, exponents plus 127."""
    t = x + _SINGLE_ROUNDING_SHIFT
    f = x - (t - _SINGLE_ROUNDING_SHIFT)
    value = _SINGLE_EXP2_COEFFICIENTS[5]
    for i in range(5):
        value = value * f + _SINGLE_EXP2_COEFFICIENTS[4 - i]
    return value * np.int32((np.float32(t).view(np.int32) << np.int32(23)) + np.int32(127 << 23)).view(np.float32)


def _exp2_like(x: Any) -> Any:
    """Return 2^x in the precision of x."""
    raise NotImplementedError  # kernels call one of the functions above


@overload(_exp2_like)
@no_type_check
def _choose_exp2(x):
    """Choose the function by the type of x while a kernel is compiled."""
    return (lambda x: _single_exp2(x)) if x == types.float32 else (lambda x: _exp2(x))


@_compile
@no_type_check
def _exp(x):
    """Return e^x for x <= 0, rounded to 0 below e^-707."""
    x = x * _LOG2_E
    value = _exp2(x if x > -1020.0 else -1020.0)
    return value if x > -1020.0 else 0.0


@_compile
@no_type_check
def exp_in_place(x):
    """Replace every float64 x <= 0 by e^x. Numpy has vector instructions for this on few processors."""
    _use_long_vectors()
    for i in range(len(x)):
        x[i] = _exp(x[i])


@_compile
@no_type_check
def _log(x):
    """Return log x for normal float64 x > 0, as exponent log 2 + log m, where x = m 2^exponent with m in [.7, 1.42].

    log m is 2 atanh(s) with s = (m - 1) / (m + 1), by its series.
    """
    bits = np.float64(x).view(np.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52  # floor(log2(x / sqrt(1/2))), so that m is near 1, and s near 0
    m = np.int64(bits - (exponent << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    # q w = 2 (atanh(s) / s - 1) is a polynomial in w, so that log m = 2 s + s w q
    q = _LOG_COEFFICIENTS[6]
    for i in range(6):
        q = q * w + _LOG_COEFFICIENTS[5 - i]
    return np.float64(exponent) * _LN_2 + (2.0 * s + s * w * q)


@_compile
@no_type_check
def _load_columns(z, m, row_max):
    """Copy the rows of z to the columns of m (k, BLOCK_ROWS), and store each row's maximum in `row_max`."""
    rows, k = z.shape
    for j in range(k):
        for i in range(rows):
            m[j, i] = z[i, j]
    row_max[:] = m[0]
    # A fixed length, for vector instructions: columns beyond the rows hold old values, which are not used
    for j in range(1, k):
        for i in range(BLOCK_ROWS):
            row_max[i] = m[j, i] if m[j, i] > row_max[i] else row_max[i]


@_compile
@no_type_check
def _load_margins(row, lanes, d):
    """Fill d with a row minus its maximum, and return the maximum.

    `lanes` is memory for 16 running maxima, each over every 16th element, which vector instructions compare at once.
    """
    end = len(row) - len(row) % _LANES
    lanes[:] = row[0]
    for first in range(0, end, _LANES):
        for i in range(_LANES):
            lanes[i] = row[first + i] if row[first + i] > lanes[i] else lanes[i]
    row_max = max(lanes)
    for j in range(end, len(row)):
        row_max = max(row_max, row[j])
    for j in range(len(row)):
        d[j] = np.float64(row[j]) - np.float64(row_max)
    return row_max


def row_stats(z: np.ndarray, *columns: Any) -> None:
    """Fill the statistics of `softmax.reference_stats` for the rows of z (n, k), and all probabilities p (k, n)."""
    (_stats_by_row if z.shape[1] >= MANY_CLASSES else _stats_by_column)(z, *columns)


@_compile
@no_type_check
def _stats_by_column(z, y, index, confidence, predicted, correct, log_likelihood, brier, entropy, class_probability, p):
    """Compute `row_stats` of logits z (n, k) and labels y (n) for few classes, in blocks of rows.

    A block is stored by class, a row to a column. `powers` are e^(z - max z), the probabilities of a row before
    division by their total. Outputs of length 0 are skipped. `class_probability` is that of class `index`, and p (k, n)
    receives all probabilities. The function is long because every statistic is computed while its block is in cache.
    """
    _use_long_vectors()
    n, k = z.shape
    m, row_max, powers = np.zeros((k, BLOCK_ROWS), z.dtype), np.zeros(BLOCK_ROWS, z.dtype), np.zeros((k, BLOCK_ROWS))
    total, log_total, sums = np.zeros(BLOCK_ROWS), np.zeros(BLOCK_ROWS), np.zeros(BLOCK_ROWS)
    first_maximum = np.zeros(BLOCK_ROWS, np.int32)
    for first in range(0, n, BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)  # a loop over a slice is vectorized, one over [first + i] is not
        labels, rows = y[block], range(len(y[block]))
        _load_columns(z[block], m, row_max)
        total[:] = 0.0
        for j in range(k):
            for i in range(BLOCK_ROWS):
                powers[j, i] = _exp(np.float64(m[j, i]) - np.float64(row_max[i]))
        for j in range(k):
            for i in range(BLOCK_ROWS):
                total[i] += powers[j, i]
        if len(log_likelihood) or len(entropy):
            for i in range(BLOCK_ROWS):
                log_total[i] = _log(total[i])
        if len(confidence):
            confidence_block = confidence[block]
            for i in rows:
                confidence_block[i] = 1.0 / total[i]
        if len(predicted) or len(correct):
            for above in range(k):  # from the last class, so that the first maximum is written last
                j = k - 1 - above
                for i in range(BLOCK_ROWS):
                    first_maximum[i] = np.int32(j) if m[j, i] == row_max[i] else first_maximum[i]
        if len(predicted):
            predicted_block = predicted[block]
            for i in rows:
                predicted_block[i] = first_maximum[i]
        if len(correct):
            correct_block = correct[block]
            for i in rows:
                correct_block[i] = first_maximum[i] == labels[i]
        if len(log_likelihood):
            log_likelihood_block = log_likelihood[block]
            for i in rows:
                log_likelihood_block[i] = np.float64(m[labels[i], i]) - np.float64(row_max[i]) - log_total[i]
        if len(brier):
            sums[:] = 0.0
            for j in range(k):
                for i in range(BLOCK_ROWS):
                    sums[i] += powers[j, i] * powers[j, i]
            brier_block = brier[block]
            for i in rows:
                brier_block[i] = _brier(sums[i], powers[labels[i], i], total[i])
        if len(entropy):
            sums[:] = 0.0
            for j in range(k):
                for i in range(BLOCK_ROWS):
                    d = np.float64(m[j, i]) - np.float64(row_max[i])
                    sums[i] += powers[j, i] * d if powers[j, i] > 0 else 0.0  # 0 log 0 = 0: d may be -inf
            entropy_block = entropy[block]
            for i in rows:
                entropy_block[i] = log_total[i] - sums[i] / total[i]
        if len(class_probability):
            class_probability_block = class_probability[block]
            for i in rows:
                class_probability_block[i] = powers[index, i] / total[i]
        if p.size:
            for j in range(k):
                for i in rows:
                    p[j, first + i] = powers[j, i] / total[i]


@_compile
@no_type_check
def _brier(squares, powers, total):
    """Return a row's Brier score, sum p^2 - 2 p_y + 1, where probabilities p are powers divided by their total.

    `squares` is the sum of the squared powers, `powers` the power of the label y, and `total` the sum of all powers.
    """
    return max(squares / (total * total) - 2.0 * (powers / total) + 1.0, 0.0)


@_compile_sums
@no_type_check
def _stats_by_row(z, y, index, confidence, predicted, correct, log_likelihood, brier, entropy, class_probability, p):
    """Compute `row_stats` of logits z (n, k) and labels y (n) for many classes, row by row.

    `powers` are e^d with the margins d = z - max z. Outputs of length 0 are skipped. `class_probability` is that of
    class `index`, and p (k, n) receives all probabilities.
    """
    _use_long_vectors()
    n, k = z.shape
    lanes, d, powers = np.zeros(_LANES, z.dtype), np.zeros(k), np.zeros(k)
    for i in range(n):
        _load_margins(z[i], lanes, d)
        for j in range(k):
            powers[j] = _exp(d[j])
        total, squares, weighted = 0.0, 0.0, 0.0
        for j in range(k):
            total += powers[j]
        if len(confidence):
            confidence[i] = 1.0 / total
        if len(predicted) or len(correct):
            first_maximum = 0
            while d[first_maximum] < 0.0:  # d is 0 at the maximum
                first_maximum += 1
            if len(predicted):
                predicted[i] = first_maximum
            if len(correct):
                correct[i] = first_maximum == y[i]
        if len(log_likelihood):
            log_likelihood[i] = d[y[i]] - _log(total)
        if len(brier):
            for j in range(k):
                squares += powers[j] * powers[j]
            brier[i] = _brier(squares, powers[y[i]], total)
        if len(entropy):
            for j in range(k):
                weighted += powers[j] * d[j] if powers[j] > 0 else 0.0  # 0 log 0 = 0: d may be -inf
            entropy[i] = _log(total) - weighted / total
        if len(class_probability):
            class_probability[i] = powers[index] / total
        if p.size:
            for j in range(k):
                p[j, i] = powers[j] / total


@_compile
@no_type_check
def _bin_indices(c, edges, index):
    """Fill `index` with the equal-width bin of every confidence c, ceil(c * bins) - 1.

    If some c is almost an edge, which rounding could move across it, all bins come from a search among the edges.
    """
    bins = len(edges) - 1
    is_near_edge = 0
    for i in range(len(c)):
        scaled = c[i] * bins
        nearest = (scaled + _ROUNDING_SHIFT) - _ROUNDING_SHIFT  # integer
        is_near_edge |= np.int64(abs(scaled - nearest) <= 1e-6)  # rounding may have moved it across
        below = nearest - 1.0 if nearest >= scaled else nearest
        # the low bits of the sum are the integer; most processors cannot convert vectors of floats to integers
        index[i] = np.float64(below + _ROUNDING_SHIFT).view(np.int64) & 0xFFFFFFFF
    if is_near_edge:
        for i in range(len(c)):
            index[i] = min(max(np.searchsorted(edges, c[i]) - 1, 0), bins - 1)


@_compile
@no_type_check
def event_bin_sums(c, outcome, w, edges, total):
    """Add the sums of `bins.Moments` over rows to total (6, b), in the order of its fields.

    c, outcome and w are the confidences, outcomes and weights (n); w is empty without weights. `edges` (b + 1) are
    those of bins of equal width.
    """
    index = np.empty(BLOCK_ROWS, np.uint64)
    # Rows alternate between two tables, so that an addition need not wait for that of the row before
    sums = np.zeros((2, total.shape[1], len(total)))
    for first in range(0, len(c), BLOCK_ROWS):
        rows = range(first, min(first + BLOCK_ROWS, len(c)))
        _bin_indices(c[first : first + len(rows)], edges, index)
        for i in rows:
            confidence, target, weight = c[i], outcome[i], w[i] if len(w) else 1.0
            cell = sums[i & 1, index[i - first]]
            cell[0] += weight
            cell[1] += weight * confidence
            cell[2] += weight * target
            gap = confidence - target
            cell[3] += weight * gap
            cell[4] += weight * (gap * gap)
            cell[5] += weight * (confidence * (1 - confidence))
    total += (sums[0] + sums[1]).T


@_compile
@no_type_check
def add_class_bins(p, y, w, edges, by_row, class_sums):
    """Add to class_sums (3, k b) the weights, probabilities and label weights of every class and bin.

    Probabilities in the first bin, which are most of them, are left out. A line of p has the probabilities of an
    example if `by_row`, otherwise those of a class. y and w are the labels and weights of the examples (n), and `edges`
    (b + 1) those of bins of equal width.
    """
    bins = np.uint64(len(edges) - 1)
    num_lines, size = p.shape
    first_edge = edges[1]
    # Place in the line, value and bin of the probabilities that are kept. Unsigned indices spare a test for negative
    # ones at every access
    place, c, index = np.empty(size + 1, np.uint64), np.empty(size + 1), np.empty(size + 1, np.uint64)
    for line in range(num_lines):
        count = np.uint64(0)
        for i in range(size):  # no branch, since the processor could not predict it
            place[count], c[count] = i, p[line, i]
            count += np.uint64(p[line, i] > first_edge)
        _bin_indices(c[:count], edges, index)
        for h in range(count):
            i, j = (np.uint64(line), place[h]) if by_row else (place[h], np.uint64(line))
            b = j * bins + index[h]
            class_sums[0, b] += w[i]
            class_sums[1, b] += w[i] * c[h]
            class_sums[2, b] += w[i] if np.uint64(y[i]) == j else 0.0


@_compile
@no_type_check
def add_weighted_bits(bits, keys, total):
    """Add to total (n) the sums over columns of bits (n, m) times keys (m), modulo 2^64, for `overlap.hash_rows`."""
    for i in range(len(bits)):
        weighted = np.uint64(0)
        for j in range(bits.shape[1]):
            weighted += bits[i, j] * keys[j]
        total[i] += weighted


venn_abers_pass = _compile(minorant.venn_abers_pass)


@_compile
@no_type_check
def _column_moments(m, row_max, b, s):
    """Fill s (4, BLOCK_ROWS) with each row's sums over classes of 2^t, t 2^t, t^2 2^t and t^3 2^t, t = b (z - max z).

    m (k, BLOCK_ROWS) holds the logits z of a block, a row to a column, and `row_max` their maxima.
    """
    _use_long_vectors()
    s[:] = 0.0
    for j in range(len(m)):
        for i in range(BLOCK_ROWS):
            t = (m[j, i] - row_max[i]) * b
            t = t if t > _MIN_EXPONENT else _MIN_EXPONENT  # 2^t is then as good as 0 beside the largest term, 1
            e = _exp2_like(t)
            s[0, i] += e
            e *= t
            s[1, i] += e
            e *= t
            s[2, i] += e
            s[3, i] += e * t


@_compile_sums
@no_type_check
def _row_moments(d, b):
    """Return the four sums of `_column_moments` for one row, given its margins d = z - max z."""
    _use_long_vectors()
    s0 = s1 = s2 = s3 = b - b  # 0 in the precision of b
    for j in range(len(d)):
        t = d[j] * b
        t = t if t > _MIN_EXPONENT else _MIN_EXPONENT  # 2^t is then as good as 0 beside the largest term, 1
        e = _exp2_like(t)
        s0 += e
        e *= t
        s1 += e
        e *= t
        s2 += e
        s3 += e * t
    return s0, s1, s2, s3


@_compile_sums
@no_type_check
def _exp_sum(d):
    """Return the sum of e^d."""
    _use_long_vectors()
    total = 0.0
    for j in range(len(d)):
        total += _exp(np.float64(d[j]))
    return total


@_compile_sums
@no_type_check
def nll_derivatives(z, y, w, b, s, out):
    """Add to out the sums over rows of `calibrators._temperature._nll_derivatives_of_rows`.

    At the inverse temperature b they are the NLL; its first, second and third derivative in b, times b, b^2 and b^3;
    and the square of the first derivative. If out has length 7, the NLL and the weight of the right predictions of the
    uncalibrated logits follow. Exponentials are computed in the precision of s (4, BLOCK_ROWS), whose content is
    overwritten. m1, m2 and m3 are the first three moments of the margins times b under the probabilities of a row. z
    (n, k) are logits, y (n) labels, and w (n) weights, empty without weights.
    """
    _use_long_vectors()
    n, k = z.shape
    is_wide, with_uncalibrated = k >= MANY_CLASSES, len(out) == 7
    m, row_max = np.zeros((0 if is_wide else k, BLOCK_ROWS), s.dtype), np.zeros(BLOCK_ROWS, s.dtype)
    total = np.zeros(BLOCK_ROWS)  # sums of e^(z - max z)
    lanes, d, exponent = np.zeros(_LANES, z.dtype), np.zeros(k, s.dtype), s.dtype.type(b * _LOG2_E)
    for first in range(0, n, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, n)
        if is_wide:
            for i in range(end - first):
                row_max[i] = _load_margins(z[first + i], lanes, d)
                s[0, i], s[1, i], s[2, i], s[3, i] = _row_moments(d, exponent)
                if with_uncalibrated:
                    total[i] = _exp_sum(d)
        else:
            _load_columns(z[first:end], m, row_max)
            _column_moments(m, row_max, exponent, s)
            if with_uncalibrated:
                total[:] = 0.0
                for j in range(k):
                    for i in range(BLOCK_ROWS):
                        total[i] += _exp(np.float64(m[j, i]) - np.float64(row_max[i]))
        for i in range(end - first):
            weight, norm = w[first + i] if len(w) else 1.0, np.float64(s[0, i])
            label_margin = np.float64(z[first + i, y[first + i]]) - np.float64(row_max[i])
            label_score = label_margin * b
            # The sums in s are of powers of t = b margin / ln 2
            m1, m2, m3 = s[1, i] / norm * _LN_2, s[2, i] / norm * _LN_2**2, s[3, i] / norm * _LN_2**3
            out[0] += weight * (_log(norm) - label_score)
            out[1] += weight * (m1 - label_score)
            out[2] += weight * (m2 - m1 * m1)
            out[3] += weight * (m3 - 3 * m1 * m2 + 2 * m1 * m1 * m1)
            out[4] += weight * ((m1 - label_score) * (m1 - label_score))
            if with_uncalibrated:
                out[5] += weight * (_log(total[i]) - label_margin)
                # A total below 2 has one largest logit; otherwise the first one is the predicted class
                if label_margin == 0.0 and (total[i] < 2.0 or np.argmax(z[first + i]) == y[first + i]):
                    out[6] += weight


_FIXED_POINT_SCALE, _LOWER_WORD_SPAN = 2.0**52, 2.0**36  # as in `metrics._sums` and for cells in `metrics._summary`
_MAX_ROWS_BEFORE_CARRY = 1024  # sums of so many parts below 2^52 fit into 63 bits


@_compile
@no_type_check
def add_to_summary(c, outcome, correct, log_p, brier, w, edges, high_confidence, first_cell, sums, cells):
    """Add rows to the exact sums of a summary, as `metrics._summary` does.

    Sums (3, f, b) of f features over b bins and cells (2, 3, g) of three features over g odds are fixed-point numbers
    of several words, so that they do not depend on the order of the rows.

    Columns of the rows, (n): confidence c of the event, its outcome, whether the prediction is correct, log-likelihood,
    Brier score, and weights w, which are empty without weights. `edges` (b + 1) are those of the bins, and `first_cell`
    the number of the lowest odds in `bins.odds_cell`.
    """
    bins, features = len(edges) - 1, sums.shape[1]
    low, high = np.zeros((bins, features), np.int64), np.zeros((bins, features), np.int64)
    index = np.empty(len(c), np.int64)
    _bin_indices(c, edges, index)
    for i in range(len(c)):
        confidence, target, weight = c[i], outcome[i], w[i] if len(w) else 1.0
        gap, nll, score = confidence - target, 0.0 - log_p[i], brier[i]
        square, variance = gap * gap, confidence * (1 - confidence)
        is_infinite, is_sure = np.float64(nll == np.inf), np.float64(confidence >= high_confidence)
        nll = 0.0 if is_infinite else min(nll, 65536.0)  # bounded, as the words of a sum are
        values = (  # in the order of `metrics._sums.FEATURES`
            *(1.0, weight, correct[i] * weight, target * weight, gap * weight, square * weight, variance * weight),
            *(nll * weight, nll * nll * (1.0 / 4096) * weight, is_infinite * weight, score * weight),
            *(score * score * weight, is_sure * weight, is_sure * target * weight, square * square * weight),
        )
        b = index[i]
        for f in range(len(values)):
            units = np.rint(values[f] * _FIXED_POINT_SCALE)  # in multiples of 2^-52
            integer_part = np.floor(units * (1.0 / _FIXED_POINT_SCALE))
            low[b, f] += np.int64(units - integer_part * _FIXED_POINT_SCALE)
            high[b, f] += np.int64(integer_part)
        odds = max(1.0 / confidence - 1.0, 0.0)
        cell = (np.float64(odds).view(np.int64) >> 42) - first_cell  # as `bins.odds_cell`
        cell = min(max(cell, 0), cells.shape[2] - 1)
        cell_values = (weight, weight * target, weight * confidence)  # in two words, of which the lower has 36 bits
        for f in range(3):
            units = np.rint(cell_values[f] * _FIXED_POINT_SCALE)
            upper = np.floor(units * (1.0 / _LOWER_WORD_SPAN))
            cells[0, f, cell] += np.int64(units - upper * _LOWER_WORD_SPAN)
            cells[1, f, cell] += np.int64(upper)
        # Move the sums over bins to their words before they overflow
        if (i + 1) % _MAX_ROWS_BEFORE_CARRY == 0 or i + 1 == len(c):
            # `low` has 52 bits of each number, in two words of 26 bits; `high` has the whole numbers
            sums[0] += (low & 0x3FFFFFF).T
            sums[1] += (low >> 26).T
            sums[2] += high.T
            low[:], high[:] = 0, 0
