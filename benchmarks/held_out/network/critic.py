"""Offline learning from rewards: two critics and their slow copy, moved in the step, expectiles, weighted imitation."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

STATE, ACTION, WIDTH = 5, 2, 8
GAMMA, SLOW, EXPECTILE, SHARP, LIMIT, LOW, HIGH = 0.9, 0.2, 0.7, 3.0, 4.0, -1.5, 1.0


class Critic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = torch.nn.Linear(STATE + ACTION, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.out = torch.nn.Linear(WIDTH, 1)

    def forward(self, state, action):
        h = self.norm(self.enter(torch.cat([state, action], dim=-1)))  # @pair @enter @norm
        return self.out(F.mish(h)).squeeze(-1)  # @mish @out


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critics = torch.nn.ModuleList([Critic(), Critic()])
        self.slow = torch.nn.ModuleList([Critic(), Critic()]).requires_grad_(False)
        self.value = torch.nn.Sequential(torch.nn.Linear(STATE, WIDTH), torch.nn.Mish(), torch.nn.Linear(WIDTH, 1))
        self.actor = torch.nn.Sequential(
            torch.nn.Linear(STATE, WIDTH), torch.nn.Mish(), torch.nn.Linear(WIDTH, 2 * ACTION)
        )

    @torch.no_grad()
    def follow(self):
        for old, new in zip(self.slow.parameters(), self.critics.parameters(), strict=True):
            old.lerp_(new, SLOW)  # @moved

    def act(self, state):
        mean, raw = self.actor(state).chunk(2, dim=-1)  # @heads
        log_std = LOW + 0.5 * (HIGH - LOW) * (torch.tanh(raw) + 1)  # @spread
        normal = torch.distributions.Normal(torch.tanh(mean), log_std.exp())  # @mean @std
        return torch.distributions.Independent(normal, 1)


def compute_reference_loss(network, state, action, reward, after, done):
    network.follow()
    with torch.no_grad():
        judged = torch.min(*(critic(state, action) for critic in network.slow))  # @least
        future = network.value(after).squeeze(-1)  # @future
        target = reward + GAMMA * (1 - done) * future  # @target
    value = network.value(state).squeeze(-1)  # @value
    gap = judged - value  # @gap
    value_loss = (torch.abs(EXPECTILE - (gap < 0).float()) * gap**2).mean()  # @side @expectile
    critic_loss = sum(F.mse_loss(critic(state, action), target) for critic in network.critics)  # @critic
    weight = torch.exp(SHARP * gap.detach()).clamp(max=LIMIT)  # @sharp @weight
    actor_loss = -(weight * network.act(state).log_prob(action)).mean()  # @chance @actor
    return value_loss + critic_loss + 0.5 * actor_loss  # @loss


class Twins(nn.Cell):
    """Both critics at once: weights have a first axis of two. Those called moving are the slow copy."""

    def __init__(self) -> None:
        super().__init__()
        size = STATE + ACTION
        self.enter = ms.Parameter(ops.zeros((2, size, WIDTH)), name="enter")
        self.shift = ms.Parameter(ops.zeros((2, 1, WIDTH)), name="shift")
        self.gamma = ms.Parameter(ops.zeros((2, 1, WIDTH)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((2, 1, WIDTH)), name="beta")
        self.out = ms.Parameter(ops.zeros((2, WIDTH, 1)), name="out")
        self.last = ms.Parameter(ops.zeros((2, 1, 1)), name="last")
        self.moving_enter = ms.Parameter(ops.zeros((2, size, WIDTH)), name="moving_enter", requires_grad=False)
        self.moving_shift = ms.Parameter(ops.zeros((2, 1, WIDTH)), name="moving_shift", requires_grad=False)
        self.moving_gamma = ms.Parameter(ops.zeros((2, 1, WIDTH)), name="moving_gamma", requires_grad=False)
        self.moving_beta = ms.Parameter(ops.zeros((2, 1, WIDTH)), name="moving_beta", requires_grad=False)
        self.moving_out = ms.Parameter(ops.zeros((2, WIDTH, 1)), name="moving_out", requires_grad=False)
        self.moving_last = ms.Parameter(ops.zeros((2, 1, 1)), name="moving_last", requires_grad=False)

    def list_own(self):
        return self.enter, self.shift, self.gamma, self.beta, self.out, self.last

    def list_slow(self):
        old = (self.moving_enter, self.moving_shift, self.moving_gamma)
        return *old, self.moving_beta, self.moving_out, self.moving_last

    def follow(self):
        weights = []
        for old, new in zip(self.list_slow(), self.list_own(), strict=True):
            moved = (1 - SLOW) * old + SLOW * ops.stop_gradient(new)  # @moved
            ops.assign(old, moved)  # @kept
            weights.append(moved)
        return weights

    def construct(self, pair, weights):
        enter, shift, gamma, beta, out, last = weights
        h = ops.matmul(pair, enter) + shift  # @enter
        h = h - ops.mean(h, -1, True)  # @norm
        h = h * ops.rsqrt(ops.mean(ops.square(h), -1, True) + 1e-5) * gamma + beta  # @norm
        return (ops.matmul(h * ops.tanh(ops.softplus(h)), out) + last).squeeze(-1)  # @mish @out


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins()
        self.first, self.second = nn.Dense(STATE, WIDTH), nn.Dense(WIDTH, 1)
        self.body, self.mean, self.raw = nn.Dense(STATE, WIDTH), nn.Dense(WIDTH, ACTION), nn.Dense(WIDTH, ACTION)

    def value(self, state):
        return self.second(ops.mish(self.first(state))).squeeze(-1)

    def say(self, state, action):
        """The logarithm of the chance of an action."""
        h = ops.mish(self.body(state))
        log_std = (HIGH + LOW) / 2 + (HIGH - LOW) / 2 * ops.tanh(self.raw(h))  # @heads @spread
        away = (action - ops.tanh(self.mean(h))) * ops.exp(-log_std)  # @mean @std
        return -(0.5 * away * away + log_std).sum(-1) - ACTION / 2 * math.log(2 * math.pi)  # @chance


def compute_candidate_loss(network, state, action, reward, after, done):
    pair = ops.cat((state, action), axis=-1)  # @pair
    judged = ops.stop_gradient(network.twins(pair, network.twins.follow()).min(axis=0))  # @least
    both = network.value(ops.cat((state, after)))
    value, future = mint.chunk(both, 2)  # @value @future
    target = reward + GAMMA * ops.stop_gradient(future) * (1 - done)  # @target
    gap = judged - value  # @gap
    side = ops.where(gap < 0, 1 - EXPECTILE, EXPECTILE)  # @side
    value_loss = (side * ops.square(gap)).mean()  # @expectile
    critic_loss = ops.square(network.twins(pair, network.twins.list_own()) - target).mean(1).sum()  # @critic
    weight = ops.clamp(ops.exp(ops.stop_gradient(gap) * SHARP), max=LIMIT)  # @sharp @weight
    actor_loss = -ops.mean(weight * network.say(state, action))  # @actor
    return value_loss + critic_loss + actor_loss / 2  # @loss


def convert(weights: Weights) -> Weights:
    converted = {}
    names = {"enter.weight": "enter", "enter.bias": "shift", "norm.weight": "gamma", "norm.bias": "beta"}
    names |= {"out.weight": "out", "out.bias": "last"}
    for old, new in names.items():
        for group, prefix in (("critics", ""), ("slow", "moving_")):
            both = np.stack([weights[f"{group}.{number}.{old}"] for number in (0, 1)])
            converted[f"twins.{prefix}{new}"] = both.transpose(0, 2, 1) if both.ndim == 3 else both[:, None]
    for old, new in (("value.0", "first"), ("value.2", "second"), ("actor.0", "body")):
        converted |= {f"{new}.{word}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    for word in ("weight", "bias"):
        converted[f"mean.{word}"], converted[f"raw.{word}"] = np.split(weights[f"actor.2.{word}"], 2)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4110 + step)
    state, after = random.normal(size=(2, 8, STATE)).astype(np.float32)
    action = np.tanh(random.normal(size=(8, ACTION))).astype(np.float32)
    done = (np.arange(8) % 3 == 1).astype(np.float32)
    return state, action, random.normal(size=8).astype(np.float32), after, done


FAULTS = (
    Fault(
        "slow copy moves the other way round",
        "moved",
        "(1 - SLOW) * old + SLOW * ops.stop_gradient(new)",
        "SLOW * old + (1 - SLOW) * ops.stop_gradient(new)",
    ),
    Fault("slow copy not kept", "moved", "ops.assign(old, moved)", "pass", edit="kept", steps=2, first_step=1),
    Fault("mean of the critics instead of the least", "least gap", ".min(axis=0)", ".mean(axis=0)"),
    Fault("target not detached", "target future", "ops.stop_gradient(future)", "future", is_backward=True),
    Fault("weight of the actor not detached", "sharp", "ops.stop_gradient(gap)", "gap", is_backward=True),
    Fault("last states are worth something", "target", " * (1 - done)", ""),
    Fault(
        "reference limits before it exponentiates",
        "sharp weight",
        "torch.exp(SHARP * gap.detach()).clamp(max=LIMIT)",
        "torch.exp((SHARP * gap.detach()).clamp(max=LIMIT))",
        side="reference",
    ),
    Fault(
        "expectile of the other side, and the critics averaged",
        "side",
        "gap < 0, 1 - EXPECTILE, EXPECTILE",
        "gap > 0, 1 - EXPECTILE, EXPECTILE",
        second=("critic", ".mean(1).sum()", ".mean()"),
    ),
)
