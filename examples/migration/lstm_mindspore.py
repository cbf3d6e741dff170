"""A recurrent classifier of token sequences in MindSpore; lstm_pytorch.py is the same in PyTorch."""

from __future__ import annotations

from mindspore import Tensor, nn, ops


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(48, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.proj = nn.Dense(24, 16)
        self.out = nn.Dense(16, 5)

    def construct(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.out(ops.tanh(self.proj(states[:, -1, :])))


def compute_loss(network: nn.Cell, tokens: Tensor, labels: Tensor) -> Tensor:
    return ops.nll_loss(ops.log_softmax(network(tokens), axis=-1), labels)
