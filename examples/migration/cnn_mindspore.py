"""A residual CNN with BatchNorm and pooling in MindSpore's `nn` and `ops`; cnn_pytorch.py is the same in PyTorch."""

from __future__ import annotations

from mindspore import Tensor, nn, ops


def conv3x3(inputs: int, outputs: int, stride: int = 1, has_bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, pad_mode="pad", padding=1, has_bias=has_bias)


class Block(nn.Cell):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, channels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + x)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(conv3x3(3, 8, has_bias=True), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.block1 = Block(8)
        self.down = conv3x3(8, 16, stride=2, has_bias=True)
        self.block2 = Block(16)
        self.fc = nn.Dense(16, 5)

    def construct(self, x: Tensor) -> Tensor:
        x = self.block1(self.pool(self.stem(x)))
        x = self.block2(ops.leaky_relu(self.down(x), 0.1))
        return self.fc(x.mean((2, 3)))


def compute_loss(network: nn.Cell, x: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(network(x), labels)
