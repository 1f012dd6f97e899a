"""Coordinates in which the Hessian of an affine fit is nearly the unit matrix, and this Hessian."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant._core.kernels.solvers import cholesky_with_jitter, sum_row_chunks
from calibrant.predictions import row_blocks

MIN_CURVATURE = 1e-3  # flatter coordinates are stretched no further, or the first step would be too long
TINY_CURVATURE = 1e-300  # replaces the curvature 0 of columns of zeros
MIN_NUMBER_CURVATURE = 1e-12  # the same for a number w and its intercepts
CORRELATION_RIDGE = 0.1  # added to the diagonal of an average over classes, which may be singular although no class is
CORRELATION_ROUNDING = 1e-9  # added to the diagonal of the correlations of a single class


def apply_affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return w x + c for rows x, where w is a number, a diagonal or a matrix."""
    weight, bias = weight.to(x.device), bias.to(x.device)
    return (x @ weight.mT if weight.ndim == 2 else x * weight) + bias


def pack(weight: Tensor, bias: Tensor) -> Tensor:
    """Pack numbers for the elements of w and the intercepts (k) into the order of packed parameters, (d).

    Class by class: the row of a matrix w or the element of a diagonal w, and then the intercept. If w is a number: w,
    and then all intercepts.
    """
    if weight.ndim == 0:
        return torch.cat([weight.view(1), bias])
    return torch.cat([weight.reshape(len(bias), -1), bias[:, None]], 1).flatten()


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates t of the packed parameters d (changes of w, and c), in which the Hessian is nearly the unit matrix.

    d = (t @ root^-1) * scale, in one block for all parameters or one for each class. By the chain rule,
    dL/dt = (dL/dd * scale) @ root^-T.
    """

    scale: Tensor  # (blocks m), with blocks * m = d
    root: Tensor  # (m m) or (blocks m m), a Cholesky factor of the Hessian

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse of the root."""
        return torch.linalg.inv(self.root)

    def to_parameters(self, t: Tensor) -> Tensor:
        """Return the flat packed parameters d for coordinates t."""
        return ((t.view(len(self.scale), 1, -1) @ self.inverse).squeeze(1) * self.scale).flatten()

    def to_coordinates(self, packed: Tensor) -> Tensor:
        """Return the flat coordinates t for packed parameters d."""
        return ((packed.view_as(self.scale) / self.scale).unsqueeze(1) @ self.root).flatten()

    def gradient_to_coordinates(self, gradient: Tensor) -> Tensor:
        """Return the gradient in t, flat, from the gradient in d."""
        return ((gradient.view_as(self.scale) * self.scale).unsqueeze(1) @ self.inverse.mT).flatten()

    def gradient_to_parameters(self, gradient: Tensor) -> Tensor:
        """Return the gradient in d, flat, from the gradient in t."""
        return ((gradient.view(len(self.scale), 1, -1) @ self.root.mT).squeeze(1) / self.scale).flatten()


def exact_preconditioner(x: Tensor, weight: Tensor, bias: Tensor, ridge: Tensor, row_shares: Tensor) -> Preconditioner:
    """Return coordinates of all parameters together in which the penalized Hessian at w x + c is the unit matrix.

    The penalty is the sum of ridge times squared parameters. Curvatures below `MIN_CURVATURE` of the typical one, as
    where every probability is 0 or 1, are raised to it, so that the first step is not too long.

    Args:
        x: Logits, (n k).
        weight: w, a number, a diagonal or a matrix.
        bias: c, (k).
        ridge: Ridge penalty of each packed parameter, (d).
        row_shares: Share of each row in the total weight, (n 1).
    """
    hessian = affine_hessian(x, weight, bias, row_shares) + (2 * ridge).diag()  # of the NLL and of the penalty
    column_squares = x.square().mean(0).cpu()
    by_shape = (column_squares.mean(), column_squares, column_squares.expand(len(bias), -1))  # number, diagonal, matrix
    # Curvature of each parameter, up to a factor, if no probability were near 0 or 1: the mean square of its feature.
    # At most 1, that of an intercept, so that large logits do not raise it
    typical_curvature = pack(by_shape[weight.ndim].clamp_max(1.0), torch.ones_like(column_squares))
    hessian.diagonal().copy_(hessian.diagonal().maximum(MIN_CURVATURE * typical_curvature + TINY_CURVATURE))
    scale = torch.ones(1, len(hessian), dtype=torch.float64)  # of one block; the root does all the scaling
    return Preconditioner(scale, cholesky_with_jitter(hessian))


def affine_hessian(x: Tensor, weight: Tensor, bias: Tensor, row_shares: Tensor) -> Tensor:
    """Return the Hessian of the mean NLL of the logits w x + c in their packed parameters, (d d).

    By the chain rule, a row adds J (diag(p) - p p') J': the Hessian in the new logits, between the derivatives J of the
    new logits in the parameters, the features. A class has m = k + 1 parameters if w is a matrix and m = 2 if it is a
    diagonal. The arguments are as in `exact_preconditioner`.
    """

    def chunk_hessian(x: Tensor, row_shares: Tensor) -> Tensor:
        """Return the weighted sum over rows of the Hessians of the NLL."""
        p = apply_affine(x, weight, bias).mT.contiguous().softmax(0)  # (k rows)
        if weight.ndim == 0:
            return _number_hessian(x, p.mT, row_shares)
        x, root_shares = x.mT.contiguous(), row_shares.mT.sqrt()  # a root with either J
        constant = torch.ones_like(x)  # feature of the intercepts
        # (1 m rows) for a matrix, as all classes have the same features; (k m rows) for a diagonal
        features = torch.cat([x, constant[:1]])[None] if weight.ndim == 2 else torch.stack([x, constant], 1)
        weighted_features = features * root_shares
        moment = p[:, None] * weighted_features  # (k m rows)
        class_blocks = moment @ weighted_features.mT  # J diag(p) J' has no terms between classes
        flat_moment = moment.flatten(0, 1)  # J p
        return torch.block_diag(*class_blocks) - flat_moment @ flat_moment.mT

    return sum_row_chunks(chunk_hessian, x, row_shares).cpu()


def _number_hessian(x: Tensor, p: Tensor, row_shares: Tensor) -> Tensor:
    """Return the weighted sum of the Hessians of rows in a number w and all intercepts, (k+1 k+1).

    They are the covariances, under the probabilities p of a row, of its logit x and of the indicators of the classes.
    x and p are (n k), and `row_shares`, the weights of the sum, are (n 1).
    """
    weighted_p = p * row_shares
    centered = x - (p * x).sum(-1, keepdim=True)
    variance = (weighted_p * centered.square()).sum().view(1, 1)
    covariances = (weighted_p * centered).sum(0, keepdim=True)  # (1 k) of the logit and each indicator
    intercepts = weighted_p.sum(0).diag() - weighted_p.mT @ p
    return torch.cat([torch.cat([variance, covariances], 1), torch.cat([covariances.mT, intercepts], 1)])


def approximate_preconditioner(
    x: Tensor, weight: Tensor, bias: Tensor, ridge: Tensor, row_shares: Tensor
) -> Preconditioner:
    """Return coordinates, in a block per class, in which the penalized Hessian at w x + c is nearly the unit matrix.

    It stands in for `exact_preconditioner`, whose arguments it takes, if there are too many parameters for the whole
    Hessian. The scale is exact for each parameter. The root is a Cholesky factor of the correlations of the parameters
    of a class: exact for a diagonal w, an average over classes for a matrix. For a number w, every parameter is a
    block.
    """
    parts = [_block_curvature(rows, shares, weight, bias) for rows, shares in row_blocks(x, row_shares)]
    hessian, curvature = (torch.stack(part).sum(0).cpu() for part in zip(*parts, strict=True))
    if weight.ndim == 0:  # `curvature` is that of w, `hessian` has those of the intercepts
        scale = (pack(curvature, hessian) + 2 * ridge)[:, None].clamp_min(MIN_NUMBER_CURVATURE).rsqrt()
        return Preconditioner(scale, torch.ones(1, 1, dtype=torch.float64))
    scale = (curvature + 2 * ridge.view_as(curvature)).clamp_min(MIN_CURVATURE).rsqrt()
    # The ridge shrinks the correlations of the data's Hessian, by the data's share of the curvature
    root_share = curvature.sqrt() * scale  # (k m), at most 1
    is_matrix = weight.ndim == 2
    shrinkage = root_share.mT @ root_share / len(bias) if is_matrix else root_share[:, :, None] * root_share[:, None, :]
    # The Hessian divided by the roots of its diagonal elements
    inverse_root = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(TINY_CURVATURE).rsqrt()
    correlation = shrinkage * hessian * inverse_root[..., :, None] * inverse_root[..., None, :]
    # An average over classes may be nearly singular, although no class is
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1 + (CORRELATION_RIDGE if is_matrix else CORRELATION_ROUNDING))
    return Preconditioner(scale, torch.linalg.cholesky(correlation))


def _block_curvature(x: Tensor, row_shares: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Hessian of the NLL of some rows within each class, and its diagonal, without terms between classes.

    The shapes depend on w. Diagonal: (k 2 2) and (k 2), for the class's element of w and its intercept. Matrix: the
    sum of the Hessians of all classes (k+1 k+1), and the diagonal of each class (k k+1). Number: second derivatives in
    the intercepts (k), and the second derivative in w (a scalar).
    """
    p = apply_affine(x, weight, bias).softmax(-1)
    if weight.ndim == 0:
        variance = (p * x.square()).sum(-1) - (p * x).sum(-1).square()  # of a row's logits under p
        return (p * (1 - p) * row_shares).sum(0), row_shares[:, 0] @ variance
    curvature = p.mul_(1 - p).mul_(row_shares)  # second derivatives in the new logits, (rows k); overwrites p
    if weight.ndim == 1:
        moment = curvature * x
        cross = moment.sum(0)
        hessian = torch.stack([(moment.mul_(x)).sum(0), cross, cross, curvature.sum(0)], -1).view(-1, 2, 2)
        return hessian, hessian.diagonal(dim1=1, dim2=2)
    features = torch.cat([x, x.new_ones(len(x), 1)], 1)
    summed_hessian = (features * curvature.sum(1, keepdim=True)).mT @ features  # over all classes
    return summed_hessian, curvature.mT @ features.square()
