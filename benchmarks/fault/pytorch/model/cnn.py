"""A convolutional network with BatchNorm: trained for a step, then evaluated with the statistics it has gathered."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fault.place import Plan
from fault.program import Batch, Program
from fault.pytorch.gradient import scale_by_hook
from fault.pytorch.model.layer import Dropout, Linear, Part, ReLU, add_residual, make_loss, pass_on

CLASSES = 7


class Conv2d(nn.Conv2d):
    def __init__(self, plan: Plan, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, padding=1)
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, stride = self.weight, self.bias, self.stride
        is_square = weight.shape[0] == weight.shape[1]
        y = self.plan.at(
            self,
            "conv",
            lambda: F.conv2d(x, weight, bias, stride, 1),
            bias=lambda: F.conv2d(x, weight, None, stride, 1),
            transposed=(lambda: F.conv2d(x, weight.transpose(0, 1), bias, stride, 1)) if is_square else None,
            precision=lambda: F.conv2d(x.bfloat16(), weight.bfloat16(), self.low_bias(), stride, 1).to(x.dtype),
            slice=lambda: F.conv2d(x.roll(1, dims=-1), weight, bias, stride, 1),
            gradient_hook=lambda: scale_by_hook(F.conv2d(x, weight, bias, stride, 1), self.plan.factor),
        )
        return pass_on(self.plan, self, "result", y)

    def low_bias(self) -> torch.Tensor | None:
        return None if self.bias is None else self.bias.bfloat16()


class BatchNorm2d(nn.BatchNorm2d):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(width)
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance, weight, bias = self.running_mean, self.running_var, self.weight, self.bias
        training = self.training
        return self.plan.at(
            self,
            "batch norm",
            lambda: F.batch_norm(x, mean, variance, weight, bias, training, 0.1, self.eps),
            epsilon=lambda: F.batch_norm(x, mean, variance, weight, bias, training, 0.1, 1e-2),
            norm_state=lambda: F.batch_norm(x, mean, variance, weight, bias, not training, 0.1, self.eps),
            bias=lambda: F.batch_norm(x, mean, variance, weight, None, training, 0.1, self.eps),
            stale=(lambda: self.without_update(x)) if training else None,
        )

    def without_update(self, x: torch.Tensor) -> torch.Tensor:
        """The statistics are gathered into a copy that nobody keeps."""
        assert self.running_mean is not None and self.running_var is not None
        mean, variance = self.running_mean.clone(), self.running_var.clone()
        return F.batch_norm(x, mean, variance, self.weight, self.bias, True, 0.1, self.eps)


class Stage(Part):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(plan)
        self.conv1 = Conv2d(plan, width, width)
        self.bn1 = BatchNorm2d(plan, width)
        self.relu = ReLU(plan)
        self.conv2 = Conv2d(plan, width, width)
        self.bn2 = BatchNorm2d(plan, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(add_residual(self, "sum", x, y))


class CNN(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.stem = Conv2d(plan, 3, 8)
        self.bn = BatchNorm2d(plan, 8)
        self.relu = ReLU(plan)
        self.stages = nn.ModuleList(Stage(plan, 8) for _ in range(2))
        self.down = Conv2d(plan, 8, 16, stride=2)
        self.last = Stage(plan, 16)
        self.dropout = Dropout(plan, 0.2)
        self.fc = Linear(plan, 16, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        centered = self.at(
            "center",
            lambda: images - 0.45,
            scale=lambda: images - 0.5,
        )
        scaled = self.at("spread", lambda: centered / 0.225, scale=lambda: centered / (0.225 * self.plan.factor))
        x = self.relu(self.bn(self.stem(scaled)))
        for stage in self.stages:
            x = stage(x)
        x = self.last(self.down(x))
        pooled = self.at(
            "pool",
            lambda: x.mean((2, 3)),
            reduction=lambda: x.sum((2, 3)),
            dimension=lambda: x.mean((0, 2, 3)).expand(len(x), -1),
            slice=lambda: x[:, :, 1:].mean((2, 3)),
        )
        return self.fc(self.dropout(pooled))


def build_cnn(plan: Plan) -> Program:
    compute = make_loss(plan)

    def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return compute(model(batch["images"]), batch["labels"])

    def evaluate(model: nn.Module, batch: Batch) -> object:
        model.eval()
        accuracy = model(batch["images"]).argmax(1)
        model.train()
        return accuracy

    batches = [{"images": torch.rand(4, 3, 12, 12), "labels": torch.randint(0, CLASSES, (4,))} for _ in range(3)]
    return Program(CNN(plan), compute_loss, batches, evaluate, last="fc")
