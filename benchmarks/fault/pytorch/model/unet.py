"""A small denoiser: group norms, transposed convolutions, skips that are joined, a time embedding, a squared loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.gradient import ScaleGradient, scale_by_hook
from fault.pytorch.model.cnn import Conv2d
from fault.pytorch.model.layer import Linear, Part, add_residual

WIDTH, TIME = 8, 12


class GroupNorm(nn.GroupNorm):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(4, width)
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plan.at(
            self,
            "norm",
            lambda: F.group_norm(x, 4, self.weight, self.bias, self.eps),
            epsilon=lambda: F.group_norm(x, 4, self.weight, self.bias, 1e-2),
            head=lambda: F.group_norm(x, 2, self.weight, self.bias, self.eps),
            bias=lambda: F.group_norm(x, 4, self.weight, None, self.eps),
            gradient_hook=lambda: scale_by_hook(F.group_norm(x, 4, self.weight, self.bias, self.eps), self.plan.factor),
        )


class ResidualBlock(Part):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(plan)
        self.norm1, self.norm2 = GroupNorm(plan, width), GroupNorm(plan, width)
        self.conv1, self.conv2 = Conv2d(plan, width, width), Conv2d(plan, width, width)
        self.time = Linear(plan, TIME, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(self.activate("first", self.norm1(x)))
        shift = self.time(time)[:, :, None, None]
        moved = self.at("time", lambda: y + shift, residual=lambda: y, scale=lambda: y + shift * self.plan.factor)
        return add_residual(self, "sum", x, self.conv2(self.activate("second", self.norm2(moved))))

    def activate(self, site: str, x: torch.Tensor) -> torch.Tensor:
        return self.at(
            site,
            lambda: F.silu(x),
            activation=lambda: F.elu(x),
            gelu_by_hand=lambda: x * torch.sigmoid(1.05 * x),
            gradient_function=(lambda: F.silu(ScaleGradient.apply(x, self.plan.factor))) if x.requires_grad else None,
        )


class UNet(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.enter = Conv2d(plan, 3, WIDTH)
        self.down = Conv2d(plan, WIDTH, 2 * WIDTH, stride=2)
        self.first, self.middle, self.last = (ResidualBlock(plan, width) for width in (WIDTH, 2 * WIDTH, 2 * WIDTH))
        self.up = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 2, stride=2)
        self.leave = Conv2d(plan, 2 * WIDTH, 3)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        time = self.embed_time(times)
        skip = self.first(self.enter(images), time)
        x = self.up(self.middle(self.down(skip), time))
        joined = self.at(
            "join",
            lambda: torch.cat([x, skip], dim=1),
            swapped=lambda: torch.cat([skip, x], dim=1),
            operand=lambda: torch.cat([x, x], dim=1),
            detach=(lambda: torch.cat([x, skip.detach()], dim=1)) if skip.requires_grad else None,
        )
        return self.leave(self.last(joined, time))  # type: ignore[no-any-return]

    def embed_time(self, times: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(TIME // 2)
        rates = self.at(
            "rates",
            lambda: torch.exp(-math.log(100) * steps / (TIME // 2)),
            scale=lambda: torch.exp(-math.log(100) * steps / (TIME // 2 - 1)),
            slice=lambda: torch.exp(-math.log(100) * (steps + 1) / (TIME // 2)),
        )
        angles = self.at(
            "angles",
            lambda: times[:, None] * rates,
            overflow=lambda: (times[:, None] * 7).to(torch.int8) * rates,
            precision=lambda: (times[:, None].bfloat16() * rates.bfloat16()).to(rates.dtype),
        )
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(self.up.weight.dtype)


def build_unet(plan: Plan) -> Program:
    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        noisy = plan.at(
            None,
            "noise",
            lambda: batch["images"] + batch["noise"],
            swapped=lambda: batch["images"] - batch["noise"],
        )
        result = model(noisy, batch["times"])
        return plan.at(
            None,
            "loss",
            lambda: F.mse_loss(result, batch["noise"]),
            reduction=lambda: F.mse_loss(result, batch["noise"], reduction="sum"),
            activation=lambda: F.smooth_l1_loss(result, batch["noise"]),
        )

    def make_batch() -> Batch:
        shape = 3, 3, 8, 8
        return {"images": torch.randn(shape), "noise": torch.randn(shape), "times": torch.randint(20, 100, (3,))}

    return Program(UNet(plan), compute_loss, [make_batch() for _ in range(3)], last="leave")
