"""A selective state space: a loop over time in the reference, the matrix of all decays in the candidate."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, WIDTH, STATE, TIME = 20, 8, 4, 10


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.project = torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.conv = torch.nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)
        self.select = torch.nn.Linear(WIDTH, 2 * STATE + 1, bias=False)
        self.delta_bias = torch.nn.Parameter(torch.zeros(1))
        self.log_rate = torch.nn.Parameter(torch.zeros(WIDTH))
        self.skip_scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def scan(self, x, delta, b, c):
        rate = -torch.exp(self.log_rate)  # @rate
        state = x.new_zeros(len(x), WIDTH, STATE)
        outputs = []
        for time in range(TIME):
            decay = torch.exp(delta[:, time] * rate)  # @decay
            entry = (delta[:, time] * x[:, time]).unsqueeze(-1) * b[:, time].unsqueeze(1)  # @entry
            state = decay.unsqueeze(-1) * state + entry  # @state @decay
            outputs.append((state * c[:, time].unsqueeze(1)).sum(dim=-1))  # @read @state
        return torch.stack(outputs, dim=1)

    def forward(self, tokens):
        x, gate = self.project(self.words(tokens) * WIDTH**0.5).chunk(2, dim=-1)  # @project
        x = F.silu(self.conv(x.transpose(1, 2))[..., :TIME].transpose(1, 2))  # @conv
        b, c, delta = self.select(x).split([STATE, STATE, 1], dim=-1)  # @select
        delta = F.softplus(delta + self.delta_bias)  # @delta
        y = self.scan(x, delta, b, c) + x * self.skip_scale  # @skip
        return self.head(y * F.silu(gate))  # @gate


def compute_reference_loss(network, tokens, labels):
    return F.cross_entropy(network(tokens).flatten(0, 1), labels.flatten())  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.project = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)
        self.conv = Parameter(ops.zeros((3, WIDTH)), name="conv")
        self.conv_bias = Parameter(ops.zeros((WIDTH,)), name="conv_bias")
        self.select = mint.nn.Linear(WIDTH, 2 * STATE + 1, bias=False)
        self.delta_bias = Parameter(ops.zeros((1,)), name="delta_bias")
        self.log_rate = Parameter(ops.zeros((WIDTH,)), name="log_rate")
        self.skip_scale = Parameter(ops.ones((WIDTH,)), name="skip_scale")
        self.head = nn.Dense(WIDTH, WORDS)

    def scan(self, x: Tensor, delta: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rate = -ops.exp(self.log_rate)  # @rate
        passed = ops.cumsum(delta, 1)  # @decay
        between = passed - passed.swapaxes(1, 2)  # @decay
        decay = mint.exp(between.expand_dims(-1) * rate)  # @decay
        allowed = Tensor(np.tril(np.ones((TIME, TIME), np.float32)))  # @allowed
        decay = decay * allowed.reshape(1, TIME, TIME, 1)  # @state
        scores = ops.reduce_sum(c.expand_dims(2) * b.expand_dims(1), -1).expand_dims(-1)  # @read @entry
        entry = (delta * x).expand_dims(1)  # @entry
        return (decay * scores * entry).sum(2)  # @read

    def construct(self, tokens: Tensor) -> Tensor:
        x, gate = ops.split(self.project(self.words(tokens) * WIDTH**0.5), WIDTH, axis=-1)  # @project
        padded = ops.pad(x, (0, 0, 2, 0))  # @pad
        parts = [padded[:, place : place + TIME] * self.conv[place] for place in range(3)]  # @conv
        x = ops.silu(parts[0] + parts[1] + parts[2] + self.conv_bias)  # @conv
        b, c, delta = mint.split(self.select(x), [STATE, STATE, 1], dim=-1)  # @select
        delta = ops.softplus(delta + self.delta_bias)  # @delta
        y = self.scan(x, delta, b, c) + x * self.skip_scale  # @skip
        return self.head(y * ops.silu(gate))  # @gate


def compute_candidate_loss(network, tokens, labels):
    return ops.cross_entropy(network(tokens).reshape(-1, WORDS), labels.reshape(-1))  # @loss


def convert(weights: Weights) -> Weights:
    converted = dict(weights)
    converted["words.embedding_table"] = converted.pop("words.weight")
    converted["conv_bias"] = converted.pop("conv.bias")
    converted["conv"] = converted.pop("conv.weight")[:, 0].T  # @load
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    tokens = np.random.default_rng(1200 + step).integers(WORDS, size=(2, TIME + 1))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


FAULTS = (
    Fault(
        "a token does not see itself",
        "state",
        "np.tril(np.ones((TIME, TIME), np.float32))",
        "np.tril(np.ones((TIME, TIME), np.float32), k=-1)",
        edit="allowed",
    ),
    Fault("b and c swapped", "select read entry", "b, c, delta", "c, b, delta"),
    Fault("skip without its scale", "skip", "x * self.skip_scale", "x"),
    Fault("sigmoid in the gate", "gate", "ops.silu(gate)", "ops.sigmoid(gate)"),
    Fault("bias of delta forgotten", "delta", "delta + self.delta_bias", "delta"),
    Fault("rate without its sign", "rate decay", "-ops.exp(self.log_rate)", "ops.exp(self.log_rate)"),
    Fault("entry without delta", "entry", "(delta * x)", "x"),
    Fault(
        "taps of the convolution in reverse", "conv", "[:, 0].T", "[:, 0, ::-1].T", edit="load", parameter="conv.weight"
    ),
    Fault(  # right by its text: MindSpore 2.10 gives a wrong gradient to a view that mint.split made
        "a gradient that MindSpore gets wrong",
        "entry read select",
        "ops.reduce_sum(c.expand_dims(2) * b.expand_dims(1), -1)",
        "ops.matmul(c, b.swapaxes(1, 2))",
        is_backward=True,
    ),
    Fault(
        "decay detached", "state decay read", "decay * allowed", "ops.stop_gradient(decay) * allowed", is_backward=True
    ),
)
