"""Points of two pictures matched by transport with a bin for the rest; channels come last in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WIDTH, HEADS, PLACE, LAYERS, ROUNDS, LEFT, RIGHT, BATCH = 8, 2, 6, 2, 3, 7, 6, 3
SIZE, HIGH, WIDE, FROZEN = WIDTH // HEADS, 12, 16, 1


class Place(torch.nn.Module):
    """A vector for where a point is and how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn = torch.nn.Conv1d(3, PLACE, 1), torch.nn.BatchNorm1d(PLACE)
        self.conv2 = torch.nn.Conv1d(PLACE, WIDTH, 1)

    def forward(self, points, sure):
        size = torch.tensor([WIDE, HIGH])
        points = (points - size / 2) / (0.7 * size.max())  # @centred @sized
        x = torch.cat([points, sure.unsqueeze(-1)], dim=-1).transpose(1, 2)  # @place_in
        return self.conv2(F.relu(self.bn(self.conv1(x))))  # @place1 @bn @place2


class Message(torch.nn.Module):
    """Attention from one set of points to another; a head is every second channel."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.merge = (torch.nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(4))
        self.up, self.norm = torch.nn.Conv1d(2 * WIDTH, 2 * WIDTH, 1), torch.nn.InstanceNorm1d(2 * WIDTH, affine=True)
        self.down = torch.nn.Conv1d(2 * WIDTH, WIDTH, 1)

    def forward(self, x, source):
        q, k, v = self.query(x), self.key(source), self.value(source)  # @query @key @value
        q, k, v = (one.view(BATCH, SIZE, HEADS, -1) for one in (q, k, v))  # @heads
        score = torch.einsum("bdhn,bdhm->bhnm", q, k) / SIZE**0.5  # @score
        y = torch.einsum("bhnm,bdhm->bdhn", score.softmax(dim=-1), v)  # @chance @context
        y = self.merge(y.reshape(BATCH, WIDTH, -1))  # @merged @merge
        h = self.up(torch.cat([x, y], dim=1))  # @both @up
        return self.down(F.relu(self.norm(h)))  # @norm @down


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = Place()
        self.own = torch.nn.ModuleList([Message() for _ in range(LAYERS)])
        self.cross = torch.nn.ModuleList([Message() for _ in range(LAYERS)])
        self.last = torch.nn.Conv1d(WIDTH, WIDTH, 1)
        self.surely = torch.nn.Linear(WIDTH, 1)
        self.bin = torch.nn.Parameter(torch.ones(1))

    def transport(self, score):
        """Rows and columns of a matrix in log space have given sums; the bins take what is left over."""
        rows, columns = self.bin.expand(BATCH, LEFT, 1), self.bin.expand(BATCH, 1, RIGHT + 1)
        score = torch.cat([torch.cat([score, rows], dim=2), columns], dim=1)  # @bin
        whole = -np.log(LEFT + RIGHT)
        mu = torch.tensor([whole] * LEFT + [np.log(RIGHT) + whole], dtype=torch.float32)  # @mu
        nu = torch.tensor([whole] * RIGHT + [np.log(LEFT) + whole], dtype=torch.float32)  # @nu
        u, v = torch.zeros(BATCH, LEFT + 1), torch.zeros(BATCH, RIGHT + 1)
        for _ in range(ROUNDS):
            u = mu - torch.logsumexp(score + v.unsqueeze(1), dim=2)  # @rows
            v = nu - torch.logsumexp(score + u.unsqueeze(2), dim=1)  # @columns
        return score + u.unsqueeze(2) + v.unsqueeze(1) - whole  # @transport

    def match(self, left, right):
        left, right = self.last(left), self.last(right)  # @last
        return self.transport(torch.einsum("bdn,bdm->bnm", left, right) / WIDTH**0.5)  # @alike

    def forward(self, left, points_left, sure_left, right, points_right, sure_right):
        left = left.transpose(1, 2) + self.place(points_left, sure_left)  # @placed
        right = right.transpose(1, 2) + self.place(points_right, sure_right)  # @placed
        found = []
        for own, cross in zip(self.own, self.cross, strict=True):
            left, right = left + own(left, left), right + own(right, right)  # @own
            left, right = left + cross(left, right), right + cross(right, left)  # @crossed
            found.append((self.match(left, right), self.surely(left.detach().transpose(1, 2)).squeeze(-1)))  # @surely
        return found


def compute_reference_loss(network, *batch, step):
    *points, matches = batch
    network.place.train(step < FROZEN)
    found = network(*points)
    best = found[-1][0][:, :-1].argmax(dim=-1)
    wanted = torch.where(matches < 0, RIGHT, matches)  # @wanted
    is_free = torch.ones(BATCH, RIGHT + 1, dtype=torch.bool)
    is_free[torch.arange(BATCH).unsqueeze(1), wanted] = False  # @free
    loss = 0.0
    for chance, surely in found:
        picked = chance[:, :-1].gather(2, wanted.unsqueeze(2)).squeeze(2)  # @picked
        matched, alone = picked[matches >= 0].mean(), picked[matches < 0].sum()  # @matched @alone
        alone = alone + chance[:, -1, :-1][is_free[:, :-1]].sum()  # @alone_right
        number = (matches < 0).sum() + is_free[:, :-1].sum()  # @number
        loss = loss - (0.5 * matched + 0.5 * alone / number) / LAYERS  # @loss
        if step > 0:
            is_same = (chance[:, :-1].argmax(dim=-1) == best).float()  # @same
            loss = loss + F.binary_cross_entropy_with_logits(surely, is_same) / LAYERS  # @sure_loss
    return loss


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key_value = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, 2 * WIDTH)
        self.merge = nn.Dense(WIDTH, WIDTH)
        self.up, self.down = nn.Dense(2 * WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.gamma = ms.Parameter(ops.ones((2 * WIDTH,)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((2 * WIDTH,)), name="beta")

    def split(self, x):
        return x.reshape(BATCH, -1, SIZE, HEADS).transpose(0, 3, 1, 2)  # @heads

    def normalize(self, x):
        x = x - x.mean(1, keep_dims=True)  # @norm @norm_mean
        return x * ops.rsqrt(ops.square(x).mean(1, keep_dims=True) + 1e-5) * self.gamma + self.beta  # @norm

    def construct(self, x, source):
        k, v = ops.split(self.key_value(source), WIDTH, axis=-1)  # @key @value
        q, k, v = self.split(self.query(x)), self.split(k), self.split(v)  # @query
        chance = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) * SIZE**-0.5, -1)  # @score @chance
        y = ops.matmul(chance, v).transpose(0, 2, 3, 1)  # @context
        y = self.merge(y.reshape(BATCH, -1, WIDTH))  # @merged @merge
        h = self.normalize(self.up(ops.cat((x, y), axis=-1)))  # @both @up
        return x + self.down(ops.relu(h))  # @down @own @crossed


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.place1, self.place2 = nn.Dense(3, PLACE), nn.Dense(PLACE, WIDTH)
        self.bn = nn.BatchNorm1d(PLACE, momentum=0.9)  # @bn_made
        self.layers = nn.CellList([Layer() for _ in range(2 * LAYERS)])
        self.last, self.surely = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, 1)
        self.bin = ms.Parameter(ops.ones((1,)), name="bin")

    def place(self, points, sure):
        points = (points - ms.Tensor([WIDE / 2, HIGH / 2])) / (0.7 * max(HIGH, WIDE))  # @centred @sized
        x = ops.cat((points, sure.expand_dims(2)), axis=2)  # @place_in
        h = self.place1(x.reshape(-1, 3))  # @place1
        return self.place2(ops.relu(self.bn(h))).reshape(BATCH, -1, WIDTH)  # @bn @place2

    def transport(self, score):
        score = ops.pad(score, [0, 1, 0, 1])  # @bin
        is_bin = np.zeros((LEFT + 1, RIGHT + 1), np.float32)
        is_bin[-1], is_bin[:, -1] = 1, 1  # @bin_made
        score = score + ms.Tensor(is_bin) * self.bin  # @bin
        mu, nu = np.zeros((LEFT + 1, 1), np.float32), np.zeros((1, RIGHT + 1), np.float32)
        mu[-1], nu[:, -1] = np.log(RIGHT), np.log(LEFT)  # @sums_made
        for _ in range(ROUNDS):
            score = score - ops.logsumexp(score, 2, True) + ms.Tensor(mu)  # @rows @mu
            score = score - ops.logsumexp(score, 1, True) + ms.Tensor(nu)  # @columns @nu @transport
        return score

    def construct(self, left, points_left, sure_left, right, points_right, sure_right):
        left = left + self.place(points_left, sure_left)  # @placed
        right = right + self.place(points_right, sure_right)  # @placed
        chances, surely = [], []
        for number, layer in enumerate(self.layers):
            if number % 2 == 0:
                left, right = layer(left, left), layer(right, right)  # @own_called
                continue
            left, right = layer(left, right), layer(right, left)  # @cross_called
            alike = ops.bmm(self.last(left), self.last(right).swapaxes(1, 2)) / WIDTH**0.5  # @last @alike
            chances.append(self.transport(alike))
            surely.append(self.surely(ops.stop_gradient(left)).squeeze(-1))  # @surely
        return chances, surely


def compute_candidate_loss(network, *batch, step):
    *points, matches = batch
    network.bn.set_train(step < FROZEN)  # @frozen
    chances, surely = network(*points)
    is_matched = matches >= 0
    wanted = ops.select(is_matched, matches, ops.full_like(matches, RIGHT))  # @wanted
    goal = ops.one_hot(wanted, RIGHT + 1).astype(ms.float32)  # @goal
    matched = goal[..., :-1]
    alone, alone_right = goal[..., -1], 1 - matched.sum(1)  # @free
    number = alone.sum() + alone_right.sum()  # @number
    chance = ops.stack(chances)
    found = (chance[:, :, :-1, :-1] * matched).sum() / matched.sum()  # @picked @matched
    lost = (chance[:, :, :-1, -1] * alone).sum() + (chance[:, :, -1, :-1] * alone_right).sum()  # @alone @alone_right
    loss = -(found + lost / number) / (2 * LAYERS)  # @loss
    if step > 0:
        best = ops.argmax(chance[:, :, :-1], -1)
        goal = (best == best[-1:]).astype(ms.float32)  # @same
        surely = ops.stack(surely)
        loss = loss + (ops.softplus(surely) - surely * goal).mean()  # @sure_loss
    return loss


def convert(weights: Weights) -> Weights:
    words = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    converted = {}
    for name, array in weights.items():
        name = name.replace("place.conv", "place").replace("place.bn", "bn")
        path, _, word = name.rpartition(".")
        for number in range(LAYERS):
            path = path.replace(f"own.{number}", f"layers.{2 * number}")
            path = path.replace(f"cross.{number}", f"layers.{2 * number + 1}")
        if path.endswith(".norm"):
            path = path.removesuffix(".norm")
            word = words[word]
        elif path == "bn":
            word = words[word]
        converted[f"{path}.{word}" if path else word] = array[..., 0] if array.ndim == 3 else array
    for path in [f"layers.{number}.{{}}.{word}" for number in range(2 * LAYERS) for word in ("weight", "bias")]:
        parts = [converted.pop(path.format(one)) for one in ("key", "value")]  # @load
        converted[path.format("key_value")] = np.concatenate(parts)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(6400 + step)
    points = []
    for count in (LEFT, RIGHT):
        places = random.uniform([0, 0], [WIDE, HIGH], size=(BATCH, count, 2))
        points += [random.normal(size=(BATCH, count, WIDTH)), places, random.random((BATCH, count))]
    matches = np.array([[0, 2, -1, 3, -1, 5, 4], [-1, 1, 0, -1, 2, 3, -1], [3, -1, -1, -1, 0, 5, 1]])
    return *(one.astype(np.float32) for one in points), matches


FAULTS = (
    Fault("places divided by the shorter side", "sized", "0.7 * max(HIGH, WIDE)", "0.7 * min(HIGH, WIDE)"),
    Fault(
        "middle of the turned picture, hidden by the norm at first",
        "centred",
        "[WIDE / 2, HIGH / 2]",
        "[HIGH / 2, WIDE / 2]",
        steps=2,
        first_step=1,
    ),
    Fault(
        "heads before their channels",
        "heads score",
        "x.reshape(BATCH, -1, SIZE, HEADS).transpose(0, 3, 1, 2)",
        "x.reshape(BATCH, -1, HEADS, SIZE).transpose(0, 2, 1, 3)",
    ),
    Fault(
        "heads merged in another order",
        "context merged merge",
        "ops.matmul(chance, v).transpose(0, 2, 3, 1)",
        "ops.matmul(chance, v).transpose(0, 2, 1, 3)",
    ),
    Fault("message before the point", "both up", "ops.cat((x, y)", "ops.cat((y, x)"),
    Fault("scale of all channels", "score", "SIZE**-0.5", "WIDTH**-0.5"),
    Fault("mean over channels", "norm_mean norm", "x = x - x.mean(1,", "x = x - x.mean(2,"),
    Fault("not centred", "norm", "x = x - x.mean(1, keep_dims=True)", "x = x * 1"),
    Fault(
        "right sees the left that was updated",
        "cross_called key value",
        "left, right = layer(left, right), layer(right, left)",
        "left = layer(left, right); right = layer(right, left)",
    ),
    Fault("bins take one point", "mu nu rows", "np.log(RIGHT), np.log(LEFT)", "0, 0", edit="sums_made"),
    Fault(
        "bins exchanged", "mu nu rows", "np.log(RIGHT), np.log(LEFT)", "np.log(LEFT), np.log(RIGHT)", edit="sums_made"
    ),
    Fault(
        "no bin score in the corner",
        "bin",
        "is_bin[-1], is_bin[:, -1] = 1, 1",
        "is_bin[-1, :-1], is_bin[:-1, -1] = 1, 1",
        edit="bin_made",
    ),
    Fault(
        "points of the other side for their own",
        "own_called key value",
        "layer(left, left), layer(right, right)",
        "layer(left, left), layer(right, left)",
    ),
    Fault("bin passes no gradient", "bin", "* self.bin", "* ops.stop_gradient(self.bin)", is_backward=True),
    Fault(
        "sureness passes a gradient",
        "surely crossed",
        "ops.stop_gradient(left)",
        "left",
        is_backward=True,
        steps=2,
        first_step=1,
    ),
    Fault("momentum the other way round", "bn", "momentum=0.9", "momentum=0.1", edit="bn_made", steps=2, first_step=1),
    Fault("norm of places never frozen", "bn", "step < FROZEN", "step <= FROZEN", edit="frozen", steps=2, first_step=1),
    Fault(
        "sureness the other way round",
        "same sure_loss",
        "best == best[-1:]",
        "best != best[-1:]",
        steps=2,
        first_step=1,
    ),
    Fault("points of the right that are alone not counted", "number", " + alone_right.sum()", ""),
    Fault(
        "weights of keys and values exchanged",
        "key value",
        '("key", "value")',
        '("value", "key")',
        edit="load",
        parameter="key",
    ),
    Fault(
        "reference sums the matched",
        "matched",
        "picked[matches >= 0].mean()",
        "picked[matches >= 0].sum()",
        side="reference",
    ),
    Fault(
        "score not divided, and the bin of columns lost",
        "alike",
        " / WIDTH**0.5",
        "",
        second=("alone", " + (chance[:, :, -1, :-1] * alone_right).sum()", ""),
    ),
)
