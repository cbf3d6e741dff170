"""Makes dropout inert, whoever calls it, and takes that back.

A dropout function, and the `construct` of a dropout cell, gets another code object: the function itself stays the same
object, so that every name a program imported early and every cell built before are reached. The graph compiler finds
the source of a function by its code object, and compiles the inert one below.

A dropout primitive has no Python body in a graph. PyNative calls its class, which gets another `__call__`. A graph
takes the probability from the object: `Dropout` keeps it in Python, where a property of the class comes before it;
`Dropout2D` and `Dropout3D` keep it in C++, where only the objects that are made while dropout is inert can get another.

What was compiled before stays as it is, and so does what was compiled meanwhile.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import mindspore
import numpy as np
from mindspore import mint, nn, ops

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import replace

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
_CELLS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
_PROBABILITY = "keep_prob"
_logger = logging.getLogger("tensorprobe")

_inert = False
_undos: list[Undo] = []
_made_inert: list[tuple[weakref.ref[Any], float]] = []
"""The primitives whose probability in C++ is 1 for now, and the one that the program asked for."""


def set_dropout_inert(inert: bool) -> Undo:
    """Switch dropout off (`inert`) or on again; the result switches it back to what it was before."""
    global _inert
    undo = functools.partial(_set_back, _inert)
    if inert and not _inert:
        _install()
    elif _inert and not inert:
        _remove()
    _inert = inert
    return undo


def is_dropout_inert() -> bool:
    return _inert


def _set_back(inert: bool) -> None:
    set_dropout_inert(inert)


def _install() -> None:
    for function in _dropout_functions():
        _replace_code(function)
    _undos.append(replace(ops.Dropout, "__call__", _inert_call(ops.Dropout.__call__, _element_mask)))
    _undos.append(replace(ops.Dropout, _PROBABILITY, property(_read_probability, _keep_probability)))
    for primitive in (ops.Dropout2D, ops.Dropout3D):
        _undos.append(replace(primitive, "__call__", _inert_call(primitive.__call__, _channel_mask)))
        _undos.append(replace(primitive, "__init__", _inert_init(primitive.__init__)))


def _remove() -> None:
    while _undos:
        _undos.pop()()
    while _made_inert:
        reference, probability = _made_inert.pop()
        primitive = reference()
        if primitive is not None:
            primitive.add_attr(_PROBABILITY, probability)


def _dropout_functions() -> list[FunctionType]:
    """Each once: `mint` and the older names may share a function; a name that this MindSpore lacks is left out."""
    owners = [(ops, _FUNCTIONS), (mint.nn.functional, _FUNCTIONS), (nn, _CELLS), (mint.nn, _CELLS)]
    found = [getattr(owner, name) for owner, names in owners for name in names if hasattr(owner, name)]
    functions = [inspect.unwrap(getattr(item, "construct", item)) for item in found]
    return list(dict.fromkeys(functions))


def _replace_code(function: FunctionType) -> None:
    original = function.__code__
    names = original.co_varnames[: original.co_argcount]
    inert = _INERT_CODES.get(names)
    if inert is None or original.co_freevars:
        _logger.warning("seed_all: %s%s of this MindSpore is not known and still drops", function.__qualname__, names)
        return
    function.__code__ = inert
    _undos.append(functools.partial(setattr, function, "__code__", original))


# The graph compiler parses these: they use no name of this file, and their parameters are those of the originals.


def _pass_seeded(input, p=0.5, training=True, seed=None):  # type: ignore[no-untyped-def]  # noqa: A002
    return input


def _pass_in_place(input, p=0.5, training=True, inplace=False):  # type: ignore[no-untyped-def]  # noqa: A002
    return input


def _pass_plain(input, p=0.5, training=True):  # type: ignore[no-untyped-def]  # noqa: A002
    return input


def _construct_x(self, x):  # type: ignore[no-untyped-def]
    return x


def _construct_input(self, input):  # type: ignore[no-untyped-def]  # noqa: A002
    return input


_INERT_CODES = {
    function.__code__.co_varnames[: function.__code__.co_argcount]: function.__code__
    for function in (_pass_seeded, _pass_in_place, _pass_plain, _construct_x, _construct_input)
}


def _inert_call(original: Callable[..., Any], mask: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _inert or len(args) != 1 or kwargs:
            return original(self, *args, **kwargs)  # with wrong arguments: MindSpore's own error
        return args[0], mask(args[0])

    return call


def _element_mask(x: Any) -> Any:
    """The mask of `ops.Dropout` that keeps everything, in the form of the device."""
    if mindspore.get_context("device_target") == "Ascend":  # one bit for an element, in blocks of 128
        return mindspore.Tensor(np.full(math.ceil(math.prod(x.shape) / 128) * 16, 255, np.uint8))
    return mindspore.Tensor(np.ones(x.shape, np.float32), x.dtype)


def _channel_mask(x: Any) -> Any:
    return mindspore.Tensor(np.ones(x.shape, np.bool_))


def _read_probability(self: Any) -> float:
    return 1.0


def _keep_probability(self: Any, value: float) -> None:
    self.__dict__[_PROBABILITY] = value


def _inert_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _inert:
            _made_inert.append((weakref.ref(self), getattr(self, _PROBABILITY)))
            self.add_attr(_PROBABILITY, 1.0)  # of the C++ object; Python goes on seeing the program's own

    return init
