"""What a GradScaler calls, in float64: torch has it for float32 only. Whether a gradient was infinite is a decision:
the program went on with the one that was recorded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensorprobe.replay.meaning.torch import Context, Meaning


def find_scaler(prefix: str, op: str) -> Meaning | None:
    """How a call is made again in float64."""
    return _SCALERS.get(op) if prefix == "Torch" else None


def unscale(
    context: Context, gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(inverse.to(gradient))
        found_inf.copy_(context.recorded_results(-1))


def update_scale(
    context: Context,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    with torch.no_grad():
        is_due = int(tracker) + 1 == growth_interval
        if bool(found_inf):
            scale.mul_(backoff_factor)
        elif is_due:
            scale.mul_(growth_factor)
        tracker.fill_(0 if bool(found_inf) or is_due else int(tracker) + 1)
    return scale


_SCALERS: dict[str, Meaning] = {
    "_amp_foreach_non_finite_check_and_unscale_": unscale,
    "_amp_update_scale_": update_scale,
}
