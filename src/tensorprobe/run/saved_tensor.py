"""A tensor of a record, where it was saved."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorprobe.errors import DumpError
from tensorprobe.store.reader import RankDump
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_file import open_tensor


def open_saved(rank: RankDump, slot: TensorSlot) -> np.ndarray[Any, Any] | None:
    """Its content; None if there is no file of it, or none that can be read."""
    if slot.data_name is None:
        return None
    try:
        return open_tensor(rank.tensor_path(slot.data_name), slot.dtype)
    except DumpError:
        return None
