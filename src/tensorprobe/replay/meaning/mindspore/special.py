"""Less common functions of elements, and norms that limit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.elementwise import add_scaled, divide, subtract_scaled
from tensorprobe.replay.meaning.mindspore.table import FUNCTIONS, METHOD, MINT, OPS, add, means

Tensors = Sequence[Tensor]


@means("imag", *FUNCTIONS)
def imag(input: Tensor) -> Tensor:
    return torch.imag(input) if input.is_complex() else torch.zeros_like(input)


@means("conj", OPS, METHOD)
def conj(input: Tensor) -> Tensor:
    return torch.conj(input).resolve_conj()


@means("sgn", OPS, METHOD)
def sgn(input: Tensor) -> Tensor:
    return torch.sgn(input) if input.is_complex() else torch.sign(input)


@means("signbit", OPS, METHOD)
def signbit(input: Tensor) -> Tensor:
    """Zero has none, also where it is negative."""
    return input < 0


@means("heaviside", OPS, METHOD)
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    return torch.heaviside(input.detach(), values.detach())


@means("float_power", METHOD)
def float_power(input: Tensor, other: Any) -> Tensor:
    return torch.float_power(input, other)


@means("inv", METHOD)
def invert(input: Tensor) -> Tensor:
    return torch.reciprocal(input)


@means("polygamma", OPS)
def polygamma(n: Any, input: Tensor) -> Tensor:
    return torch.polygamma(int(n), input)


@means("soft_shrink", OPS)
def soft_shrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return F.softshrink(input, lambd)


@means("softmin", OPS)
def softmin(input: Tensor, dim: int = -1, *, dtype: Any = None) -> Tensor:
    return torch.softmax(-input, dim, dtype=dtype)


@means("xdivy Xdivy", OPS)
@means("xdivy", METHOD)
def xdivy(input: Any, y: Any) -> Tensor:
    """Zero divided by zero is zero, and nothing comes back to it."""
    tensor = input if isinstance(input, Tensor) else y
    input, y = (torch.as_tensor(one, dtype=tensor.dtype, device=tensor.device) for one in (input, y))
    is_zero = input == 0
    quotient = input / torch.where(is_zero, torch.ones_like(y), y)
    return torch.where(is_zero, torch.zeros_like(quotient), quotient)


@means("DivNoNan")
def divide_or_zero(input: Tensor, other: Tensor) -> Tensor:
    is_zero = other == 0
    return torch.where(is_zero, torch.zeros_like(input), input / torch.where(is_zero, torch.ones_like(other), other))


@means("SquaredDifference")
def squared_difference(input: Tensor, other: Tensor) -> Tensor:
    return (input - other).square()


@means("SquareSumAll")
def square_sums(input: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return input.square().sum(), y.square().sum()


@means("L2Loss")
def half_square_sum(input: Tensor) -> Tensor:
    return input.square().sum() / 2


@means("addn", OPS)
def add_all(input: Tensors) -> Tensor:
    return sum(input[1:], input[0])


@means("AddN")
def add_all_primitive(*tensors: Any) -> Tensor:
    return add_all(tensors[0] if isinstance(tensors[0], (tuple, list)) else tensors)


@means("allclose", MINT)
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return torch.allclose(input, other, rtol, atol, equal_nan)


# -- what is written in place: what the tensor is afterwards -----------------------------------------------------------

add(METHOD, "add_", add_scaled)
add(METHOD, "sub_", subtract_scaled)
add(METHOD, "div_", divide)


@means("mul_", METHOD)
def multiply_in_place(input: Tensor, other: Any) -> Tensor:
    return input * other


@means("exp_", METHOD)
def exp_in_place(input: Tensor) -> Tensor:
    return torch.exp(input)


@means("floor_divide_", METHOD)
def floor_divide_in_place(input: Tensor, other: Any) -> Tensor:
    return torch.div(input, other, rounding_mode="floor")


@means("remainder_", METHOD)
def remainder_in_place(input: Tensor, other: Any) -> Tensor:
    return torch.remainder(input, other)


@means("copy_", METHOD)
def copy_in_place(input: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.to(input.dtype).expand(input.shape).clone()


# -- norms that are limited --------------------------------------------------------------------------------------------


def _signed_norm(input: Tensor, order: float) -> Tensor:
    """As MindSpore has it: of an odd order, elements below zero count against the others."""
    return input.abs().amax() if order == torch.inf else input.pow(order).sum().pow(1 / order)


@means("clip_by_norm", OPS)
def clip_by_norm(input: Any, max_norm: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Any:
    """One tensor, or several by the norm of all of them."""
    tensors = [input] if isinstance(input, Tensor) else list(input)
    norms = torch.stack([_signed_norm(one, norm_type) for one in tensors])
    factor = max_norm / (_signed_norm(norms, norm_type) + 1e-6)
    clipped = tuple(one * factor if factor < 1 else one.clone() for one in tensors)
    return clipped[0] if isinstance(input, Tensor) else clipped


@means("clip_by_global_norm", OPS)
def clip_by_global_norm(input: Tensors, clip_norm: Any = 1.0, use_norm: Any = None) -> tuple[Tensor, ...]:
    norm = torch.stack([one.square().sum() for one in input]).sum().sqrt()
    limit = torch.full_like(norm, clip_norm)
    norm = torch.where(norm >= limit, norm, limit)
    return tuple(one * clip_norm / norm for one in input)
