"""Coordinates in which the Hessian of an affine fit is nearly the unit matrix, and this Hessian."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from calibrant._core.arrays import namespace, to_numpy
from calibrant._core.kernels.softmax import exp_in_place
from calibrant._core.kernels.solvers import cholesky_with_jitter
from calibrant._core.kernels.threads import map_chunks
from calibrant.calibrators.array_functions import numbers_like

MIN_CURVATURE = 1e-3  # flatter coordinates are stretched no further, or the first step would be too long
TINY_CURVATURE = 1e-300  # replaces the curvature 0 of columns of zeros
MIN_NUMBER_CURVATURE = 1e-12  # the same for a number w and its intercepts
CORRELATION_RIDGE = 0.1  # added to the diagonal of an average over classes, which may be singular although no class is
CORRELATION_ROUNDING = 1e-9  # added to the diagonal of the correlations of a single class

Weight = np.ndarray | np.float64  # w, a number, (k) or (k, k)


class RowChunk(NamedTuple):
    """Rows of logits with their labels, where the logits lie."""

    x: Any  # (k rows) logits, by class
    labels: Any  # (rows)
    shares: Any  # (rows) float64, share of each row in the total weight


def sum_chunks(f: Callable[[RowChunk], np.ndarray], chunks: Sequence[RowChunk]) -> np.ndarray:
    """Return the sum of f over all chunks, added in order, so that the number of threads changes no bit."""
    return sum(map_chunks(f, chunks, math.prod(chunks[0].x.shape)))  # pyright: ignore[reportReturnType]


def affine_scores(x: Any, weight: Weight, bias: np.ndarray) -> Any:
    """Return w x + c for logits x (k rows) by class, where w is a number, a diagonal or a matrix."""
    w, c = numbers_like(weight, x), numbers_like(bias, x)
    return (w @ x if w.ndim == 2 else (w[:, None] if w.ndim else w) * x) + c[:, None]


def pack(weight: Weight, bias: np.ndarray) -> np.ndarray:
    """Pack numbers for the elements of w and the intercepts (k) into the order of packed parameters, (d).

    Class by class: the row of a matrix w or the element of a diagonal w, and then the intercept. If w is a number: w,
    and then all intercepts.
    """
    if weight.ndim == 0:
        return np.append(weight, bias)
    return np.column_stack([weight.reshape(len(bias), -1), bias]).ravel()


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates t of the packed parameters d (changes of w, and c), in which the Hessian is nearly the unit matrix.

    d = (t @ root^-1) * scale, in one block for all parameters or one for each class. By the chain rule,
    dL/dt = (dL/dd * scale) @ root^-T.
    """

    scale: np.ndarray  # (blocks m), with blocks * m = d
    root: np.ndarray  # (m m) or (blocks m m), a Cholesky factor of the Hessian

    @cached_property
    def inverse(self) -> np.ndarray:
        """Inverse of the root."""
        return np.linalg.inv(self.root)

    def to_parameters(self, t: np.ndarray) -> np.ndarray:
        """Return the flat packed parameters d for coordinates t."""
        return (_multiply(t.reshape(self.scale.shape), self.inverse) * self.scale).ravel()

    def to_coordinates(self, packed: np.ndarray) -> np.ndarray:
        """Return the flat coordinates t for packed parameters d."""
        return _multiply(packed.reshape(self.scale.shape) / self.scale, self.root).ravel()

    def gradient_to_coordinates(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient in t, flat, from the gradient in d."""
        return _multiply(gradient.reshape(self.scale.shape) * self.scale, self.inverse.swapaxes(-1, -2)).ravel()

    def gradient_to_parameters(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient in d, flat, from the gradient in t."""
        return (_multiply(gradient.reshape(self.scale.shape), self.root.swapaxes(-1, -2)) / self.scale).ravel()


def _multiply(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Multiply rows (blocks m) by one matrix (m m), or each by its own (blocks m m)."""
    return rows @ matrix if matrix.ndim == 2 else (rows[:, None] @ matrix)[:, 0]


def exact_preconditioner(
    chunks: Sequence[RowChunk], weight: Weight, bias: np.ndarray, ridge: np.ndarray
) -> Preconditioner:
    """Return coordinates of all parameters together in which the penalized Hessian at w x + c is the unit matrix.

    The penalty is the sum of ridge times squared parameters. Curvatures below `MIN_CURVATURE` of the typical one, as
    where every probability is 0 or 1, are raised to it, so that the first step is not too long.

    Args:
        chunks: All rows.
        weight: w, a number, a diagonal or a matrix.
        bias: c, (k).
        ridge: Ridge penalty of each packed parameter, (d).
    """
    hessian = affine_hessian(chunks, weight, bias) + np.diag(2 * ridge)  # of the NLL and of the penalty
    num_rows = sum(chunk.x.shape[1] for chunk in chunks)
    column_squares = sum_chunks(lambda chunk: to_numpy((chunk.x**2).sum(1)), chunks) / num_rows
    by_shape = (column_squares.mean(), column_squares, np.tile(column_squares, (len(bias), 1)))  # number .. matrix
    # Curvature of each parameter, up to a factor, if no probability were near 0 or 1: the mean square of its feature.
    # At most 1, that of an intercept, so that large logits do not raise it
    typical_curvature = pack(np.minimum(by_shape[weight.ndim], 1.0), np.ones(len(bias)))
    curvature = np.maximum(hessian.diagonal(), MIN_CURVATURE * typical_curvature + TINY_CURVATURE)
    np.fill_diagonal(hessian, curvature)
    # One block, without a scale, as the root does all the scaling
    return Preconditioner(np.ones((1, len(hessian))), cholesky_with_jitter(hessian))


def affine_hessian(chunks: Sequence[RowChunk], weight: Weight, bias: np.ndarray) -> np.ndarray:
    """Return the Hessian of the mean NLL of the logits w x + c in their packed parameters, (d d).

    By the chain rule, a row adds J (diag(p) - p p') J': the Hessian in the new logits, between the derivatives J of the
    new logits in the parameters, the features. A class has m = k + 1 parameters if w is a matrix and m = 2 if it is a
    diagonal. The arguments are as in `exact_preconditioner`.
    """

    def chunk_hessian(chunk: RowChunk) -> np.ndarray:
        """Return the weighted sum over rows of the Hessians of the NLL."""
        p, (x, _, shares) = _probabilities(chunk, weight, bias), chunk
        if weight.ndim == 0:
            return _number_hessian(x, p, shares)
        xp = namespace(x)
        # (1 m rows) for a matrix, as all classes have the same features; (k m rows) for a diagonal
        features = xp.concat([x, xp.ones_like(x[:1])])[None] if weight.ndim == 2 else xp.stack([x, xp.ones_like(x)], 1)
        features *= xp.sqrt(shares)  # a root with either J
        moment = p[:, None] * features  # (k m rows)
        class_blocks = to_numpy(moment @ features.swapaxes(1, 2))  # J diag(p) J' has no terms between classes
        flat_moment = moment.reshape(-1, x.shape[1])  # J p
        hessian = to_numpy(flat_moment @ flat_moment.T)
        (k, m, _), classes = class_blocks.shape, np.arange(len(x))
        hessian *= -1
        hessian.reshape(k, m, k, m)[classes, :, classes] += class_blocks
        return hessian

    return sum_chunks(chunk_hessian, chunks)


def _probabilities(chunk: RowChunk, weight: Weight, bias: np.ndarray) -> Any:
    """Return softmax(w x + c), (k rows)."""
    scores = affine_scores(chunk.x, weight, bias)
    xp = namespace(scores)
    scores -= xp.max(scores, axis=0)
    p = exp_in_place(scores)
    p /= xp.sum(p, axis=0)
    return p


def _number_hessian(x: Any, p: Any, shares: Any) -> np.ndarray:
    """Return the weighted sum of the Hessians of rows in a number w and all intercepts, (k+1 k+1).

    They are the covariances, under the probabilities p of a row, of its logit x and of the indicators of the classes.
    x and p are (k rows), and `shares`, the weights of the sum, are (rows).
    """
    weighted_p = p * shares
    centered = x - (p * x).sum(0)
    variance = to_numpy((weighted_p * centered**2).sum())
    covariances = to_numpy((weighted_p * centered).sum(1))  # (k) of the logit and each indicator
    intercepts = np.diag(to_numpy(weighted_p.sum(1))) - to_numpy(weighted_p @ p.T)
    return np.block([[variance, covariances[None]], [covariances[:, None], intercepts]])


def approximate_preconditioner(
    chunks: Sequence[RowChunk], weight: Weight, bias: np.ndarray, ridge: np.ndarray
) -> Preconditioner:
    """Return coordinates, in a block per class, in which the penalized Hessian at w x + c is nearly the unit matrix.

    It stands in for `exact_preconditioner`, whose arguments it takes, if there are too many parameters for the whole
    Hessian. The scale is exact for each parameter. The root is a Cholesky factor of the correlations of the parameters
    of a class: exact for a diagonal w, an average over classes for a matrix. For a number w, every parameter is a
    block.
    """
    k = len(bias)
    sums = sum_chunks(partial(_class_curvature, weight, bias), chunks)  # the diagonals come first
    if weight.ndim == 0:  # of w and the intercepts
        scale = np.maximum(sums + 2 * ridge, MIN_NUMBER_CURVATURE)[:, None] ** -0.5
        return Preconditioner(scale, np.ones((1, 1)))
    curvature = sums[: len(ridge)].reshape(k, -1)
    scale = np.maximum(curvature + 2 * ridge.reshape(k, -1), MIN_CURVATURE) ** -0.5
    m = curvature.shape[1]
    hessian = sums[len(ridge) :].reshape(-1, m, m)
    # The ridge shrinks the correlations of the data's Hessian, by the data's share of the curvature
    root_share = np.sqrt(curvature) * scale  # (k m), at most 1
    is_matrix = weight.ndim == 2
    shrinkage = root_share.T @ root_share / k if is_matrix else root_share[:, :, None] * root_share[:, None, :]
    # The Hessian divided by the roots of its diagonal elements
    inverse_root = np.maximum(np.einsum("bii->bi", hessian), TINY_CURVATURE) ** -0.5
    correlation = shrinkage * hessian * inverse_root[:, :, None] * inverse_root[:, None, :]
    # An average over classes may be nearly singular, although no class is
    np.einsum("bii->bi", correlation)[:] = 1 + (CORRELATION_RIDGE if is_matrix else CORRELATION_ROUNDING)
    root = np.linalg.cholesky(correlation)
    return Preconditioner(scale, root[0] if is_matrix else root)


def _class_curvature(weight: Weight, bias: np.ndarray, chunk: RowChunk) -> np.ndarray:
    """Return the diagonal of the Hessian of the NLL of some rows, (d), and then its blocks within each class, flat.

    The blocks depend on w. Diagonal: (k 2 2). Matrix: the sum over all classes, (k+1 k+1). Number: none.
    """
    p, (x, _, shares) = _probabilities(chunk, weight, bias), chunk
    xp = namespace(x)
    if weight.ndim == 0:
        variance = (p * x**2).sum(0) - (p * x).sum(0) ** 2  # of a row's logits under p
        return np.append(to_numpy(variance @ shares), to_numpy((p * (1 - p)) @ shares))
    curvature = p * (1 - p) * shares  # second derivatives in the new logits, (k rows)
    if weight.ndim == 1:
        moment = curvature * x
        squares, cross, constant = map(to_numpy, ((moment * x).sum(1), moment.sum(1), curvature.sum(1)))
        diagonals, blocks = np.stack([squares, constant], 1), np.stack([squares, cross, cross, constant], 1)
    else:
        features = xp.concat([x, xp.ones_like(x[:1])])
        diagonals = to_numpy(curvature @ (features**2).T)
        blocks = to_numpy((features * curvature.sum(0)) @ features.T)  # the sum over all classes
    return np.append(diagonals, blocks)
