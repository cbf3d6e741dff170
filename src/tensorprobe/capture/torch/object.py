"""Arguments that are no tensors and belong to torch, as leaves of a record."""

from __future__ import annotations

from typing import Any

import torch

_PLACEMENTS = "torch.distributed.tensor.placement_types"


def describe_object(value: Any) -> dict[str, Any] | None:
    """None for what torch does not know."""
    if isinstance(value, torch.Size):
        return {"type": "torch.Size", "value": list(value)}
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return {"type": f"torch.{type(value).__name__}", "value": str(value)}
    return describe_communication(value)


def describe_communication(value: Any) -> dict[str, Any] | None:
    """A leaf for a process group or a kind of reduction, as msprobe writes them, or for a placement; None otherwise."""
    if not torch.distributed.is_available():
        return None
    if type(value).__module__ == _PLACEMENTS:
        return {"type": f"{_PLACEMENTS}.{type(value).__name__}", "value": repr(value)}
    if isinstance(value, torch.distributed.ProcessGroup):
        return {"type": "torch.ProcessGroup", "group_ranks": torch.distributed.get_process_group_ranks(value)}
    if isinstance(value, (torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType)):
        return {"type": "torch.distributed.ReduceOp", "value": str(value)}
    return None
