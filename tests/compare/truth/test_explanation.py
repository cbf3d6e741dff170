"""Mixtures of experts that are written in other ways, with a fault in what they compute: not in how they move rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict

EXPERTS, CHOSEN, WIDTH, INNER = 4, 2, 12, 20


class Experts(nn.Module):
    def __init__(self, way: str, activation: str) -> None:
        super().__init__()
        self.way, self.activation = way, activation
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(CHOSEN, -1)
        return {"loop": self.loop, "sorted": self.sort, "gathered": self.gather}[self.way](x, weights, chosen)

    def act(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = hidden.chunk(2, -1)
        if self.activation == "interleaved":
            gate, up = hidden[..., ::2], hidden[..., 1::2]
        if self.activation == "exchanged":
            gate, up = up, gate
        if self.activation == "":
            return gate * up
        if self.activation in ("interleaved", "exchanged"):
            return F.silu(gate) * up
        return getattr(F, self.activation)(gate) * up

    def loop(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for expert in range(EXPERTS):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            hidden = self.act(x[token] @ self.up[expert])
            out.index_add_(0, token, (hidden @ self.down[expert]) * weights[token, place][:, None])
        return out

    def sort(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        order = chosen.reshape(-1).argsort(stable=True)
        counts = torch.bincount(chosen.reshape(-1), minlength=EXPERTS).tolist()
        rows = x[order // CHOSEN].split(counts)
        made = [self.act(some @ self.up[expert]) @ self.down[expert] for expert, some in enumerate(rows)]
        scaled = torch.cat(made) * weights.reshape(-1)[order][:, None]
        return torch.zeros_like(x).index_add_(0, order // CHOSEN, scaled)

    def gather(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        up, down = self.up[chosen.reshape(-1)], self.down[chosen.reshape(-1)]
        hidden = self.act(torch.bmm(x.repeat_interleave(CHOSEN, 0)[:, None], up)[:, 0])
        made = torch.bmm(hidden[:, None], down)[:, 0] * weights.reshape(-1)[:, None]
        return made.reshape(-1, CHOSEN, WIDTH).sum(1)


class Model(nn.Module):
    def __init__(self, way: str, activation: str) -> None:
        super().__init__()
        self.first, self.second = Experts(way, "silu"), Experts(way, activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(x)
        return (x + self.second(F.layer_norm(x, (WIDTH,)))).square().mean()


def compare(tmp_path: Path, reference: str, candidate: str, activation: str) -> Verdict:
    for name, way, chosen in (("r", reference, "silu"), ("c", candidate, activation)):
        torch.manual_seed(0)
        model, x = Model(way, chosen), torch.randn(10, WIDTH)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict


@pytest.mark.parametrize(
    ("reference", "candidate"), [("loop", "gathered"), ("sorted", "gathered"), ("gathered", "loop")]
)
@pytest.mark.parametrize("activation", ["gelu", ""], ids=["another", "none"])
@pytest.mark.some(3)
def test_an_activation_is_named_although_the_rows_take_other_ways(
    activation: str, reference: str, candidate: str, tmp_path: Path
) -> None:
    verdict = compare(tmp_path, reference, candidate, activation)
    assert verdict.call is not None, verdict.headline
    assert verdict.call.reference[-1].op == "silu" and verdict.call.reference[-1].module_path == "second"
    if activation:
        assert verdict.call.candidate[-1].op == activation
    else:
        assert "its result occurs nowhere in the candidate" in verdict.headline


def test_the_same_experts_in_another_order_agree(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "sorted", "gathered", "silu")
    assert verdict.kind == "agree", verdict.headline


@pytest.mark.parametrize("way", ["gathered", "loop"])
@pytest.mark.some(2)
def test_other_numbers_for_an_activation_are_named_where_they_are_taken(way: str, tmp_path: Path) -> None:
    verdict = compare(tmp_path, way, way, "interleaved")
    assert verdict.call is not None, verdict.headline
    assert verdict.call.candidate[-1].op == "__getitem__" and verdict.call.reference[-1].op == "chunk", verdict.headline


def test_a_gate_in_the_place_of_the_other_half_is_named_at_its_activation(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "gathered", "sorted", "exchanged")
    assert verdict.call is not None and verdict.call.candidate[-1].op == "silu", verdict.headline
    assert "it gets different values" in verdict.headline


PLACES, IDS = torch.arange(6), torch.tensor([1, 2, 0, 3, 1, 2])


class Masked(nn.Module):
    """Attention by a mask of what is seen, or of what is hidden; then a turn, written in two ways."""

    def __init__(self, *, is_hidden: bool, is_wrong: bool = False) -> None:
        super().__init__()
        self.is_hidden, self.is_wrong = is_hidden, is_wrong
        self.query, self.key = (nn.Parameter(torch.randn(8, 8) * 0.5) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ self.query) @ (x @ self.key).T
        angles = PLACES[:, None] * torch.tensor([[1.0, 0.3, 0.1, 0.03]])
        if self.is_hidden:
            hidden = (PLACES[:, None] < PLACES) | (IDS == 0)
            x = x + scores.masked_fill(hidden, -1e9).softmax(-1) @ x
            angles = torch.cat([angles, angles], 1)
            turned = torch.cat([-x[:, 4:], x[:, :4]], 1)
            return (x * angles.cos() + turned * angles.sin()).square().mean() + x.sin().mean()
        seen = (PLACES[:, None] >= PLACES) & (IDS != 0)
        if self.is_wrong:
            seen = seen | (PLACES[:, None] == PLACES + 1)
        x = x + torch.where(seen, scores, torch.tensor(-1e9)).softmax(-1) @ x
        first, second = x[:, :4], x[:, 4:]
        turned = torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], 1
        )
        return turned.square().mean() + x.sin().mean()


def test_a_wrong_mask_is_named_where_it_is_taken_and_not_what_is_written_otherwise_behind(tmp_path: Path) -> None:
    for name, options in (("r", {"is_hidden": True}), ("c", {"is_hidden": False, "is_wrong": True})):
        torch.manual_seed(0)
        model, x = Masked(**options), torch.randn(6, 8)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    named = ("Torch.where.0", "Tensor.__or__.0", "Tensor.softmax.0")
    assert any(f"differ at {name}.forward" in verdict.headline for name in named), verdict
