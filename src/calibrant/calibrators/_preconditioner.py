"""Coordinates in which the Hessian of an affine fit is nearly the unit matrix, and this Hessian."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.backend.solvers import cholesky_with_jitter, sum_row_chunks
from calibrant.predictions import row_blocks

MIN_CURVATURE = 1e-3  # flatter coordinates are stretched no further, or the first step would be too long
AffineMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates t of the packed parameters d (changes of w, and c), in which the Hessian is nearly the unit matrix.

    d = (t @ root^-1) * scale, in one block for all parameters or one for each class. By the chain rule,
    dL/dt = (dL/dd * scale) @ root^-T.
    """

    scale: Tensor  # (blocks d)
    root: Tensor  # (d d) or (blocks d d), a Cholesky factor of the Hessian

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse of the root."""
        return torch.linalg.inv(self.root)

    def to_parameters(self, t: Tensor) -> Tensor:
        """Return the packed parameters d, (blocks d), of coordinates t."""
        return (t.view(len(self.scale), 1, -1) @ self.inverse).squeeze(1) * self.scale

    def to_coordinates(self, changes: Tensor) -> Tensor:
        """Return the coordinates t, flat, of packed parameters d."""
        return ((changes.reshape(self.scale.shape) / self.scale).unsqueeze(1) @ self.root).flatten()

    def gradient_to_coordinates(self, gradient: Tensor) -> Tensor:
        """Return the gradient in t, flat, from the gradient in d."""
        return ((gradient.reshape(self.scale.shape) * self.scale).unsqueeze(1) @ self.inverse.mT).flatten()

    def gradient_to_parameters(self, slope: Tensor) -> Tensor:
        """Return the gradient in d, (blocks d), from the gradient in t."""
        return (slope.view(len(self.scale), 1, -1) @ self.root.mT).squeeze(1) / self.scale


def exact_preconditioner(
    x: Tensor, fit: AffineMap, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None
) -> Preconditioner:
    """Return coordinates, in one block, in which the penalized Hessian at a fit is the unit matrix.

    Nearly flat directions, as where every probability is 0 or 1, are stretched to `MIN_CURVATURE` only.
    """
    hessian = affine_hessian(x, fit, ridge, ridge_bias, row_weights)
    square = x.square().mean(0).cpu() if ridge.ndim else x.square().mean().cpu()[None]
    square = (square.expand(len(ridge), -1) if ridge.ndim == 2 else square[:, None]).clamp_max(1.0)
    unit = torch.ones_like(square[:, :1]) if ridge.ndim else torch.ones(x.shape[1], 1, dtype=square.dtype)
    natural = torch.cat([square, unit], 1 if ridge.ndim else 0).flatten()
    hessian.diagonal().copy_(hessian.diagonal().maximum(MIN_CURVATURE * natural + 1e-300))
    return Preconditioner(torch.ones(1, len(hessian), dtype=torch.float64), cholesky_with_jitter(hessian))


def affine_hessian(x: Tensor, fit: AffineMap, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None) -> Tensor:
    """Return the Hessian of the penalized mean NLL in packed parameters, (d d).

    They are, class by class, the m = k + 1 or m = 2 parameters of a class: its row of a matrix w, or its element of a
    diagonal w, and its intercept. If w is a number, they are w and all intercepts. The dimensions of `ridge` are
    those of w.
    """
    n, k = x.shape

    def chunk_hessian(x: Tensor, *row_weights: Tensor) -> Tensor:
        """Return the sum over rows of the Hessians of the NLL.

        A row adds diag(p) - p p' in the logits. The features, on either side of it, are the derivatives of the logits
        in the parameters.
        """
        p = fit(x).mT.contiguous().softmax(0)  # (k rows)
        if not ridge.ndim:
            return _scalar_hessian(x, p.mT, p.mT * row_weights[0] if row_weights else p.mT)
        x = x.mT.contiguous()
        unit = torch.ones_like(x)
        # (1 m rows) if all classes have the same features, or (k m rows)
        features = torch.cat([x, unit[:1]])[None] if ridge.ndim == 2 else torch.stack([x, unit], 1)
        moment = p[:, None] * features  # (k m rows)
        weighted_moment = moment * row_weights[0].mT if row_weights else moment
        class_blocks = weighted_moment @ features.mT
        return torch.block_diag(*class_blocks) - weighted_moment.flatten(0, 1) @ moment.flatten(0, 1).mT

    bias = torch.full((k, 1), ridge_bias, dtype=torch.float64)
    penalty = torch.cat([ridge.reshape(k, -1), bias], 1) if ridge.ndim else torch.cat([ridge.view(1, 1), bias])
    total = sum_row_chunks(chunk_hessian, x, *([] if row_weights is None else [row_weights]))
    return total.cpu() / n + (2 * penalty.flatten()).diag()


def _scalar_hessian(x: Tensor, p: Tensor, counted: Tensor) -> Tensor:
    """Return the sum of the Hessians of rows in a number w and all intercepts."""
    centered = x - (p * x).sum(-1, keepdim=True)
    cross = (counted * centered).sum(0)
    curve = (counted * centered.square()).sum().view(1)
    intercepts = counted.sum(0).diag() - counted.mT @ p
    return torch.cat([torch.cat([curve, cross])[None], torch.cat([cross[:, None], intercepts], 1)])


def approximate_preconditioner(
    x: Tensor, fit: AffineMap, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None
) -> Preconditioner:
    """Return coordinates, in a block per class, in which the penalized Hessian at a fit is nearly the unit matrix.

    The scale is exact for each parameter. The root is a Cholesky factor of the correlations of the parameters of a
    class: exact for a diagonal w, an average over classes for a matrix.
    """
    n, k = x.shape
    row_shares = x.new_full((n, 1), 1 / n, dtype=torch.float64) if row_weights is None else row_weights / n
    parts = [_block_curvature(rows, shares, fit, ridge.ndim) for rows, shares in row_blocks(x, row_shares)]
    hessian, curve = (torch.stack(part).sum(0).cpu() for part in zip(*parts, strict=True))
    if ridge.ndim == 0:
        scale = torch.cat([curve + 2 * ridge, hessian + 2 * ridge_bias])[:, None]
        return Preconditioner(scale.clamp_min(1e-12).rsqrt(), torch.ones(1, 1, dtype=torch.float64))
    penalty = torch.cat([ridge.reshape(k, -1), torch.full((k, 1), ridge_bias, dtype=torch.float64)], 1)
    scale = (curve + 2 * penalty).clamp_min(MIN_CURVATURE).rsqrt()
    share = curve.sqrt() * scale  # share of the curvature that comes from the data
    common = share.mT @ share / k if ridge.ndim == 2 else share[:, :, None] * share[:, None, :]
    length = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    correlation = common * hessian * length[..., :, None] * length[..., None, :]
    # An average over classes may be nearly singular, although no class is
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1.1 if ridge.ndim == 2 else 1 + 1e-9)
    return Preconditioner(scale, torch.linalg.cholesky(correlation))


def _block_curvature(x: Tensor, row_shares: Tensor, fit: AffineMap, weight_ndim: int) -> tuple[Tensor, Tensor]:
    """Return the Hessian of the NLL of some rows within each class, and its diagonal, without terms between classes.

    The shapes depend on w. Diagonal: (k 2 2) and (k 2), for the class's element of w and its intercept. Matrix: the
    sum of the Hessians of all classes (k+1 k+1), and the diagonal of each class (k k+1). Number: second derivatives in
    the intercepts (k), and the one in w (1).

    Args:
        x: Rows of logits, (rows k).
        row_shares: Share of each row in the total weight, (rows 1).
        fit: Where the Hessian is computed.
        weight_ndim: Dimensions of w: 0 for a number, 1 for a diagonal, 2 for a matrix.
    """
    p = fit(x).softmax(-1)
    if weight_ndim == 0:
        variance = (p * x.square()).sum(-1) - (p * x).sum(-1).square()  # of a row's logits under p
        return (p * (1 - p) * row_shares).sum(0), row_shares.mT @ variance
    noise = p.mul_(1 - p).mul_(row_shares)  # second derivatives in the calibrated logits, (rows k)
    if weight_ndim == 1:
        moment = noise * x
        cross = moment.sum(0)
        hessian = torch.stack([(moment.mul_(x)).sum(0), cross, cross, noise.sum(0)], -1).view(-1, 2, 2)
        return hessian, hessian.diagonal(dim1=1, dim2=2)
    features = torch.cat([x, x.new_ones(len(x), 1)], 1)
    pooled_hessian = (features * noise.sum(1, keepdim=True)).mT @ features  # of all classes together
    return pooled_hessian, noise.mT @ features.square()
