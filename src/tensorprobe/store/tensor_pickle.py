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

from tensorprobe.store.tensor_layout import (
    COMPLEX_OF_HALVES,
    NotDense,
    Unreadable,
    check_shape,
    is_size,
    quote,
)

MAX_PICKLE_BYTES = 1 << 16
_MAX_SHORT_BYTES = 1 << 12
_KINDS = 4096
"""So many short pickles, and what they hold, are remembered."""

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
    """A tensor as its pickle describes it: a shape that a tensor can have, not yet held against the file."""

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


class _Stack:
    """The values that were pushed; those below a mark are out of reach until it is popped."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._below: list[list[Any]] = []

    def push(self, value: Any) -> None:
        self._items.append(value)

    def pop(self) -> Any:
        return self._items.pop()

    @property
    def top(self) -> Any:
        return self._items[-1]

    def mark(self) -> None:
        self._below.append(self._items)
        self._items = []

    def pop_to_mark(self) -> tuple[Any, ...]:
        taken, self._items = self._items, self._below.pop()
        return tuple(taken)

    def pop_last(self, count: int) -> tuple[Any, ...]:
        if len(self._items) < count:
            raise IndexError
        taken = tuple(self._items[-count:])
        del self._items[-count:]
        return taken


def read_pickle(content: bytes) -> PickledTensor:
    """The tensor of a pickle. Tensors of one dtype, shape and layout have the same pickle, so most are known."""
    return _read_short(content) if len(content) <= _MAX_SHORT_BYTES else _read_tensor(read_tree(content))


@lru_cache(_KINDS)
def _read_short(content: bytes) -> PickledTensor:
    return _read_tensor(read_tree(content))


def read_tree(content: bytes) -> Any:
    """What a pickle holds: texts, numbers, lists, dictionaries with texts as keys, and notes of all else, which
    `find_tensor` reads. One object may stand in many places, also in itself: whoever walks the tree sees each once."""
    try:
        return _walk(content)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, RecursionError):
        raise Unreadable("is damaged: its pickle makes no sense") from None


def find_tensor(node: Any) -> PickledTensor | None:
    """The tensor that a node of a tree stands for, if it is one."""
    try:
        return _read_tensor(node)
    except Unreadable:
        return None


def _walk(content: bytes) -> Any:
    stack = _Stack()
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _PUSHED:
            stack.push(argument)
        elif name in _CONSTANTS:
            stack.push(_CONSTANTS[name])
        elif name in _PUTS:
            memo[int(argument)] = stack.top
        elif name == "MEMOIZE":
            memo[len(memo)] = stack.top
        elif name in _GETS:
            stack.push(memo[int(argument)])
        elif name == "MARK":
            stack.mark()
        elif name in _TUPLES:
            stack.push(stack.pop_last(_TUPLES[name]))
        elif name == "GLOBAL":
            stack.push(_Name(argument.replace(" ", ".")))
        elif name in _STEPS:
            _STEPS[name](stack)
        elif name not in _PASSED_OVER:
            raise Unreadable("holds a pickle, not a tensor")
    return stack.top


def _push_tuple(stack: _Stack) -> None:
    stack.push(stack.pop_to_mark())


def _push_dict(stack: _Stack) -> None:
    stack.push({})


def _set_item(stack: _Stack) -> None:
    value, key = stack.pop(), stack.pop()
    if isinstance(stack.top, dict) and isinstance(key, str):
        stack.top[key] = value


def _set_items(stack: _Stack) -> None:
    items = stack.pop_to_mark()
    if isinstance(stack.top, dict):
        stack.top.update({key: value for key, value in zip(items[::2], items[1::2]) if isinstance(key, str)})  # noqa: B905


def _join_name(stack: _Stack) -> None:
    name, module = stack.pop(), stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise TypeError
    stack.push(_Name(f"{module}.{name}"))


def _note_call(stack: _Stack) -> None:
    arguments, function = stack.pop(), stack.pop()
    if not (isinstance(arguments, tuple) and isinstance(function, _Name)):
        raise TypeError
    if function.text == "collections.OrderedDict" and not arguments:
        stack.push({})
        return
    stack.push(_Call(function.text, arguments))


def _note_storage(stack: _Stack) -> None:
    word, kind, key = stack.pop()[:3]
    if word != "storage" or not isinstance(kind, _Name) or not isinstance(key, str):
        raise TypeError
    stack.push(_Storage(key, kind.text.rpartition(".")[2]))


def _drop_state(stack: _Stack) -> None:
    stack.pop()


def _push_list(stack: _Stack) -> None:
    stack.push([])


def _append(stack: _Stack) -> None:
    value = stack.pop()
    if isinstance(stack.top, list):
        stack.top.append(value)


def _append_all(stack: _Stack) -> None:
    values = stack.pop_to_mark()
    if isinstance(stack.top, list):
        stack.top.extend(values)


_STEPS: dict[str, Callable[[_Stack], None]] = {
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
    if not (is_size(offset) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise Unreadable("is damaged: its pickle makes no sense")
    flags = metadata[0] if metadata and isinstance(metadata[0], dict) else {}
    dtype = _read_dtype(storage, dtypes)
    shape, strides = check_shape(shape), check_shape(strides)
    return PickledTensor(
        storage.key, dtype, offset, shape, strides, flags.get("conj") is True, flags.get("neg") is True
    )


def _read_dtype(storage: _Storage, dtypes: tuple[Any, ...] | None) -> str:
    if dtypes is None:
        if storage.kind not in _STORAGES:
            raise NotDense(f"has a storage of the kind {quote(storage.kind)}, which is not compared")
        return _STORAGES[storage.kind]
    if not dtypes or not isinstance(dtypes[0], _Name):
        raise Unreadable("is damaged: its pickle makes no sense")
    name = dtypes[0].text.removeprefix("torch.")
    return _SYNONYMS.get(name, name)
