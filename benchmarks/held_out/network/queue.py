"""Questions that find answers among earlier ones, which a slow copy of the tower encodes, rates in stages."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

VOCAB, WIDTH, CHANNELS, HIDDEN, LEAVE, LENGTH, BATCH, QUEUE = 30, 6, 5, 10, 6, 8, 10, 20
WIDTHS, TEMPERATURE, SLOW, EPSILON = (2, 3, 4), 0.5, 0.8, 1e-5
RATE, MOMENTUM, DECAY, LIMIT, DROP = 0.1, 0.9, 0.1, 0.2, 0.2


def make_queue():
    queue = np.random.default_rng(93).normal(size=(QUEUE, LEAVE))
    return (queue / np.linalg.norm(queue, axis=1, keepdims=True)).astype(np.float32)


class TextCNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        self.convs = torch.nn.ModuleList([torch.nn.Conv1d(WIDTH, CHANNELS, width, bias=False) for width in WIDTHS])
        self.fc1 = torch.nn.Linear(CHANNELS * len(WIDTHS), HIDDEN, bias=False)
        self.bn, self.fc2 = torch.nn.BatchNorm1d(HIDDEN), torch.nn.Linear(HIDDEN, LEAVE)

    def forward(self, words):
        x = self.embedding(words).transpose(1, 2)  # @embedded @padded
        x = [F.relu(conv(x)).amax(dim=2) for conv in self.convs]  # @conv @relu @largest
        x = F.relu(self.bn(self.fc1(torch.cat(x, dim=1))))  # @widths @fc1 @bn @relu2
        return F.normalize(self.fc2(x), dim=1)  # @fc2 @normed


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = TextCNN(), TextCNN().requires_grad_(False)
        self.register_buffer("queue", torch.from_numpy(make_queue()).t().contiguous())
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data = param_k.data * SLOW + param_q.data * (1.0 - SLOW)  # @moved

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + BATCH] = keys.t()  # @kept
        self.queue_ptr[0] = (ptr + BATCH) % QUEUE  # @pointer

    def forward(self, questions, answers):
        q = self.encoder_q(questions)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = self.encoder_k(answers)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)  # @own
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])  # @others
        logits = torch.cat([l_pos, l_neg], dim=1) / TEMPERATURE  # @together @heat
        self._dequeue_and_enqueue(k)
        return logits


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.network = network
        trained = [one for one in network.parameters() if one.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, milestones=[1], gamma=DROP)

    def step(self, questions, answers):
        logits = self.network(questions, answers)
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))  # @loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self.network.encoder_q.parameters(), LIMIT)  # @clip
        self.optimizer.step()  # @decay @momentum @rate @update
        self.scheduler.step()
        return loss


class Tower(nn.Cell):
    """Convolutions are products of joined neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.looks = nn.CellList([nn.Dense(width * WIDTH, CHANNELS, has_bias=False) for width in WIDTHS])
        self.first, self.second = nn.Dense(len(WIDTHS) * CHANNELS, HIDDEN, has_bias=False), nn.Dense(HIDDEN, LEAVE)
        self.bn = nn.BatchNorm1d(HIDDEN, eps=EPSILON, momentum=0.9)  # @bn_made

    def embed(self, words):
        x = self.words(words)  # @embedded
        is_word = (words > 0).expand_dims(-1)
        return ops.where(is_word, x, ops.stop_gradient(x))  # @padded

    def construct(self, words):
        x, found = self.embed(words), []
        for width, look in zip(WIDTHS, self.looks, strict=True):
            near = ops.cat([x[:, start : LENGTH - width + 1 + start] for start in range(width)], -1)  # @conv @near
            found.append(look(near).max(axis=1))  # @conv @largest
        h = self.first(ops.relu(ops.cat(found, 1)))  # @widths @relu @fc1
        h = self.second(ops.relu(self.bn(h)))  # @bn @relu2 @fc2
        return h / ops.sqrt(h.square().sum(1, keepdims=True))  # @normed


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.asking, self.answering = Tower(), Tower()
        for one in self.answering.get_parameters():
            one.requires_grad = False


class CandidateTrainer:
    """The oldest answers are first in the queue."""

    def __init__(self, network) -> None:
        self.network, self.queue, self.parameters = network, ms.Tensor(make_queue()), network.trainable_params()
        groups = [{"params": self.parameters, "weight_decay": DECAY}]  # @groups
        rates = nn.piecewise_constant_lr([1, 100], [RATE, RATE * DROP])  # @rates
        self.optimizer = nn.Momentum(groups, rates, MOMENTUM)  # @made

    def follow(self):
        slow = [one for one in self.network.answering.get_parameters() if ".moving_" not in one.name]
        for old, new in zip(slow, self.network.asking.trainable_params(), strict=True):
            old.set_data(ops.lerp(new, old, SLOW))  # @moved

    def compute_loss(self, questions, keys):
        asked = self.network.asking(questions)
        own = (asked * keys).sum(1) / TEMPERATURE  # @own @heat
        others = ops.matmul(asked, self.queue.T) / TEMPERATURE  # @others @heat
        top = ops.logsumexp(ops.cat((own.expand_dims(1), others), 1), 1)  # @together @loss
        return (top - own).mean()  # @loss

    def step(self, questions, answers):
        self.follow()  # @followed
        keys = ops.stop_gradient(self.network.answering(answers))
        loss, gradients = ms.value_and_grad(self.compute_loss, None, self.parameters)(questions, keys)
        gradients = [ops.clip_by_value(one, -LIMIT, LIMIT) for one in gradients]  # @clip
        self.optimizer(tuple(gradients))  # @decay @momentum @rate @update
        self.queue = ops.cat((self.queue[BATCH:], keys))  # @kept
        return loss, gradients


def convert(weights: Weights) -> Weights:
    norms = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    converted = {}
    for old, new in (("encoder_q", "asking"), ("encoder_k", "answering")):
        converted[f"{new}.words.embedding_table"] = weights[f"{old}.embedding.weight"]
        for number in range(len(WIDTHS)):
            kernel = weights[f"{old}.convs.{number}.weight"]
            converted[f"{new}.looks.{number}.weight"] = kernel.transpose(0, 2, 1).reshape(CHANNELS, -1)  # @load
        converted[f"{new}.first.weight"] = weights[f"{old}.fc1.weight"]
        converted |= {f"{new}.second.{word}": weights[f"{old}.fc2.{word}"] for word in ("weight", "bias")}
        converted |= {f"{new}.bn.{name}": weights[f"{old}.bn.{word}"] for word, name in norms.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9310 + step)
    questions, answers = random.integers(1, VOCAB, size=(2, BATCH, LENGTH))
    for row in range(BATCH):
        questions[row, 5 + row % 4 :], answers[row, LENGTH - row % 3 :] = 0, 0
    return questions, answers


FAULTS = (
    Fault("slow tower moves the other way round", "moved", "ops.lerp(new, old, SLOW)", "ops.lerp(old, new, SLOW)"),
    Fault("slow tower stays", "moved embedded conv", "self.follow()", "pass", edit="followed"),
    Fault("slow tower has weights of the last step alone", "moved", "ops.lerp(new, old, SLOW)", "new * 1"),
    Fault(
        "queue never moves",
        "kept others",
        "ops.cat((self.queue[BATCH:], keys))",
        "self.queue * 1",
        steps=2,
        first_step=1,
    ),
    Fault(
        "queue loses the newest",
        "kept others",
        "self.queue[BATCH:], keys",
        "self.queue[:-BATCH], keys",
        steps=2,
        first_step=1,
    ),
    Fault(
        "queue takes the questions",
        "kept embedded",
        "self.queue[BATCH:], keys",
        "self.queue[BATCH:], self.network.asking(questions)",
        steps=2,
        first_step=1,
    ),
    Fault(
        "own answer among the others",
        "together loss others",
        "self.queue.T)",
        "ops.cat((self.queue, keys)).T)",
        edit="others",
    ),
    Fault(
        "times the temperature",
        "heat own",
        "(asked * keys).sum(1) / TEMPERATURE",
        "(asked * keys).sum(1) * TEMPERATURE",
        edit="own",
    ),
    Fault("own answer left out of the sum", "together loss", "ops.cat((own.expand_dims(1), others), 1)", "others"),
    Fault(
        "clipped by their norm",
        "clip",
        "ops.clip_by_value(one, -LIMIT, LIMIT)",
        "ops.clip_by_norm(one, LIMIT)",
        is_backward=True,
    ),
    Fault(
        "clipped from above alone",
        "clip",
        "ops.clip_by_value(one, -LIMIT, LIMIT)",
        "ops.minimum(one, LIMIT)",
        is_backward=True,
    ),
    Fault("no decay", "decay update", "DECAY", "0.0", edit="groups", steps=2, first_step=1),
    Fault(
        "norms do not decay, as the library has it",
        "decay update",
        "nn.Momentum(groups, rates, MOMENTUM)",
        "nn.Momentum(self.parameters, rates, MOMENTUM, weight_decay=DECAY)",
        edit="made",
        steps=2,
        first_step=1,
    ),
    Fault(
        "rate never drops", "rate update", "[RATE, RATE * DROP]", "[RATE, RATE]", edit="rates", steps=3, first_step=2
    ),
    Fault("rate drops a step late", "rate update", "[1, 100]", "[2, 100]", edit="rates", steps=3, first_step=2),
    Fault("no momentum", "momentum update", "rates, MOMENTUM", "rates, 0.0", edit="made", steps=3, first_step=2),
    Fault("padding learns", "padded embedded", "ops.stop_gradient(x)", "x", is_backward=True),
    Fault("taps after channels", "conv", ".transpose(0, 2, 1).reshape(", ".reshape(", edit="load", parameter="convs"),
    Fault(
        "reference fills the same places again",
        "kept others pointer",
        "(ptr + BATCH) % QUEUE",
        "0",
        edit="pointer",
        side="reference",
        steps=3,
        first_step=2,
    ),
    Fault(
        "relu after the norm forgotten, and no decay",
        "relu2 fc2",
        "ops.relu(self.bn(h))",
        "self.bn(h)",
        second=("groups", "DECAY", "0.0"),
    ),
)
