"""A clipped policy with a recurrent state and running statistics; advantages by a loop, or by doubling in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SEEN, WIDTH, ACTIONS, TIME, BATCH = 4, 6, 4, 6, 3
GAMMA, LAMBDA, CLIP, LIMIT, FEW = 0.97, 0.9, 0.2, 1.8, 1e-2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.cell = torch.nn.Linear(SEEN, WIDTH), torch.nn.GRUCell(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.actor, self.critic = torch.nn.Linear(WIDTH, ACTIONS), torch.nn.Linear(WIDTH, 1)
        for name, start in (("mean", torch.zeros(SEEN)), ("var", torch.ones(SEEN)), ("count", torch.tensor(FEW))):
            self.register_buffer(name, start, persistent=False)
        self.register_buffer("hidden", torch.zeros(BATCH, WIDTH), persistent=False)

    def normalize(self, x):
        """Joins the statistics of this batch to those before."""
        flat = x[:-1].flatten(0, 1)
        number, delta = len(flat), flat.mean(dim=0) - self.mean  # @seen
        total = self.count + number  # @total
        spread = self.var * self.count + flat.var(dim=0, unbiased=False) * number  # @squares
        spread = spread + delta**2 * self.count * number / total  # @squares
        self.mean = self.mean + delta * number / total  # @mean
        self.var, self.count = spread / total, total  # @var
        return ((x - self.mean) / torch.sqrt(self.var + 1e-6)).clamp(-LIMIT, LIMIT)  # @normal @limited

    def forward(self, x, begins, legal):
        x = torch.tanh(self.enter(self.normalize(x)))  # @enter @tanh
        hidden, states = self.hidden, []
        for time in range(TIME + 1):
            hidden = hidden * (1 - begins[time]).unsqueeze(-1)  # @reset
            hidden = self.cell(x[time], hidden)  # @from_input @from_state @gates @new @hidden
            states.append(hidden)
        self.hidden = states[TIME - 1].detach()  # @store
        h = self.norm(torch.stack(states))  # @norm
        logits = self.actor(h[:-1]).masked_fill(~legal, -1e8)  # @actor @legal
        return torch.distributions.Categorical(logits=logits), self.critic(h).squeeze(-1)  # @critic


def compute_reference_loss(network, x, begins, legal, actions, rewards, old_chance, old_value, step):
    policy, value = network(x, begins, legal)
    value, after = value[:-1], value[-1].detach()  # @value @after
    alive, found = 1 - begins[1:], []  # @alive
    nexts = torch.cat([old_value[1:], after.unsqueeze(0)])  # @nexts
    delta = rewards + GAMMA * nexts * alive - old_value  # @delta
    last = torch.zeros(BATCH)
    for time in reversed(range(TIME)):
        last = delta[time] + GAMMA * LAMBDA * alive[time] * last  # @fade @advantage
        found.insert(0, last)
    advantage = torch.stack(found)  # @advantage
    goal = advantage + old_value  # @goal
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)  # @centred @deviation @scaled
    ratio = torch.exp(policy.log_prob(actions) - old_chance)  # @log_chance @picked @ratio
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)  # @clipped
    loss = -torch.min(ratio * advantage, clipped * advantage).mean()  # @least @policy
    near = old_value + (value - old_value).clamp(-CLIP, CLIP)  # @near
    worst = torch.max(F.mse_loss(value, goal, reduction="none"), (near - goal) ** 2)  # @errors @worst
    loss = loss + 0.5 * worst.mean()  # @value_loss
    return loss - 0.05 * 0.5**step * policy.entropy().mean()  # @disorder @loss


class Memory(nn.Cell):
    """A gated recurrent unit; products with the input are made for all times at once."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(WIDTH, 3 * WIDTH)
        self.again = nn.Dense(WIDTH, 3 * WIDTH)

    def construct(self, x, begins, hidden):
        enter, states = self.enter(x), []  # @from_input
        for time in range(TIME + 1):
            hidden = ops.where(begins[time].expand_dims(1) > 0, ops.zeros_like(hidden), hidden)  # @reset
            in_r, in_z, in_n = mint.chunk(enter[time], 3, dim=-1)  # @parts
            at_r, at_z, at_n = mint.chunk(self.again(hidden), 3, dim=-1)  # @from_state
            r, z = ops.sigmoid(in_r + at_r), ops.sigmoid(in_z + at_z)  # @gates
            new = ops.tanh(in_n + r * at_n)  # @new
            hidden = new + z * (hidden - new)  # @hidden
            states.append(hidden)
        return ops.stack(states)


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.memory, self.norm = nn.Dense(SEEN, WIDTH), Memory(), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.heads = nn.Dense(WIDTH, ACTIONS + 1)
        self.number, self.sum, self.squares = FEW, ops.zeros((SEEN,)), FEW * ops.ones((SEEN,))  # @begun
        self.hidden = ops.zeros((BATCH, WIDTH))

    def normalize(self, x):
        flat = x[:TIME].reshape(-1, SEEN)
        number = self.number + len(flat)  # @number
        total = self.sum + flat.sum(0)  # @seen
        squares = self.squares + (flat * flat).sum(0)  # @squares
        self.number = number  # @number_kept
        self.sum, self.squares = total, squares  # @sums_kept
        mean = total / number  # @mean
        spread = squares / number - mean * mean  # @var
        return ops.clamp((x - mean) * ops.rsqrt(spread + 1e-6), -LIMIT, LIMIT)  # @normal @limited

    def construct(self, x, begins, legal):
        x = ops.tanh(self.enter(self.normalize(x)))  # @enter @tanh
        states = self.memory(x, begins, self.hidden)  # @carried
        self.hidden = ops.stop_gradient(states[TIME - 1])  # @store
        both = self.heads(self.norm(states))  # @norm @actor @critic
        logits, value = both[:-1, :, :ACTIONS], both[:, :, ACTIONS]  # @sides
        logits = logits + (1 - legal.astype(ms.float32)) * -1e8  # @legal
        return ops.log_softmax(logits, -1), value  # @log_chance


def measure_advantage(delta, fade):
    """Sums that fade backwards in time, by doubling how far they reach."""
    reach = 1
    while reach < TIME:  # @reached
        nothing = ops.zeros((reach, BATCH), ms.float32)
        delta = delta + fade * ops.cat((delta[reach:], nothing))  # @advantage
        fade = fade * ops.cat((fade[reach:], nothing))  # @fades
        reach = 2 * reach  # @reach
    return delta


def compute_candidate_loss(network, x, begins, legal, actions, rewards, old_chance, old_value, step):
    chance, value = network(x, begins, legal)
    value, after = value[:TIME], ops.stop_gradient(value[TIME:])  # @value @after
    alive = 1 - begins[1:]  # @alive
    nexts = ops.cat((old_value[1:], after))  # @nexts
    delta = rewards - old_value + nexts * alive * GAMMA  # @delta
    advantage = measure_advantage(delta, alive * (GAMMA * LAMBDA))  # @fade
    goal = old_value + advantage  # @goal
    centred = advantage - advantage.mean()  # @centred
    deviation = ops.sqrt(ops.square(centred).sum() / (TIME * BATCH - 1))  # @deviation
    advantage = centred / (deviation + 1e-8)  # @scaled
    picked = ops.gather_elements(chance, 2, actions.expand_dims(-1)).squeeze(-1)  # @picked
    ratio = ops.exp(picked - old_chance)  # @ratio
    clipped = ops.clamp(ratio, 1 - CLIP, 1 + CLIP)  # @clipped
    loss = ops.maximum(-advantage * ratio, -advantage * clipped).mean()  # @least @policy
    near = ops.clamp(value - old_value, -CLIP, CLIP) + old_value  # @near
    worst = ops.maximum(ops.square(value - goal), ops.square(near - goal))  # @errors @worst
    disorder = -(ops.exp(chance) * chance).sum(-1).mean()  # @disorder
    return loss + worst.mean() / 2 - 0.05 / 2**step * disorder  # @value_loss @loss


def convert(weights: Weights) -> Weights:
    converted = {f"enter.{word}": weights[f"enter.{word}"] for word in ("weight", "bias")}
    converted |= {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}
    for word in ("weight", "bias"):
        converted[f"memory.enter.{word}"] = weights[f"cell.{word}_ih"]
        converted[f"memory.again.{word}"] = weights[f"cell.{word}_hh"]  # @load
        converted[f"heads.{word}"] = np.concatenate([weights[f"actor.{word}"], weights[f"critic.{word}"]])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(5600 + step)
    x = random.normal(size=(TIME + 1, BATCH, SEEN)) * [1, 2, 0.5, 1] + [0.5, -1, 0, 2 * step]
    begins, legal = np.zeros((TIME + 1, BATCH), np.float32), random.random((TIME, BATCH, ACTIONS)) > 0.3
    begins[2, 0] = begins[5, 1] = 1
    actions = random.integers(ACTIONS, size=(TIME, BATCH))
    np.put_along_axis(legal, actions[..., None], True, axis=2)
    rewards, chance, value = random.normal(size=(3, TIME, BATCH)).astype(np.float32)
    return x.astype(np.float32), begins, legal, actions, rewards, -1.2 + 0.3 * chance, 0.5 * value


FAULTS = (
    Fault("gate keeps the other part", "hidden", "new + z * (hidden - new)", "hidden + z * (new - hidden)"),
    Fault("input gates in another order", "parts gates", "in_r, in_z, in_n =", "in_z, in_r, in_n ="),
    Fault("state goes on over the end", "reset", "begins[time].expand_dims(1) > 0", "begins[time].expand_dims(1) > 1"),
    Fault("ends one step early", "alive", "alive = 1 - begins[1:]", "alive = 1 - begins[:-1]"),
    Fault("fading forgets lambda", "fade advantage", "alive * (GAMMA * LAMBDA)", "alive * GAMMA"),
    Fault("sums reach not far enough", "advantage fade", "reach < TIME", "reach < TIME // 2", edit="reached"),
    Fault("deviation is biased", "deviation", "(TIME * BATCH - 1)", "(TIME * BATCH)"),
    Fault(
        "values clipped, not their change",
        "near",
        "ops.clamp(value - old_value, -CLIP, CLIP) + old_value",
        "ops.clamp(value, -CLIP, CLIP)",
    ),
    Fault("illegal actions stay possible", "legal log_chance", "* -1e8", "* -1"),
    Fault(
        "value of the end not detached",
        "after nexts",
        "ops.stop_gradient(value[TIME:])",
        "value[TIME:]",
        is_backward=True,
    ),
    Fault("disorder rewarded as much as before", "loss", "0.05 / 2**step", "0.05", steps=2, first_step=1),
    Fault("state never stored", "carried reset", "self.hidden =", "_ =", edit="store", steps=2, first_step=1),
    Fault(
        "statistics of the last batch alone",
        "seen squares",
        "self.sum, self.squares =",
        "_ =",
        edit="sums_kept",
        steps=2,
        first_step=1,
    ),
    Fault(
        "number of the last batch alone",
        "number mean var",
        "self.number = number",
        "_ = number",
        edit="number_kept",
        steps=2,
        first_step=1,
    ),
    Fault(
        "not limited",
        "limited enter",
        "ops.clamp((x - mean) * ops.rsqrt(spread + 1e-6), -LIMIT, LIMIT)",
        "(x - mean) * ops.rsqrt(spread + 1e-6)",
    ),
    Fault("reference takes the better error", "worst", "torch.max(", "torch.min(", side="reference"),
    Fault(
        "reference stores one state too late",
        "store carried reset",
        "states[TIME - 1]",
        "states[TIME]",
        side="reference",
        steps=2,
        first_step=1,
    ),
    Fault(
        "kernel of the state transposed, and the policy's least is its most",
        "from_state",
        'weights[f"cell.{word}_hh"]',
        'np.concatenate([part.T for part in np.split(weights[f"cell.{word}_hh"], 3)])',
        edit="load",
        parameter="weight_hh",
        second=("least", "ops.maximum(-advantage * ratio", "ops.minimum(-advantage * ratio"),
    ),
)
