"""A first port of cnn_pytorch.py, line by line: it runs, and some lines are wrong. docs/migration.md finds them."""

from __future__ import annotations

from mindspore import Tensor, nn, ops


class Block(nn.Cell):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3)
        self.bn1 = nn.BatchNorm2d(channels, momentum=0.1)
        self.conv2 = nn.Conv2d(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels, momentum=0.1)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + x)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(nn.Conv2d(3, 8, 3, has_bias=True), nn.BatchNorm2d(8, momentum=0.1), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.block1 = Block(8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, has_bias=True)
        self.block2 = Block(16)
        self.fc = nn.Dense(16, 5)

    def construct(self, x: Tensor) -> Tensor:
        x = self.block1(self.pool(self.stem(x)))
        x = self.block2(ops.leaky_relu(self.down(x)))
        return self.fc(x.mean((2, 3)))


def compute_loss(network: nn.Cell, x: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(network(x), labels)
