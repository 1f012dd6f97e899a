"""Kernels compiled by numba: one pass over the rows for what takes torch a dozen; `_fast.kernels` says when.

They return nothing and fill arrays; outputs of length 0 are not wanted. The plain lines they are held to stand where
they are called. Compiled on first use, in seconds, and kept on disk by numba, for one processor and version each. Loops
run over whole blocks of rows, or over the classes of one row, so that no number depends on the rows beside it.
"""

import math
from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, void  # pyright: ignore
from numba.extending import intrinsic  # pyright: ignore

MIN_ROWWISE_CLASSES = (
    128  # classes from which on one row fills the vector units, and blocks of rows would not stay in cache
)
_BLOCK_ROWS = 64  # rows of a block
_ROUNDING_SHIFT = 1.5 * 2.0**52  # added and subtracted, it leaves the nearest whole number
_LOG2_E = 1 / math.log(2)
# 2^f on [-1/2, 1/2]: interpolated at Chebyshev's nodes, relative error 4e-18 before rounding, exactly 1 at 0
_C = (
    1.0, 0.6931471805599453, 0.24022650695910158, 0.055504108664821625, 0.009618129107587256, 0.001333355814640647,
    0.00015403530463724353, 1.5252733841556773e-05, 1.3215432535912375e-06, 1.0178057087733941e-07,
    7.074194297288521e-09, 4.4558179083360645e-10,
)  # fmt: skip

# 2 (atanh(s) / s - 1) / s^2 in powers of s^2, for log m = 2 atanh(s) with s = (m - 1) / (m + 1), m in [.7, 1.42]
_L = (
    0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508, 0.18182889125261723,
    0.15331721600556042, 0.14616449685043406,
)  # fmt: skip
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_LN_2 = math.log(2)

# the same in single precision: relative error 2e-7, exactly 1 at 0
_D0, _D1, _D2, _D3, _D4, _D5 = map(
    np.float32,
    (1.0, 0.6931471805599451, 0.24022349038020377, 0.05550381013797239, 0.009666368515384414, 0.0013381302536962971),
)
_MIN_EXPONENT_SINGLE = np.float32(-126.0)  # binary exponent below which a single number is taken for 0
_ROUNDING_SHIFT_SINGLE = np.float32(1.5 * 2.0**23)

_compile: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
_compile_helper: Any = njit(cache=True, error_model="numpy", fastmath={"contract"})
# sums in whatever order is fastest: where nothing is held to the last bit
_compile_reassociated: Any = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nnan", "nsz"}
)


@_compile_helper
@no_type_check
def _exp2(x):
    """2^x of x in [-1020, 1020]."""
    t = x + _ROUNDING_SHIFT
    f = x - (t - _ROUNDING_SHIFT)
    p = ((((_C[11] * f + _C[10]) * f + _C[9]) * f + _C[8]) * f + _C[7]) * f + _C[6]
    p = (((((p * f + _C[5]) * f + _C[4]) * f + _C[3]) * f + _C[2]) * f + _C[1]) * f + _C[0]
    return p * np.int64((np.float64(t).view(np.int64) << 52) + (1023 << 52)).view(np.float64)


@_compile_helper
@no_type_check
def _exp(x):
    """e^x of x <= 0, and 0 below e^-707."""
    x = x * _LOG2_E
    e = _exp2(x if x > -1020.0 else -1020.0)
    return e if x > -1020.0 else 0.0


@_compile_helper
@no_type_check
def _exp2_single(x):
    """2^x of x <= 0 in single precision, and 0 from 2^-126 on."""
    t = x + _ROUNDING_SHIFT_SINGLE
    f = x - (t - _ROUNDING_SHIFT_SINGLE)
    p = ((((_D5 * f + _D4) * f + _D3) * f + _D2) * f + _D1) * f + _D0
    scale = np.int32((np.float32(t).view(np.int32) << np.int32(23)) + np.int32(127 << 23)).view(np.float32)
    return p * scale if x > _MIN_EXPONENT_SINGLE else np.float32(0.0)


@_compile_helper
@no_type_check
def _log(x):
    """log x of normal x > 0."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    m = np.int64(bits - (exponent << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    q = ((_L[6] * w + _L[5]) * w + _L[4]) * w + _L[3]
    q = ((q * w + _L[2]) * w + _L[1]) * w + _L[0]
    return np.float64(exponent) * _LN_2 + (2.0 * s + s * w * q)


@intrinsic
@no_type_check
def _maximum(_, x, y):
    """The larger of two numbers, neither of them nan: of a whole row in vectors, which a comparison is not."""

    def codegen(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
        kind = numbers[0].type
        larger = builder.module.declare_intrinsic("llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(larger, numbers, fastmath=("nnan", "nsz"))

    return x(x, x), codegen


@intrinsic
@no_type_check
def _prefer_512_bit_vectors(_):
    """Let the function it stands in use vectors of 512 bits where the processor has them: where nearly all is
    exponentials in double precision it then takes a tenth to a third less time, elsewhere more.
    """

    def codegen(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
        attributes = builder.function.attributes
        if isinstance(attributes, set):  # of names llvmlite knows, of which this is none
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return void(), codegen


@_compile_helper
@no_type_check
def _row_max(row):
    maximum = row[0]
    for j in range(len(row)):
        maximum = _maximum(maximum, row[j])
    return maximum


@_compile_helper
@no_type_check
def _tree_sum_block(x, s):
    """Fold the rows of x into the first of s, in the order of `_softmax._tree_sum`."""
    size = x.shape[0]
    half = size // 2
    for j in range(half):
        for i in range(_BLOCK_ROWS):
            s[j, i] = x[j, i] + x[half + j, i]
    if size % 2:
        for i in range(_BLOCK_ROWS):
            s[0, i] += x[size - 1, i]
    while half > 1:
        size, half = half, half // 2
        for j in range(half):
            for i in range(_BLOCK_ROWS):
                s[j, i] += s[half + j, i]
        if size % 2:
            for i in range(_BLOCK_ROWS):
                s[0, i] += s[size - 1, i]


@_compile_helper
@no_type_check
def _tree_sum_row(x, s):
    """Fold the entries of x into the first of s, in the same order."""
    size = x.shape[0]
    half = size // 2
    for j in range(half):
        s[j] = x[j] + x[half + j]
    if size % 2:
        s[0] += x[size - 1]
    while half > 1:
        size, half = half, half // 2
        for j in range(half):
            s[j] += s[half + j]
        if size % 2:
            s[0] += s[size - 1]
    return s[0]


@_compile_helper
@no_type_check
def _load_block(block, m, row_max):
    """Turn rows (r, k) into the first columns of m (k, _W), and find the largest of each."""
    rows, k = block.shape
    for j in range(k):
        for i in range(rows):
            m[j, i] = block[i, j]
    row_max[:] = m[0]
    for j in range(1, k):
        for i in range(_BLOCK_ROWS):
            row_max[i] = _maximum(row_max[i], m[j, i])


@_compile_helper
@no_type_check
def _odds(m, row_max, odds):
    """Exponentials of what is left below the largest, in double precision."""
    _prefer_512_bit_vectors()
    for j in range(len(m)):
        for i in range(_BLOCK_ROWS):
            odds[j, i] = _exp(np.float64(m[j, i]) - np.float64(row_max[i]))


@_compile_helper
@no_type_check
def _mark_correct(m, row_max, argmax, y, correct):
    """Whether the label is the first class that attains the maximum."""
    k = len(m)
    for offset in range(k):
        j = k - 1 - offset
        for i in range(_BLOCK_ROWS):
            argmax[i] = np.int32(j) if m[j, i] == row_max[i] else argmax[i]
    for i in range(len(correct)):
        correct[i] = 1.0 if np.int64(argmax[i]) == y[i] else 0.0


@_compile
@no_type_check
def row_stats_blocked(z, y, index, confidence, correct, log_p, brier, entropy, class_probability, as_logs, p):
    """Few classes: what `_softmax.Rows` says of the rows of z (n, k), and all p or log p (k, n)."""
    n, k = z.shape
    m, row_max, argmax = (
        np.zeros((k, _BLOCK_ROWS), z.dtype),
        np.zeros(_BLOCK_ROWS, z.dtype),
        np.zeros(_BLOCK_ROWS, np.int32),
    )
    odds, s, x = np.zeros((k, _BLOCK_ROWS)), np.zeros((k, _BLOCK_ROWS)), np.zeros((k, _BLOCK_ROWS))
    total, log = np.ones(_BLOCK_ROWS), np.zeros(_BLOCK_ROWS)
    needs_odds = len(confidence) + len(log_p) + len(brier) + len(entropy) + len(class_probability) + p.size
    for first in range(0, n, _BLOCK_ROWS):
        end = min(first + _BLOCK_ROWS, n)
        rows = end - first  # of the last block, the others hold what they held
        _load_block(z[first:end], m, row_max)
        if needs_odds:  # more than who is right
            _odds(m, row_max, odds)
            _tree_sum_block(odds, s)
            total[:] = s[0]
        if len(log_p) or len(entropy) or as_logs:
            for i in range(_BLOCK_ROWS):
                log[i] = _log(total[i])
        if len(confidence):
            for i in range(_BLOCK_ROWS):
                s[0, i] = 1.0 / total[i]
            confidence[first:end] = s[0, :rows]
        if len(correct):
            _mark_correct(m, row_max, argmax, y[first:end], correct[first:end])
        if len(log_p):
            for i in range(rows):
                log_p[first + i] = np.float64(m[y[first + i], i]) - np.float64(row_max[i]) - log[i]
        if len(brier):
            for j in range(k):
                for i in range(_BLOCK_ROWS):
                    x[j, i] = odds[j, i] * odds[j, i]
            _tree_sum_block(x, s)
            for i in range(rows):
                score = s[0, i] / (total[i] * total[i]) - 2.0 * (odds[y[first + i], i] / total[i]) + 1.0
                brier[first + i] = score if score > 0 else 0.0
        if len(entropy):
            for j in range(k):
                for i in range(_BLOCK_ROWS):
                    d = np.float64(m[j, i]) - np.float64(row_max[i])
                    x[j, i] = odds[j, i] * d if odds[j, i] > 0 else 0.0
            _tree_sum_block(x, s)
            for i in range(rows):
                entropy[first + i] = log[i] - s[0, i] / total[i]
        if len(class_probability):
            for i in range(rows):
                class_probability[first + i] = odds[index, i] / total[i]
        if p.shape[1]:
            for j in range(k):
                p_row = p[j, first:end]
                if as_logs:
                    for i in range(rows):
                        p_row[i] = np.float64(m[j, i]) - np.float64(row_max[i]) - log[i]
                else:
                    for i in range(rows):
                        p_row[i] = odds[j, i] / total[i]


@_compile
@no_type_check
def row_stats_rowwise(z, y, index, confidence, correct, log_p, brier, entropy, class_probability, as_logs, p):
    """Many classes: the same, one row at a time, and p or log p (n, k)."""
    _prefer_512_bit_vectors()
    n, k = z.shape
    d, odds, s = np.zeros(k), np.zeros(k), np.zeros(k)
    needs_odds = len(confidence) + len(log_p) + len(brier) + len(entropy) + len(class_probability) + p.size
    for i in range(n):
        row = z[i]
        top = _row_max(row)
        if len(correct):
            hit = row[y[i]] == top
            if hit and y[i]:
                hit = _row_max(row[: y[i]]) < top
            correct[i] = np.float64(hit)
        if not needs_odds:
            continue
        for j in range(k):
            d[j] = np.float64(row[j]) - np.float64(top)
        for j in range(k):
            odds[j] = _exp(d[j])
        total = _tree_sum_row(odds, s)
        p_y = odds[y[i]] / total
        if len(confidence):
            confidence[i] = 1.0 / total
        if len(log_p):
            log_p[i] = d[y[i]] - _log(total)
        if len(class_probability):
            class_probability[i] = odds[index] / total
        if p.shape[0]:
            for j in range(k):
                p[i, j] = d[j] - _log(total) if as_logs else odds[j] / total
        if len(entropy):
            for j in range(k):
                d[j] = odds[j] * d[j] if odds[j] > 0 else 0.0
            entropy[i] = _log(total) - _tree_sum_row(d, s) / total
        if len(brier):
            for j in range(k):
                odds[j] = odds[j] * odds[j]
            score = _tree_sum_row(odds, s) / (total * total) - 2.0 * p_y + 1.0
            brier[i] = score if score > 0 else 0.0


@_compile_helper
@no_type_check
def _bin_index(c, edges):
    """As `_bins.equal_width_index` has it."""
    bins = len(edges) - 1
    scaled = c * bins
    index = np.int64(scaled)
    if abs(scaled - ((scaled + _ROUNDING_SHIFT) - _ROUNDING_SHIFT)) <= 1e-6:
        index = np.searchsorted(edges, c) - 1
    return min(max(index, 0), bins - 1)


@_compile_helper
@no_type_check
def _bin_indices(c, edges, index):
    """The same of a block; the search near an edge is left out where nothing is near."""
    bins = len(edges) - 1
    closest = -1.0  # to an edge, the distance less than 0
    for i in range(len(c)):
        scaled = c[i] * bins
        rounded = (scaled + _ROUNDING_SHIFT) - _ROUNDING_SHIFT
        closest = _maximum(closest, -abs(scaled - rounded))
        bin_number = rounded - 1.0 if rounded >= scaled else rounded
        bin_number = bin_number if bin_number > 0.0 else 0.0
        bin_number = bin_number if bin_number < bins - 1.0 else bins - 1.0
        index[i] = np.float64(bin_number + _ROUNDING_SHIFT).view(np.int64) & 0xFFFFF
    if closest >= -1e-6:
        for i in range(len(c)):
            index[i] = _bin_index(c[i], edges)


@_compile_helper
@no_type_check
def _add_block(c, outcome, w, edges, index, block):
    """Add a block of rows to the sums of `sums`; four rows that follow each other are summed up apart: an addition need
    not wait for the one before.
    """
    _bin_indices(c, edges, index)
    for i in range(len(c)):
        confidence, target, weight = c[i], outcome[i], w[i] if len(w) else 1.0
        b = np.uint64(4) * index[i] + np.uint64(i & 3)
        block[b, 0] += weight
        block[b, 1] += weight * confidence
        block[b, 2] += weight * target
        if block.shape[1] > 3:
            u = confidence - target
            block[b, 3] += weight * u
            block[b, 4] += weight * (u * u)
            block[b, 5] += weight * (confidence * (1 - confidence))


@_compile_helper
@no_type_check
def _merge_accumulators(block, total):
    """Put together the four sums of every bin."""
    for b in range(len(block)):
        total[:, b // 4] += block[b]


@_compile
@no_type_check
def event_bin_sums(c, outcome, w, edges, total):
    """Per bin of equal width: mass, sums of c and of what happened; then of u = c - a, u^2 and c (1 - c), if wanted."""
    index, block = np.zeros(_BLOCK_ROWS, np.uint64), np.zeros((4 * (len(edges) - 1), len(total)))
    for first in range(0, len(c), _BLOCK_ROWS):
        end = min(first + _BLOCK_ROWS, len(c))
        _add_block(c[first:end], outcome[first:end], w[first:end], edges, index, block)
    _merge_accumulators(block, total)


@_compile
@no_type_check
def top_label_bin_sums(z, y, w, edges, total):
    """The `sums` of what `narrow` says of the predicted class, nothing of which is kept."""
    n, k = z.shape
    m, row_max, argmax = (
        np.zeros((k, _BLOCK_ROWS), z.dtype),
        np.zeros(_BLOCK_ROWS, z.dtype),
        np.zeros(_BLOCK_ROWS, np.int32),
    )
    odds, s, c, correct = (
        np.zeros((k, _BLOCK_ROWS)),
        np.zeros((k, _BLOCK_ROWS)),
        np.zeros(_BLOCK_ROWS),
        np.zeros(_BLOCK_ROWS),
    )
    index, block = np.zeros(_BLOCK_ROWS, np.uint64), np.zeros((4 * (len(edges) - 1), len(total)))
    for first in range(0, n, _BLOCK_ROWS):
        end = min(first + _BLOCK_ROWS, n)
        rows = end - first
        _load_block(z[first:end], m, row_max)
        _odds(m, row_max, odds)
        _tree_sum_block(odds, s)
        for i in range(_BLOCK_ROWS):
            c[i] = 1.0 / s[0, i]
        _mark_correct(m, row_max, argmax, y[first:end], correct[:rows])
        _add_block(c[:rows], correct[:rows], w[first:end], edges, index, block)
    _merge_accumulators(block, total)


@_compile
@no_type_check
def add_class_bins(p, y, w, edges, class_sums):
    """Of the probabilities of all classes (k, n), per class and bin above the first: mass, what was said, happened."""
    bins = len(edges) - 1
    k, n = p.shape
    rows = np.empty(n + 1, np.uint64)
    c = np.empty(n + 1)
    index = np.empty(n + 1, np.uint64)
    for j in range(k):
        count = np.uint64(0)
        for i in range(n):  # without a branch, which nobody could foretell
            rows[count] = i
            c[count] = p[j, i]
            count += np.uint64(p[j, i] > edges[1])
        _bin_indices(c[:count], edges, index)
        for h in range(count):
            i = rows[h]
            b = np.uint64(j * bins) + index[h]
            class_sums[0, b] += w[i]
            class_sums[1, b] += w[i] * c[h]
            class_sums[2, b] += w[i] * (y[i] == j)


@_compile
@no_type_check
def add_class_bins_rowwise(p, y, w, edges, class_sums):
    """The same of many classes (n, k)."""
    bins = len(edges) - 1
    n, k = p.shape
    classes, c, index = np.empty(k + 1, np.uint64), np.empty(k + 1), np.empty(k + 1, np.uint64)
    for i in range(n):
        count = np.uint64(0)
        for j in range(k):
            classes[count] = j
            c[count] = p[i, j]
            count += np.uint64(p[i, j] > edges[1])
        _bin_indices(c[:count], edges, index)
        for h in range(count):
            j = classes[h]
            b = j * np.uint64(bins) + index[h]
            class_sums[0, b] += w[i]
            class_sums[1, b] += w[i] * c[h]
            class_sums[2, b] += w[i] * (y[i] == j)


@_compile
@no_type_check
def pack_keys(log_p, y, packed):
    """Pack how small every log p <= 0 (k, n) is, and in the last bit whether the class is the true one."""
    k, n = log_p.shape
    for j in range(k):
        row, log_p_row = packed[j], log_p[j]
        for i in range(n):
            row[i] = (np.float64(-log_p_row[i] + 0.0).view(np.uint64) << np.uint64(1)) | np.uint64(y[i] == j)


@_compile
@no_type_check
def auroc_of_keys(packed, tie):
    """Area under the ROC curve of sorted `keys`, ties counting half; nan where there is but one kind.

    Neighbors are tied that differ by at most `tie`, or this share of them where they are above 1.
    """
    doubled_pairs, previous_hits, hits, misses, last = 0, 0, 0, 0, 0.0
    for key in packed:
        value = np.int64(key >> np.uint64(1)).view(np.float64)
        if value - last > tie * max(1.0, last):
            doubled_pairs += misses * (2 * previous_hits + hits)
            previous_hits += hits
            hits, misses = 0, 0
        last = value
        hit = np.int64(key & np.uint64(1))
        hits += hit
        misses += 1 - hit
    doubled_pairs += misses * (2 * previous_hits + hits)
    previous_hits += hits
    pairs = previous_hits * (len(packed) - previous_hits)
    return doubled_pairs / (2.0 * pairs) if pairs else np.nan


@_compile_helper
@no_type_check
def _cross_product(ax, ay, bx, by, cx, cy):
    return (bx - ax) * (cy - by) - (by - ay) * (cx - bx)


@_compile
@no_type_check
def venn_abers_pass(w, s, slopes):
    """As `calibrators._isotonic._with_one_more` has it."""
    n = len(w)
    cx, cy = np.empty(n + 2), np.empty(n + 2)  # corners
    cx[0], cy[0], top = -1.0, -1.0, 1
    x, y = 0.0, 0.0
    for i in range(n + 1):
        if i:
            x, y = x + w[i - 1], y + s[i - 1]
        while top > 1 and _cross_product(cx[top - 2], cy[top - 2], cx[top - 1], cy[top - 1], x, y) <= 0:
            top -= 1
        cx[top], cy[top], top = x, y, top + 1
    cx[:top], cy[:top] = cx[:top][::-1].copy(), cy[:top][::-1].copy()
    px, py = -1.0, -1.0
    for i in range(n):
        x0, y0, x1, y1 = cx[top - 1], cy[top - 1], cx[top - 2], cy[top - 2]
        slopes[i] = (y1 - y0) / (x1 - x0)
        px, py = px + w[i], py + s[i]
        if (py - y0) * (x1 - x0) >= (y1 - y0) * (px - x0):
            continue
        top -= 1
        while top > 1 and _cross_product(px, py, cx[top - 1], cy[top - 1], cx[top - 2], cy[top - 2]) <= 0:
            top -= 1
        cx[top], cy[top], top = px, py, top + 1


@_compile
@no_type_check
def deposit(value, gap, grid):
    """Spread every gap over the two nearest cells of a grid on [0, 1]."""
    cells = len(grid)
    for i in range(len(value)):
        x = value[i] * cells + 0.5
        right = np.int64(x)
        part = x - right
        grid[min(max(right - 1, 0), cells - 1)] += gap[i] * (1 - part)
        grid[min(max(right, 0), cells - 1)] += gap[i] * part


@_compile_reassociated
@no_type_check
def _moments_blocked(m, row_max, scale, s):
    """Of few classes, in columns: sums of 2^t, t 2^t, t^2 2^t and t^3 2^t over every row of logits less the largest
    times `scale`, and of the exponentials of what is not scaled.
    """
    _prefer_512_bit_vectors()
    s[:] = 0.0
    for j in range(len(m)):
        for i in range(_BLOCK_ROWS):
            d = np.float64(m[j, i]) - np.float64(row_max[i])
            t = _maximum(d * scale, -1020.0)
            e = _exp2(t)
            s[0, i] += e
            e *= t
            s[1, i] += e
            e *= t
            s[2, i] += e
            s[3, i] += e * t
            s[4, i] += _exp2(_maximum(d * _LOG2_E, -1020.0))


@_compile_reassociated
@no_type_check
def _moments_rowwise(block, row_max, scale, s):
    """The same of many classes, one row at a time."""
    _prefer_512_bit_vectors()
    rows, k = block.shape
    for i in range(rows):
        row = block[i]
        top = _row_max(row)
        norm, s1, s2, s3, total = 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(k):
            d = np.float64(row[j]) - np.float64(top)
            t = _maximum(d * scale, -1020.0)
            e = _exp2(t)
            norm += e
            e *= t
            s1 += e
            e *= t
            s2 += e
            s3 += e * t
            total += _exp2(_maximum(d * _LOG2_E, -1020.0))
        row_max[i] = top
        s[0, i], s[1, i], s[2, i], s[3, i], s[4, i] = norm, s1, s2, s3, total


@_compile_reassociated
@no_type_check
def _moments_blocked_single(m, row_max, scale, s):
    """The first four by exponentials of single precision."""
    s[:] = np.float32(0.0)
    for j in range(len(m)):
        for i in range(_BLOCK_ROWS):
            t = _maximum(np.float32((m[j, i] - row_max[i]) * scale), _MIN_EXPONENT_SINGLE)
            e = _exp2_single(t)
            s[0, i] += e
            e *= t
            s[1, i] += e
            e *= t
            s[2, i] += e
            s[3, i] += e * t


@_compile_reassociated
@no_type_check
def _moments_rowwise_single(block, row_max, scale, s):
    rows, k = block.shape
    for i in range(rows):
        row = block[i]
        top = _row_max(row)
        zero = np.float32(0.0)
        norm, s1, s2, s3 = zero, zero, zero, zero
        for j in range(k):
            t = _maximum(np.float32((row[j] - top) * scale), _MIN_EXPONENT_SINGLE)
            e = _exp2_single(t)
            norm += e
            e *= t
            s1 += e
            e *= t
            s2 += e
            s3 += e * t
        row_max[i] = top
        s[0, i], s[1, i], s[2, i], s[3, i] = norm, s1, s2, s3


@_compile_reassociated
@no_type_check
def _add_nll_derivatives(s, d_y, w, scale, out):
    """Add the NLL of rows, its three derivatives and the square of the first; d_y is the true class's logit less the
    largest, w empty or the weights.
    """
    nll, d1, d2, d3, square = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(d_y)):
        norm, weight = np.float64(s[0, i]), w[i] if len(w) else 1.0
        unit = _LN_2 / norm
        m1, m2, m3 = s[1, i] * unit, s[2, i] * (_LN_2 * unit), s[3, i] * (_LN_2 * _LN_2 * unit)
        b_y = d_y[i] * (scale * _LN_2)
        first = m1 - b_y
        nll += weight * (_log(norm) - b_y)
        d1 += weight * first
        d2 += weight * (m2 - m1 * m1)
        d3 += weight * (m3 - 3 * m1 * m2 + 2 * m1 * m1 * m1)
        square += weight * (first * first)
    out[0] += nll
    out[1] += d1
    out[2] += d2
    out[3] += d3
    out[4] += square


@_compile_reassociated
@no_type_check
def nll_derivatives(z, y, w, scale, out):
    """Sums of w times what `_scaling` needs of softmax(b z): the NLL, its first three derivatives in b times b, b^2 and
    b^3, the square of the first, the NLL of z itself, and whether the prediction is right; scale is b log2 e.
    """
    n, k = z.shape
    is_blocked = k < MIN_ROWWISE_CLASSES
    m, row_max, s, d_y = (
        np.zeros((k if is_blocked else 0, _BLOCK_ROWS), z.dtype),
        np.zeros(_BLOCK_ROWS, z.dtype),
        np.zeros((5, _BLOCK_ROWS)),
        np.zeros(_BLOCK_ROWS),
    )
    for start in range(0, n, _BLOCK_ROWS):
        end = min(start + _BLOCK_ROWS, n)
        if is_blocked:
            _load_block(z[start:end], m, row_max)
            _moments_blocked(m, row_max, scale, s)
        else:
            _moments_rowwise(z[start:end], row_max, scale, s)
        for i in range(end - start):
            d_y[i] = np.float64(z[start + i, y[start + i]]) - np.float64(row_max[i])
        _add_nll_derivatives(s, d_y[: end - start], w[start:end], scale, out)
        for i in range(end - start):
            weight, label = w[start + i] if len(w) else 1.0, y[start + i]
            hit = d_y[i] == 0
            if hit and s[4, i] >= 2 and label:
                hit = _row_max(z[start + i, :label]) < row_max[i]
            out[5] += weight * (_log(s[4, i]) - d_y[i])
            out[6] += weight * np.float64(hit)


@_compile_reassociated
@no_type_check
def nll_derivatives_single(z, y, w, scale, out):
    """The first five of `along` by exponentials of single precision; scale is b log2 e in the type of z."""
    n, k = z.shape
    is_blocked = k < MIN_ROWWISE_CLASSES
    m, row_max, s = (
        np.zeros((k if is_blocked else 0, _BLOCK_ROWS), z.dtype),
        np.zeros(_BLOCK_ROWS, z.dtype),
        np.zeros((4, _BLOCK_ROWS), np.float32),
    )
    d_y = np.zeros(_BLOCK_ROWS)
    for start in range(0, n, _BLOCK_ROWS):
        end = min(start + _BLOCK_ROWS, n)
        if is_blocked:
            _load_block(z[start:end], m, row_max)
            _moments_blocked_single(m, row_max, scale, s)
        else:
            _moments_rowwise_single(z[start:end], row_max, scale, s)
        for i in range(end - start):
            d_y[i] = np.float64(z[start + i, y[start + i]]) - np.float64(row_max[i])
        _add_nll_derivatives(s, d_y[: end - start], w[start:end], np.float64(scale), out)


@_compile
@no_type_check
def hash_rows(z, y, keys, out):
    """As `_rows.hashes` has it, before the bits are mixed: what every row of z (n, k) and its label add up to."""
    n, k = z.shape
    words = len(keys) - 1
    row = np.zeros(2 * words, np.float32)
    pairs = row.view(np.uint64)
    for i in range(n):
        logits = z[i]
        for j in range(k):
            row[j] = np.float32(logits[j]) + np.float32(0.0)  # -0 is 0
        total = np.uint64(y[i]) * keys[words]
        for j in range(words):
            total += pairs[j] * keys[j]
        out[i] = total


@_compile_reassociated
@no_type_check
def scaled_logsumexp(d, b, out):
    """log of the sum of e^(b d) over every row of d (n, k), whose largest is 0."""
    n, k = d.shape
    scale = b * _LOG2_E
    for i in range(n):
        row = d[i]
        total = 0.0
        for j in range(k):
            total += _exp2(_maximum(row[j] * scale, -1020.0))
        out[i] = math.log(total)


@_compile_helper
@no_type_check
def _logsumexp_except(row, top, b):
    """log of the sum of e^(b d) over all classes but one, however small."""
    maximum, total = -np.inf, 0.0
    for j in range(len(row)):
        if j != top:
            maximum = max(maximum, row[j])
    for j in range(len(row)):
        if j != top:
            total += math.exp(b * (row[j] - maximum))
    return b * maximum + math.log(total)


@_compile_helper
@no_type_check
def _focal_terms(block, top, b, q, o, r, t):
    """Of rows d, whose largest is 0, the columns of softmax(b d) = q without the top class, -log2(1 - q), and
    -q log q / (1 - q); and the odds t of the others.
    """
    _prefer_512_bit_vectors()
    k, width = q.shape
    for j in range(k):
        for i in range(len(block)):
            r[j, i] = _maximum(b * block[i, j], -1e300)
        for i in range(width):
            q[j, i] = _exp(r[j, i])
    for i in range(len(block)):
        q[top[i], i] = 0.0
    t[:] = 0.0
    for j in range(k):
        for i in range(width):
            t[i] += q[j, i]
    for j in range(k):
        for i in range(width):
            share = q[j, i] / (1.0 + t[i])
            q[j, i] = share
            o[j, i] = -_LOG2_E * _log(1.0 - share)
            r[j, i] = share * (_log(1.0 + t[i]) - r[j, i]) / (1.0 - share)


@_compile_helper
@no_type_check
def _focal_sums(gamma, q, o, r, others):
    """Sums of q / g(q) over the columns."""
    _prefer_512_bit_vectors()
    k, width = q.shape
    others[:] = 0.0
    for j in range(k):
        for i in range(width):
            others[i] += q[j, i] * _exp2(gamma * o[j, i]) / (1.0 + gamma * r[j, i])


@_compile
@no_type_check
def focal_losses(d, top, y, b, gammas, out):
    """-log p of the top class, or of those in y if there are any, by `theory.focal_map` of b d for every gamma (g, n);
    the largest of every row of d (n, k) is 0.
    """
    n, k = d.shape
    width = _BLOCK_ROWS if k < MIN_ROWWISE_CLASSES else 8
    q, o, r = np.zeros((k, width)), np.zeros((k, width)), np.zeros((k, width))
    t, others = np.zeros(width), np.zeros(width)
    for first in range(0, n, width):
        end = min(first + width, n)
        block = d[first:end]
        _focal_terms(block, top[first:end], b, q, o, r, t)
        for g in range(len(gammas)):
            _focal_sums(gammas[g], q, o, r, others)
            out[g, first:end] = others[: end - first]
        for i in range(end - first):
            other_odds, top_class, label = max(t[i], 1e-300), top[first + i], y[first + i] if len(y) else top[first + i]
            underflows = len(y) and other_odds < 1e-290
            log_top = (_logsumexp_except(block[i], top_class, b) if underflows else math.log(other_odds)) - math.log1p(
                t[i]
            )  # log(1 - q)
            r_top = math.log1p(other_odds) / other_odds
            for g in range(len(gammas)):
                gamma, odds = gammas[g], out[g, first + i] * (1.0 + t[i])
                if gamma != 0.0 and odds > 0.0:
                    odds *= math.exp(gamma * log_top) * (1.0 + gamma * r_top)
                loss = math.log1p(odds) - b * block[i, label]
                if label != top_class:
                    loss += math.log1p(gamma * r[label, i]) - math.log1p(gamma * r_top)
                    loss -= gamma * (_LN_2 * o[label, i] + log_top)
                out[g, first + i] = loss


_FIXED_POINT_SCALE, _LOWER_WORD_SPAN = 2.0**52, 2.0**36  # as `_sums` and `_summary` count
_MAX_ROWS_BEFORE_CARRY = 1024  # rows whose parts below 2^52 an integer holds


@_compile_helper
@no_type_check
def _add_fixed_point(value, index, low, high):
    """Add a number in units of 2^-52, as so many whole ones and a rest."""
    units = np.rint(value * _FIXED_POINT_SCALE)
    integer_part = np.floor(units * (1.0 / _FIXED_POINT_SCALE))
    low[index] += np.int64(units - integer_part * _FIXED_POINT_SCALE)
    high[index] += np.int64(integer_part)


@_compile_helper
@no_type_check
def _add_fixed_point_cell(value, i, index, cells):
    units = np.rint(value * _FIXED_POINT_SCALE)
    upper = np.floor(units * (1.0 / _LOWER_WORD_SPAN))
    cells[0, i, index] += np.int64(units - upper * _LOWER_WORD_SPAN)
    cells[1, i, index] += np.int64(upper)


@_compile
@no_type_check
def add_to_summary(c, outcome, correct, log_p, brier, w, edges, high_confidence, first_cell, sums, cells):
    """Add rows to the sums (3, f, b) and cells (2, 3, g) of a summary, as `words_of` and `_count` do."""
    bins, features = len(edges) - 1, sums.shape[1]
    low, high = np.zeros((bins, features), np.int64), np.zeros((bins, features), np.int64)
    index = np.zeros(_BLOCK_ROWS, np.uint64)
    for first in range(0, len(c), _BLOCK_ROWS):
        end = min(first + _BLOCK_ROWS, len(c))
        _bin_indices(c[first:end], edges, index)
        for i in range(first, end):
            confidence, target, weight = c[i], outcome[i], w[i] if len(w) else 1.0
            u, nll, score = confidence - target, 0.0 - log_p[i], brier[i]
            square = u * u
            infinite = np.float64(nll == np.inf)
            nll = 0.0 if infinite else min(nll, 65536.0)
            is_high_confidence = np.float64(confidence >= high_confidence)
            b = index[i - first]
            lows, highs = low[b], high[b]
            _add_fixed_point(1.0, 0, lows, highs)
            _add_fixed_point(weight, 1, lows, highs)
            _add_fixed_point(correct[i] * weight, 2, lows, highs)
            _add_fixed_point(target * weight, 3, lows, highs)
            _add_fixed_point(u * weight, 4, lows, highs)
            _add_fixed_point(square * weight, 5, lows, highs)
            _add_fixed_point(confidence * (1 - confidence) * weight, 6, lows, highs)
            _add_fixed_point(nll * weight, 7, lows, highs)
            _add_fixed_point(nll * nll * (1.0 / 4096) * weight, 8, lows, highs)
            _add_fixed_point(infinite * weight, 9, lows, highs)
            _add_fixed_point(score * weight, 10, lows, highs)
            _add_fixed_point(score * score * weight, 11, lows, highs)
            _add_fixed_point(is_high_confidence * weight, 12, lows, highs)
            _add_fixed_point(is_high_confidence * target * weight, 13, lows, highs)
            _add_fixed_point(square * square * weight, 14, lows, highs)
            odds = max(1.0 / confidence - 1.0, 0.0)
            cell_index = (np.float64(odds).view(np.int64) >> 42) - first_cell
            cell_index = min(max(cell_index, 0), cells.shape[2] - 1)
            _add_fixed_point_cell(weight, 0, cell_index, cells)
            _add_fixed_point_cell(weight * target, 1, cell_index, cells)
            _add_fixed_point_cell(weight * confidence, 2, cell_index, cells)
        if end % _MAX_ROWS_BEFORE_CARRY == 0 or end == len(c):
            for b in range(bins):
                for f in range(features):
                    sums[0, f, b] += low[b, f] & 0x3FFFFFF
                    sums[1, f, b] += low[b, f] >> 26
                    sums[2, f, b] += high[b, f]
                    low[b, f] = high[b, f] = 0


@_compile
@no_type_check
def aurc_of_sorted(correct):
    """Mean over m of the error of the m last."""
    wrong, total = 0.0, 0.0
    n = len(correct)
    for m in range(1, n + 1):
        wrong += 1.0 - correct[n - m]
        total += wrong / m
    return total / n
