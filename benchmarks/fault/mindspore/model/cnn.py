"""A convolutional network with BatchNorm: trained for a step, then evaluated with the statistics it has gathered."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import operations as P

from fault.mindspore.gradient import scale_by_hook
from fault.mindspore.model.layer import LOW, Dense, Dropout, Part, ReLU, add_residual, make_loss, pass_on, shift
from fault.place import Plan
from fault.program import Batch, Program

CLASSES = 7


class Conv2d(nn.Conv2d):
    def __init__(self, plan: Plan, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, pad_mode="pad", padding=1, has_bias=True)
        self.plan = plan

    def construct(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        is_square = weight.shape[0] == weight.shape[1]

        def convolve(x: Tensor, weight: Tensor) -> Tensor:
            return self.bias_add(self.conv2d(x, weight), bias)

        y = self.plan.at(
            self,
            "conv",
            lambda: convolve(x, weight),
            bias=lambda: self.conv2d(x, weight),
            transposed=(lambda: convolve(x, weight.swapaxes(0, 1))) if is_square else None,
            precision=lambda: convolve(x.astype(LOW).astype(x.dtype), weight.astype(LOW).astype(x.dtype)),
            slice=lambda: convolve(shift(x, 3), weight),
            gradient_hook=lambda: scale_by_hook(convolve(x, weight), self.plan.factor),
        )
        return pass_on(self.plan, self, "result", y)


class BatchNorm2d(nn.BatchNorm2d):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(width)
        self.plan = plan
        self.other_train = P.BatchNorm(is_training=True, epsilon=1e-2, momentum=1 - self.momentum)
        self.other_infer = P.BatchNorm(is_training=False, epsilon=1e-2)

    def construct(self, x: Tensor) -> Tensor:
        gamma, beta, state = self.gamma, self.beta, (self.moving_mean, self.moving_variance)
        right, wrong = (self.bn_train, self.bn_infer) if self.training else (self.bn_infer, self.bn_train)
        other = self.other_train if self.training else self.other_infer
        return self.plan.at(
            self,
            "batch norm",
            lambda: right(x, gamma, beta, *state)[0],
            epsilon=lambda: other(x, gamma, beta, *state)[0],
            norm_state=lambda: wrong(x, gamma, beta, *state)[0],
            bias=lambda: right(x, gamma, ops.zeros_like(beta), *state)[0],
            stale=(lambda: self.without_update(x)) if self.training else None,
        )

    def without_update(self, x: Tensor) -> Tensor:
        """The statistics are gathered into a copy that nobody keeps."""
        copies = [
            Parameter(Tensor(one.asnumpy().copy()), requires_grad=False)
            for one in (self.moving_mean, self.moving_variance)
        ]
        return self.bn_train(x, self.gamma, self.beta, *copies)[0]


class Stage(Part):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__(plan)
        self.conv1 = Conv2d(plan, width, width)
        self.bn1 = BatchNorm2d(plan, width)
        self.relu = ReLU(plan)
        self.conv2 = Conv2d(plan, width, width)
        self.bn2 = BatchNorm2d(plan, width)

    def construct(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(add_residual(self, "sum", x, y))


class CNN(Part):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.stem = Conv2d(plan, 3, 8)
        self.bn = BatchNorm2d(plan, 8)
        self.relu = ReLU(plan)
        self.stages = nn.CellList([Stage(plan, 8) for _ in range(2)])
        self.down = Conv2d(plan, 8, 16, stride=2)
        self.last = Stage(plan, 16)
        self.dropout = Dropout(plan, 0.2)
        self.fc = Dense(plan, 16, CLASSES)

    def construct(self, images: Tensor) -> Tensor:
        centered = self.at("center", lambda: images - 0.45, scale=lambda: images - 0.5)
        scaled = self.at("spread", lambda: centered / 0.225, scale=lambda: centered / (0.225 * self.plan.factor))
        x = self.relu(self.bn(self.stem(scaled)))
        for stage in self.stages:
            x = stage(x)
        x = self.last(self.down(x))
        pooled = self.at(
            "pool",
            lambda: x.mean((2, 3)),
            reduction=lambda: x.sum((2, 3)),
            dimension=lambda: ops.broadcast_to(x.mean((0, 2, 3)), x.shape[:2]),
            slice=lambda: x[:, :, 1:].mean((2, 3)),
        )
        return self.fc(self.dropout(pooled))


def build_cnn(plan: Plan) -> Program:
    compute = make_loss(plan)

    def compute_loss(model: nn.Cell, batch: Batch) -> Tensor:
        return compute(model(batch["images"]), batch["labels"])

    def evaluate(model: nn.Cell, batch: Batch) -> object:
        model.set_train(False)
        accuracy = ops.argmax(model(batch["images"]), 1)
        model.set_train()
        return accuracy

    batches = [
        {
            "images": Tensor(np.random.rand(4, 3, 12, 12).astype(np.float32)),
            "labels": Tensor(np.random.randint(0, CLASSES, (4,))),
        }
        for _ in range(3)
    ]
    return Program(CNN(plan), compute_loss, batches, evaluate, last="fc")
