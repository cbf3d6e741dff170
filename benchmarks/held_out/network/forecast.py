"""Stacks that explain a series in turn: a scaled loss, a stack that thaws in the second step, rates by the weights."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SERIES, TIME, AHEAD, HIDDEN, BATCH, EPSILON = 2, 12, 6, 10, 4, 1e-5
POOLS, COUNTS, QUANTILES, KINDS = (4, 2, 1), (3, 4, 4), (0.1, 0.5, 0.9), ("trend", "season", "generic")
RATE, LAYERWISE, BETAS, LAMB, DECAY, LARGEST, LIMIT = 0.05, 0.7, (0.9, 0.98), 1e-4, 0.05, 0.3, 2.55
SCALE, GROWTH, EVERY, REST, THAW = 64.0, 2.0, 1, 0.3, 1


class RevIN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine_weight = torch.nn.Parameter(torch.ones(SERIES))
        self.affine_bias = torch.nn.Parameter(torch.zeros(SERIES))

    def normalize(self, x):
        self.mean = x.mean(dim=1, keepdim=True)  # @mean
        self.stdev = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + EPSILON)  # @stdev
        return (x - self.mean) / self.stdev * self.affine_weight + self.affine_bias  # @whitened @affine

    def denormalize(self, y):
        y = (y - self.affine_bias[:, None]) / self.affine_weight[:, None]  # @back_affine
        return y * self.stdev[..., None] + self.mean[..., None]  # @back


class Stack(torch.nn.Module):
    def __init__(self, kind: str, pool: int, count: int) -> None:
        super().__init__()
        self.kind, self.count, self.pool = kind, count, torch.nn.MaxPool1d(pool)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(TIME // pool, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU()
        )
        self.theta = torch.nn.Linear(HIDDEN, count * (1 + len(QUANTILES)))

    def expand(self, theta, start, length):
        """What coefficients say about the times of the past, or of the future."""
        if self.kind == "generic":
            return F.interpolate(theta, size=length, mode="linear", align_corners=False)  # @expanded
        t = torch.arange(start, start + length) / TIME  # @times
        if self.kind == "trend":
            basis = torch.stack([t**power for power in range(self.count)])  # @basis
        else:
            angles = 2 * math.pi * torch.outer(torch.arange(1, self.count // 2 + 1), t)  # @angles
            basis = torch.cat([torch.cos(angles), torch.sin(angles)])  # @basis
        return torch.einsum("bqp,pt->bqt", theta, basis)  # @expanded

    def forward(self, x):
        h = self.layers(self.pool(x.unsqueeze(1)).squeeze(1))  # @pool @hidden
        theta = self.theta(h).view(len(x), 1 + len(QUANTILES), self.count)  # @theta @laid
        return self.expand(theta[:, :1], 0, TIME).squeeze(1), self.expand(theta[:, 1:], TIME, AHEAD)


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.revin = RevIN()
        self.stacks = torch.nn.ModuleList(map(Stack, KINDS, POOLS, COUNTS))

    def forward(self, x):
        x = self.revin.normalize(x)
        residual = x.transpose(1, 2).reshape(-1, TIME)  # @rows
        forecast = 0.0
        for stack in self.stacks:
            backcast, part = stack(residual)
            residual = residual - backcast  # @rest
            forecast = forecast + part  # @forecast
        forecast = forecast.view(-1, SERIES, len(QUANTILES), AHEAD).permute(0, 3, 1, 2)  # @arranged
        return self.revin.denormalize(forecast), residual


class Lamb(torch.optim.Optimizer):
    def __init__(self, groups, lr) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])  # @first
                state["exp_avg_sq"].mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])  # @second
                first = state["exp_avg"] / (1 - BETAS[0] ** state["step"])  # @first_right
                second = state["exp_avg_sq"] / (1 - BETAS[1] ** state["step"])  # @second_right
                update = first / (second.sqrt() + LAMB)  # @direction
                trust = 1.0
                if p.ndim > 1:
                    update = update + DECAY * p  # @decay
                    trust = (p.norm() / update.norm()).clamp(max=LARGEST)  # @lengths @trust
                p.add_(-group["lr"] * trust * update)  # @update


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.network, self.number, self.scale = network, 0, SCALE
        groups = [{"params": network.revin.parameters(), "lr": RATE}]
        for number, stack in enumerate(reversed(network.stacks)):
            groups.append({"params": stack.parameters(), "lr": RATE * LAYERWISE**number})  # @groups
        self.optimizer = Lamb(groups, RATE)

    def step(self, x, y, is_known):
        self.network.stacks[0].requires_grad_(self.number >= THAW)
        self.optimizer.zero_grad()
        forecast, residual = self.network(x)
        error = y.unsqueeze(-1) - forecast  # @error
        q = torch.tensor(QUANTILES)
        each = torch.max((q - 1) * error, q * error).sum(dim=-1)  # @pinball @summed
        loss = (each * is_known).sum() / is_known.sum()  # @known @loss_known
        loss = loss + REST * residual.square().mean()  # @rest_loss @loss
        (loss * self.scale).backward()  # @scaled
        trained = [one for one in self.network.parameters() if one.grad is not None]
        for one in trained:
            one.grad.div_(self.scale)  # @unscaled
        torch.nn.utils.clip_grad_norm_(trained, LIMIT)  # @norm @clip
        if all(torch.isfinite(one.grad).all() for one in trained):
            self.optimizer.step()
        self.number += 1
        if self.number % EVERY == 0:
            self.scale *= GROWTH
        return loss


class Block(nn.Cell):
    def __init__(self, pool, count) -> None:
        super().__init__()
        self.size, self.count = pool, count
        self.one, self.two = nn.Dense(TIME // pool, HIDDEN), nn.Dense(HIDDEN, HIDDEN)
        self.coefficients = nn.Dense(HIDDEN, (1 + len(QUANTILES)) * count)

    def construct(self, x, tables):
        x = x.reshape(*x.shape[:2], -1, self.size).max(axis=-1)  # @pool
        h = ops.relu(self.two(ops.relu(self.one(x))))  # @hidden
        found = self.coefficients(h)  # @theta
        back = ops.matmul(found[..., : self.count], tables[0])  # @laid @expanded @basis
        front = found[..., self.count :].reshape(*h.shape[:2], len(QUANTILES), self.count)  # @laid
        return back, ops.matmul(front, tables[1])  # @expanded @basis


def make_tables():
    """Of each stack what a coefficient says of past and future, as a matrix."""
    tables = []
    t = np.arange(TIME + AHEAD) / TIME
    for kind, count in zip(KINDS, COUNTS, strict=True):
        if kind == "trend":
            table = np.vander(t, count, increasing=True)  # @basis_trend
            tables.append((table[:TIME], table[TIME:]))
        elif kind == "season":
            angles = 2 * np.pi * t[:, None] * np.arange(1, count // 2 + 1)  # @angles_made
            table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)  # @basis_season
            tables.append((table[:TIME], table[TIME:]))
        else:
            tables.append((interpolate(count, TIME), interpolate(count, AHEAD)))
    return [tuple(ms.Tensor(one.T.copy(), ms.float32) for one in both) for both in tables]


def interpolate(count, length):
    place = np.clip((np.arange(length) + 0.5) * count / length - 0.5, 0, count - 1)  # @between
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(count)))


class Candidate(nn.Cell):
    """Series come before times."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = ms.Parameter(ops.ones((SERIES, 1)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((SERIES, 1)), name="beta")
        self.blocks, self.tables = (
            nn.CellList([Block(*both) for both in zip(POOLS, COUNTS, strict=True)]),
            make_tables(),
        )

    def construct(self, x):
        x = x.swapaxes(1, 2)  # @rows
        mean = x.mean(-1, keep_dims=True)  # @mean
        away = x - mean
        deviation = ops.sqrt((away * away).mean(-1, keep_dims=True) + EPSILON)  # @stdev
        rest = away / deviation * self.gamma + self.beta  # @whitened @affine
        fronts = []
        for block, tables in zip(self.blocks, self.tables, strict=True):
            back, front = block(rest, tables)
            rest = rest - back  # @rest
            fronts.append(front)
        front = ops.stack(fronts).sum(0)  # @forecast
        front = (front - self.beta.expand_dims(1)) / self.gamma.expand_dims(1)  # @back_affine
        return front * deviation.expand_dims(2) + mean.expand_dims(2), rest  # @back


class CandidateTrainer:
    def __init__(self, network) -> None:
        self.network, self.number, self.scale = network, 0, SCALE
        self.parameters = network.trainable_params()
        self.frozen = {id(one) for one in network.blocks[0].trainable_params()}
        self.rates, self.state = {}, {}
        for number, block in enumerate(network.blocks):
            rate = RATE * LAYERWISE ** (len(POOLS) - 1 - number)  # @groups
            self.rates |= {id(one): rate for one in block.trainable_params()}

    def compute_loss(self, x, y, is_known):
        front, rest = self.network(x)
        error = y.swapaxes(1, 2).expand_dims(2) - front  # @error
        q = ms.Tensor(QUANTILES, ms.float32).reshape(-1, 1)
        each = ops.relu(error) * q + ops.relu(-error) * (1 - q)  # @pinball
        known = is_known.swapaxes(1, 2)
        loss = (each.sum(2) * known).sum() / known.sum()  # @summed @known @loss_known
        loss = loss + REST * ops.square(rest).mean()  # @rest_loss @loss
        return loss * self.scale, loss  # @scaled

    def update(self, parameter, gradient):
        number, first, second = self.state.get(id(parameter), (0, 0.0, 0.0))
        number = number + 1  # @counted
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient  # @first
        second = BETAS[1] * second + (1 - BETAS[1]) * ops.square(gradient)  # @second
        self.state[id(parameter)] = (number, first, second)
        root = ops.sqrt(second / (1 - BETAS[1] ** number))  # @second_right @direction
        move = first / (1 - BETAS[0] ** number) / (root + LAMB)  # @first_right @direction
        rate = self.rates.get(id(parameter), RATE)
        if move.ndim > 1 and move.shape[1] > 1:  # @is_matrix
            move = move + DECAY * parameter  # @decay
            trust = ops.sqrt(ops.square(parameter).sum() / ops.square(move).sum())  # @lengths
            rate = rate * ops.minimum(trust, LARGEST)  # @trust
        ops.assign(parameter, parameter - rate * move)  # @update

    def step(self, x, y, is_known):
        is_warm = self.number >= THAW  # @thaw
        active = [one for one in self.parameters if is_warm or id(one) not in self.frozen]
        (_, loss), found = ms.value_and_grad(self.compute_loss, None, active, has_aux=True)(x, y, is_known)
        found = [one * (1 / self.scale) for one in found]  # @unscaled
        length = ops.sqrt(sum(ops.square(one).sum() for one in found))  # @norm
        found = [one * ops.minimum(LIMIT / (length + 1e-6), ms.Tensor(1.0)) for one in found]  # @clip
        for parameter, gradient in zip(active, found, strict=True):
            self.update(parameter, gradient)
        self.number += 1
        if self.number % EVERY == 0:
            self.scale = self.scale * GROWTH
        known = {id(one): gradient for one, gradient in zip(active, found, strict=True)}
        return loss, [known.get(id(one), ops.zeros_like(one)) for one in self.parameters]


def convert(weights: Weights) -> Weights:
    converted = {"gamma": weights["revin.affine_weight"][:, None], "beta": weights["revin.affine_bias"][:, None]}
    for number in range(len(COUNTS)):
        old, new = f"stacks.{number}", f"blocks.{number}"
        for word in ("weight", "bias"):
            converted[f"{new}.one.{word}"] = weights[f"{old}.layers.0.{word}"]
            converted[f"{new}.two.{word}"] = weights[f"{old}.layers.2.{word}"]
            converted[f"{new}.coefficients.{word}"] = weights[f"{old}.theta.{word}"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9500 + step)
    series = random.normal(size=(BATCH, TIME + AHEAD, SERIES)).cumsum(axis=1) + 3
    is_known = (random.uniform(size=(BATCH, AHEAD, SERIES)) < 0.7).astype(np.float32)
    series = series.astype(np.float32)
    return series[:, :TIME].copy(), series[:, TIME:].copy(), is_known


FAULTS = (
    Fault(
        "stack trained from the start",
        "first second update norm theta",
        "self.number >= THAW",
        "True",
        edit="thaw",
        is_backward=True,
    ),
    Fault(
        "stack never thaws",
        "first second update norm theta",
        "self.number >= THAW",
        "False",
        edit="thaw",
        steps=2,
        first_step=1,
        is_backward=True,
    ),
    Fault(
        "corrections by the steps of the others",
        "first_right second_right direction",
        "number + 1",
        "self.number + 1",
        edit="counted",
        steps=3,
        first_step=2,
    ),
    Fault(
        "gradients stay scaled",
        "unscaled norm clip",
        "one * (1 / self.scale)",
        "one * 1",
        is_backward=True,
        steps=2,
        first_step=1,
    ),
    Fault(
        "unscaled by the first scale",
        "unscaled",
        "1 / self.scale",
        "1 / SCALE",
        is_backward=True,
        steps=2,
        first_step=1,
    ),
    Fault(
        "clipped one by one",
        "clip norm",
        "LIMIT / (length + 1e-6)",
        "LIMIT / (ops.sqrt(ops.square(one).sum()) + 1e-6)",
        edit="clip",
        is_backward=True,
    ),
    Fault(
        "trust the other way round",
        "lengths trust",
        "ops.square(parameter).sum() / ops.square(move).sum()",
        "ops.square(move).sum() / ops.square(parameter).sum()",
        steps=2,
        first_step=1,
    ),
    Fault("trust not bounded", "trust", "ops.minimum(trust, LARGEST)", "trust", steps=2, first_step=1),
    Fault(
        "vectors trusted and decayed too",
        "decay lengths trust update",
        "move.ndim > 1 and move.shape[1] > 1",
        "move.ndim > 0",
        edit="is_matrix",
        steps=2,
        first_step=1,
    ),
    Fault(
        "decay after the trust",
        "decay lengths",
        "move = move + DECAY * parameter",
        "parameter = parameter * (1 - rate * DECAY)",
        steps=2,
        first_step=1,
    ),
    Fault(
        "rates of layers the other way round",
        "update trust",
        "(len(POOLS) - 1 - number)",
        "number",
        edit="groups",
        steps=2,
        first_step=1,
    ),
    Fault(
        "quantiles the other way round",
        "pinball",
        "ops.relu(error) * q + ops.relu(-error) * (1 - q)",
        "ops.relu(-error) * q + ops.relu(error) * (1 - q)",
    ),
    Fault(
        "mean over unknown values too",
        "known loss_known",
        "(each.sum(2) * known).sum() / known.sum()",
        "(each.sum(2) * known).mean()",
        edit="loss_known",
    ),
    Fault(
        "affine part not undone",
        "back_affine back",
        "(front - self.beta.expand_dims(1)) / self.gamma.expand_dims(1)",
        "front * 1",
    ),
    Fault(
        "corners aligned between knots",
        "expanded basis",
        "(np.arange(length) + 0.5) * count / length - 0.5",
        "np.arange(length) * (count - 1) / (length - 1)",
        edit="between",
    ),
    Fault(
        "what is left passes no gradient",
        "rest_loss",
        "ops.square(rest)",
        "ops.square(ops.stop_gradient(rest))",
        is_backward=True,
    ),
    Fault(
        "reference with sines before cosines",
        "basis expanded",
        "[torch.cos(angles), torch.sin(angles)]",
        "[torch.sin(angles), torch.cos(angles)]",
        side="reference",
    ),
    Fault(
        "mean for the largest, and betas exchanged",
        "pool hidden",
        ".max(axis=-1)",
        ".mean(-1)",
        second=("second", "BETAS[1] * second + (1 - BETAS[1])", "BETAS[0] * second + (1 - BETAS[0])"),
    ),
)
