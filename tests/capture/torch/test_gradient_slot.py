"""Which arguments of a call wait for a gradient: those that have one, wherever in the arguments they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorprobe.capture.call import Slot, iter_slots
from tensorprobe.capture.torch.gradient_slot import make_slots

WITH = torch.zeros(2, requires_grad=True)
WITHOUT = torch.zeros(2)


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        ((WITH, 1, None, "sum", WITHOUT), ["output.0"]),
        ((torch.nn.Parameter(torch.zeros(2)), WITH), ["output.0", "output.1"]),
        (([WITHOUT, WITH], (1, {"mask": WITH})), ["output.0.1", "output.1.1.mask"]),
        ({"other": WITH, "alpha": 2}, ["output.other"]),
        ((torch.Size([2]), torch.float32), []),
        (tuple(range(2000)), []),
    ],
    ids=["flat", "parameter", "nested", "keywords", "no tensors", "numbers"],
)
def test_each_tensor_with_a_gradient_has_a_slot_at_its_place(tree: Any, paths: list[str]) -> None:
    tensors: list[tuple[Slot, torch.Tensor]] = []
    slots = make_slots(tree, "output", tensors)
    assert [slot.path for slot, _ in tensors] == paths
    assert [slot.path for slot in iter_slots(slots)] == paths
    assert all(tensor.requires_grad for _, tensor in tensors)


def test_a_list_inside_itself_is_looked_at_once() -> None:
    tree: list[Any] = [WITH]
    tree.append(tree)
    tensors: list[tuple[Slot, torch.Tensor]] = []
    make_slots(tree, "output", tensors)
    assert [slot.path for slot, _ in tensors] == ["output.0"]
