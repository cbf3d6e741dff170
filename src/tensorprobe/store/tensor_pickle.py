"""What the pickle in a `.pt` file says about its tensor, read as a list of opcodes.

Nothing is unpickled: the few opcodes that torch.save uses move texts, numbers and tuples around on a stack, the name of
a function stays a name, and a call of it stays a note of that call. Any other opcode ends the reading.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tensorprobe.store.tensor_layout import COMPLEX_OF_HALVES, NotDense, Unreadable

MAX_PICKLE_BYTES = 1 << 16
_KINDS = 4096
_MAX_DEPTH = 16

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
_SYNONYMS = {"double": "float64", "float": "float32", "half": "float16", "chalf": COMPLEX_OF_HALVES}
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"})
_TEXTS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_PUSHED = _NUMBERS | _TEXTS
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_PASSED_OVER = frozenset({"PROTO", "FRAME", "STOP"})


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor as its pickle describes it; the numbers are not checked yet."""

    storage: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_conjugated: bool = False
    is_negated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Name:
    """A function, class or constant, by its name only."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What a function would have been called with."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    key: str
    kind: str


class _Mark:
    pass


@lru_cache(_KINDS)
def read_pickle(content: bytes) -> PickledTensor:
    """The tensor of a pickle. Tensors of one dtype, shape and layout have the same pickle, so most are known."""
    try:
        result = _walk(content)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, RecursionError):
        raise Unreadable("is damaged: its pickle makes no sense") from None
    return _read_tensor(result)


def read_tree(content: bytes) -> Any:
    """What a pickle of dictionaries, such as a state_dict, holds: texts, numbers, lists, and tensors as above."""
    try:
        return _read_node(_walk(content), 0)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, RecursionError):
        raise Unreadable("is damaged: its pickle makes no sense") from None


def _read_node(node: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Unreadable("is nested beyond all reason")
    if isinstance(node, dict):
        return {key: _read_node(value, depth + 1) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_read_node(value, depth + 1) for value in node]
    if isinstance(node, _Call):
        try:
            return _read_tensor(node)
        except Unreadable as error:
            return error
    return node


def _walk(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _PUSHED:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _PUTS:
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _GETS:
            stack.append(memo[int(argument)])
        elif name == "MARK":
            stack.append(_Mark)
        elif name in _TUPLES:
            count = _TUPLES[name]
            if len(stack) < count:
                raise IndexError
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "GLOBAL":
            stack.append(_Name(argument.replace(" ", ".")))
        elif name in _STEPS:
            _STEPS[name](stack)
        elif name not in _PASSED_OVER:
            raise Unreadable("holds a pickle, not a tensor")
    return stack[-1]


def _pop_to_mark(stack: list[Any]) -> tuple[Any, ...]:
    at = len(stack) - 1 - stack[::-1].index(_Mark)
    taken = tuple(stack[at + 1 :])
    del stack[at:]
    return taken


def _push_tuple(stack: list[Any]) -> None:
    stack.append(_pop_to_mark(stack))


def _push_dict(stack: list[Any]) -> None:
    stack.append({})


def _set_item(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    if isinstance(stack[-1], dict) and isinstance(key, str):
        stack[-1][key] = value


def _set_items(stack: list[Any]) -> None:
    items = _pop_to_mark(stack)
    if isinstance(stack[-1], dict):
        stack[-1].update({key: value for key, value in zip(items[::2], items[1::2]) if isinstance(key, str)})  # noqa: B905


def _join_name(stack: list[Any]) -> None:
    name, module = stack.pop(), stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise TypeError
    stack.append(_Name(f"{module}.{name}"))


def _note_call(stack: list[Any]) -> None:
    arguments, function = stack.pop(), stack.pop()
    if not (isinstance(arguments, tuple) and isinstance(function, _Name)):
        raise TypeError
    if function.text == "collections.OrderedDict" and not arguments:
        stack.append({})
        return
    stack.append(_Call(function.text, arguments))


def _note_storage(stack: list[Any]) -> None:
    word, kind, key = stack.pop()[:3]
    if word != "storage" or not isinstance(kind, _Name) or not isinstance(key, str):
        raise TypeError
    stack.append(_Storage(key, kind.text.rpartition(".")[2]))


def _drop_state(stack: list[Any]) -> None:
    stack.pop()


def _push_list(stack: list[Any]) -> None:
    stack.append([])


def _append(stack: list[Any]) -> None:
    value = stack.pop()
    if isinstance(stack[-1], list):
        stack[-1].append(value)


def _append_all(stack: list[Any]) -> None:
    values = _pop_to_mark(stack)
    if isinstance(stack[-1], list):
        stack[-1].extend(values)


_STEPS: dict[str, Callable[[list[Any]], None]] = {
    "EMPTY_LIST": _push_list,
    "APPEND": _append,
    "APPENDS": _append_all,
    "TUPLE": _push_tuple,
    "EMPTY_DICT": _push_dict,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "STACK_GLOBAL": _join_name,
    "REDUCE": _note_call,
    "BINPERSID": _note_storage,
    "BUILD": _drop_state,
}


def _read_tensor(result: Any) -> PickledTensor:
    # A parameter, and a tensor with attributes or of a subclass, are wrapped around a plain one; a few times at most.
    for _ in range(4):
        if not isinstance(result, _Call):
            break
        function, arguments = result.function, result.arguments
        if function in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state") and arguments:
            result = arguments[0]
        elif function == "torch._tensor._rebuild_from_type_v2" and len(arguments) >= 3:
            result = _unwrap(arguments)
        else:
            return _read_call(function, arguments)
    raise Unreadable("holds a pickle, not a tensor")


def _unwrap(arguments: tuple[Any, ...]) -> _Call:
    function, _, inner = arguments[:3]
    if not isinstance(function, _Name) or not isinstance(inner, tuple):
        raise Unreadable("is damaged: its pickle makes no sense")
    return _Call(function.text, inner)


def _read_call(function: str, arguments: tuple[Any, ...]) -> PickledTensor:
    match function:
        case "torch._utils._rebuild_tensor_v2":
            return _read_plain(arguments, None, arguments[6:7])
        case "torch._utils._rebuild_tensor_v3":
            return _read_plain(arguments, arguments[6:7], arguments[7:8])
        case "torch._utils._rebuild_tensor":
            return _read_plain(arguments, None, ())
        case "torch._utils._rebuild_sparse_tensor":
            raise NotDense("is sparse: only its statistics are compared")
        case "torch._utils._rebuild_qtensor":
            raise NotDense("is quantized: only its statistics are compared")
        case "torch._utils._rebuild_meta_tensor_no_storage":
            raise NotDense("is a meta tensor, which has no elements")
    raise Unreadable("holds a pickle, not a tensor")


def _read_plain(arguments: tuple[Any, ...], dtypes: tuple[Any, ...] | None, metadata: tuple[Any, ...]) -> PickledTensor:
    """`dtypes`: of what has no kind of storage of its own; None when the storage says it."""
    if len(arguments) < 4 or not isinstance(arguments[0], _Storage):
        raise Unreadable("is damaged: its pickle makes no sense")
    storage, offset, shape, strides = arguments[:4]
    if isinstance(shape, _Call) and shape.function == "torch.Size" and shape.arguments:
        shape = shape.arguments[0]
    if not (_is_index(offset) and _are_indices(shape) and _are_indices(strides)):
        raise Unreadable("is damaged: its pickle makes no sense")
    flags = metadata[0] if metadata and isinstance(metadata[0], dict) else {}
    dtype = _read_dtype(storage, dtypes)
    return PickledTensor(
        storage.key, dtype, offset, shape, strides, flags.get("conj") is True, flags.get("neg") is True
    )


def _read_dtype(storage: _Storage, dtypes: tuple[Any, ...] | None) -> str:
    if dtypes is None:
        if storage.kind not in _STORAGES:
            raise NotDense(f"has a {storage.kind}, which is not compared")
        return _STORAGES[storage.kind]
    if not dtypes or not isinstance(dtypes[0], _Name):
        raise Unreadable("is damaged: its pickle makes no sense")
    name = dtypes[0].text.removeprefix("torch.")
    return _SYNONYMS.get(name, name)


def _is_index(value: Any) -> bool:
    return type(value) is int


def _are_indices(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_index, value))
