"""What each element of the result takes from the elements in its place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import FUNCTIONS, METHOD, MINT, MINT_F, OPS, PRIMITIVE, add, means

# name in MindSpore's functions; its primitive; in torch
_UNARY: tuple[tuple[str, str, Any], ...] = (
    ("abs", "Abs", torch.abs),
    ("acos", "ACos", torch.acos),
    ("acosh", "Acosh", torch.acosh),
    ("asin", "Asin", torch.asin),
    ("asinh", "Asinh", torch.asinh),
    ("atan", "Atan", torch.atan),
    ("atanh", "Atanh", torch.atanh),
    ("ceil", "Ceil", torch.ceil),
    ("cos", "Cos", torch.cos),
    ("cosh", "Cosh", torch.cosh),
    ("erf", "Erf", torch.erf),
    ("erfc", "Erfc", torch.erfc),
    ("exp", "Exp", torch.exp),
    ("expm1", "Expm1", torch.expm1),
    ("floor", "Floor", torch.floor),
    ("isfinite", "IsFinite", torch.isfinite),
    ("log", "Log", torch.log),
    ("log1p", "Log1p", torch.log1p),
    ("logical_not", "LogicalNot", torch.logical_not),
    ("neg", "Neg", torch.neg),
    ("reciprocal", "Reciprocal", torch.reciprocal),
    ("round", "Round", torch.round),
    ("rsqrt", "Rsqrt", torch.rsqrt),
    ("sigmoid", "Sigmoid", torch.sigmoid),
    ("sign", "Sign", torch.sign),
    ("sin", "Sin", torch.sin),
    ("sinh", "Sinh", torch.sinh),
    ("sqrt", "Sqrt", torch.sqrt),
    ("square", "Square", torch.square),
    ("tan", "Tan", torch.tan),
    ("tanh", "Tanh", torch.tanh),
    ("trunc", "Trunc", torch.trunc),
)
_ACTIVATIONS: tuple[tuple[str, str, Any], ...] = (
    ("relu", "ReLU", F.relu),
    ("relu6", "ReLU6", F.relu6),
    ("silu", "SiLU", F.silu),
    ("mish", "Mish", F.mish),
    ("selu", "SeLU", F.selu),
    ("hardsigmoid", "HSigmoid", F.hardsigmoid),
    ("hardswish", "HSwish", F.hardswish),
    ("softsign", "Softsign", F.softsign),
)

for _name, _class, _function in _UNARY:
    for _prefix in FUNCTIONS:
        add(_prefix, _name, _function)
    add(PRIMITIVE, _class, _function)
for _prefix in (OPS, METHOD):
    add(_prefix, "absolute", torch.abs)
for _prefix in FUNCTIONS:
    add(_prefix, "negative", torch.neg)
for _name, _class, _function in _ACTIVATIONS:
    add(OPS, _name, _function)
    add(PRIMITIVE, _class, _function)
    if _name != "softsign":
        add(MINT_F, _name, _function)
add(OPS, "logsigmoid", F.logsigmoid)
add(MINT_F, "logsigmoid", F.logsigmoid)
for _name in ("sigmoid", "tanh"):
    add(MINT_F, _name, getattr(torch, _name))
add(PRIMITIVE, "Inv", torch.reciprocal)
add(PRIMITIVE, "Rint", torch.round)
add(OPS, "inv", torch.reciprocal)
add(OPS, "isnan", torch.isnan)
add(OPS, "isinf", torch.isinf)
add(METHOD, "isnan", torch.isnan)
add(METHOD, "isinf", torch.isinf)
add(PRIMITIVE, "IsNan", torch.isnan)
add(PRIMITIVE, "IsInf", torch.isinf)
for _operator in ("__abs__", "__neg__", "__pos__", "__invert__"):
    add(METHOD, _operator, getattr(Tensor, _operator))


# -- of two tensors, or of one and a number ----------------------------------------------------------------------------


def _tensor(value: Any, beside: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=beside.dtype, device=beside.device)


def _floor_divide(input: Any, other: Any) -> Tensor:
    """Torch's own has no derivative, not even that it is zero."""
    return torch.div(_any_tensor(input, other), other, rounding_mode="floor")


def _remainder(input: Any, other: Any) -> Tensor:
    return torch.remainder(_any_tensor(input, other), other)


def _any_tensor(value: Any, beside: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(beside, value)


def _turned(function: Any) -> Any:
    """Of the operator whose tensor stands behind it."""
    return lambda tensor, other: function(other, tensor)


_BINARY: tuple[tuple[str, str, Any], ...] = (
    ("atan2", "Atan2", torch.atan2),
    ("eq", "Equal", torch.eq),
    ("floor_divide", "FloorDiv", _floor_divide),
    ("ge", "GreaterEqual", torch.ge),
    ("gt", "Greater", torch.gt),
    ("le", "LessEqual", torch.le),
    ("logical_and", "LogicalAnd", torch.logical_and),
    ("logical_or", "LogicalOr", torch.logical_or),
    ("lt", "Less", torch.lt),
    ("maximum", "Maximum", torch.maximum),
    ("minimum", "Minimum", torch.minimum),
    ("ne", "NotEqual", torch.ne),
    ("pow", "Pow", torch.pow),
    ("remainder", "FloorMod", _remainder),
)
_BINARY_ALIASES = {"equal": "eq", "not_equal": "ne", "greater": "gt", "greater_equal": "ge", "less": "lt"} | {
    "less_equal": "le",
}
_BIND = {"maximum", "minimum", "logical_and", "logical_or", "atan2"}


def _of_tensors(function: Any) -> Any:
    """Torch's takes no numbers."""

    def call(input: Any, other: Any) -> Tensor:
        tensor = input if isinstance(input, Tensor) else other
        return function(*(_tensor(one, tensor) for one in (input, other)))

    return call


for _name, _class, _function in _BINARY:
    _meaning = _of_tensors(_function) if _name in _BIND else _function
    for _prefix in FUNCTIONS:
        add(_prefix, _name, _meaning)
    add(PRIMITIVE, _class, _meaning)
    for _alias in (alias for alias, known in _BINARY_ALIASES.items() if known == _name):
        for _prefix in (OPS, METHOD) if _alias == "equal" else FUNCTIONS:
            add(_prefix, _alias, _meaning)
add(OPS, "floor_div", _floor_divide)
add(OPS, "floor_mod", _remainder)
for _word in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    for _operator in (f"__{_word}__", f"__r{_word}__"):
        add(METHOD, _operator, getattr(Tensor, _operator))
for _word in ("add", "sub", "mul", "truediv"):
    add(METHOD, f"__i{_word}__", getattr(Tensor, f"__{_word}__"))  # what is written to is another tensor here
for _word, _function in (("floordiv", _floor_divide), ("mod", _remainder)):
    add(METHOD, f"__{_word}__", _function)
    add(METHOD, f"__i{_word}__", _function)
    add(METHOD, f"__r{_word}__", _turned(_function))
for _operator in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__", "__xor__"):
    add(METHOD, _operator, getattr(Tensor, _operator))


@means("add Add AddExt", *FUNCTIONS)
def add_scaled(input: Any, other: Any, alpha: Any = 1) -> Any:
    return input + other * alpha if alpha != 1 else input + other


@means("sub Sub SubExt", *FUNCTIONS)
@means("subtract", OPS, METHOD)
def subtract_scaled(input: Any, other: Any, alpha: Any = 1) -> Any:
    return input - other * alpha if alpha != 1 else input - other


@means("tensor_add", OPS)
def plus(input: Any, other: Any) -> Any:
    return input + other


@means("mul Mul Muls", *FUNCTIONS)
@means("multiply", OPS, METHOD)
def times(input: Any, other: Any) -> Any:
    return input * other


@means("div divide Div RealDiv Divs DivMod", *FUNCTIONS)
@means("true_divide", OPS, METHOD)
def divide(input: Any, other: Any, rounding_mode: str | None = None) -> Any:
    return torch.div(_any_tensor(input, other), other, rounding_mode=rounding_mode)


@means("Mod")
def mod(input: Any, other: Any) -> Any:
    """As in Python, not as in C."""
    return torch.remainder(input, other)


@means("clamp clip ClampScalar ClampTensor", *FUNCTIONS)
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return torch.clamp(input, min, max)


@means("clip_by_value", OPS)
def clip_by_value(input: Tensor, clip_value_min: Any = None, clip_value_max: Any = None) -> Tensor:
    return torch.clamp(input, clip_value_min, clip_value_max)


@means("lerp Lerp", *FUNCTIONS)
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return torch.lerp(input, end, weight)


@means("assign_value", METHOD)
@means("assign Assign", OPS)
def assign(input: Tensor, value: Any) -> Tensor:
    """What the variable is afterwards. What it was before is another tensor to whoever took it."""
    return _tensor(value, input).to(input.dtype).expand(input.shape).clone()


@means("assign_add AssignAdd", OPS)
def assign_add(input: Tensor, value: Any) -> Tensor:
    return input + value


@means("assign_sub AssignSub", OPS)
def assign_sub(input: Tensor, value: Any) -> Tensor:
    return input - value


@means("masked_fill MaskedFill", OPS, METHOD)
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    return torch.where(mask, _tensor(value, input).to(input.dtype), input)


@means("where", OPS, MINT)
def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    return torch.where(condition, input, other)


@means("where", METHOD)
def where_method(input: Tensor, condition: Tensor, other: Any) -> Tensor:
    return torch.where(condition, input, other)


@means("Select")
def select(condition: Tensor, input: Any, other: Any) -> Tensor:
    return torch.where(condition, input, other)


add(OPS, "select", select)


@means("isclose IsClose", *FUNCTIONS)
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    return torch.isclose(input, other, rtol, atol, equal_nan)


# -- activations with settings -----------------------------------------------------------------------------------------


@means("gelu", OPS, MINT_F)
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(input, approximate=approximate)


@means("GeLU")
def gelu_primitive(input: Tensor) -> Tensor:
    return F.gelu(input, approximate="tanh")


@means("fast_gelu", OPS)
def fast_gelu(input: Tensor) -> Tensor:
    return input / (1 + torch.exp(-1.702 * input.abs())) * torch.exp(0.851 * (input - input.abs()))


add(PRIMITIVE, "FastGeLU", fast_gelu)


@means("elu Elu", OPS, MINT_F)
def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    return F.elu(input, alpha)


@means("celu CeLU", OPS)
def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    return F.celu(input, alpha)


@means("leaky_relu", OPS)
def leaky_relu(input: Tensor, alpha: Any = 0.2) -> Tensor:
    return torch.where(input > 0, input, input * alpha)


@means("leaky_relu", MINT_F)
def leaky_relu_mint(input: Tensor, negative_slope: Any = 0.01) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


@means("prelu PReLU", OPS, MINT_F)
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    return F.prelu(input, weight)


@means("softplus", OPS)
def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return F.softplus(input, beta, threshold)


@means("Softplus")
def softplus_primitive(input: Tensor) -> Tensor:
    return F.softplus(input, 1, torch.inf)


@means("hardtanh", OPS, MINT_F)
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return F.hardtanh(input, min_val, max_val)


@means("hardshrink HShrink", OPS, MINT_F)
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return F.hardshrink(input, lambd)


@means("softshrink SoftShrink", OPS, MINT_F)
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return F.softshrink(input, lambd)


@means("threshold", OPS, MINT_F)
def threshold(input: Tensor, thr: float, value: float) -> Tensor:
    return F.threshold(input, thr, value)


@means("glu", OPS, MINT_F)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    return F.glu(input, dim)
