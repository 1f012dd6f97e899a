"""Nonconformity scores of all classes, for arrays of numpy and for tensors.

The text becomes a part of every exported .py file.
"""

from calibrant.calibrators.array_functions import class_indices, descending_order, double, in_column_order, namespace
from calibrant.calibrators.maps import Array


def scores_of(p: Array, u: Array, score: str, penalty: float) -> Array:
    """Return the nonconformity score of every class (n, k), from probabilities p and a uniform u of each row (n).

    - "lac": $1 - p_j$ (Sadinle et al. 2019), without u.
    - "aps": the probability of all likelier classes, and $u p_j$ of the class itself (Romano et al. 2020).
    - "raps": the score of "aps" plus the penalty times the rank of the class, counted from 1 (Angelopoulos et al.
      2021).
    - "saps": $u p_{max}$ for the likeliest class, and for rank r $p_{max} + (r - 2 + u)$ times the penalty (Huang et
      al. 2024).

    Equal probabilities have the order of the columns.
    """
    if score == "lac":
        return 1 - p
    xp, order = namespace(p), descending_order(p)
    in_order = xp.take_along_axis(p, order, axis=1)
    u, ranks = u[:, None], double(class_indices(p))  # from 0
    if score == "saps":
        by_rank = xp.where(ranks == 0, u * in_order, in_order[:, :1] + penalty * (ranks - 1 + u))
    else:
        by_rank = in_order.cumsum(1) - (1 - u) * in_order  # u p of the class itself, which the sum holds once
        if score == "raps":
            by_rank += penalty * (ranks + 1)
    return in_column_order(by_rank, order)
