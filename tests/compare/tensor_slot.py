"""Records of tensors for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from tensorprobe.store.slot import TensorSlot

_PLAIN = TensorSlot(
    slot="output.0",
    type="torch.Tensor",
    dtype="torch.float32",
    shape=None,
    max=None,
    min=None,
    mean=None,
    norm=None,
    nan_count=None,
    inf_count=None,
    requires_grad=None,
    checksum=None,
    data_name=None,
    source=None,
    reason=None,
    note=None,
    is_input=False,
)


def make_slot(**fields: Any) -> TensorSlot:
    """A record that says nothing but what is given."""
    return dataclasses.replace(_PLAIN, **fields)
