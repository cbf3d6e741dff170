"""How close a decision was: the distance of what was compared, or chosen between, where truth decides otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_COMPARISONS = frozenset(
    {"gt", "lt", "ge", "le", "eq", "ne", "greater", "less", "greater_equal", "less_equal", "not_equal"}
)
_CHOICES = frozenset({"argmax", "argmin", "argsort"})


def find_margin(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any], recorded: torch.Tensor, now: torch.Tensor
) -> float | None:
    """Of a comparison or a choice that gave `recorded` and gives `now`; None where the call is of another kind."""
    name = op.rsplit(".", 1)[-1].strip("_")
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
        return None
    tensor = args[0].detach()
    if name in _COMPARISONS:
        other = args[1] if len(args) > 1 else kwargs.get("other")
        distance = (tensor - (other.detach() if isinstance(other, torch.Tensor) else other)).abs()
        return _largest(distance[(recorded != now).expand(distance.shape)])
    if name in _CHOICES:
        dim = args[1] if len(args) > 1 else kwargs.get("dim", -1 if name == "argsort" else None)
        if dim is None:
            return _largest((tensor.reshape(-1)[recorded] - tensor.reshape(-1)[now]).abs())
        keeps = recorded.dim() == tensor.dim()
        chosen, best = (index if keeps else index.unsqueeze(dim) for index in (recorded, now))
        return _largest((tensor.gather(dim, chosen) - tensor.gather(dim, best)).abs())
    return None


def _largest(distance: torch.Tensor) -> float:
    finite = distance[torch.isfinite(distance)]
    return float(finite.max()) if finite.numel() else float("inf")
