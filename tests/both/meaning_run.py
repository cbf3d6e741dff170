"""One call in MindSpore and in its meaning: the results, and what comes back to each array of float32."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
import torch
from mindspore import mint, ops
from mindspore.ops import auto_generate
from mindspore.ops.operations import _grad_ops as grad_ops
from mindspore.ops.operations import _inner_ops as inner_ops
from mindspore.ops.operations import array_ops, math_ops, nn_ops

from tensorprobe.replay.meaning.mindspore import common_keywords, find_entry
from tensorprobe.replay.meaning.torch import Context
from tensorprobe.replay.precision import Precision, default_dtype
from tests.both.meaning_case import Case, Dtype

OWNERS = {"Functional": ops, "Mint": mint, "MintFunctional": mint.nn.functional, "Tensor": ms.Tensor}
_PRIMITIVE_OWNERS = (ops, auto_generate, array_ops, math_ops, nn_ops, inner_ops, grad_ops)
Array = np.ndarray
NO_GRADIENT = re.compile(
    r"bprop not defined|should have 1 outputs, but got 2|pointer\[input_tensor\] is null|InplaceCopy"
    r"|Unsupported op \[(\w*Grad|InplaceScatterAdd)|Add\].* but got Tensor\[Bool\]"
)
"""What MindSpore says where it cannot differentiate on a CPU."""


@dataclass
class Outcome:
    results: list[Array]
    gradients: list[Array] | None
    """None where none of the results has one."""


def find_mindspore(prefix: str, name: str, settings: dict[str, Any]) -> Callable[..., Any] | None:
    if prefix != "Primitive":
        return getattr(OWNERS[prefix], name, None)
    kinds = (getattr(owner, name, None) for owner in _PRIMITIVE_OWNERS)
    kind = next((one for one in kinds if isinstance(one, type)), None)
    return None if kind is None else kind(**settings)


def run_mindspore(prefix: str, name: str, case: Case) -> Outcome:
    arrays: list[Array] = []
    shape = _replace((case.args, case.kwargs), arrays)
    followed = [place for place, array in enumerate(arrays) if array.dtype == np.float32]

    def call(*tensors: ms.Tensor) -> Any:
        args, kwargs = _fill(shape, list(tensors), _mindspore_dtype)
        ms.set_seed(3)  # with a primitive of its own for each call: the same numbers are drawn
        function = find_mindspore(prefix, name, case.settings)
        assert function is not None, f"MindSpore has no {prefix}.{name}"
        if name == "__setitem__" or name.rstrip("_") == name[:-1]:  # what is differentiated cannot be written to
            args = (args[0] * 1, *args[1:])
        output = function(*args, **kwargs)
        return args[0] if output is None else output

    given = [ms.Tensor(array.copy()) for array in arrays]
    results = [_array(tensor) for tensor in _tensors(call(*given), ms.Tensor)]
    slopes = make_slopes(results)
    if not followed or not any(slope is not None for slope in slopes):
        return Outcome(results, None)

    def total(*tensors: ms.Tensor) -> ms.Tensor:
        outputs = _tensors(call(*tensors), ms.Tensor)
        parts = [
            (output * ms.Tensor(slope)).sum()
            for output, slope in zip(outputs, slopes, strict=True)
            if slope is not None
        ]
        return sum(parts[1:], parts[0])

    try:
        found = ms.grad(total, tuple(followed))(*(ms.Tensor(array.copy()) for array in arrays))
        found = found if isinstance(found, tuple) else (found,)
        return Outcome(results, [one.asnumpy() for one in found])
    except (RuntimeError, TypeError) as error:
        if NO_GRADIENT.search(str(error)):
            return Outcome(results, None)
        raise


def run_meaning(prefix: str, name: str, case: Case, recorded: Outcome) -> Outcome:
    """In float64."""
    entry = find_entry(prefix, name)
    assert entry is not None
    arrays: list[Array] = []
    shape = _replace((case.args, {**case.kwargs, **case.settings}), arrays)
    narrow = [torch.from_numpy(array.copy()) for array in arrays]
    given = [one.double().requires_grad_() if one.dtype == torch.float32 else one for one in narrow]
    given = [one.to(torch.complex128) if one.is_complex() else one for one in given]
    args, kwargs = _fill(shape, list(given), _torch_dtype)
    results = [torch.from_numpy(np.array(array)) for array in recorded.results]
    context = Context(
        Precision("float64"), narrow.__getitem__, results.__getitem__, lambda: torch.ones(1), lambda: None, None, None
    )
    with default_dtype(torch.float64):
        output = entry.function(*(context,) * entry.needs_context, *args, **common_keywords(kwargs))
    outputs = _tensors(output, torch.Tensor)[: len(recorded.results)]
    found = [one.detach().numpy() for one in outputs]
    slopes = make_slopes(recorded.results)
    followed = [one for one in given if one.requires_grad]
    parts = [
        (one * torch.from_numpy(slope).double()).sum()
        for one, slope in zip(outputs, slopes, strict=True)
        if slope is not None and one.requires_grad
    ]
    if not parts:
        return Outcome(found, None)
    gradients = torch.autograd.grad(sum(parts[1:], parts[0]), followed, allow_unused=True)
    zeros = [
        torch.zeros_like(one) if gradient is None else gradient
        for one, gradient in zip(followed, gradients, strict=True)
    ]
    return Outcome(found, [one.numpy() for one in zeros])


def run_torch_twin(prefix: str, name: str, function: Callable[..., Any], case: Case) -> tuple[list[Array], list[Array]]:
    """A meaning, and the function of torch that has its name, on the same arguments: without gradients."""
    arrays: list[Array] = []
    shape = _replace((case.args, case.kwargs), arrays)
    given = [torch.from_numpy(array.copy()) for array in arrays]
    given = [one.double() if one.dtype == torch.float32 else one for one in given]
    entry = find_entry(prefix, name)
    assert entry is not None
    with default_dtype(torch.float64):
        args, kwargs = _fill(shape, [_wide(one) for one in given], _torch_dtype)
        wanted = _tensors(function(*args, **common_keywords(kwargs)), torch.Tensor)
        args, kwargs = _fill(shape, given, _torch_dtype)
        context = Context(
            Precision("float64"), given.__getitem__, wanted.__getitem__, lambda: torch.ones(1), lambda: None, None, None
        )
        found = _tensors(
            entry.function(*(context,) * entry.needs_context, *args, **common_keywords(kwargs)), torch.Tensor
        )
    return [one.numpy() for one in found], [one.numpy() for one in wanted]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Torch takes 64 bits for an index."""
    return tensor.long() if tensor.dtype == torch.int32 else tensor


def make_slopes(results: list[Array]) -> list[Array | None]:
    """What each result is multiplied with, before all are added up."""
    draw = np.random.default_rng(5)
    return [draw.standard_normal(one.shape).astype(np.float32) if one.dtype == np.float32 else None for one in results]


def is_close(found: Array, wanted: Array, epsilons: float = 30) -> bool:
    """Within so many epsilons of float32, of an element and of the usual element."""
    if wanted.dtype.kind not in "fc":
        return bool(np.array_equal(found, wanted))
    wide = found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wide[~finite], wanted[~finite], equal_nan=True):
        return False
    size = np.abs(wanted[finite]) + np.sqrt(np.mean(np.square(np.abs(wanted[finite])))) if finite.any() else 0
    eps = np.finfo(found.dtype if found.dtype.kind == "f" else np.float32).eps
    return bool(np.all(np.abs(wide[finite] - wanted[finite]) <= epsilons * eps * size + 1e-37))


def numeric_gradients(prefix: str, name: str, case: Case, step: float = 1e-2) -> list[Array]:
    """How MindSpore's own results move, with each element of each array of float32."""
    arrays: list[Array] = []
    shape = _replace((case.args, case.kwargs), arrays)
    slopes: list[Array | None] = []

    def total(changed: list[Array]) -> float:
        args, kwargs = _fill(shape, [ms.Tensor(array) for array in changed], _mindspore_dtype)
        function = find_mindspore(prefix, name, case.settings)
        assert function is not None
        results = [_array(tensor) for tensor in _tensors(function(*args, **kwargs), ms.Tensor)]
        slopes[:] = make_slopes(results)
        parts = [
            (one.astype(float) * slope).sum() for one, slope in zip(results, slopes, strict=True) if slope is not None
        ]
        return float(sum(parts))

    found = []
    for place, array in enumerate(arrays):
        if array.dtype != np.float32:
            continue
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = [one.copy() for one in arrays]
                moved[place][index] += np.float32(sign * step)
                ends.append((total(moved), float(moved[place][index])))
            gradient[index] = (ends[0][0] - ends[1][0]) / (ends[0][1] - ends[1][1])
        found.append(gradient)
    return found


def _array(tensor: ms.Tensor) -> Array:
    """bfloat16, which numpy lacks, in float32."""
    is_wide = tensor.dtype == ms.bfloat16
    return (tensor.astype(ms.float32) if is_wide else tensor).asnumpy().copy()


def _tensors(value: Any, kind: type) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item, kind)]
    return [value] if isinstance(value, kind) else []


def _replace(value: Any, arrays: list[Array]) -> Any:
    """The same with places for the arrays."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return _Place(len(arrays) - 1)
    if isinstance(value, np.generic):
        return _replace(np.asarray(value), arrays)
    if isinstance(value, (tuple, list)):
        return type(value)(_replace(item, arrays) for item in value)
    if isinstance(value, dict):
        return {key: _replace(item, arrays) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class _Place:
    number: int


def _fill(shape: Any, tensors: list[Any], dtype: Callable[[str], Any]) -> Any:
    if isinstance(shape, _Place):
        return tensors[shape.number]
    if isinstance(shape, Dtype):
        return dtype(shape.name)
    if isinstance(shape, (tuple, list)):
        return type(shape)(_fill(item, tensors, dtype) for item in shape)
    if isinstance(shape, dict):
        return {key: _fill(item, tensors, dtype) for key, item in shape.items()}
    return shape


def _mindspore_dtype(name: str) -> Any:
    return getattr(ms, name)


def _torch_dtype(name: str) -> Any:
    found = getattr(torch, name.rstrip("_"))
    return Precision("float64").dtype(found)
