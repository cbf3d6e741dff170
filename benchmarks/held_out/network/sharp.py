"""Gated mixing of patches, trained at the worst place nearby and pulled back to slow weights; labels are mixed."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops
from torch.nn.utils.parametrizations import weight_norm

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, PATCH, CHANNELS, TOKENS, WIDTH, INNER, LAYERS, CLASSES, BATCH = 6, 2, 3, 9, 8, 10, 2, 4, 5
RATE, MOMENTUM, DECAY, RHO, EVERY, PULL, KEPT, EPSILON = 0.2, 0.9, 0.05, 0.4, 2, 0.3, 0.8, 1e-5


class SpatialGatingUnit(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(INNER)
        self.proj = torch.nn.Conv1d(TOKENS, TOKENS, 1)

    def forward(self, x):
        res, gate = x.chunk(2, dim=-1)  # @halves
        return self.proj(self.norm(gate)) * res  # @gate_norm @spatial @gated


class GMLPBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.proj_in = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 2 * INNER)
        self.sgu, self.proj_out = SpatialGatingUnit(), torch.nn.Linear(INNER, WIDTH)

    def forward(self, x, keep):
        h = F.gelu(self.proj_in(self.norm(x)))  # @norm @enter @gelu
        h = self.proj_out(self.sgu(h))  # @leave
        return x + h * (keep / KEPT).view(-1, 1, 1)  # @dropped @added


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_patch_embed = torch.nn.Conv2d(CHANNELS, WIDTH, PATCH, stride=PATCH)
        self.layers = torch.nn.ModuleList([GMLPBlock() for _ in range(LAYERS)])
        self.norm, self.to_logits = torch.nn.LayerNorm(WIDTH), weight_norm(torch.nn.Linear(WIDTH, CLASSES))

    def forward(self, images, keep):
        x = self.to_patch_embed(images).flatten(2).transpose(1, 2)  # @patches
        for layer, one in zip(self.layers, keep, strict=True):
            x = layer(x, one)
        return self.to_logits(self.norm(x).mean(dim=1))  # @last_norm @pooled @lengths @direction @logits


class SAM(torch.optim.Optimizer):
    """Adaptive, around a base optimizer."""

    def __init__(self, params, base_optimizer, **kwargs) -> None:
        super().__init__(params, kwargs)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self):
        params = self.param_groups[0]["params"]
        grad_norm = torch.norm(torch.stack([(p.abs() * p.grad).norm(p=2) for p in params]), p=2)  # @norm
        scale = RHO / (grad_norm + 1e-12)  # @reach
        for p in params:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.pow(2) * p.grad * scale)  # @ascent @moved
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["old_p"]  # @undone
            if p[0].numel() > 1:
                p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.ndim)), keepdim=True))  # @centre
        self.base_optimizer.step()  # @decay @momentum @update


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.network, self.number = network, 0
        self.optimizer = SAM(network.parameters(), torch.optim.SGD, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        self.slow = [one.detach().clone() for one in network.parameters()]

    def compute_loss(self, images, labels, other, part, keep):
        logits = self.network(images, keep)
        goal = part * F.one_hot(labels, CLASSES) + (1 - part) * F.one_hot(other, CLASSES)  # @goal
        return F.binary_cross_entropy_with_logits(logits, goal)  # @loss

    @torch.no_grad()
    def look_ahead(self):
        for slow, fast in zip(self.slow, self.network.parameters(), strict=True):
            slow.add_(fast - slow, alpha=PULL)  # @pulled
            fast.copy_(slow)  # @put_back

    def step(self, images, labels, part, keep):
        order = torch.arange(len(images)).flip(0)
        mixed = part * images + (1 - part) * images[order]  # @mixed
        self.optimizer.zero_grad()
        loss = self.compute_loss(mixed, labels, labels[order], part, keep)
        loss.backward()
        self.optimizer.first_step()
        self.compute_loss(mixed, labels, labels[order], part, keep).backward()
        self.optimizer.second_step()
        self.number += 1
        if self.number % EVERY == 0:
            self.look_ahead()
        return loss


class Gate(nn.Cell):
    """One layer: the halves of its first product are two products here."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.ln_gate = nn.LayerNorm((WIDTH,), epsilon=EPSILON), nn.LayerNorm((INNER,), epsilon=EPSILON)
        self.keep, self.look = nn.Dense(WIDTH, INNER), nn.Dense(WIDTH, INNER)
        self.across, self.leave = nn.Dense(TOKENS, TOKENS), nn.Dense(INNER, WIDTH)

    def construct(self, x):
        h = self.ln(x)  # @norm
        kept, gate = ops.gelu(self.keep(h), "none"), ops.gelu(self.look(h), "none")  # @enter @gelu @halves
        gate = self.ln_gate(gate).permute(0, 2, 1)  # @gate_norm
        gate = self.across(gate).permute(0, 2, 1)  # @spatial
        return self.leave(kept * gate)  # @gated @leave


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(CHANNELS * PATCH * PATCH, WIDTH)
        self.gates, self.ln = nn.CellList([Gate() for _ in range(LAYERS)]), nn.LayerNorm((WIDTH,), epsilon=EPSILON)
        self.v = ms.Parameter(ops.zeros((CLASSES, WIDTH)), name="v")
        self.g = ms.Parameter(ops.zeros((CLASSES, 1)), name="g")
        self.bias = ms.Parameter(ops.zeros((CLASSES,)), name="bias")

    def construct(self, images, keep):
        count = SIDE // PATCH
        x = images.reshape(-1, CHANNELS, count, PATCH, count, PATCH).permute(0, 2, 4, 1, 3, 5)
        x = self.enter(x.reshape(-1, TOKENS, CHANNELS * PATCH * PATCH))  # @patches
        for number, gate in enumerate(self.gates):
            chance = keep[number].reshape(-1, 1, 1)
            x = x + gate(x) * chance / KEPT  # @dropped @added
        x = self.ln(x).mean(1)  # @last_norm @pooled
        length = ops.sqrt(ops.square(self.v).sum(1, keepdims=True))  # @lengths
        weight = self.v * (self.g / length)  # @direction
        return ops.matmul(x, weight.T) + self.bias  # @logits


class CandidateTrainer:
    def __init__(self, network) -> None:
        self.network, self.parameters, self.number = network, network.trainable_params(), 0
        self.moments = [None] * len(self.parameters)
        self.slow = [ms.Tensor(one.asnumpy()) for one in self.parameters]
        self.compute = ms.value_and_grad(self.compute_loss, None, self.parameters)

    def compute_loss(self, images, goal, keep):
        logits = self.network(images, keep)
        each = ops.relu(logits) - logits * goal + ops.log1p(ops.exp(-ops.abs(logits)))  # @loss
        return each.mean()  # @loss @averaged

    def climb(self, gradients):
        """To the worst place nearby; what the parameters were before is returned."""
        before = [ops.deepcopy(one) for one in self.parameters]
        weighed = [ops.abs(one) * gradient for one, gradient in zip(before, gradients, strict=True)]  # @norm @weighed
        reach = RHO / (ops.sqrt(sum(ops.square(one).sum() for one in weighed)) + 1e-12)  # @norm @reach
        for parameter, one, part in zip(self.parameters, before, weighed, strict=True):
            move = ops.abs(one) * part * reach  # @ascent
            ops.assign(parameter, one + move)  # @moved
        return before

    def descend(self, gradients):
        for place, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            moment = gradient + DECAY * parameter  # @decay
            if self.moments[place] is not None:
                moment = moment + MOMENTUM * self.moments[place]  # @momentum
            self.moments[place] = moment  # @kept
            ops.assign(parameter, parameter - RATE * moment)  # @update

    def look_ahead(self):
        for place, parameter in enumerate(self.parameters):
            self.slow[place] = (1 - PULL) * self.slow[place] + PULL * parameter  # @pulled
            ops.assign(parameter, self.slow[place])  # @put_back

    def step(self, images, labels, part, keep):
        hot = ops.one_hot(labels, CLASSES).astype(ms.float32)
        goal = part * hot + (1 - part) * hot.flip((0,))  # @goal
        mixed = ops.lerp(images.flip((0,)), images, part)  # @mixed
        loss, first = self.compute(mixed, goal, keep)
        before = self.climb(first)  # @climbed
        _, second = self.compute(mixed, goal, keep)  # @again
        for parameter, one in zip(self.parameters, before, strict=True):
            ops.assign(parameter, one)  # @undone
        gradients = [self.centre(one) for one in second]  # @centred
        self.descend(gradients)
        self.number += 1
        if self.number % EVERY == 0:
            self.look_ahead()  # @looked
        return loss, gradients

    def centre(self, gradient):
        if gradient.ndim == 1 or gradient.shape[1] == 1:
            return gradient
        return gradient - gradient.mean(1, keep_dims=True)  # @centre


def convert(weights: Weights) -> Weights:
    converted = {"enter.weight": weights["to_patch_embed.weight"].reshape(WIDTH, -1)}
    converted |= {"enter.bias": weights["to_patch_embed.bias"], "bias": weights["to_logits.bias"]}
    for number, name in enumerate("gv"):
        converted[name] = weights[f"to_logits.parametrizations.weight.original{number}"]
    norms = {"ln": "norm"}
    for number in range(LAYERS):
        old, new = f"layers.{number}", f"gates.{number}"
        norms |= {f"{new}.ln": f"{old}.norm", f"{new}.ln_gate": f"{old}.sgu.norm"}
        for word in ("weight", "bias"):
            converted[f"{new}.keep.{word}"], converted[f"{new}.look.{word}"] = np.split(
                weights[f"{old}.proj_in.{word}"], 2
            )
            converted[f"{new}.across.{word}"] = weights[f"{old}.sgu.proj.{word}"].reshape(
                TOKENS, *[-1] * (word == "weight")
            )
            converted[f"{new}.leave.{word}"] = weights[f"{old}.proj_out.{word}"]
    for new, old in norms.items():
        converted |= {f"{new}.gamma": weights[f"{old}.weight"], f"{new}.beta": weights[f"{old}.bias"]}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(9600 + step)
    images = random.normal(size=(BATCH, CHANNELS, SIDE, SIDE)).astype(np.float32)
    keep = np.ones((LAYERS, BATCH), np.float32)
    keep[0, step % BATCH], keep[1, (step + 2) % BATCH] = 0, 0
    return images, random.integers(CLASSES, size=BATCH), np.array(0.7 - 0.1 * step, np.float32), keep


FAULTS = (
    Fault(
        "gradients of the first place",
        "centre centred decay",
        "for one in second",
        "for one in first",
        edit="centred",
        is_backward=True,
    ),
    Fault("ascent not undone", "undone decay update", "ops.assign(parameter, one)", "pass", steps=2, first_step=1),
    Fault("climbs down", "ascent moved", "one + move", "one - move", edit="moved", is_backward=True),
    Fault(
        "ascent not adaptive",
        "norm ascent weighed",
        "ops.abs(one) * part * reach",
        "part * reach",
        edit="ascent",
        is_backward=True,
    ),
    Fault(
        "norm by each parameter",
        "reach ascent norm",
        "ops.abs(one) * part * reach",
        "ops.abs(one) * part * (RHO / ops.sqrt(ops.square(part).sum()))",
        edit="ascent",
        is_backward=True,
    ),
    Fault(
        "norm of plain gradients",
        "norm reach",
        "ops.square(one).sum() for one in weighed",
        "ops.square(one).sum() for one in gradients",
        edit="reach",
        is_backward=True,
    ),
    Fault(
        "gradients not centred",
        "centre centred decay",
        "[self.centre(one) for one in second]",
        "list(second)",
        edit="centred",
        is_backward=True,
    ),
    Fault(
        "centred along the other axis",
        "centre",
        "gradient.mean(1, keep_dims=True)",
        "gradient.mean(0, keep_dims=True)",
        is_backward=True,
    ),
    Fault(
        "moments not kept",
        "momentum update",
        "self.moments[place] = moment",
        "pass",
        edit="kept",
        steps=3,
        first_step=2,
    ),
    Fault(
        "decay beside the momentum",
        "decay momentum update kept",
        "self.moments[place] = moment",
        "self.moments[place] = moment - DECAY * parameter",
        edit="kept",
        steps=3,
        first_step=2,
    ),
    Fault(
        "first moment damped",
        "momentum decay update",
        "gradient + DECAY * parameter",
        "(1 - MOMENTUM) * (gradient + DECAY * parameter)",
        edit="decay",
        steps=2,
        first_step=1,
    ),
    Fault(
        "never pulled back",
        "pulled put_back patches",
        "self.look_ahead()",
        "pass",
        edit="looked",
        steps=3,
        first_step=2,
    ),
    Fault(
        "pulled the other way round",
        "pulled",
        "(1 - PULL) * self.slow[place] + PULL * parameter",
        "PULL * self.slow[place] + (1 - PULL) * parameter",
        steps=3,
        first_step=2,
    ),
    Fault("branches not made up for", "dropped", " / KEPT", ""),
    Fault("gelu by the tangent", "gelu", 'ops.gelu(self.look(h), "none")', 'ops.gelu(self.look(h), "tanh")'),
    Fault(
        "length passes no gradient",
        "direction lengths",
        "self.g / length",
        "self.g / ops.stop_gradient(length)",
        is_backward=True,
    ),
    Fault(
        "reference mixes labels the other way round",
        "goal",
        "part * F.one_hot(labels, CLASSES) + (1 - part) *",
        "(1 - part) * F.one_hot(labels, CLASSES) + part *",
        side="reference",
    ),
    Fault(
        "reference climbs without the norm",
        "reach ascent moved",
        "RHO / (grad_norm + 1e-12)",
        "RHO",
        edit="reach",
        side="reference",
        is_backward=True,
    ),
    Fault(
        "gate not normed, and classes added up",
        "gate_norm spatial",
        "self.ln_gate(gate)",
        "(gate * self.ln_gate.gamma + self.ln_gate.beta)",
        second=("averaged", "each.mean()", "each.sum(1).mean()"),
    ),
)
