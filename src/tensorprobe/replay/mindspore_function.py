"""Which function of MindSpore a recorded name means. A name is looked up in a fixed set, the one that has meanings:
a dump may come from anyone, and calls nothing that reads files, loads code or hands out memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import mindspore
from mindspore import mint, ops
from mindspore.ops import auto_generate
from mindspore.ops.operations import array_ops, math_ops, nn_ops

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.meaning.mindspore import find_entry
from tensorprobe.replay.program import Operation

_OWNERS = {
    "Functional": ops,
    "Mint": mint,
    "MintFunctional": mint.nn.functional,
    "Tensor": mindspore.Tensor,
}
_PRIMITIVES = (ops, auto_generate, array_ops, math_ops, nn_ops)


def find_mindspore(operation: Operation, settings: dict[str, Any]) -> Callable[..., Any]:
    """The function that was called, or the primitive, made as it was. UnknownFunctionError where it is none of those
    that are called again."""
    prefix, name = operation.prefix, operation.op.rpartition(".")[2]
    if find_entry(prefix, operation.op) is None:
        raise UnknownFunctionError(f"{prefix}.{operation.op} is no function of MindSpore that is known here")
    if prefix != "Primitive":
        found = getattr(_OWNERS[prefix], name, None)
        if found is None:
            raise UnknownFunctionError(f"MindSpore {mindspore.__version__} has no {prefix}.{name}")
        return found if name != "__setitem__" else _set_item
    kind = find_primitive(name)
    return kind(**settings) if settings else _late_primitive(kind)


@cache
def find_primitive(name: str) -> type:
    for owner in _PRIMITIVES:
        found = getattr(owner, name, None)
        if isinstance(found, type):
            return found
    raise UnknownFunctionError(f"MindSpore {mindspore.__version__} has no primitive {name}")


def _late_primitive(kind: type) -> Callable[..., Any]:
    """A kernel is seen with what its primitive is made with behind what it is called with."""

    def call(*args: Any) -> Any:
        places = [
            name for name in inspect.signature(kind.__call__).parameters if name not in ("self", "args", "kwargs")
        ]
        count = len(places) if places else len(args)
        return kind(*args[count:])(*args[:count])

    return call


def _set_item(tensor: Any, index: Any, value: Any) -> Any:
    changed = tensor * 1 if tensor.dtype != mindspore.bool_ else tensor.copy()
    changed[index] = value
    return changed


def make_object(kind: str, value: Any) -> Any:
    """A dtype, by its name."""
    if kind == "mindspore.dtype" and isinstance(value, str):
        name = value.lower()
        found = getattr(mindspore, "bool_" if name == "bool" else name, None)
        if found is not None:
            return found
    raise UnknownArgumentError(f"an argument of type {kind[:60]}")
