"""Which function of MindSpore a recorded name means. A name is looked up in a fixed set, the one that has meanings:
a dump may come from anyone, and calls nothing that reads files, loads code or hands out memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import mindspore
import torch
from mindspore import Tensor, mint, ops
from mindspore.ops import auto_generate
from mindspore.ops.operations import array_ops, math_ops, nn_ops

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.replay.argument import UnknownArgumentError, build_arguments
from tensorprobe.replay.link import WRITTEN_COUNT
from tensorprobe.replay.meaning.mindspore import OWN_RESULTS, find_entry
from tensorprobe.replay.program import Operation
from tensorprobe.run.leaf import Leaf, iter_leaves

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
    if operation.prefix != "Primitive":
        found = find_named(operation)
        return found if operation.op != "__setitem__" else _set_item
    kind = find_primitive(check_known(operation))
    if settings:
        primitive = kind(**settings)
        return lambda *args, **kwargs: primitive(*args[: count_call_arguments(operation, kind)], **kwargs)
    return _late_primitive(operation, kind)


def find_named(operation: Operation) -> Callable[..., Any]:
    """A function or a method, which its owner has under its name."""
    name = check_known(operation)
    found: Callable[..., Any] | None = getattr(_OWNERS[operation.prefix], name, None)
    if found is None:
        raise UnknownFunctionError(f"MindSpore {mindspore.__version__} has no {operation.prefix}.{name}")
    return found


def check_known(operation: Operation) -> str:
    """The name of the function, or of the class of the primitive, if it is one that is called again."""
    if find_entry(operation.prefix, operation.op) is None:
        raise UnknownFunctionError(f"{operation.prefix}.{operation.op} is no function of MindSpore that is known here")
    return operation.op.rpartition(".")[2]


def find_primitive(name: str) -> type:
    """The class of a primitive."""
    found: type = getattr(_find_primitive_owner(name), name)
    return found


def name_primitive(name: str) -> str:
    """Where Python finds it: `mindspore.ops.ReLU`."""
    return f"{_find_primitive_owner(name).__name__}.{name}"


@cache
def _find_primitive_owner(name: str) -> ModuleType:
    for owner in _PRIMITIVES:
        if isinstance(getattr(owner, name, None), type):
            return owner  # type: ignore[no-any-return]
    raise UnknownFunctionError(f"MindSpore {mindspore.__version__} has no primitive {name}")


def _late_primitive(operation: Operation, kind: type) -> Callable[..., Any]:
    """A kernel is seen with what its primitive is made with behind what it is called with."""

    def call(*args: Any) -> Any:
        count = count_call_arguments(operation, kind)
        return kind(*args[count:])(*args[:count])

    return call


def count_call_arguments(operation: Operation, kind: type) -> int:
    """With how many of the recorded arguments a primitive is called; with the others it is made."""
    places = inspect.signature(kind.__call__).parameters
    named = sum(name not in ("self", "args", "kwargs") for name in places)
    given, made_with = list(operation.arguments), list(operation.settings.values())
    last = given[-len(made_with) :] if made_with else []
    if not named and last and len(last) == len(made_with) and all(map(_is_setting, last, made_with)):
        return len(given) - len(last)
    return named or len(given)


def _is_setting(argument: Any, setting: Any) -> bool:
    """Is this what the primitive was made with? A kernel is seen with a number where a text was given."""
    if argument == setting:
        return True
    is_number = isinstance(argument, dict) and argument.get("type") == "int"
    return is_number and isinstance(setting, dict) and setting.get("type") == "str"


def meant_results(operation: Operation) -> list[Leaf]:
    """The results that it returned and that mean something: what it wrote into its arguments besides is seen by the
    next call."""
    count = len(operation.results) - int(operation.fields.get(WRITTEN_COUNT, 0))
    own = OWN_RESULTS.get(operation.op.rpartition(".")[2], ())
    kept = (place for place in range(count) if place not in own)
    return [leaf for place in kept for leaf in iter_leaves(operation.results[place], f"output.{place}")]


def _set_item(tensor: Any, index: Any, value: Any) -> Any:
    changed = tensor * 1 if tensor.dtype != mindspore.bool_ else tensor.copy()
    changed[index] = value
    return changed


def make_object(kind: str, value: Any) -> Any:
    """A dtype, by its name."""
    return getattr(mindspore, find_dtype_name(kind, value))


def find_dtype_name(kind: str, value: Any) -> str:
    """What MindSpore calls a recorded dtype."""
    if kind == "mindspore.dtype" and isinstance(value, str):
        name = "bool_" if value.lower() == "bool" else value.lower()
        if isinstance(getattr(mindspore, name, None), mindspore.Type):
            return name
    raise UnknownArgumentError(f"an argument of type {kind[:60]}")


def invoke(operation: Operation, given: Mapping[str, Tensor]) -> Any:
    """Make the call again, on these tensors, by their places: what it returns, or writes to without returning it."""
    tuples = operation.tuples

    def make(leaf: Leaf) -> Tensor:
        return given[leaf.slot]

    args = build_arguments(list(operation.arguments), "input", tuples, make, make_object)
    kwargs = build_arguments(dict(operation.keywords), "kwargs", tuples, make, make_object)
    settings = build_arguments(dict(operation.settings), "settings", tuples, make, make_object)
    output = find_mindspore(operation, settings)(*args, **kwargs)
    return args[0] if output is None else output


def make_tensor(content: torch.Tensor) -> Tensor:
    """A tensor of MindSpore with the same bits."""
    if content.dtype == torch.bfloat16:
        return Tensor(content.float().numpy()).astype(mindspore.bfloat16)
    return Tensor(content.numpy().copy())
