"""A transducer: all paths through frames and labels, cell by cell in the reference, a row at a time in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

BANDS, TIME, WIDTH, SYMBOLS, LABELS, BLANK = 4, 11, 7, 6, 3, 0
FRAMES = (TIME + 1) // 2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(BANDS, WIDTH, 3, stride=2, padding=1)
        self.encode = torch.nn.Linear(WIDTH, WIDTH)
        self.words = torch.nn.Embedding(SYMBOLS, WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.predict = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.joint = torch.nn.Linear(WIDTH, SYMBOLS)

    def forward(self, x, labels):
        heard = self.encode(F.relu(self.conv(x)).transpose(1, 2))  # @conv @encode
        said = F.pad(labels, (1, 0), value=BLANK)  # @begun
        said, _ = self.lstm(self.words(said))  # @words @gates @parts @cell @hidden
        said = self.predict(said)  # @predict
        h = torch.tanh(heard.unsqueeze(2) + said.unsqueeze(1))  # @both @tanh
        return F.log_softmax(self.joint(h), dim=-1)  # @joint @chance


def compute_reference_loss(network, x, labels, times, lengths):
    log_p = network(x, labels)
    frames = torch.div(times + 1, 2, rounding_mode="floor")  # @frames
    blank = log_p[..., BLANK]  # @blank
    index = labels[:, None, :, None].expand(-1, FRAMES, -1, -1)
    emit = log_p[:, :, :-1].gather(3, index).squeeze(3)  # @emit
    rows = []
    for t in range(FRAMES):
        row = []
        for u in range(LABELS + 1):
            if t == 0 and u == 0:
                row.append(torch.zeros(len(x)))  # @start
            elif u == 0:
                row.append(rows[t - 1][u] + blank[:, t - 1, u])  # @stay
            elif t == 0:
                row.append(row[u - 1] + emit[:, t, u - 1])  # @say
            else:
                stay, say = rows[t - 1][u] + blank[:, t - 1, u], row[u - 1] + emit[:, t, u - 1]  # @stay @say
                row.append(torch.logaddexp(stay, say))  # @sum
        rows.append(row)
    table = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)  # @table
    number = torch.arange(len(x))
    total = table[number, frames - 1, lengths] + blank[number, frames - 1, lengths]  # @ended @last
    return -(total / lengths).mean()  # @each @loss


class Recurrence(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(ops.zeros((2 * WIDTH, 4 * WIDTH)), name="weight")
        self.bias_in = ms.Parameter(ops.zeros((4 * WIDTH,)), name="bias_in")
        self.bias_out = ms.Parameter(ops.zeros((4 * WIDTH,)), name="bias_out")

    def construct(self, x):
        h, c, found = ops.zeros_like(x[:, 0]), ops.zeros_like(x[:, 0]), []
        for time in range(x.shape[1]):
            gates = ops.matmul(ops.cat((x[:, time], h), axis=1), self.weight) + self.bias_in + self.bias_out  # @gates
            enter, forget, cell, leave = ops.split(gates, WIDTH, axis=1)  # @parts
            c = ops.sigmoid(forget) * c + ops.sigmoid(enter) * ops.tanh(cell)  # @cell
            h = ops.sigmoid(leave) * ops.tanh(c)  # @hidden
            found.append(h)
        return ops.stack(found, axis=1)


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(BANDS, WIDTH, (1, 3), stride=(1, 2), pad_mode="pad", padding=(0, 0, 1, 1), has_bias=True)
        self.encode = nn.Dense(WIDTH, WIDTH)
        self.words = nn.Embedding(SYMBOLS, WIDTH)
        self.lstm = Recurrence()
        self.predict = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.joint = nn.Dense(WIDTH, SYMBOLS)
        later = np.arange(LABELS + 1)[None, :] > np.arange(LABELS + 1)[:, None]  # @later_made
        self.never = ms.Tensor(later * -1e9, ms.float32)
        self.start = ms.Tensor(np.arange(LABELS + 1) * -1e9, ms.float32)  # @start_made

    def construct(self, x, labels):
        h = ops.relu(self.conv(x.expand_dims(2))).squeeze(2)  # @conv
        heard = self.encode(h.transpose(0, 2, 1))  # @encode
        said = ops.cat((ops.full_like(labels[:, :1], BLANK), labels), axis=1)  # @begun
        said = self.predict(self.lstm(self.words(said)))  # @words @predict
        h = ops.tanh(heard.expand_dims(2) + said.expand_dims(1))  # @both @tanh
        return self.joint(h)  # @joint


def compute_candidate_loss(network, x, labels, times, lengths):
    logits = network(x, labels)
    log_p = logits - ops.logsumexp(logits, -1, True)  # @chance
    blank = log_p[:, :, :, BLANK]  # @blank
    wanted = ops.one_hot(labels, SYMBOLS).astype("float32").expand_dims(1)
    emit = (log_p[:, :, :LABELS] * wanted).sum(-1)  # @emit
    spent = ops.pad(ops.cumsum(emit, 2), (1, 0))  # @spent @say
    way = spent.expand_dims(3) - spent.expand_dims(2) + network.never  # @way @say
    row, rows = ops.tile(network.start, (len(x), 1)), []  # @begin
    for t in range(FRAMES):
        if t > 0:
            row = row + blank[:, t - 1]  # @stay
        row = ops.logsumexp(row.expand_dims(1) + way[:, t], 2)  # @start @sum
        rows.append(row)
    table = ops.stack(rows, axis=1) + blank  # @table @last
    frames = (times + 1) // 2  # @frames
    place = (frames - 1) * (LABELS + 1) + lengths  # @place
    total = ops.gather_elements(table.reshape(len(x), -1), 1, place.expand_dims(1)).squeeze(1)  # @ended
    return -(total / lengths).mean()  # @each @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if not name.startswith(("lstm", "words", "conv.w"))}
    converted["conv.weight"] = weights["conv.weight"][:, :, None]
    converted["words.embedding_table"] = weights["words.weight"]
    converted["lstm.weight"] = np.concatenate([weights["lstm.weight_ih_l0"], weights["lstm.weight_hh_l0"]], 1).T
    converted["lstm.bias_in"], converted["lstm.bias_out"] = weights["lstm.bias_ih_l0"], weights["lstm.bias_hh_l0"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4400 + step)
    x = random.normal(size=(3, BANDS, TIME)).astype(np.float32)
    return x, random.integers(1, SYMBOLS, size=(3, LABELS)), np.array([11, 8, 9]), np.array([3, 2, 3])


FAULTS = (
    Fault(
        "paths begin at every label",
        "start begin",
        "np.arange(LABELS + 1) * -1e9",
        "np.zeros(LABELS + 1)",
        edit="start_made",
    ),
    Fault("blank of the next frame", "stay", "blank[:, t - 1]", "blank[:, t]"),
    Fault("a label may be taken back", "way sum", "[None, :] > np", "[None, :] > 1 + np", edit="later_made"),
    Fault("last blank forgotten", "last ended", "ops.stack(rows, axis=1) + blank", "ops.stack(rows, axis=1)"),
    Fault("half of odd times rounded down", "frames ended", "(times + 1) // 2", "times // 2"),
    Fault("gates in another order", "parts cell", "enter, forget, cell, leave =", "forget, enter, cell, leave ="),
    Fault(
        "cell detached from step to step",
        "cell",
        "ops.sigmoid(forget) * c",
        "ops.sigmoid(forget) * ops.stop_gradient(c)",
        is_backward=True,
    ),
    Fault(
        "reference takes the best path",
        "sum",
        "torch.logaddexp(stay, say)",
        "torch.maximum(stay, say)",
        side="reference",
    ),
    Fault(
        "begun with the last label, and not divided by the length",
        "begun words",
        "ops.cat((ops.full_like(labels[:, :1], BLANK), labels), axis=1)",
        "ops.cat((labels[:, -1:], labels), axis=1)",
        second=("each", "total / lengths", "total / LABELS"),
    ),
)
