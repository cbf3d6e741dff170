"""Kernels of torch that trust the content of their arguments, and read or write elsewhere if it is wrong. A dump may
come from anyone: their arguments are looked at first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class UnsafeContentError(Exception):
    """An argument would make a kernel read outside of its memory."""


def check_content(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """UnsafeContentError where a call is not to be made."""
    guard = _GUARDS.get(op)
    if guard is None:
        return
    try:
        is_safe = guard(*args, **kwargs)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # not the arguments of this function
        raise UnsafeContentError(f"its arguments are not those of {op}") from error
    if not is_safe:
        raise UnsafeContentError(f"the numbers in its arguments do not fit their shapes, and {op} does not check them")


def _fits_classes(
    scores: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, *_: Any, **__: Any
) -> bool:
    """Labels are classes, and lengths are lengths of what there is."""
    longest_input, longest_target = (torch.as_tensor(item) for item in (input_lengths, target_lengths))
    is_joined = targets.dim() == 1
    room = targets.numel() if is_joined else targets.size(1)
    taken = int(longest_target.sum()) if is_joined else _largest(longest_target)
    labels = targets.long()
    return (
        _least(labels) >= 0
        and _largest(labels) < scores.size(-1)
        and _least(longest_input) >= 0
        and _largest(longest_input) <= scores.size(0)
        and _least(longest_target) >= 0
        and taken <= room
    )


def _fits_lengths(sequences: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> bool:
    """No sequence is longer than the tensor that holds them all."""
    return _least(lengths) >= 1 and _largest(lengths) <= sequences.size(1 if batch_first else 0)


def _match_states(parameters: Sequence[torch.Tensor], *rest: Any, **_: Any) -> bool:
    """Each parameter has a gradient and states of its own size; what comes last counts steps."""
    lists = [item for item in rest if isinstance(item, (list, tuple)) and item]
    *states, last = lists
    counts_steps = all(tensor.numel() == 1 for tensor in last)
    states = states if counts_steps and len(lists) > 2 else lists
    shapes = [tensor.shape for tensor in parameters]
    return len(last) == len(shapes) and all([tensor.shape for tensor in items] == shapes for items in states)


def _least(values: torch.Tensor) -> int:
    return int(values.min()) if values.numel() else 0


def _largest(values: torch.Tensor) -> int:
    return int(values.max()) if values.numel() else 0


_GUARDS: dict[str, Callable[..., bool]] = {
    "ctc_loss": _fits_classes,
    "_ctc_loss": _fits_classes,
    "_pack_padded_sequence": _fits_lengths,
    "_fused_adam_": _match_states,
    "_fused_adamw_": _match_states,
    "_fused_adagrad_": _match_states,
    "_fused_sgd_": _match_states,
}
