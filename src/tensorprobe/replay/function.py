"""Which function of torch a recorded name means. A name is looked up in a fixed set, never evaluated: a dump may come
from anyone, and calls nothing that reads files, loads code or hands out memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions

Function = Callable[..., Any]

_FACTORIES = (
    "arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye full "
    "full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand rand_like randint "
    "randint_like randn randn_like randperm range scalar_tensor sparse_coo_tensor tensor tril_indices triu_indices "
    "vander zeros zeros_like complex polar einsum where fill sigmoid tanh"
).split()
_FUNCTIONAL = "grouped_mm hardsigmoid hardswish sigmoid tanh upsample upsample_bilinear upsample_nearest".split()
# Methods that compute nothing, hand out memory, run what they are given, or look into pickles.
_DENIED_METHODS = frozenset(
    "__array__ __array_wrap__ __cuda_array_interface__ __deepcopy__ __delattr__ __dir__ __dlpack__ __dlpack_device__ "
    "__format__ __getattribute__ __hash__ __init__ __init_subclass__ __iter__ __new__ __reduce__ __reduce_ex__ "
    "__repr__ __setattr__ __setstate__ __sizeof__ __str__ __subclasshook__ __torch_dispatch__ __torch_function__ "
    "apply_ as_subclass backward data_ptr map2_ map_ module_load new numpy register_hook "
    "register_post_accumulate_grad_hook reinforce retain_grad set_ share_memory_ storage storage_type tolist "
    "untyped_storage unsafe_chunk".split()
)
_NAMESPACES = {"linalg": torch.linalg, "fft": torch.fft, "special": torch.special}


class UnknownFunctionError(Exception):
    """No function of this name is called again."""


@cache
def find_function(prefix: str, op: str) -> Function:
    """`Functional`, `linear`: the function. UnknownFunctionError where there is none that may be called."""
    found = _FINDERS[prefix](op) if prefix in _FINDERS else None
    if found is None:
        raise UnknownFunctionError(f"{prefix}.{op} is no function of torch that is known here")
    return found


def _find_functional(op: str) -> Function | None:
    found = getattr(F, op, None)
    if found is not None and (op in _FUNCTIONAL or _is_overridable(found)):
        return found  # type: ignore[no-any-return]
    return _builtin(torch._C._nn, op)


def _find_torch(op: str) -> Function | None:
    space, _, name = op.rpartition(".")
    if space:
        module = _NAMESPACES.get(space)
        found = getattr(module, name, None) if module is not None else None
    else:
        found = getattr(torch, name, None)
        if name in _FACTORIES:
            return found
        if found is None:  # torch's own layers call some by names that torch does not show
            return _builtin(torch._C._VariableFunctions, name)
    if found is not None and (_is_overridable(found) or _is_variable_function(found)):
        return found  # type: ignore[no-any-return]
    return None


def _find_method(op: str) -> Function | None:
    if op in _DENIED_METHODS:
        return None
    name, _, end = op.partition(".")
    found = getattr(torch.Tensor, name, None)
    if end == "__get__":  # .T, .real
        return found.__get__ if found is not None and name in ("T", "mT", "H", "mH", "real", "imag") else None
    return found if not end and callable(found) else None


def _find_operator(op: str) -> Function | None:
    """Only torch's own operators: any other library may do anything."""
    library, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    if library != "aten" or not name or name.startswith("_"):
        return None
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, overload, None) if packet is not None and overload else packet


def _builtin(owner: Any, name: str) -> Function | None:
    found = getattr(owner, name, None) if not name.startswith("__") else None
    return found if found is not None and type(found).__name__ == "builtin_function_or_method" else None


@cache
def _overridable() -> frozenset[int]:
    functions = get_overridable_functions()
    owners = (torch, torch.functional, F, torch.linalg, torch.fft, torch.special)
    return frozenset(id(function) for owner in owners for function in functions.get(owner, ()))


def _is_overridable(function: Any) -> bool:
    return id(function) in _overridable()


def _is_variable_function(function: Any) -> bool:
    return type(function).__name__ == "builtin_function_or_method" and "_VariableFunctions" in str(
        getattr(function, "__qualname__", "")
    )


_FINDERS: dict[str, Callable[[str], Function | None]] = {
    "Functional": _find_functional,
    "Torch": _find_torch,
    "Tensor": _find_method,
    "Ops": _find_operator,
}
