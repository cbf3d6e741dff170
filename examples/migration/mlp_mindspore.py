"""A multilayer perceptron in MindSpore's `nn` and `ops`; mlp_pytorch.py is the same in PyTorch."""

from __future__ import annotations

from mindspore import Tensor, nn, ops


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(24, 32)
        self.norm = nn.LayerNorm((32,), epsilon=1e-5)
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(32, 32)
        self.gelu = nn.GELU(approximate=False)
        self.classifier = nn.Dense(32, 5)

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.fc1(self.flatten(x))))
        x = ops.add(x, self.gelu(self.fc2(x)))
        return self.classifier(x)


loss_function = nn.CrossEntropyLoss()


def compute_loss(network: nn.Cell, x: Tensor, labels: Tensor) -> Tensor:
    return loss_function(network(x), labels)
