"""Two layers of LSTM read packed words, a cell writes with attention and fed input; the port has a cell of its own."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
from mindspore import Parameter, Tensor, mint, nn, ops
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from held_out.fault import Fault
from held_out.weight import Weights

READ, WRITTEN, ENTER, SIZE, WIDTH, LAYERS, TIME, STEPS, PAD = 17, 15, 8, 6, 10, 2, 7, 5, 0


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(READ, ENTER, padding_idx=PAD)
        self.lstm = torch.nn.LSTM(ENTER, SIZE, num_layers=LAYERS, bidirectional=True, batch_first=True)
        self.bridge_h = torch.nn.Linear(2 * SIZE, WIDTH)
        self.bridge_c = torch.nn.Linear(2 * SIZE, WIDTH)

    def forward(self, tokens, lengths):
        x = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(x)  # @lstm
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=TIME)
        h = torch.tanh(self.bridge_h(torch.cat((h[-2], h[-1]), dim=1)))  # @last @bridge_h
        c = torch.tanh(self.bridge_c(torch.cat((c[-2], c[-1]), dim=1)))  # @last_c @bridge_c
        return out, h, c


class Luong(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = torch.nn.Linear(WIDTH, 2 * SIZE, bias=False)
        self.combine = torch.nn.Linear(2 * SIZE + WIDTH, WIDTH, bias=False)

    def forward(self, h, memory, mask):
        scores = torch.bmm(memory, self.score(h).unsqueeze(2)).squeeze(2)  # @keys @scores
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)  # @masked @soft
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)  # @context
        return torch.tanh(self.combine(torch.cat((context, h), dim=1)))  # @joined @combined @tanh


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.embedding = torch.nn.Embedding(WRITTEN, ENTER, padding_idx=PAD)
        self.cell = torch.nn.LSTMCell(ENTER + WIDTH, WIDTH)
        self.attention = Luong()
        self.out = torch.nn.Linear(WIDTH, WRITTEN)

    def forward(self, tokens, lengths, goal):
        memory, h, c = self.encoder(tokens, lengths)
        mask = torch.arange(TIME)[None, :] < lengths[:, None]  # @mask
        fed, logits = torch.zeros_like(h), []
        for step in range(STEPS):
            x = torch.cat((self.embedding(goal[:, step]), fed), dim=1)  # @word @fed
            h, c = self.cell(x, (h, c))  # @cell @gates @state @output
            fed = self.attention(h, memory, mask)  # @attend
            logits.append(self.out(fed))  # @logits
        return torch.stack(logits, dim=1)


def compute_reference_loss(network, tokens, lengths, goal):
    logits = network(tokens, lengths, goal)
    return F.cross_entropy(logits.transpose(1, 2), goal[:, 1:], ignore_index=PAD)  # @chosen @loss


class Cell(nn.Cell):
    """One product for all gates: input, candidate, forget, output."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Parameter(ops.zeros((ENTER + 2 * WIDTH, 4 * WIDTH)), name="kernel")
        self.bias_x = Parameter(ops.zeros((4 * WIDTH,)), name="bias_x")
        self.bias_h = Parameter(ops.zeros((4 * WIDTH,)), name="bias_h")

    def construct(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = mint.matmul(ops.cat((x, h), 1), self.kernel) + self.bias_x + self.bias_h  # @cell @gates
        enter, new, keep, leave = mint.chunk(gates, 4, dim=1)  # @gates @parts
        c = ops.sigmoid(keep) * c + ops.sigmoid(enter) * ops.tanh(new)  # @cell @state
        return ops.sigmoid(leave) * ops.tanh(c), c  # @cell @output


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(READ, ENTER, padding_idx=PAD)
        self.lstm = nn.LSTM(ENTER, SIZE, num_layers=LAYERS, bidirectional=True, batch_first=True)
        self.to_h = nn.Dense(2 * SIZE, WIDTH, activation="tanh")
        self.to_c = nn.Dense(2 * SIZE, WIDTH, activation="tanh")
        self.written = nn.Embedding(WRITTEN, ENTER, padding_idx=PAD)
        self.cell = Cell()
        self.score = Parameter(ops.zeros((2 * SIZE, WIDTH)), name="score")
        self.combine = mint.nn.Linear(2 * SIZE + WIDTH, WIDTH, bias=False)
        self.out = nn.Dense(WIDTH, WRITTEN)

    def encode(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory, (h, c) = self.lstm(self.read(tokens), seq_length=lengths)  # @lstm
        h, c = h.swapaxes(0, 1), c.swapaxes(0, 1)
        batch = tokens.shape[0]
        h = h[:, -2:].reshape(batch, -1)  # @last
        return memory, self.to_h(h), self.to_c(c[:, -2:].reshape(batch, -1))  # @bridge_h @bridge_c @last_c

    def construct(self, tokens: Tensor, lengths: Tensor, goal: Tensor) -> Tensor:
        memory, h, c = self.encode(tokens, lengths)
        hidden = ops.arange(TIME).expand_dims(0) >= lengths.expand_dims(1)  # @mask
        bias = hidden.astype(ms.float32) * -1e9  # @bias
        keys = ops.matmul(memory, self.score)  # @keys
        words = self.written(goal)  # @word
        fed, outs = ops.zeros_like(h), []
        for step in range(STEPS):
            x = ops.cat((words[:, step], fed), 1)  # @fed
            h, c = self.cell(x, h, c)  # @cell @carried
            scores = (keys * h.expand_dims(1)).sum(-1)  # @scores
            scores = scores + bias  # @masked
            weights = ops.softmax(scores, -1)  # @soft
            context = (weights.expand_dims(-1) * memory).sum(1)  # @context
            fed = self.combine(ops.cat((context, h), 1))  # @joined @combined @attend
            fed = ops.tanh(fed)  # @tanh @attend
            outs.append(fed)
        return self.out(ops.stack(outs, 1))  # @logits


def compute_candidate_loss(network, tokens, lengths, goal):
    logs = ops.log_softmax(network(tokens, lengths, goal), -1)  # @logs
    goal = goal[:, 1:]
    each = -ops.gather_elements(logs, 2, goal.expand_dims(-1)).squeeze(-1)  # @chosen
    kept = (goal != PAD).astype(ms.float32)
    return (each * kept).sum() / kept.sum()  # @loss


def reorder(array: np.ndarray) -> np.ndarray:
    """Gates of PyTorch are input, forget, candidate, output."""
    parts = np.split(array, 4)
    return np.concatenate([parts[0], parts[2], parts[1], parts[3]])


def convert(weights: Weights) -> Weights:
    converted = {"read.embedding_table": weights["encoder.embedding.weight"]}
    converted["written.embedding_table"] = weights["embedding.weight"]
    for name, array in weights.items():
        if name.startswith("encoder.lstm."):
            converted[name.removeprefix("encoder.")] = array
    for word in ("weight", "bias"):
        converted[f"to_h.{word}"] = weights[f"encoder.bridge_h.{word}"]
        converted[f"to_c.{word}"] = weights[f"encoder.bridge_c.{word}"]
        converted[f"out.{word}"] = weights[f"out.{word}"]
    enter, own = reorder(weights["cell.weight_ih"]), reorder(weights["cell.weight_hh"])
    converted["cell.kernel"] = np.concatenate([enter, own], axis=1).T
    converted["cell.bias_x"] = reorder(weights["cell.bias_ih"])
    converted["cell.bias_h"] = reorder(weights["cell.bias_hh"])  # @load_bias
    return converted | {
        "score": weights["attention.score.weight"],
        "combine.weight": weights["attention.combine.weight"],
    }


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7400 + step)
    lengths, ends = np.array([4, 7, 3, 6]), np.array([5, 4, 6, 3])
    tokens = np.where(np.arange(TIME) < lengths[:, None], random.integers(1, READ, size=(4, TIME)), PAD)
    goal = np.where(np.arange(STEPS + 1) < ends[:, None], random.integers(2, WRITTEN, size=(4, STEPS + 1)), PAD)
    goal[:, 0] = 1
    return tokens, lengths, goal


FAULTS = (
    Fault(
        "gates in the order of PyTorch",
        "gates state cell",
        "enter, new, keep, leave",
        "enter, keep, new, leave",
        edit="parts",
    ),
    Fault("one more in the forget gate", "state cell output", "ops.sigmoid(keep)", "ops.sigmoid(keep + 1.0)"),
    Fault("padding is read too", "lstm", ", seq_length=lengths)", ")"),
    Fault("states of the first layer", "last bridge_h", "h[:, -2:].reshape", "h[:, :2].reshape"),
    Fault(
        "backward state before the forward one",
        "last bridge_h",
        "h[:, -2:].reshape(batch, -1)",
        "ops.flip(h[:, -2:], (1,)).reshape(batch, -1)",
    ),
    Fault("one padded place is seen", "mask masked bias", ">= lengths", "> lengths"),
    Fault("weights over the batch", "soft", "ops.softmax(scores, -1)", "ops.softmax(scores, 0)"),
    Fault("state before the context", "joined combined attend", "(context, h)", "(h, context)"),
    Fault("fed without tanh", "tanh attend", "ops.tanh(fed)", "fed"),
    Fault(
        "fed input passes no gradient",
        "fed tanh attend",
        "(words[:, step], fed)",
        "(words[:, step], ops.stop_gradient(fed))",
        is_backward=True,
    ),
    Fault(
        "cell state cut in the backward",
        "cell state",
        "self.cell(x, h, c)",
        "self.cell(x, h, ops.stop_gradient(c))",
        edit="carried",
        is_backward=True,
    ),
    Fault("mean over padding too", "loss", "(each * kept).sum() / kept.sum()", "(each * kept).mean()"),
    Fault(
        "second bias not reordered",
        "cell gates",
        'reorder(weights["cell.bias_hh"])',
        'weights["cell.bias_hh"]',
        edit="load_bias",
        parameter="cell.bias_h",
    ),
    Fault(
        "reference joins the wrong cell states",
        "last_c bridge_c",
        "(c[-2], c[-1])",
        "(c[-1], c[-1])",
        side="reference",
    ),
)
