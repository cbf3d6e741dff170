"""Calls of torch that are not simply made again: casts, which mean nothing in float64; choices, whose places are
pinned; dropouts, whose mask is.

A meaning is given the operation's name, its arguments as values of the replay, and what was recorded of its results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tensorprobe.replay.meaning.distributed import MEANINGS, copies_only
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.recorded import MissingContentError


@dataclass(frozen=True)
class Context:
    """What a meaning may look at besides its arguments."""

    precision: Precision
    recorded_inputs: Callable[[int], torch.Tensor]
    """A tensor that was given, in its recorded precision, by its number among the tensors given."""
    recorded_results: Callable[[int], torch.Tensor]
    """A tensor that was returned, likewise."""
    make_ones: Callable[[], torch.Tensor]
    """A tensor of ones that is laid out as the first that was given, in its recorded precision: random numbers are
    drawn in the order of the memory."""
    recorded_mask: Callable[[], torch.Tensor | None]
    """Which elements a dropout kept; None where the dump does not say."""
    note_choice: Callable[[torch.Tensor], None] | None
    """Told of a choice how far each value that was chosen lies from the one that would be chosen now."""
    draw: Callable[[Callable[[], Any]], Any] | None
    """Calls a function with the random generator as it was before the recorded call; None where that is not known."""
    drops: bool = True
    """False where the run had its dropouts removed: they hand on what they are given."""
    chooses_anew: bool = False
    """Are choices made again, by what is compared now?"""

    def recorded_places(self, number: int, choose: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What was chosen, which is one of the results."""
        try:
            places = self.recorded_results(number)
        except MissingContentError:
            if not self.chooses_anew:
                raise
            return choose()
        return choose() if self.chooses_anew else places


Meaning = Callable[..., Any]
Dropout = Callable[[torch.Tensor, float, bool], torch.Tensor]

_CASTS = {
    ("Tensor", name): getattr(torch, dtype)
    for name, dtype in (
        ("float", "float32"),
        ("half", "float16"),
        ("bfloat16", "bfloat16"),
        ("double", "float64"),
        ("cfloat", "complex64"),
        ("cdouble", "complex128"),
    )
}
_TEXT_TYPES = {
    "torch.FloatTensor": torch.float32,
    "torch.DoubleTensor": torch.float64,
    "torch.HalfTensor": torch.float16,
    "torch.BFloat16Tensor": torch.bfloat16,
}


def find_meaning(prefix: str, op: str, is_wide: bool) -> Meaning | None:
    """How a call is made again, where it is not by the function of its name."""
    if (prefix, op) in _MOVES:
        return stay
    if is_wide and (prefix, op) in _CASTS:
        return _make_cast(_CASTS[prefix, op])
    if is_wide and (prefix, op) in (("Tensor", "type"), ("Tensor", "to")):
        return cast_by_text if op == "type" else None
    if copies_only(prefix, op):
        return MEANINGS[op.removesuffix(".default")]
    found = _CHOICES.get(op) if prefix in ("Torch", "Tensor") else None
    return found or (_RANDOM.get(op) if prefix in ("Torch", "Tensor", "Functional") else None)


_MOVES = frozenset({("Tensor", "cpu"), ("Tensor", "cuda"), ("Tensor", "npu")})


def stay(context: Context, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """A replay has one device."""
    return tensor


def _make_cast(dtype: torch.dtype) -> Meaning:
    def cast(context: Context, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor.to(context.precision.dtype(dtype))

    return cast


def cast_by_text(context: Context, tensor: torch.Tensor, dtype: Any = None, *_: Any, **__: Any) -> Any:
    """`x.type("torch.FloatTensor")`"""
    if isinstance(dtype, str):
        dtype = _TEXT_TYPES.get(dtype.replace("torch.cuda.", "torch."), dtype)
    if isinstance(dtype, torch.dtype):
        return tensor.to(context.precision.dtype(dtype))
    return tensor.type(dtype)


# -- choices: the places that were recorded, and the values there ------------------------------------------------------


def _choose(op: str, dim_of: Callable[..., int]) -> Meaning:
    def choose(context: Context, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dim = dim_of(*args, **kwargs)
        if dim is None or not isinstance(dim, int):
            raise LookupError("not by a dimension")
        if context.chooses_anew:
            raise LookupError("what was chosen does not matter")
        try:
            places = context.recorded_results(1)
        except MissingContentError:
            if tensor.is_floating_point():
                raise
            raise LookupError("nothing is rounded, and so nothing is chosen otherwise") from None
        keeps = places.dim() == tensor.dim()
        index = places if keeps else places.unsqueeze(dim)
        values = tensor.gather(dim, index) if tensor.dim() else tensor.clone()
        values = values if keeps or not tensor.dim() else values.squeeze(dim)
        if context.note_choice is not None:
            best = getattr(torch, op)(tensor.detach(), *args, **kwargs)[0]
            context.note_choice((best - values.detach()).abs())
        return values, places

    return choose


def _dim_second(_: Any = None, dim: Any = -1, *__: Any, **kwargs: Any) -> Any:
    return kwargs.get("dim", dim)


def _dim_first(dim: Any = -1, *_: Any, **kwargs: Any) -> Any:
    return kwargs.get("dim", dim)


def _dim_of_extreme(dim: Any = None, *_: Any, **kwargs: Any) -> Any:
    return kwargs.get("dim", dim)


_CHOICES: dict[str, Meaning] = {
    "topk": _choose("topk", _dim_second),
    "kthvalue": _choose("kthvalue", _dim_second),
    "sort": _choose("sort", _dim_first),
    "mode": _choose("mode", _dim_first),
    "max": _choose("max", _dim_of_extreme),
    "min": _choose("min", _dim_of_extreme),
    "median": _choose("median", _dim_of_extreme),
    "nanmedian": _choose("nanmedian", _dim_of_extreme),
    "cummax": _choose("cummax", _dim_of_extreme),
    "cummin": _choose("cummin", _dim_of_extreme),
}


# -- random draws: the mask that was drawn -----------------------------------------------------------------------------


def drop(
    context: Context,
    tensor: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    dropout: Dropout = F.dropout,
    **_: Any,
) -> torch.Tensor:
    """Dropout, as torch computes it on a CPU: the input times a mask that is scaled first. `dropout` draws it."""
    if not training or p == 0 or not context.drops:
        return tensor
    mask = find_mask(context, p, dropout)
    # with p = 1 nothing is kept, and what is scaled is nothing
    noise = mask.to(tensor.device, tensor.dtype).expand(tensor.shape).clone().div_(1 - p if p < 1 else 1)
    return tensor.mul_(noise) if inplace else tensor * noise


def find_mask(context: Context, p: float, dropout: Dropout = F.dropout) -> torch.Tensor:
    """What a dropout kept: as recorded, drawn again, or by its result, which does not tell where the input is zero."""
    mask = context.recorded_mask()
    if mask is not None:
        return mask
    drawn = None
    if context.draw is not None:
        drawn = context.draw(lambda: dropout(context.make_ones(), p, True)) != 0
    try:
        given, result = context.recorded_inputs(0), context.recorded_results(0)
    except MissingContentError:
        if drawn is None:
            raise
        return drawn
    shown = (result != 0) | (given == 0)
    if drawn is not None and torch.equal(drawn.to(given.device) | (given == 0), shown):
        return drawn.to(given.device)
    return shown  # another machine may draw otherwise


def attend(
    context: Context,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention with a live dropout, written out: torch draws the mask for the weights."""
    if not dropout_p:
        raise LookupError("nothing is drawn")
    if not context.drops:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if context.draw is None:
        raise NotImplementedError("dropout inside a fused call, whose mask is not recorded")
    if not context.precision.is_wide:
        return context.draw(
            lambda: F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        )
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    weights = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
    if attn_mask is not None:
        is_choice = attn_mask.dtype == torch.bool
        weights = weights.masked_fill(~attn_mask, -torch.inf) if is_choice else weights + attn_mask
    narrow = torch.ones(weights.shape, dtype=context.make_ones().dtype)
    noise = context.draw(lambda: F.dropout(narrow, dropout_p)) != 0
    kept = noise.to(weights.device, weights.dtype) / (1 - dropout_p)
    return (weights.softmax(-1) * kept) @ value


_RANDOM: dict[str, Meaning] = {
    "scaled_dot_product_attention": attend,
    "dropout": drop,
    "dropout_": lambda context, tensor, p=0.5, training=True, **_: drop(context, tensor, p, training, True),
    "dropout1d": partial(drop, dropout=F.dropout1d),
    "dropout2d": partial(drop, dropout=F.dropout2d),
    "dropout3d": partial(drop, dropout=F.dropout3d),
    "feature_dropout": partial(drop, dropout=torch.feature_dropout),
}
