"""A transformer encoder with nn.MultiheadAttention in MindSpore; encoder_pytorch.py is the same in PyTorch."""

from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops


class Layer(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = nn.SequentialCell(nn.Dense(width, 2 * width), nn.GELU(approximate=False), nn.Dense(2 * width, width))
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x: Tensor) -> Tensor:
        attended = self.self_attn(x, x, x, need_weights=False)[0]
        x = self.norm1(x + self.dropout(attended))
        return self.norm2(x + self.dropout(self.ffn(x)))


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(48, 32)
        self.positions = Parameter(ops.zeros((1, 10, 32)), name="positions")
        self.layers = nn.CellList([Layer(32, 4) for _ in range(2)])
        self.classifier = nn.Dense(32, 5)

    def construct(self, tokens: Tensor) -> Tensor:
        x = ops.mul(self.tokens(tokens), 32**0.5) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.classifier(ops.mean(x, 1))


def compute_loss(network: nn.Cell, tokens: Tensor, labels: Tensor) -> Tensor:
    return ops.cross_entropy(network(tokens), labels, label_smoothing=0.1)
