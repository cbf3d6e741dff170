"""Matrices: their norms, their inverses, products of vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import METHOD, OPS, means


@means("vector_norm", OPS)
def vector_norm(input: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return torch.linalg.vector_norm(input, ord, dim, keepdim, dtype=dtype)


@means("matrix_norm", OPS)
def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    return torch.linalg.matrix_norm(A, ord, dim, keepdim, dtype=dtype)


@means("addr", OPS, METHOD)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return torch.addr(input, vec1, vec2, beta=beta, alpha=alpha)


@means("vecdot", OPS)
def vecdot(input: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    return torch.linalg.vecdot(input, y, dim=dim)


@means("bidense", OPS)
def bidense(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.bilinear(input1, input2, weight, bias)


@means("tensor_dot", OPS)
def tensor_dot(x1: Tensor, x2: Tensor, axes: Any) -> Tensor:
    if isinstance(axes, int):
        return torch.tensordot(x1, x2, axes)
    first, second = ([one] if isinstance(one, int) else list(one) for one in axes)
    return torch.tensordot(x1, x2, (first, second))


@means("pinv", OPS)
def pinv(input: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    return torch.linalg.pinv(input, atol=atol, rtol=rtol, hermitian=hermitian)


@means("cholesky", OPS)
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    return torch.linalg.cholesky(input, upper=upper)


@means("svd", OPS, METHOD)
def svd(input: Tensor, full_matrices: bool = False, compute_uv: bool = True) -> Tensor:
    if compute_uv:
        raise NotImplementedError("singular vectors, whose signs are nobody's to say")
    return torch.linalg.svdvals(input)


@means("MatrixInverse")
def matrix_inverse(input: Tensor, adjoint: bool = False) -> Tensor:
    return torch.linalg.inv(input.mH if adjoint else input)


@means("vander", OPS)
def vander(input: Tensor, N: int | None = None) -> Tensor:
    powers = torch.arange((len(input) if N is None else N) - 1, -1, -1, device=input.device)
    return input.unsqueeze(1).pow(powers)
