"""The tensor files of a dump that msprobe itself made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import TensorSlot

FOLDER = Path(__file__).parents[1] / "store" / "msprobe_dump"


def tensor_slots(rank: RankDump) -> list[TensorSlot]:
    holders = [*rank.records(), *rank.saved_values()]
    return [slot for holder in holders for slot in holder.slots() if isinstance(slot, TensorSlot)]


@pytest.mark.parametrize("case", ["L0-tensor", "debug-tensor"])
def test_every_tensor_is_found_and_has_the_numbers_of_its_record(case: str) -> None:
    (rank,) = open_dump(FOLDER / case).ranks()
    found = tensor_slots(rank)
    assert found
    for slot in found:
        assert slot.data_name is not None
        tensor = torch.load(rank.tensor_path(slot.data_name), weights_only=True)
        assert (tuple(tensor.shape), str(tensor.dtype)) == (slot.shape, slot.dtype)
        assert (tensor.max().item(), tensor.min().item()) == (slot.max, slot.min)
