"""A small language model that can be cut in every way, and the mistakes that are made when it is.

The sequence is the first dimension, as in Megatron. `Plan` says which part of it a rank has; with nothing in it, it is
the whole model in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.compare.layout.parallel import Copy, Exchange, Gather, Reduce, ReduceScatter, VocabularyLoss

WORDS, WIDTH, HEADS, HIDDEN, LENGTH, BATCH = 24, 16, 4, 32, 8, 4
EXPERTS = 4
HEAD = WIDTH // HEADS


def draw(seed: int, *shape: int) -> torch.Tensor:
    """Numbers that bfloat16 has."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3).bfloat16().float()


def read_batch(samples: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, by place in the sequence and by sample."""
    generator = torch.Generator().manual_seed(77)
    tokens = torch.randint(0, WORDS, (LENGTH + 1, samples), generator=generator)
    return tokens[:-1].contiguous(), tokens[1:].contiguous()


@dataclass(frozen=True)
class Plan:
    """The place of a rank: which part of how many, in each direction, and with whom."""

    tensor: tuple[int, int, Any] = (0, 1, None)
    context: tuple[int, int, Any] = (0, 1, None)
    expert: tuple[int, int] = (0, 1)
    data: tuple[int, int] = (0, 1)
    """Of a batch; with a dropout whose mask is drawn for all of it."""
    draws_whole_mask: bool = False
    head: int = HEAD
    """The size of an attention head."""
    experts: int = EXPERTS
    cuts_sequence: bool = False
    """Sequence parallel between the tensor-parallel regions."""
    dropout: float = 0.0
    fault: str = ""
    few: Any = None
    """A group that leaves out some of the tensor-parallel ranks."""

    def cut(self, whole: torch.Tensor, dim: int) -> nn.Parameter:
        place, count, _ = self.tensor
        return nn.Parameter(whole.chunk(count, dim)[place].clone())


class Norm(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + draw(seed, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__()
        self.plan = plan
        parts = [plan.cut(draw(seed + number, WIDTH, WIDTH), 0) for number in range(3)]
        self.qkv = nn.Parameter(torch.cat([part.data for part in parts]))
        self.o_proj = plan.cut(draw(seed + 3, WIDTH, WIDTH), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.plan
        query, key, value = F.linear(enter(x, plan), self.qkv).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, plan.head)) for part in (query, key, value))
        place, count, group = plan.context
        first = place * query.shape[0] if plan.fault != "rotary" else 0
        query, key = rotate(query, first), rotate(key, first)
        if count > 1:
            key, value = Gather.apply(key, group), Gather.apply(value, group)
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) / plan.head**0.5
        rows = torch.arange(query.shape[0]) + place * query.shape[0]
        scores = scores.masked_fill(torch.arange(key.shape[0]) > rows.unsqueeze(-1), -1e9)
        mixed = torch.einsum("bhqk,kbhd->qbhd", scores.softmax(-1), value).flatten(2)
        return leave(F.linear(mixed, self.o_proj), plan, "o_proj")


def rotate(x: torch.Tensor, first: int) -> torch.Tensor:
    places = torch.arange(x.shape[0], dtype=torch.float32) + first
    angles = (places[:, None] * 10.0 ** -torch.arange(x.shape[-1] // 2, dtype=torch.float32)).to(x.dtype)[:, None, None]
    left, right = x.chunk(2, -1)
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


class Mlp(nn.Module):
    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__()
        self.plan = plan
        self.up, self.up_bias = plan.cut(draw(seed, HIDDEN, WIDTH), 0), plan.cut(draw(seed + 1, HIDDEN), 0)
        self.down, self.bias = plan.cut(draw(seed + 2, WIDTH, HIDDEN), 1), nn.Parameter(draw(seed + 3, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(F.linear(enter(x, self.plan), self.up, self.up_bias))
        if self.plan.fault == "bias":  # each rank adds it, and then they are added up
            return leave(F.linear(hidden, self.down, self.bias), self.plan, "down")
        return leave(F.linear(hidden, self.down), self.plan, "down") + self.bias


def enter(x: torch.Tensor, plan: Plan) -> torch.Tensor:
    _, count, group = plan.tensor
    if count == 1 or plan.fault == "no copy":
        return x
    result: torch.Tensor = (Gather if plan.cuts_sequence else Copy).apply(x, group)
    return result


def leave(x: torch.Tensor, plan: Plan, name: str) -> torch.Tensor:
    _, count, group = plan.tensor
    if count == 1 or (plan.fault == "no reduce" and name == "o_proj"):
        return x
    if plan.few is not None and name == "o_proj":
        group = plan.few
    result: torch.Tensor = (ReduceScatter if plan.cuts_sequence else Reduce).apply(x, group)
    return result


class Experts(nn.Module):
    """Each token goes to one expert; a rank has some of them, and tokens of its own."""

    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__()
        self.plan = plan
        self.router = nn.Parameter(draw(seed, plan.experts, WIDTH))
        place, count = plan.expert
        self.own = plan.experts // count
        self.up = nn.Parameter(draw(seed + 1, plan.experts, HIDDEN, WIDTH).chunk(count)[place].clone())
        self.down = nn.Parameter(draw(seed + 2, plan.experts, WIDTH, HIDDEN).chunk(count)[place].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, count = self.plan.expert
        tokens = x.reshape(-1, WIDTH)
        shares = F.linear(tokens, self.router).softmax(-1)
        best, chosen = shares.max(-1)
        order = chosen.argsort(stable=True)
        rows = tokens[order]
        sizes = torch.bincount(chosen, minlength=self.plan.experts)
        mixed = self.apply_experts(rows, sizes) if count == 1 else self.exchange(rows, sizes)
        result = torch.zeros_like(tokens).index_copy(0, order, mixed)
        return (result * best.unsqueeze(-1)).reshape(x.shape)

    def exchange(self, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        _, count = self.plan.expert
        if self.plan.fault == "expert":  # the experts of the next rank
            half = int(sizes[: self.own].sum())
            rows, sizes = torch.cat([rows[half:], rows[:half]]), sizes.roll(self.own)
        theirs = torch.empty_like(sizes)
        torch.distributed.all_to_all_single(theirs, sizes)
        given, taken = (part.unflatten(0, (count, self.own)) for part in (sizes, theirs))
        splits = given.sum(1).tolist(), taken.sum(1).tolist()
        came = Exchange.apply(rows, *splits)
        expert = torch.arange(self.own).repeat(count).repeat_interleave(theirs)
        order = expert.argsort(stable=True)
        mixed = self.apply_experts(came[order], taken.sum(0))
        back = Exchange.apply(torch.zeros_like(mixed).index_copy(0, order, mixed), *reversed(splits))
        if self.plan.fault == "expert":
            half = int(sizes[: self.own].sum())
            back = torch.cat([back[half:], back[:half]])
        return back

    def apply_experts(self, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        parts = rows.split(sizes.tolist())
        found = [
            F.linear(F.gelu(F.linear(part, up)), down) for part, up, down in zip(parts, self.up, self.down, strict=True)
        ]
        return torch.cat(found)


class WholeDropout(nn.Module):
    """Draws the mask of the whole batch on each rank, and takes its own part of it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, count = self.plan.data
        mask = torch.rand(x.shape[0], x.shape[1] * count, x.shape[2]) >= self.plan.dropout
        return x * mask.chunk(count, 1)[place] / (1 - self.plan.dropout)


class Block(nn.Module):
    def __init__(self, plan: Plan, seed: int, has_experts: bool) -> None:
        super().__init__()
        self.norm, self.attention, self.after = Norm(seed), Attention(plan, seed + 10), Norm(seed + 1)
        self.mlp = Experts(plan, seed + 20) if has_experts else Mlp(plan, seed + 20)
        self.dropout = WholeDropout(plan) if plan.draws_whole_mask else nn.Dropout(plan.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm(x)))
        return x + self.mlp(self.after(x))


class Embedding(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.weight = plan, plan.cut(draw(1, WORDS, WIDTH), 0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        place, count, group = self.plan.tensor
        if count == 1:
            return F.embedding(tokens, self.weight)
        own = self.weight.shape[0]
        outside = (tokens < place * own) | (tokens >= (place + 1) * own)
        found = F.embedding((tokens - place * own).masked_fill(outside, 0), self.weight)
        found = found.masked_fill(outside.unsqueeze(-1), 0.0)
        result: torch.Tensor = (ReduceScatter if self.plan.cuts_sequence else Reduce).apply(found, group)
        return result


class Head(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.norm, self.weight = plan, Norm(3), plan.cut(draw(2, WORDS, WIDTH), 0)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each place."""
        place, count, group = self.plan.tensor
        logits = F.linear(enter(self.norm(x), self.plan), self.weight)
        if count == 1:
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        first = place * self.weight.shape[0]
        if self.plan.fault == "offset":  # the vocabulary was padded, and the places of the words were not
            first += place
        losses: torch.Tensor = VocabularyLoss.apply(logits, labels, first, group)
        return losses.flatten()


class Model(nn.Module):
    """`stages`: of a pipeline, the first, which is all but the head, the last, or both."""

    def __init__(self, plan: Plan, has_experts: bool = False, stages: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        self.embedding = Embedding(plan) if 0 in stages else None
        self.block = Block(plan, 100, has_experts) if 0 in stages else None
        self.head = Head(plan) if 1 in stages else None

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.block(self.embedding(x)) if self.block is not None else x
        return self.head(x, labels) if self.head is not None else x
