"""The mistakes of a port: each is an edit of the text of a MindSpore network, or of the weights that it is given.

`at` says where the edit takes effect, by the module path of the MindSpore network: the truth that a verdict is held
against. It is written down by hand, never taken from compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Place:
    """Calls that may be named: those of one module with one of these words, or the module itself."""

    path: str | None
    """None: outside of the network."""
    words: tuple[str, ...] = ()
    """In PyTorch's words. Empty: only the module itself."""


@dataclass(frozen=True)
class Fault:
    kind: str
    network: str
    right: str = ""
    """This text in the MindSpore network …"""
    wrong: str = ""
    """… becomes this."""
    at: tuple[Place, ...] = ()
    """Where API calls are recorded."""
    modules: tuple[str, ...] = ()
    """At level L0: the modules to name, `""` being the network; empty: the paths of `at`. None can see it: `("-",)`."""
    weight: str = ""
    """This parameter of the PyTorch network is changed on its way."""
    keeps_dropout: bool = False
    """Dropout is not switched off as in the other run."""

    def change(self, name: str, array: Array) -> Array:
        """A square matrix transposed, the gates of an LSTM in the order of another library, a bias forgotten."""
        if name != self.weight:
            return array
        if self.kind == "gates in another order":
            first, second, third, fourth = np.split(array, 4)
            return np.concatenate([first, third, second, fourth])
        return np.zeros_like(array) if array.ndim == 1 else np.ascontiguousarray(array.swapaxes(0, 1))

    @property
    def module_paths(self) -> tuple[str, ...]:
        """What to name at L0."""
        return self.modules or tuple(place.path for place in self.at if place.path is not None)


def _at(path: str | None, *words: str) -> Place:
    return Place(path, words)


_MLP = (
    Fault("epsilon left to its default", "mlp", "(32,), epsilon=1e-5", "(32,)", (_at("norm", "layer_norm"),)),
    Fault("epsilon", "mlp", "epsilon=1e-5", "epsilon=1e-3", (_at("norm", "layer_norm"),)),
    Fault(
        "tanh GELU, the default", "mlp", "nn.GELU(approximate=False)", "nn.GELU()", (_at("gelu", "gelu"),),
        ("gelu", "classifier", ""),
    ),
    Fault("transposed weight", "mlp", at=(_at("fc2", "linear", "matmul"),), weight="fc2.weight"),
    Fault(
        "missing residual", "mlp", "ops.add(x, self.gelu(self.fc2(x)))", "self.gelu(self.fc2(x))",
        (_at("", "add"), _at("classifier", "linear", "matmul")), ("classifier", ""),
    ),
    Fault(
        "missing layer", "mlp", "self.relu(self.norm(self.fc1(self.flatten(x))))",
        "self.norm(self.fc1(self.flatten(x)))", (_at("", "relu", "add"), _at("fc2", "linear", "matmul")),
        ("relu", "fc2", ""),
    ),
    Fault(
        "label off by one", "mlp", "labels)\n", "(labels + 1) % 5)\n", (_at(None, "cross_entropy", "nll_loss"),),
        ("", "classifier"),
    ),
    Fault(
        "reduction of the loss", "mlp", "nn.CrossEntropyLoss()", 'nn.CrossEntropyLoss(reduction="sum")',
        (_at(None, "cross_entropy", "nll_loss"),), ("", "classifier"),
    ),
)  # fmt: skip

_CNN = (
    Fault(
        "epsilon", "cnn", "nn.BatchNorm2d(8), nn.ReLU()", "nn.BatchNorm2d(8, eps=1e-3), nn.ReLU()",
        (_at("stem.1", "batch_norm"),),
    ),
    Fault(
        "momentum of BatchNorm", "cnn", "nn.BatchNorm2d(8), nn.ReLU()", "nn.BatchNorm2d(8, momentum=0.1), nn.ReLU()",
        (_at("stem.1", "batch_norm"),),  # shows in the second step
    ),
    Fault(
        "another default argument", "cnn", "conv3x3(8, 16, stride=2, has_bias=True)",
        "nn.Conv2d(8, 16, 3, stride=2, has_bias=True)", (_at("down", "conv2d", "add"),),
    ),
    Fault(
        "another default argument", "cnn", "ops.leaky_relu(self.down(x), 0.1)", "ops.leaky_relu(self.down(x))",
        (_at("", "leaky_relu"),), ("block2.conv1", "block2", ""),
    ),
    Fault(
        "another layer", "cnn", "nn.MaxPool2d(", "nn.AvgPool2d(", (_at("pool", "max_pool2d", "avg_pool2d"),),
    ),
    Fault(
        "missing residual", "cnn", "self.relu(y + x)", "self.relu(y)",
        (_at("block1", "add"), _at("block1.relu", "relu")), ("block1",),
    ),
    Fault(
        "BatchNorm in the wrong mode", "cnn", "nn.BatchNorm2d(8), nn.ReLU()",
        "nn.BatchNorm2d(8, use_batch_statistics=False), nn.ReLU()", (_at("stem.1", "batch_norm"),),
    ),
    Fault(
        "layers in another order", "cnn", "self.relu(self.bn1(self.conv1(x)))", "self.bn1(self.relu(self.conv1(x)))",
        (_at("block1.relu", "relu"), _at("block1.bn1", "batch_norm")), ("block1.bn1", "block1.relu", "block1"),
    ),
    Fault("transposed weight", "cnn", at=(_at("block1.conv2", "conv2d"),), weight="layer1.conv2.weight"),
)  # fmt: skip

_LSTM = (
    Fault(
        "off by one", "lstm", "states[:, -1, :]", "states[:, -2, :]", (_at("", "getitem"),), ("proj", ""),
    ),
    Fault(
        "another activation", "lstm", "ops.tanh(", "ops.sigmoid(", (_at("", "tanh", "sigmoid"),), ("out", ""),
    ),
    Fault(
        "missing bias", "lstm", "nn.Dense(24, 16)", "nn.Dense(24, 16, has_bias=False)",
        (_at("proj", "linear", "matmul", "add"),),
    ),
    Fault(
        "wrong dimension", "lstm", "axis=-1", "axis=0", (_at(None, "log_softmax"),), ("", "out"),
    ),
    Fault(
        "gates in another order", "lstm", at=(_at("lstm", "lstm"), _at("lstm.rnn", "lstm")), weight="lstm.weight_ih_l0",
    ),
    Fault("bias forgotten in the weights", "lstm", at=(_at("lstm", "lstm"), _at("lstm.rnn", "lstm", "add")),
          weight="lstm.bias_hh_l0"),
)  # fmt: skip

_ENCODER = (
    Fault(
        "epsilon left to its default", "encoder", "self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)",
        "self.norm2 = nn.LayerNorm((width,))", (_at("layers.0.norm2", "layer_norm"),),
    ),
    Fault(
        "epsilon", "encoder", "self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)",
        "self.norm1 = nn.LayerNorm((width,), epsilon=1e-3)",
        (_at("layers.0.norm1", "layer_norm"), _at("layers.1.norm1", "layer_norm")),
    ),
    Fault(
        "tanh GELU, the default", "encoder", "nn.GELU(approximate=False)", "nn.GELU()",
        (_at("layers.0.ffn.1", "gelu"),), ("layers.0.ffn.1", "layers.0.ffn.2", "layers.0"),
    ),
    Fault(
        "another number of heads", "encoder", "Layer(32, 4)", "Layer(32, 8)",
        (_at("layers.0.self_attn", "matmul", "multi_head_attention_forward", "transpose", "reshape"),),
    ),
    Fault(
        "wrong residual", "encoder", "self.norm1(x + self.dropout(attended))",
        "self.norm1(attended + self.dropout(attended))", (_at("layers.0", "add"),), ("layers.0", "layers.0.norm1"),
    ),
    Fault(
        "wrong scale", "encoder", "ops.mul(self.tokens(tokens), 32**0.5)", "self.tokens(tokens)",
        (_at("", "mul", "add"),), ("", "layers.0", "layers.0.self_attn"),
    ),
    Fault(
        "dropout left on", "encoder",  # the first one is in the attention
        at=(_at("layers.0.self_attn", "dropout", "matmul", "reshape", "view"),), keeps_dropout=True,
    ),
    Fault("wrong operand", "encoder", "self.self_attn(x, x, x,", "self.self_attn(x, x, -x,",
          (_at("layers.0", "neg"), _at("layers.0.self_attn", "multi_head_attention_forward", "matmul", "transpose")),
          ("layers.0", "layers.0.self_attn")),
    Fault(
        "label smoothing forgotten", "encoder", ", label_smoothing=0.1", "", (_at(None, "cross_entropy"),),
        ("", "classifier"),
    ),
    Fault(
        "missing layer", "encoder", "for layer in self.layers:", "for layer in self.layers[:1]:",
        (_at("", "mean"), _at("classifier", "linear", "matmul")), ("", "classifier"),
    ),
)  # fmt: skip

_GPT = (
    Fault(
        "wrong mask", "gpt", "diagonal=1", "diagonal=2", (_at("blocks.0.attn", "triu", "masked_fill", "matmul"),),
        ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
    Fault(
        "wrong mask", "gpt", 'scores.masked_fill(future, float("-inf"))', "scores",
        (_at("blocks.0.attn", "masked_fill", "softmax", "matmul"),), ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
    Fault(
        "wrong scale", "gpt", "/ math.sqrt(size)", "/ size", (_at("blocks.0.attn", "div", "matmul"),),
        ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
    Fault(
        "exact GELU for tanh", "gpt", 'approximate="tanh"', 'approximate="none"', (_at("blocks.0", "gelu"),),
        ("blocks.0", "blocks.0.down"),
    ),
    Fault(
        "wrong residual", "gpt", "x = x + self.attn(self.ln_1(x))", "x = self.ln_1(x) + self.attn(self.ln_1(x))",
        (_at("blocks.0", "add"),), ("blocks.0", "blocks.0.ln_2", "blocks.0.ln_1"),
    ),
    Fault(
        "wrong dimension", "gpt", "dim=-1)\n        mixed", "dim=-2)\n        mixed",
        (_at("blocks.0.attn", "softmax", "matmul"),), ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
    Fault(
        "heads not put together", "gpt", "mixed.swapaxes(1, 2).reshape", "mixed.reshape",
        (_at("blocks.0.attn", "transpose", "reshape", "view"), _at("blocks.0.attn.c_proj", "linear")),
        ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
    Fault(
        "swapped operands", "gpt", "query, key, value = mint.chunk", "key, query, value = mint.chunk",
        (_at("blocks.0.attn", "chunk", "reshape", "view", "transpose", "matmul"),),
        ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
    Fault(
        "dropout left on", "gpt", at=(_at("blocks.0.dropout", "dropout"), _at("blocks.0", "add")), keeps_dropout=True,
    ),
    Fault("transposed weight", "gpt", at=(_at("blocks.1.attn.c_proj", "linear"),), weight="h.1.attn.c_proj.weight"),
    Fault(
        "detached branch", "gpt", "x = x + self.attn(self.ln_1(x))",
        "x = x + ops.stop_gradient(self.attn(self.ln_1(x)))",
        (_at("blocks.1", "add", "detach"), _at("h.1.attn.c_proj", "linear")),  # whose gradient only the reference has
        ("blocks.1", "blocks.1.attn", "h.1.attn.c_proj"),
    ),
    Fault(
        "missing layer", "gpt", "self.lm_head(self.ln_f(x))", "self.lm_head(x)",
        (_at("ln_f", "layer_norm"), _at("lm_head", "linear")), ("ln_f", "lm_head", ""),
    ),
    Fault(
        "label off by one", "gpt", "labels.reshape(-1)", "tokens.reshape(-1)", (_at(None, "cross_entropy", "reshape"),),
        ("", "lm_head"),
    ),
    Fault(
        "wrong order", "gpt", "ops.arange(tokens.shape[1])", "ops.flip(ops.arange(tokens.shape[1]), (0,))",
        (_at("", "flip", "arange"), _at("wpe", "embedding", "index_select", "reshape")), ("wpe", ""),
    ),
    Fault(
        "one operation in float16", "gpt", "mint.matmul(weights, value)",
        "mint.matmul(weights.half(), value.half()).float()", (_at("blocks.0.attn", "matmul", "half", "to", "float"),),
        ("blocks.0.attn", "blocks.0.attn.c_proj"),
    ),
)  # fmt: skip

FAULTS = (*_MLP, *_CNN, *_LSTM, *_ENCODER, *_GPT)
