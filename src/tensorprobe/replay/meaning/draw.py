"""Calls of torch that draw random numbers inside and are followed by gradients: in float64 they get the numbers that
were drawn in the recorded precision, from the generator as it was.

A function that hands its draw on to dropout is made again with another dropout; others are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from tensorprobe.replay.meaning.torch import Context, Meaning, attend

_ALPHA = 1.7580993408473766
"""Of the self-normalizing units, as torch has it."""


def find_draw(prefix: str, op: str) -> Meaning | None:
    """How a call is made again in float64."""
    return _DRAWN.get(op) if prefix in ("Torch", "Tensor", "Functional") else None


def _narrow(context: Context, number: int = 0) -> torch.Tensor:
    return context.recorded_inputs(number)


def _drawn(context: Context, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    if context.draw is None:
        raise NotImplementedError("random numbers that were drawn inside the call, which are not recorded")
    found: torch.Tensor = context.draw(draw)
    return found


def drop_alpha(
    context: Context, tensor: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> torch.Tensor:
    return _drop_alpha(context, tensor, p, training, tuple(tensor.shape))


def drop_alpha_features(
    context: Context, tensor: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> torch.Tensor:
    shape = (*tensor.shape[:2], *(1,) * (tensor.dim() - 2))
    return _drop_alpha(context, tensor, p, training, shape)


def _drop_alpha(
    context: Context, tensor: torch.Tensor, p: float, training: bool, shape: tuple[int, ...]
) -> torch.Tensor:
    if not training or not p:
        raise LookupError("nothing is drawn")
    dtype = _narrow(context).dtype
    kept = _drawn(context, lambda: torch.empty(shape, dtype=dtype).bernoulli_(1 - p)).to(tensor)
    scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    return tensor * (kept * scale) + ((kept - 1) * (_ALPHA * scale) + _ALPHA * scale * p)


def leak(
    context: Context,
    tensor: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> torch.Tensor:
    """rrelu: the slopes that were drawn for the negative elements."""
    if not training:
        raise LookupError("nothing is drawn")
    given = _narrow(context)
    slopes = torch.empty_like(given)
    _drawn(context, lambda: torch.ops.aten.rrelu_with_noise(given, slopes, lower, upper, True))
    return tensor.mul_(slopes.to(tensor)) if inplace else tensor * slopes.to(tensor)


def soften(
    context: Context, logits: torch.Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> torch.Tensor:
    """gumbel_softmax; a hard choice is the one that was recorded."""
    given = _narrow(context)
    noise = _drawn(context, lambda: torch.empty(given.shape, dtype=given.dtype).exponential_())
    soft = ((logits - noise.to(logits).log()) / tau).softmax(dim)
    return context.recorded_results(0).to(soft) - soft.detach() + soft if hard else soft


def drop_natively(context: Context, tensor: torch.Tensor, p: float, train: bool | None) -> Any:
    mask = context.recorded_results(1)
    return (tensor * mask.to(tensor) / (1 - p if p < 1 else 1) if train else tensor), mask


def drop_ones(shape: torch.Size, p: float, dtype: torch.dtype) -> torch.Tensor:
    """What a dropout multiplies by: drawn in its own dtype, and scaled in float64."""
    kept = F.dropout(torch.ones(shape, dtype=dtype), p) != 0
    return kept.to(torch.float64) / (1 - p if p < 1 else 1)


def attend_heads(context: Context, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """multi_head_attention_forward: torch's own code, with another dropout in it."""
    p = args[9] if len(args) > 9 else kwargs.get("dropout_p", 0.0)
    training = args[12] if len(args) > 12 else kwargs.get("training", True)
    if not p or not training:
        raise LookupError("nothing is drawn")
    dtype = _narrow(context).dtype

    def drop(tensor: torch.Tensor, p: float) -> torch.Tensor:
        return tensor * drop_ones(tensor.shape, p, dtype).to(tensor)

    original = F.multi_head_attention_forward
    names = {**vars(F), "dropout": drop, "scaled_dot_product_attention": partial(attend, context)}
    function = FunctionType(original.__code__, names, original.__name__, original.__defaults__)
    function.__kwdefaults__ = original.__kwdefaults__
    return _drawn(context, lambda: function(query, *args, **kwargs))


def recur(context: Context, *args: Any, op: str) -> Any:
    """A recurrent network of several layers: the dropout is between them. A packed sequence comes with its lengths."""
    is_packed = isinstance(args[3], (tuple, list))
    lengths, args = ((args[1],), (args[0], *args[2:], False)) if is_packed else ((), args)
    tensor, hidden, weights, has_biases, layers, p, training, bidirectional, batch_first = args
    if not p or not training:
        raise LookupError("nothing is drawn")
    order = () if is_packed else (False,)
    dtype, layer = _narrow(context).dtype, getattr(torch, op)
    sides = 2 if bidirectional else 1
    count = len(weights) // layers
    states = hidden if isinstance(hidden, (tuple, list)) else (hidden,)

    def run() -> Any:
        value, last = (tensor.transpose(0, 1) if batch_first else tensor), []
        for number in range(layers):
            own = tuple(state[number * sides : (number + 1) * sides] for state in states)
            given = own if len(own) > 1 else own[0]
            params = weights[number * count : (number + 1) * count]
            value, *after = layer(value, *lengths, given, params, has_biases, 1, 0.0, True, bidirectional, *order)
            last.append(after)
            if number + 1 < layers:
                value = value * drop_ones(value.shape, p, dtype).to(value)
        value = value.transpose(0, 1) if batch_first else value
        return (value, *(torch.cat(parts) for parts in zip(*last, strict=True)))

    return _drawn(context, run)


def _recurrent(op: str) -> Meaning:
    return lambda context, *args: recur(context, *args, op=op)


_DRAWN: dict[str, Meaning] = {
    "alpha_dropout": drop_alpha,
    "feature_alpha_dropout": drop_alpha_features,
    "rrelu": leak,
    "rrelu_": lambda context, *args, **kwargs: leak(context, *args, **{**kwargs, "inplace": True}),
    "gumbel_softmax": soften,
    "native_dropout": drop_natively,
    "multi_head_attention_forward": attend_heads,
    **{op: _recurrent(op) for op in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
