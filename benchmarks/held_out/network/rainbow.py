"""A distribution of returns by action, with given noise in the weights and a copy that is renewed now and then."""

from __future__ import annotations

import copy
import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

FRAMES, SIDE, CHANNELS, FLAT, HIDDEN, ACTIONS, ATOMS, BATCH, AHEAD = 2, 7, 4, 36, 8, 3, 7, 6, 3
LOW, HIGH, GAMMA, RENEW, RATE, BETAS, EPSILON, LIMIT, POWER = -2.0, 2.0, 0.9, 2, 0.02, (0.8, 0.95), 1e-3, 0.5, 0.6
GAP = (HIGH - LOW) / (ATOMS - 1)
SIZES = ((FLAT, HIDDEN), (HIDDEN, ATOMS), (FLAT, HIDDEN), (HIDDEN, ACTIONS * ATOMS))


class NoisyLinear(torch.nn.Module):
    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.weight_mu = torch.nn.Parameter(torch.empty(leave, enter))
        self.weight_sigma = torch.nn.Parameter(torch.empty(leave, enter))
        self.bias_mu, self.bias_sigma = torch.nn.Parameter(torch.empty(leave)), torch.nn.Parameter(torch.empty(leave))

    def forward(self, x, noise):
        noise = noise.sign().mul(noise.abs().sqrt())  # @root
        enter, leave = noise[: x.shape[1]], noise[x.shape[1] :]
        weight = self.weight_mu + self.weight_sigma * leave.ger(enter)  # @outer @noisy
        return F.linear(x, weight, self.bias_mu + self.bias_sigma * leave)  # @noisy_bias @linear


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(FRAMES, CHANNELS, 3, stride=2)
        self.fc_h_v, self.fc_z_v = NoisyLinear(*SIZES[0]), NoisyLinear(*SIZES[1])
        self.fc_h_a, self.fc_z_a = NoisyLinear(*SIZES[2]), NoisyLinear(*SIZES[3])

    def forward(self, x, noise, log=False):
        noise = noise.split([enter + leave for enter, leave in SIZES])
        x = F.relu(self.conv(x)).view(-1, FLAT)  # @conv @relu @flat
        v = self.fc_z_v(F.relu(self.fc_h_v(x, noise[0])), noise[1])  # @relu_v
        a = self.fc_z_a(F.relu(self.fc_h_a(x, noise[2])), noise[3])  # @relu_a
        v, a = v.view(-1, 1, ATOMS), a.view(-1, ACTIONS, ATOMS)  # @laid
        q = v + a - a.mean(1, keepdim=True)  # @duel
        return F.log_softmax(q, dim=2) if log else F.softmax(q, dim=2)  # @chance


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.online_net, self.target_net = network, copy.deepcopy(network)
        self.target_net.requires_grad_(False)
        self.optimiser = torch.optim.Adam(network.parameters(), lr=RATE, betas=BETAS, eps=EPSILON)
        self.support = torch.linspace(LOW, HIGH, ATOMS)
        self.number = 0

    @torch.no_grad()
    def find_goal(self, rewards, dones, after, noise, target_noise):
        returns, alive = torch.zeros(BATCH), torch.ones(BATCH)
        for number in range(AHEAD):
            returns = returns + GAMMA**number * alive * rewards[:, number].clamp(-1, 1)  # @clipped_reward @returns
            alive = alive * (1 - dones[:, number])  # @alive
        best = (self.support * self.online_net(after, noise)).sum(2).argmax(1)  # @worth @best
        chance = self.target_net(after, target_noise)[range(BATCH), best]  # @taken
        z = returns.unsqueeze(1) + alive.unsqueeze(1) * GAMMA**AHEAD * self.support.unsqueeze(0)  # @future
        b = (z.clamp(min=LOW, max=HIGH) - LOW) / GAP  # @bounded @place
        low, up = b.floor().long(), b.ceil().long()
        low[(up > 0) & (low == up)] -= 1
        up[(low < ATOMS - 1) & (low == up)] += 1
        goal = torch.zeros(BATCH, ATOMS)
        for row in range(BATCH):
            goal[row].index_add_(0, low[row], chance[row] * (up[row] - b[row]))  # @share @goal
            goal[row].index_add_(0, up[row], chance[row] * (b[row] - low[row]))  # @share @goal
        return goal

    def step(self, states, actions, rewards, dones, after, priorities, noise, target_noise):
        log_chance = self.online_net(states, noise, log=True)[range(BATCH), actions]  # @picked
        goal = self.find_goal(rewards, dones, after, noise, target_noise)
        errors = -torch.sum(goal * log_chance, 1)  # @error
        weights = (BATCH * priorities) ** -POWER  # @weight
        weights = weights / weights.max()  # @largest
        loss = (weights * errors).mean()  # @loss
        self.online_net.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.online_net.parameters(), LIMIT)  # @norm @clip
        self.optimiser.step()  # @first @second @corrected @update
        self.number += 1
        if self.number % RENEW == 0:
            self.target_net.load_state_dict(self.online_net.state_dict())  # @renewed
        return loss


class Noisy(nn.Cell):
    """Noise is added to results, not to weights."""

    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.mean, self.spread = nn.Dense(enter, leave), nn.Dense(enter, leave, has_bias=False)
        self.spread_bias = ms.Parameter(ops.zeros((leave,)), name="spread_bias")

    def construct(self, x, noise):
        noise = ops.sign(noise) * ops.sqrt(ops.abs(noise))  # @root
        size = x.shape[-1]
        extra = self.spread(x * noise[:size]) + self.spread_bias  # @outer @noisy @noisy_bias
        return self.mean(x) + extra * noise[size:]  # @noisy @noisy_bias @linear


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(FRAMES, CHANNELS, 3, 2, pad_mode="valid", has_bias=True)
        self.value1, self.value2, self.gain1, self.gain2 = (Noisy(*sizes) for sizes in SIZES)

    def construct(self, x, noise):
        """Logits of the distributions."""
        bounds = np.cumsum([0] + [sum(sizes) for sizes in SIZES])
        parts = [noise[start:end] for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
        x = ops.relu(self.look(x)).reshape(BATCH, -1)  # @conv @relu @flat
        gain = self.gain2(ops.relu(self.gain1(x, parts[2])), parts[3])  # @relu_a
        gain = gain.reshape(BATCH, ACTIONS, ATOMS)  # @laid
        value = self.value2(ops.relu(self.value1(x, parts[0])), parts[1])  # @relu_v
        return gain - gain.mean(1, keep_dims=True) + value.expand_dims(1)  # @duel


class CandidateTrainer:
    """Adam is written out; moments are kept in the order of the parameters."""

    def __init__(self, network) -> None:
        self.network, self.slow, self.parameters = network, Candidate(), network.trainable_params()  # @made
        self.renew()
        self.first = [ops.zeros_like(one) for one in self.parameters]
        self.second = [ops.zeros_like(one) for one in self.parameters]
        self.atoms, self.number = ms.Tensor(np.linspace(LOW, HIGH, ATOMS), ms.float32), 0

    def renew(self):
        for old, new in zip(self.slow.get_parameters(), self.network.get_parameters(), strict=True):
            old.set_data(ms.Tensor(new.asnumpy()))  # @renewed

    def find_goal(self, rewards, dones, after, noise, target_noise):
        alive = ops.cumprod(1 - dones, 1)  # @alive
        before = ops.cat((ops.ones((BATCH, 1)), alive[:, :-1]), 1)
        rewards = ops.clamp(rewards, -1, 1)  # @clipped_reward
        powers = ms.Tensor(GAMMA ** np.arange(AHEAD), ms.float32)  # @powers
        returns = (rewards * before * powers).sum(1)  # @returns
        worth = ops.matmul(ops.softmax(self.network(after, noise), -1), self.atoms)  # @worth
        best = ops.one_hot(worth.argmax(1), ACTIONS).astype(ms.float32)  # @best
        chance = ops.softmax(self.slow(after, target_noise), -1)  # @chance
        chance = (chance * best.expand_dims(-1)).sum(1)  # @taken
        z = returns.expand_dims(1) + alive[:, -1:] * (GAMMA**AHEAD * self.atoms)  # @future
        z = ops.clamp(z, LOW, HIGH)  # @bounded
        away = ops.abs(z.expand_dims(2) - self.atoms) / GAP  # @place
        share = ops.relu(1 - away)  # @share
        return ops.matmul(chance.expand_dims(1), share).squeeze(1)  # @goal

    def compute_loss(self, states, actions, goal, priorities, noise):
        logs = ops.log_softmax(self.network(states, noise), -1)  # @chance
        taken = ops.one_hot(actions, ACTIONS).astype(ms.float32)
        errors = -(logs * taken.expand_dims(-1) * goal.expand_dims(1)).sum((1, 2))  # @picked @error
        weights = ops.pow(priorities * BATCH, -POWER)  # @weight
        weights = weights / weights.max()  # @largest
        return ops.mean(errors * weights)  # @loss

    def clip(self, gradients):
        norm = ops.sqrt(ops.stack([ops.square(one).sum() for one in gradients]).sum())  # @norm
        if norm > LIMIT:
            gradients = [one * LIMIT / (norm + 1e-6) for one in gradients]  # @clip
        return gradients

    def update(self, gradients):
        self.number += 1
        rate = RATE * math.sqrt(1 - BETAS[1] ** self.number) / (1 - BETAS[0] ** self.number)  # @rate
        epsilon = EPSILON * math.sqrt(1 - BETAS[1] ** self.number)  # @epsilon
        for place, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            first = self.first[place] * BETAS[0] + gradient * (1 - BETAS[0])  # @first
            second = self.second[place] * BETAS[1] + gradient * gradient * (1 - BETAS[1])  # @second
            self.first[place], self.second[place] = first, second  # @moments
            ops.assign(parameter, parameter - rate * first / (ops.sqrt(second) + epsilon))  # @corrected @update

    def step(self, states, actions, rewards, dones, after, priorities, noise, target_noise):
        goal = self.find_goal(rewards, dones, after, noise, target_noise)
        compute = ms.value_and_grad(self.compute_loss, None, self.parameters)
        loss, gradients = compute(states, actions, goal, priorities, noise)
        gradients = self.clip(gradients)  # @clip_called
        self.update(gradients)
        if self.number % RENEW == 0:  # @when
            self.renew()  # @renewed
        return loss, gradients


def convert(weights: Weights) -> Weights:
    converted = {f"look.{word}": weights[f"conv.{word}"] for word in ("weight", "bias")}
    names = {"fc_h_v": "value1", "fc_z_v": "value2", "fc_h_a": "gain1", "fc_z_a": "gain2"}
    words = {"weight_mu": "mean.weight", "bias_mu": "mean.bias"}
    words |= {"weight_sigma": "spread.weight", "bias_sigma": "spread_bias"}
    converted |= {f"{n}.{w}": weights[f"{old}.{word}"] for old, n in names.items() for word, w in words.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9420 + step)
    states, after = random.normal(size=(2, BATCH, FRAMES, SIDE, SIDE)).astype(np.float32)
    rewards = random.normal(size=(BATCH, AHEAD)).astype(np.float32)
    dones = np.zeros((BATCH, AHEAD), np.float32)
    dones[1, 1], dones[4, 2] = 1, 1
    priorities = random.uniform(0.05, 0.4, size=BATCH).astype(np.float32)
    noise = random.normal(size=(2, sum(map(sum, SIZES)))).astype(np.float32)
    return states, random.integers(ACTIONS, size=BATCH), rewards, dones, after, priorities, *noise


FAULTS = (
    Fault(
        "second moment not corrected",
        "corrected update",
        "RATE * math.sqrt(1 - BETAS[1] ** self.number) /",
        "RATE /",
        edit="rate",
        steps=2,
        first_step=1,
    ),
    Fault(
        "epsilon before the correction",
        "corrected update",
        "EPSILON * math.sqrt(1 - BETAS[1] ** self.number)",
        "EPSILON",
        edit="epsilon",
        steps=2,
        first_step=1,
    ),
    Fault(
        "epsilon inside the root",
        "corrected update",
        "(ops.sqrt(second) + epsilon)",
        "ops.sqrt(second + epsilon)",
        steps=2,
        first_step=1,
    ),
    Fault(
        "moments not kept",
        "first second",
        "self.first[place], self.second[place] = first, second",
        "pass",
        edit="moments",
        steps=3,
        first_step=2,
    ),
    Fault(
        "second moment of the mean", "second", "gradient * gradient * (1", "first * first * (1", steps=2, first_step=1
    ),
    Fault(
        "corrections one step behind",
        "corrected update",
        "self.number) / (1 - BETAS[0] ** self.number)",
        "self.number) / (1 - BETAS[0] ** (self.number + 1))",
        edit="rate",
        steps=2,
        first_step=1,
    ),
    Fault(
        "not clipped",
        "clip norm first second",
        "self.clip(gradients)",
        "gradients",
        edit="clip_called",
        is_backward=True,
    ),
    Fault(
        "norms added up without squares",
        "norm clip",
        "ops.square(one).sum()",
        "ops.sqrt(ops.square(one).sum())",
        is_backward=True,
    ),
    Fault(
        "copy renewed in every step",
        "renewed conv",
        "self.number % RENEW == 0",
        "self.number",
        edit="when",
        steps=2,
        first_step=1,
    ),
    Fault("copy never renewed", "renewed conv", "self.renew()", "pass", steps=3, first_step=2),
    Fault(
        "copy is the network itself",
        "renewed conv",
        "network, Candidate(), network",
        "network, network, network",
        edit="made",
        steps=2,
        first_step=1,
    ),
    Fault(
        "copy chooses its own action",
        "best worth taken root",
        "self.network(after, noise)",
        "self.slow(after, target_noise)",
        edit="worth",
    ),
    Fault("future by one step", "future", "GAMMA**AHEAD * self.atoms", "GAMMA * self.atoms"),
    Fault("rewards after the end count", "returns alive", "rewards * before * powers", "rewards * powers"),
    Fault(
        "mean of gains passes no gradient",
        "duel",
        "gain.mean(1, keep_dims=True)",
        "ops.stop_gradient(gain.mean(1, keep_dims=True))",
        is_backward=True,
    ),
    Fault("root of the noise forgotten", "root outer", "ops.sign(noise) * ops.sqrt(ops.abs(noise))", "noise * 1"),
    Fault("reference keeps large rewards", "clipped_reward returns", ".clamp(-1, 1)", "", side="reference"),
    Fault(
        "weights not by the largest, and the copy renewed too late",
        "largest loss",
        "weights / weights.max()",
        "weights * 1",
        second=("when", "self.number % RENEW == 0", "self.number % RENEW == 1"),
        steps=3,
    ),
)
