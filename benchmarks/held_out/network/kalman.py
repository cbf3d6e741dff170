"""A Kalman filter and smoother between two networks: solved and in Joseph's form, or by inverses in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SEEN, HIDDEN, STATE, CODE, BASES, TIME, BATCH = 5, 8, 4, 2, 3, 3, 3
LEAST, JITTER, FADE = 0.1, 1e-4, 0.9


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.to_mean = torch.nn.Linear(SEEN, HIDDEN), torch.nn.Linear(HIDDEN, CODE)
        self.to_spread = torch.nn.Linear(HIDDEN, CODE)
        self.bases = torch.nn.Parameter(torch.zeros(BASES, STATE, STATE))
        self.choose = torch.nn.Linear(STATE, BASES)
        self.watch = torch.nn.Parameter(torch.zeros(CODE, STATE))
        self.noise = torch.nn.Parameter(torch.zeros(STATE))
        self.start_mean, self.start_spread = (torch.nn.Parameter(torch.zeros(STATE)) for _ in range(2))
        self.up, self.down = torch.nn.Linear(STATE, HIDDEN), torch.nn.Linear(HIDDEN, SEEN)
        self.sure = torch.nn.Linear(STATE, SEEN)
        self.register_buffer("carried", torch.zeros(BATCH, STATE), persistent=False)

    def predict(self, mean, cov):
        part = self.choose(mean).softmax(dim=-1)  # @choose @part
        move = torch.eye(STATE) + torch.einsum("bk,kij->bij", part, self.bases)  # @move
        mean = torch.einsum("bij,bj->bi", move, mean)  # @moved
        cov = move @ cov @ move.mT + torch.diag(F.softplus(self.noise))  # @spread @noise
        return mean, cov, move

    def correct(self, mean, cov, code, variance):
        """The corrected state, and the log likelihood of what was seen."""
        error = code - mean @ self.watch.t()  # @error
        inner = self.watch @ cov @ self.watch.t() + torch.diag_embed(variance)  # @inner
        root = torch.linalg.cholesky(inner)  # @root
        gain = torch.cholesky_solve(self.watch @ cov, root).mT  # @gain
        mean = mean + (gain @ error.unsqueeze(-1)).squeeze(-1)  # @corrected
        rest = torch.eye(STATE) - gain @ self.watch  # @rest
        cov = rest @ cov @ rest.mT + gain @ torch.diag_embed(variance) @ gain.mT  # @less
        white = torch.linalg.solve_triangular(root, error.unsqueeze(-1), upper=False).squeeze(-1)  # @far
        size = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)  # @size
        return mean, cov, -0.5 * (white.square().sum(dim=-1) + size + CODE * np.log(2 * np.pi))  # @likely

    def forward(self, x, is_seen):
        h = torch.tanh(self.enter(x))  # @enter
        code, variance = self.to_mean(h), F.softplus(self.to_spread(h)) + LEAST  # @code @variance
        mean = self.start_mean + FADE * self.carried  # @start
        cov = torch.diag(self.start_spread.exp()).expand(BATCH, -1, -1)  # @start_cov
        kept, likely = [], 0.0
        for time in range(TIME):
            before, wide, move = self.predict(mean, cov)
            found, narrow, chance = self.correct(before, wide, code[:, time], variance[:, time])
            on = is_seen[:, time]
            mean, cov = torch.where(on[:, None], found, before), torch.where(on[:, None, None], narrow, wide)  # @chosen
            likely = likely + torch.where(on, chance, 0.0)  # @likely_sum
            kept.append((mean, cov, before, wide, move))
        self.carried = mean.detach()  # @store
        means, covs = [mean], [cov]
        for time in range(TIME - 2, -1, -1):
            mean, cov = kept[time][:2]
            before, wide, move = kept[time + 1][2:]
            back = torch.linalg.solve(wide, move @ cov).mT  # @back
            mean = mean + (back @ (means[0] - before).unsqueeze(-1)).squeeze(-1)  # @smooth
            cov = cov + back @ (covs[0] - wide) @ back.mT  # @smooth_cov
            means, covs = [mean, *means], [cov, *covs]
        return torch.stack(means, dim=1), torch.stack(covs, dim=1), likely  # @stack @stack_cov


def compute_reference_loss(network, x, is_seen, wanted):
    mean, cov, likely = network(x, is_seen)
    found = network.down(torch.relu(network.up(mean)))  # @up @down
    spread = network.sure(cov.diagonal(dim1=-2, dim2=-1)).exp()  # @diagonal @sure
    loss = F.gaussian_nll_loss(found, wanted, spread, eps=1e-6, reduction="mean")  # @nll
    held = network.bases.square().sum(dim=(1, 2)).add(JITTER).sqrt().mean()  # @held
    return loss - 0.5 * (likely / is_seen.sum(dim=1)).mean() + 0.1 * held  # @by_time @loss


class Filter(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.bases = ms.Parameter(ops.zeros((BASES, STATE * STATE)), name="bases")
        self.choose = nn.Dense(STATE, BASES)
        self.watch = ms.Parameter(ops.zeros((STATE, CODE)), name="watch")
        self.noise = ms.Parameter(ops.zeros((STATE,)), name="noise")
        self.start_mean = ms.Parameter(ops.zeros((STATE,)), name="start_mean")
        self.start_spread = ms.Parameter(ops.zeros((STATE,)), name="start_spread")
        self.eye = ops.eye(STATE, STATE, ms.float32)
        self.carried = ops.zeros((BATCH, STATE), ms.float32)

    def construct(self, code, variance, is_seen):
        watch, seen = self.watch.T, is_seen.astype(ms.float32)
        mean = self.start_mean + FADE * self.carried  # @start
        cov = ops.tile(self.eye * ops.exp(self.start_spread), (BATCH, 1, 1))  # @start_cov
        kept, likely = [], 0.0
        for time in range(TIME):
            part = ops.softmax(self.choose(mean), -1)  # @choose @part
            move = ops.matmul(part, self.bases).reshape(BATCH, STATE, STATE) + self.eye  # @move
            before = ops.bmm(move, mean.expand_dims(2)).squeeze(2)  # @moved
            wide = ops.bmm(ops.bmm(move, cov), move.swapaxes(1, 2))  # @spread
            wide = wide + self.eye * ops.softplus(self.noise)  # @noise
            error = code[:, time] - ops.matmul(before, self.watch)  # @error
            both = ops.matmul(wide, self.watch)  # @inner
            inner = ops.matmul(watch, both) + ops.eye(CODE) * variance[:, time, None]  # @inner @inner_noise
            inverse = ops.inverse(inner)  # @root @gain @far
            gain = ops.bmm(both, inverse) * seen[:, time, None, None]  # @gain @chosen
            mean = before + (gain * error.expand_dims(1)).sum(2)  # @corrected @chosen
            cov = wide - ops.bmm(gain, both.swapaxes(1, 2))  # @rest @less @chosen
            far = (ops.bmm(inverse, error.expand_dims(2)).squeeze(2) * error).sum(1)  # @far
            size = ops.log(inner[:, 0, 0] * inner[:, 1, 1] - inner[:, 0, 1] * inner[:, 1, 0])  # @root @size
            chance = -(far + size) / 2 - CODE / 2 * np.log(2 * np.pi)  # @likely
            likely = likely + chance * seen[:, time]  # @likely_sum
            kept.append((mean, cov, before, wide, move))
        self.carried = ops.stop_gradient(mean)  # @store
        return kept, likely

    def smooth(self, kept):
        means, covs = [kept[-1][0]], [kept[-1][1]]
        for (mean, cov, *_), (_, _, before, wide, move) in zip(kept[-2::-1], kept[:0:-1], strict=True):
            back = ops.bmm(ops.bmm(cov, move.swapaxes(1, 2)), ops.inverse(wide))  # @back
            means.append(mean + ops.bmm(back, (means[-1] - before).expand_dims(2)).squeeze(2))  # @smooth
            covs.append(cov - ops.bmm(ops.bmm(back, wide - covs[-1]), back.swapaxes(1, 2)))  # @smooth_cov
        return ops.stack(means[::-1], axis=1), ops.stack(covs[::-1], axis=1)  # @stack @stack_cov


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(SEEN, HIDDEN, activation="tanh")
        self.heads = nn.Dense(HIDDEN, 2 * CODE)
        self.filter = Filter()
        self.paint = nn.SequentialCell(nn.Dense(STATE, HIDDEN), nn.ReLU(), nn.Dense(HIDDEN, SEEN))
        self.sure = nn.Dense(STATE, SEEN)

    def construct(self, x, is_seen):
        h = self.heads(self.enter(x))  # @enter @code @variance
        code, variance = h[..., :CODE], ops.softplus(h[..., CODE:]) + LEAST  # @code @variance
        kept, likely = self.filter(code, variance, is_seen)
        mean, cov = self.filter.smooth(kept)
        spread = (cov * self.filter.eye).sum(-1)  # @diagonal
        return self.paint(mean), self.sure(spread), likely  # @up @down @sure


def compute_candidate_loss(network, x, is_seen, wanted):
    found, sure, likely = network(x, is_seen)
    loss = 0.5 * (sure + ops.square(wanted - found) * ops.exp(-sure)).mean()  # @nll @sure
    number = is_seen.astype(ms.float32).sum(1)
    held = ops.sqrt(ops.square(network.filter.bases).sum(1) + JITTER).mean()  # @held
    return loss - (likely / number).mean() / 2 + held / 10  # @by_time @loss


def convert(weights: Weights) -> Weights:
    table = {"up": "paint.0", "down": "paint.2", "choose": "filter.choose"}
    converted = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path in ("to_mean", "to_spread") or name == "carried":
            continue
        converted[f"{table.get(path, path)}.{word}" if path else f"filter.{name}"] = array
    for word in ("weight", "bias"):
        converted[f"heads.{word}"] = np.concatenate([weights[f"{name}.{word}"] for name in ("to_mean", "to_spread")])
    converted["filter.bases"] = weights["bases"].reshape(BASES, -1)  # @load_bases
    return converted | {"filter.watch": weights["watch"].T}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(6300 + step)
    x, wanted = random.normal(size=(2, BATCH, TIME, SEEN)).astype(np.float32)
    is_seen = np.ones((BATCH, TIME), bool)
    is_seen[0, 1] = is_seen[1, 2] = is_seen[2, 0] = False
    return x, is_seen, wanted


FAULTS = (
    Fault(
        "noise of the state by its logarithm",
        "noise",
        "ops.softplus(self.noise)",
        "ops.exp(self.noise)",
    ),
    Fault("move not turned on the right side", "spread", "move.swapaxes(1, 2))", "move)"),
    Fault(
        "state does not stay by itself",
        "move",
        ".reshape(BATCH, STATE, STATE) + self.eye",
        ".reshape(BATCH, STATE, STATE)",
    ),
    Fault(
        "move chosen before the softmax",
        "part move",
        "ops.softmax(self.choose(mean), -1)",
        "self.choose(mean)",
    ),
    Fault(
        "error of the state before the move", "error", "ops.matmul(before, self.watch)", "ops.matmul(mean, self.watch)"
    ),
    Fault(
        "noise of the code as a deviation",
        "inner_noise inner",
        "ops.eye(CODE) * variance[:, time, None]",
        "ops.eye(CODE) * ops.square(variance[:, time, None])",
    ),
    Fault(
        "noise of the code everywhere",
        "inner_noise inner",
        "ops.eye(CODE) * variance[:, time, None]",
        "variance[:, time, None]",
    ),
    Fault(
        "gain of the covariance before the move",
        "gain",
        "ops.bmm(both, inverse)",
        "ops.bmm(ops.matmul(cov, self.watch), inverse)",
    ),
    Fault("code that is missing corrects, too", "chosen corrected", " * seen[:, time, None, None]", ""),
    Fault("code that is missing counts", "likely_sum", "chance * seen[:, time]", "chance"),
    Fault("covariance grows", "less", "wide - ops.bmm(gain", "wide + ops.bmm(gain"),
    Fault(
        "covariance as it was before",
        "less chosen",
        "cov = wide - ops.bmm(gain, both.swapaxes(1, 2))",
        "cov = wide * 1",
    ),
    Fault("size of the wrong sign", "likely", "-(far + size) / 2", "-(far - size) / 2"),
    Fault("smoothed from the same time", "smooth", "means[-1] - before", "means[-1] - mean"),
    Fault("smoothing by the move itself", "back", "move.swapaxes(1, 2)), ops.inverse", "move), ops.inverse"),
    Fault("smoothed states in the order of the loop", "stack", "means[::-1]", "means"),
    Fault(
        "gain passes no gradient",
        "corrected gain",
        "(gain * error",
        "(ops.stop_gradient(gain) * error",
        is_backward=True,
    ),
    Fault("state not carried", "start", "self.carried =", "_ =", edit="store", steps=2, first_step=1),
    Fault(
        "state carried from before the last code",
        "store start",
        "ops.stop_gradient(mean)",
        "ops.stop_gradient(before)",
        steps=2,
        first_step=1,
    ),
    Fault(
        "bases turned",
        "move",
        'weights["bases"].reshape',
        'weights["bases"].transpose(0, 2, 1).reshape',
        edit="load_bases",
        parameter="bases",
    ),
    Fault("reference halves nothing", "likely", "-0.5 * (white", "-1.0 * (white", side="reference"),
    Fault(
        "reference starts with the spread itself",
        "start_cov",
        "self.start_spread.exp()",
        "self.start_spread",
        side="reference",
    ),
    Fault(
        "variance without its least, and the mean over all times",
        "variance",
        " + LEAST",
        "",
        second=("by_time", "(likely / number)", "(likely / TIME)"),
    ),
)
