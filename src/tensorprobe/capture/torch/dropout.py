"""Makes dropout inert, whoever calls it, and takes that back.

`torch.nn.functional.dropout` and its kin look their kernel up in `torch._VF` at each call. A wrapper there reaches
every dropout module, built before or after, and every name that a program imported early. RNNs take their dropout as
an argument of `_VF.lstm` and its kin, attention as one of `scaled_dot_product_attention`. A wrapper calls the
original, told not to drop: the call stays visible to a TorchFunctionMode, draws no random number, and returns what it
was given.

There is one wrapper for each original, for the life of the process: a program may keep one that it imported while
dropout was inert, and TorchScript knows its builtins by their id. Once the patches are off, a wrapper that somebody
kept passes everything on as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

Undo = Callable[[], None]
Call = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_DROPOUTS = (
    "dropout",
    "dropout_",
    "feature_dropout",
    "feature_dropout_",
    "alpha_dropout",
    "alpha_dropout_",
    "feature_alpha_dropout",
    "feature_alpha_dropout_",
    "native_dropout",
)
RNNS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_ATTENTION = "scaled_dot_product_attention"

_inert = False
_patched: list[tuple[Any, str, bool, Call]] = []
"""Owner, name, whether the owner's own dict held it (`torch._VF` computes its names), and the original."""


def set_dropout_inert(inert: bool) -> Undo:
    """Switch dropout off (`inert`) or on again; the result switches it back to what it was before."""
    global _inert
    undo = functools.partial(_set_back, _inert)
    if inert and not _inert:
        _warm_torch_tables()
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
    for name in (*_DROPOUTS, *RNNS):
        without = _without_rnn_dropout if name in RNNS else _without_training
        for owner in (torch._VF, torch):
            _patch(owner, name, without)
    _patch(torch.nn.functional, _ATTENTION, _without_attention_dropout)


def _patch(owner: Any, name: str, without: Callable[..., Arguments]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return  # a torch that lacks this name
    _patched.append((owner, name, name in vars(owner), original))
    setattr(owner, name, _wrapper(original, name, without))


def _remove() -> None:
    while _patched:
        owner, name, was_held, original = _patched.pop()
        if getattr(vars(owner).get(name), "__wrapped__", None) is not original:
            continue  # somebody patched over it: theirs stays, and our wrapper below it passes everything on
        if was_held:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
    _forget_compiler_tables()


@functools.cache
def _wrapper(original: Call, name: str, without: Callable[..., Arguments]) -> Call:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inert:
            args, kwargs = without(args, kwargs)
        return original(*args, **kwargs)

    _register_with_torchscript(call, name)
    return call


def _without_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """dropout(input, p, train): with train=False torch still checks p."""
    return _replace(args, kwargs, 2, "train", False)


def _without_rnn_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """lstm(input, hx, params, has_biases, num_layers, dropout, …), or lstm(data, batch_sizes, hx, params, …).

    `train` stays as it is: cuDNN keeps what the backward needs only in training.
    """
    is_packed = len(args) > 3 and not isinstance(args[3], bool)
    return _replace(args, kwargs, 6 if is_packed else 5, "dropout", 0.0)


def _without_attention_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return _replace(args, kwargs, 4, "dropout_p", 0.0)


def _replace(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, value: Any) -> Arguments:
    """An argument that is missing stays missing: the default, or torch's own error, is the right answer to that."""
    if name in kwargs:
        return args, {**kwargs, name: value}
    if position < len(args):
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, kwargs


def _warm_torch_tables() -> None:
    """Torch names functions by tables that it fills once, from the attributes patched here: have them filled before."""
    torch.overrides.resolve_name(torch.dropout)
    torch.overrides.get_testing_overrides()


def _register_with_torchscript(call: Call, name: str) -> None:
    """Let `torch.jit.script` take the wrapper for the builtin, dropout included; it cannot compile the wrapper."""
    try:
        from torch.jit._builtins import _register_builtin
    except ImportError:
        return
    _register_builtin(call, f"aten::{name}")


def _forget_compiler_tables() -> None:
    """What torch.compile filled in while the patches were on does not know the originals: have it filled anew."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    clear = getattr(getattr(rules, "get_torch_obj_rule_map", None), "cache_clear", None)
    if clear is not None:
        clear()
