"""What each function of MindSpore that has a meaning in torch is called with, by name: every setting at two values.

Arrays become tensors, and those of float32 are differentiated. A name without a prefix stands for all of its name that
have a meaning: in `ops`, `mint` and on tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

_RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (_RNG.random(shape) * 0.8 + 0.1).astype(np.float32)


def whole(high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return _RNG.integers(0, high, shape).astype(dtype)


X, Y, Z = normal(3, 4), normal(3, 4), normal(3, 4)
UNIT, OTHER = positive(3, 4), positive(3, 4)
CUBE = normal(2, 3, 4)
IMAGE, WIDE = normal(2, 3, 8, 8), normal(2, 4, 7, 9)
VOLUME = normal(2, 3, 6, 6, 6)
SERIES = normal(2, 3, 8)
MASK = _RNG.random((3, 4)) > 0.5
LABELS = np.array([1, 3, 0], np.int32)
INTEGERS = whole(9, 3, 4) + 1
KEEP = (False, True)


@dataclass(frozen=True)
class Dtype:
    """A dtype of the framework."""

    name: str


@dataclass(frozen=True)
class Case:
    """One call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """What a primitive is made with."""


def call(*args: Any, **kwargs: Any) -> Case:
    return Case(args, kwargs)


def made(*args: Any, **settings: Any) -> Case:
    """Of a primitive."""
    return Case(args, {}, settings)


Cases = dict[str, list[Case]]

_OF_ANY = (
    *("abs", "absolute", "asinh", "atan", "cos", "cosh", "erf", "erfc", "exp", "expm1", "neg", "negative", "sigmoid"),
    *("sin", "sinh", "square", "tan", "tanh", "relu", "relu6", "silu", "mish", "selu", "hardsigmoid", "hardswish"),
    *("softsign", "logsigmoid", "ceil", "floor", "round", "sign", "trunc", "isfinite", "isnan", "isinf"),
    *("fast_gelu", "ravel", "clone", "copy", "contiguous", "stop_gradient", "identity", "t"),
    *("float", "half", "bfloat16", "double", "int", "long", "short", "bool", "__abs__", "__neg__", "__pos__"),
    *("Abs", "Asinh", "Atan", "Cos", "Cosh", "Erf", "Erfc", "Exp", "Expm1", "Neg", "Sigmoid", "Sin", "Sinh", "Square"),
    *("Tan", "Tanh", "ReLU", "ReLU6", "SiLU", "Mish", "SeLU", "HSigmoid", "HSwish", "Softsign", "Ceil"),
    *("Floor", "Round", "Rint", "Sign", "Trunc", "IsFinite", "IsNan", "IsInf", "GeLU", "FastGeLU", "Softplus"),
    *("Flatten", "StopGradient", "Identity", "OnesLike", "ZerosLike"),
)
_OF_POSITIVE = (
    *("acos", "asin", "atanh", "log", "log1p", "reciprocal", "rsqrt", "sqrt", "inv", "byte"),
    *("ACos", "Asin", "Atanh", "Log", "Log1p", "Reciprocal", "Rsqrt", "Sqrt", "Inv"),
)
_OF_TWO = (
    *("atan2", "div", "divide", "true_divide", "floor_divide", "floor_div", "remainder", "floor_mod", "pow"),
    *("maximum", "minimum", "eq", "equal", "ne", "not_equal", "lt", "less", "le", "less_equal", "gt", "greater", "ge"),
    *("greater_equal", "mul", "multiply", "tensor_add"),
    *("Atan2", "Div", "RealDiv", "FloorDiv", "FloorMod", "Mod", "Pow", "Maximum", "Minimum", "Equal", "NotEqual"),
    *("Less", "LessEqual", "Greater", "GreaterEqual", "Mul", "Add", "Sub"),
)
_WITH_NUMBER = (
    *("div", "divide", "true_divide", "floor_divide", "remainder", "pow", "maximum", "minimum", "eq", "equal", "ne"),
    *("not_equal", "lt", "less", "le", "less_equal", "gt", "greater", "ge", "greater_equal", "mul", "multiply"),
)
_LOGICAL = ("logical_and", "logical_or", "LogicalAnd", "LogicalOr", "__and__", "__or__", "__xor__")
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod")
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")

ELEMENTWISE: Cases = {
    **{name: [call(X)] for name in _OF_ANY},
    **{name: [call(UNIT)] for name in _OF_POSITIVE},
    **{name: [call(UNIT + 1)] for name in ("acosh", "Acosh")},
    **{name: [call(UNIT, OTHER)] for name in _OF_TWO},
    **{name: [call(UNIT, OTHER), call(UNIT, 0.7)] for name in _WITH_NUMBER},
    **{name: [call(MASK, MASK[::-1].copy())] for name in _LOGICAL},
    **{name: [call(MASK)] for name in ("logical_not", "LogicalNot", "__invert__")},
    **{f"__{name}__": [call(UNIT, OTHER), call(UNIT, 0.7)] for name in (*_OPERATORS, "pow")},
    **{f"__r{name}__": [call(UNIT, 0.7)] for name in (*_OPERATORS, "pow")},
    **{f"__i{name}__": [call(UNIT, OTHER)] for name in _OPERATORS},
    **{name: [call(UNIT, OTHER), call(UNIT, 0.4)] for name in _COMPARISONS},
    **{name: [call(X, normal(4, 2))] for name in ("__matmul__", "matmul", "MatMulExt", "mm")},
    "__rmatmul__": [call(normal(4, 2), X)],
    **{name: [call(X, Y), call(X, 2.5)] for name in ("add", "sub", "subtract")},
    "Mint.add": [call(X, Y), call(X, 2.5), call(X, Y, alpha=2)],
    "Mint.sub": [call(X, Y), call(X, 2.5), call(X, Y, alpha=2)],
    "Mint.div": [call(UNIT, OTHER), call(X, Y, rounding_mode="floor"), call(X, Y, rounding_mode="trunc")],
    **{name: [call(X, Y, 1), call(X, Y, 2)] for name in ("AddExt", "SubExt")},
    **{name: [call(X, 0.7)] for name in ("Muls", "Divs")},
    **{name: [call(X, -0.5, 0.5), call(X, None, 0.2), call(X, min=-0.1)] for name in ("clamp", "clip")},
    "ClampScalar": [call(X, -0.5, 0.5), call(X, None, 0.2)],
    "ClampTensor": [call(X, UNIT - 0.5, UNIT)],
    "DivMod": [call(X, Y, "floor")],
    "clip_by_value": [call(X, -0.5, 0.5), call(X, clip_value_max=0.2)],
    "lerp": [call(X, Y, 0.3), call(X, Y, UNIT)],
    "Lerp": [call(X, Y, UNIT)],
    "masked_fill": [call(X, MASK, 2.5), call(CUBE, MASK, float("-inf"))],
    "MaskedFill": [call(X, MASK, 2.5)],
    "where": [call(MASK, X, Y), call(MASK, X, 0.5)],
    "Tensor.where": [call(X, MASK, Y)],
    "select": [call(MASK, X, Y), call(MASK, X, 0.5)],
    "Select": [call(MASK, X, Y)],
    **{name: [call(X.astype(float), Y.astype(float))] for name in ("assign", "assign_value", "Assign")},
    **{f"assign_{name}": [call(X.astype(float), Y.astype(float))] for name in ("add", "sub")},
    **{f"Assign{name}": [call(X.astype(float), Y.astype(float))] for name in ("Add", "Sub")},
    "isclose": [call(X, X + 1e-4, 1e-3, 1e-3), call(X, X + 1e-4)],
    "IsClose": [made(X, X + 1e-4, rtol=1e-3, atol=1e-3), made(X, X + 1e-4)],
    "gelu": [call(X), call(X, approximate="tanh")],
    "elu": [call(X)],
    "MintFunctional.elu": [call(X, 0.5)],
    "Elu": [made(X, alpha=1.0)],
    "celu": [call(X), call(X, 0.5)],
    "CeLU": [made(X), made(X, alpha=0.5)],
    "leaky_relu": [call(X), call(X, 0.3)],
    "prelu": [call(X, positive(4)), call(X, positive(1))],
    "PReLU": [call(X, positive(4))],
    "softplus": [call(X), call(X, 2, 1)],
    "hardtanh": [call(X), call(X, -0.3, 0.4)],
    "hardshrink": [call(X), call(X, 0.7)],
    "HShrink": [made(X), made(X, lambd=0.7)],
    "softshrink": [call(X), call(X, 0.7)],
    "SoftShrink": [made(X), made(X, lambd=0.7)],
    "threshold": [call(X, 0.3, 2.5), call(X, -0.2, 0.1)],
    "glu": [call(X), call(CUBE, 2)],
}

LAYOUT: Cases = {
    "reshape": [call(X, (2, 6)), call(X, (-1,))],
    "view": [call(X, (2, 6)), call(X, (-1,))],
    "Tensor.reshape": [call(X, (2, 6)), call(X, 2, -1)],
    "Tensor.view": [call(X, (2, 6)), call(X, 2, -1)],
    "Reshape": [call(X, (2, 6))],
    "View": [call(X, (2, 6))],
    "reshape_as": [call(X, normal(2, 6))],
    "view_as": [call(X, normal(2, 6))],
    "flatten": [call(CUBE), call(CUBE, start_dim=0, end_dim=1)],
    "permute": [call(CUBE, (2, 0, 1))],
    "Tensor.permute": [call(CUBE, (2, 0, 1)), call(CUBE, 2, 0, 1)],
    "Functional.transpose": [call(CUBE, (2, 0, 1))],
    "Mint.transpose": [call(CUBE, 0, 2), call(CUBE, 1, -1)],
    "Tensor.transpose": [call(CUBE, (2, 0, 1)), call(CUBE, 2, 0, 1), call(CUBE, 0, 2), call(X)],
    "Transpose": [call(CUBE, (2, 0, 1))],
    **{name: [call(CUBE, 0, 2)] for name in ("swapaxes", "swapdims", "TransposeExtView")},
    **{name: [call(CUBE, 0, 2), call(CUBE, (0, 1), (1, 2))] for name in ("movedim", "moveaxis")},
    **{name: [call(X, 0), call(X, -1)] for name in ("expand_dims", "unsqueeze", "ExpandDims")},
    "squeeze": [call(normal(3, 1, 4)), call(normal(1, 3, 1), 2)],
    "Mint.squeeze": [call(normal(3, 1, 4), 1), call(normal(1, 3, 1), 2)],
    "Squeeze": [made(normal(3, 1, 4)), made(normal(1, 3, 1), axis=2), made(normal(1, 3, 1), axis=(0, 2))],
    "broadcast_to": [call(normal(3, 1), (3, 4)), call(normal(3, 1), (2, -1, 4))],
    "BroadcastTo": [made(normal(3, 1), shape=(3, 4))],
    "expand": [call(normal(3, 1), 3, 4), call(normal(3, 1), (2, 3, 4))],
    "expand_as": [call(normal(3, 1), X)],
    "tile": [call(X, (2, 1)), call(X, (2, 1, 3))],
    "Tile": [call(X, (2, 1))],
    "repeat": [call(X, 2, 1)],
    "repeat_interleave": [call(X, 2), call(X, 2, 1)],
    "cat": [call([X, Y]), call((X, Y), 1)],
    "concat": [call([X, Y]), call((X, Y), 1)],
    "Concat": [made((X, Y)), made((X, Y), axis=1)],
    "stack": [call([X, Y]), call((X, Y), 1)],
    "Stack": [made((X, Y)), made((X, Y), axis=1)],
    "Pack": [made((X, Y)), made((X, Y), axis=1)],
    "split": [call(X, 2, 1), call(X, (1, 2))],
    "Split": [made(X, axis=1, output_num=2), made(X, axis=0, output_num=3)],
    "SplitTensor": [call(X, 2, 1)],
    "SplitWithSize": [call(X, (1, 2), 0)],
    "tensor_split": [call(X, 2), call(X, (1, 3), 1)],
    "chunk": [call(X, 2), call(X, 2, 1)],
    "Chunk": [call(X, 2, 1)],
    **{name: [call(X), call(X, 1)] for name in ("unbind", "unstack")},
    **{name: [made(X), made(X, axis=1)] for name in ("Unstack", "Unpack")},
    "flip": [call(X, (1,)), call(X, (0, 1))],
    "reverse": [call(X, (1,)), call(X, (0, 1))],
    "ReverseV2": [made(X, axis=[1]), made(X, axis=[0, 1])],
    "roll": [call(X, 1, 1), call(X, (1, 2), (0, 1))],
    "narrow": [call(X, 1, 1, 2), call(X, 0, 0, 2)],
    **{name: [call(X), call(X, 1)] for name in ("tril", "triu")},
    "Tril": [made(X), made(X, diagonal=1)],
    "Triu": [made(X), made(X, diagonal=1)],
    "StridedSlice": [
        made(CUBE, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
        made(CUBE, (1, 1, 0), (2, 3, 4), (1, 1, 2), begin_mask=2, end_mask=1),
        made(CUBE, (1, 1, 0), (2, 3, 4), (1, 1, 1), shrink_axis_mask=1),
    ],
    "strided_slice": [call(CUBE, (0, 1, 0), (2, 3, 4), (1, 1, 2)), call(X, (0, 1), (2, 3), (1, 1), begin_mask=2)],
    "slice": [call(CUBE, (0, 1, 0), (2, 2, 3))],
    "Slice": [call(CUBE, (0, 1, 0), (2, 2, 3))],
    "SliceExt": [call(CUBE, 1, 1, 3, 1)],
    "SelectExtView": [call(CUBE, 1, 2)],
    "__getitem__": [
        call(X, 1),
        call(X, (slice(None), -1)),
        call(CUBE, (Ellipsis, None, slice(0, 4, 2))),
        call(X, np.array([2, 0], np.int32)),
        call(X, MASK),
        call(CUBE, (slice(None), np.array([2, 0], np.int32))),
    ],
    "__setitem__": [call(X, 1, normal(4)), call(X, (slice(None), 0), 2.5)],
    "gather": [call(X, np.array([2, 0], np.int32), 0), call(CUBE, whole(3, 2, 2), 1)],
    "Mint.gather": [call(X, 1, whole(4, 3, 2, dtype=np.int64)), call(X, 0, whole(3, 2, 4, dtype=np.int64))],
    "Tensor.gather": [
        call(X, np.array([2, 0], np.int32), 0),
        call(CUBE, whole(3, 2, 2), 1),
        call(X, 1, whole(4, 3, 2, dtype=np.int64)),
        call(X, input_indices=np.array([2, 0], np.int32), axis=0),
        call(X, dim=1, index=whole(4, 3, 2, dtype=np.int64)),
    ],
    "Gather": [made(X, np.array([2, 0], np.int32), 0), made(CUBE, whole(3, 2, 2), 1)],
    **{name: [call(X, 1, whole(4, 3, 2))] for name in ("gather_elements", "gather_d", "GatherD")},
    **{name: [call(CUBE, np.array([[0, 1], [1, 2]], np.int32))] for name in ("gather_nd", "GatherNd")},
    "index_select": [call(X, 1, np.array([2, 0], np.int32)), call(X, 0, np.array([2, 0], np.int32))],
    "masked_select": [call(X, MASK)],
    "tensor_scatter_elements": [
        call(X, whole(4, 3, 1), normal(3, 1), 1),
        call(X, whole(4, 3, 2), normal(3, 2), 1, "add"),
    ],
    "TensorScatterElements": [
        made(X, whole(4, 3, 1), normal(3, 1), axis=1),
        made(X, whole(4, 3, 2), normal(3, 2), axis=1, reduction="add"),
    ],
    "scatter": [call(X, 1, np.array([[0, 1], [2, 3], [1, 0]], np.int64), normal(3, 2))],
    "index_add": [call(X, 0, np.array([0, 2], np.int32), normal(2, 4))],
    **{
        name: [
            call(X, np.array([1, 0, 1], np.int32), 3),
            call(CUBE, np.array([[0, 1, 1], [2, -1, 0]], np.int32)[:, : CUBE.shape[1]], 4),
        ]
        for name in ("unsorted_segment_sum", "UnsortedSegmentSum")
    },
    **{
        name: [call(X, np.array([1, 0, 1], np.int32), 2), call(X, np.array([1, 0, 1], np.int32), 3)]
        for name in ("unsorted_segment_max", "unsorted_segment_min", "UnsortedSegmentMax", "UnsortedSegmentMin")
    },
    "Tensor.astype": [call(X, "float32"), call(MASK, "float32"), call(X, "int32"), call(X, Dtype("float16"))],
    "embedding": [call(LABELS, normal(4, 5)), call(LABELS, normal(4, 5), 1)],
    "one_hot": [call(LABELS, 5), call(LABELS, 5, 2.5, 0.5, 0)],
    "MintFunctional.one_hot": [call(LABELS.astype(np.int64), 5), call(LABELS.astype(np.int64))],
    "OneHot": [
        made(LABELS, 5, np.float32(2.5), np.float32(0.5)),
        made(LABELS, 5, np.float32(1), np.float32(0), axis=0),
    ],
    "zeros": [call((2, 3)), call((2, 3), dtype=Dtype("int32"))],
    "ones": [call((2, 3)), call((2, 3), dtype=Dtype("bool_"))],
    "Zeros": [call((2, 3), Dtype("float32"))],
    "Ones": [call((2, 3), Dtype("int32"))],
    "full": [call((2, 3), 1.5), call((2, 3), 2, dtype=Dtype("int32"))],
    "zeros_like": [call(X), call(X, dtype=Dtype("int32"))],
    "ones_like": [call(X), call(X, dtype=Dtype("int32"))],
    "full_like": [call(X, 1.5), call(X, 2, dtype=Dtype("int32"))],
    "arange": [call(5), call(1, 9, 2), call(0, 1, 0.25, dtype=Dtype("float32"))],
    "linspace": [call(1.0, 2.0, 5), call(0.0, 3.0, 4)],
    "eye": [call(3), call(3, 4, Dtype("int32"))],
    **{
        name: [call(X, Dtype("float16")), call(INTEGERS, Dtype("float32"))] for name in ("cast", "astype", "to", "Cast")
    },
    "ToDtype": [call(X, Dtype("float16"))],
    "type_as": [call(X, INTEGERS)],
}

REDUCTION: Cases = {
    **{
        name: [call(CUBE), call(CUBE, 1), call(CUBE, (0, 2), keepdim)]
        for name in ("mean", "sum", "amax", "amin")
        for keepdim in (True,)
    },
    "Tensor.sum": [call(CUBE), call(CUBE, 1), call(CUBE, axis=(0, 2), keepdims=True), call(INTEGERS, 1)],
    **{name: [call(MASK), call(MASK, 1), call(MASK, 0, True)] for name in ("all", "any")},
    "prod": [call(UNIT), call(UNIT, 1), call(UNIT, 0, True)],
    "SumExt": [call(CUBE, (0, 2), True, None), call(CUBE, (1,), False, None)],
    "MeanExt": [call(CUBE, (0, 2), True, None), call(CUBE, (1,), False, None)],
    **{
        name: [made(CUBE), made(CUBE, (0, 2), keep_dims=True), made(CUBE, 1)]
        for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
    },
    "ReduceProd": [made(UNIT, 1), made(UNIT, 0, keep_dims=True)],
    **{name: [made(MASK, 1), made(MASK, 0, keep_dims=True)] for name in ("ReduceAll", "ReduceAny")},
    **{f"Functional.reduce_{name}": [call(CUBE), call(CUBE, 1)] for name in ("mean", "sum", "max", "min")},
    **{name: [call(CUBE), call(CUBE, 1), call(CUBE, 2, 1, True)] for name in ("std", "var")},
    "norm": [call(CUBE), call(X, 2, 1), call(X, 1, 0, True), call(X, "fro", (0, 1))],
    "logsumexp": [call(X, 1), call(CUBE, (0, 2), True)],
    "cumsum": [call(X, 0), call(X, 1)],
    "CumSum": [made(X, 1), made(X, 0, exclusive=True), made(X, 1, reverse=True)],
    "cumprod": [call(UNIT, 0), call(UNIT, 1)],
    **{name: [call(X), call(X, 1), call(X, 0, True)] for name in ("argmax", "argmin")},
    **{name: [made(X, axis=1), made(X, axis=0)] for name in ("Argmax", "Argmin")},
    **{name: [call(X), call(CUBE, 1), call(CUBE, 2, True)] for name in ("max", "min")},
    **{
        name: [made(CUBE, axis=1), made(CUBE, axis=2, keep_dims=True)]
        for name in ("ArgMaxWithValue", "ArgMinWithValue")
    },
    "topk": [call(X, 2), call(X, 2, 0), call(X, 2, 1, False)],
    "TopK": [made(X, 2), made(CUBE, 3)],
    "sort": [call(X), call(X, 0, True)],
    "Sort": [made(X), made(X, axis=0, descending=True)],
    "argsort": [call(X), call(X, 0, True)],
    "softmax": [call(X, 1), call(X, 0)],
    "Functional.softmax": [call(X), call(X, axis=0)],
    "Softmax": [made(X), made(X, axis=0)],
    "log_softmax": [call(X, 1), call(X, 0)],
    "LogSoftmax": [made(X), made(X, axis=0)],
    "L2Normalize": [made(X, axis=1), made(X, axis=0, epsilon=1e-2), made(X * 1e-3, axis=0, epsilon=1e-2)],
    "normalize": [call(X), call(X, 1.0, 0, 1e-3)],
    "cosine_similarity": [call(X, Y), call(X, Y, 0, 1e-3)],
    **{
        f"{prefix}.{name}": [call(CUBE, normal(2, 4, 5))]
        for prefix in ("Functional", "Mint", "Tensor")
        for name in ("bmm",)
    },
    "BatchMatMulExt": [call(CUBE, normal(2, 4, 5))],
    "MatMul": [
        made(X, normal(4, 5)),
        made(X, normal(5, 4), transpose_b=True),
        made(normal(4, 3), normal(4, 5), transpose_a=True),
    ],
    "BatchMatMul": [
        made(CUBE, normal(2, 4, 5)),
        made(CUBE, normal(2, 5, 4), transpose_b=True),
        made(normal(2, 4, 3), normal(2, 4, 5), transpose_a=True),
    ],
    "dense": [call(CUBE, normal(5, 4), normal(5)), call(X, normal(5, 4))],
    "linear": [call(CUBE, normal(5, 4), normal(5)), call(X, normal(5, 4))],
    "Dense": [call(CUBE, normal(5, 4), normal(5)), call(X, normal(5, 4), None)],
    "outer": [call(normal(3), normal(4))],
    "einsum": [call("ij,kj->ik", X, Y)],
    "baddbmm": [
        call(normal(2, 3, 5), CUBE, normal(2, 4, 5)),
        call(normal(2, 3, 5), CUBE, normal(2, 4, 5), beta=2, alpha=3),
    ],
    "addmm": [call(normal(3, 5), X, normal(4, 5)), call(normal(3, 5), X, normal(4, 5), beta=2, alpha=3)],
    "BiasAdd": [made(X, normal(4)), made(IMAGE, normal(3))],
    "bias_add": [call(X, normal(4)), call(IMAGE, normal(3))],
}
