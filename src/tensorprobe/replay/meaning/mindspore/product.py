"""Products of matrices, and what is added to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import (
    FUNCTIONS,
    METHOD,
    MINT,
    MINT_F,
    OPS,
    means,
)


@means("matmul MatMulExt", *FUNCTIONS)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    return torch.matmul(input, other)


@means("MatMul BatchMatMul")
def matmul_primitive(input: Tensor, other: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return torch.matmul(input.mT if transpose_a else input, other.mT if transpose_b else other)


@means("bmm mm BatchMatMulExt", *FUNCTIONS)
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    return torch.matmul(input, mat2)


@means("dense", OPS)
def dense(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(input, weight, bias)


@means("linear Dense", MINT_F)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(input, weight, bias)


@means("outer", OPS, METHOD)
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    return torch.outer(input.reshape(-1), vec2.reshape(-1))


@means("einsum", OPS, MINT)
def einsum(equation: str, *operands: Any) -> Tensor:
    given: Sequence[Tensor] = operands[0] if isinstance(operands[0], (tuple, list)) else operands
    return torch.einsum(equation, *given)


@means("baddbmm", OPS, METHOD)
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return torch.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha)


@means("addmm", OPS, METHOD)
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)


@means("BiasAdd")
def bias_add(input: Tensor, bias: Tensor, *, data_format: str = "NCHW") -> Tensor:
    place = 1 if data_format.startswith("NC") else input.dim() - 1
    shape = [1] * input.dim()
    shape[place] = -1
    return input + bias.reshape(shape)


@means("bias_add", OPS)
def bias_add_function(input: Tensor, bias: Tensor) -> Tensor:
    return bias_add(input, bias)
