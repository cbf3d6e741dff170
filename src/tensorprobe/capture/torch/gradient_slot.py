"""Which of a call's arguments and results have gradients. On the hot path: most trees are flat, and most of what is in
them has none."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tensorprobe.capture.call import Slot
from tensorprobe.model.tree import MAX_PLAIN_ITEMS, PLAIN_ENDS, map_tree

_ATOMS = (torch.Tensor, torch.Size)


def make_slots(tree: Any, role: str, tensors: list[tuple[Slot, torch.Tensor]]) -> Any:
    """The same nesting, with a slot for each tensor that has a gradient; both are added to `tensors`."""
    if type(tree) not in (tuple, list) or len(tree) > MAX_PLAIN_ITEMS:
        return map_tree(tree, role, partial(_make_slot, tensors), _ATOMS)
    slots: list[Any] = []
    above = (id(tree),)
    for index, item in enumerate(tree):
        kind = type(item)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            slot = Slot(f"{role}.{index}") if item.requires_grad else None
            slots.append(slot)
            if slot is not None:
                tensors.append((slot, item))
        elif kind in PLAIN_ENDS:
            slots.append(None)
        else:
            slots.append(map_tree(item, f"{role}.{index}", partial(_make_slot, tensors), _ATOMS, above))
    return slots


def _make_slot(tensors: list[tuple[Slot, torch.Tensor]], value: Any, path: str) -> Slot | None:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    slot = Slot(path)
    tensors.append((slot, value))
    return slot
