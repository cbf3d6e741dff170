"""Programs that are written otherwise behind a difference: it is the difference that is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict

LAYERS = 3


class Adapted(nn.Module):
    """Layers with a low-rank change of their weights: added to the result, or to the weight (`merges`)."""

    def __init__(self, merges: bool, fault: str = "") -> None:
        super().__init__()
        self.merges, self.fault = merges, fault
        generator = torch.Generator().manual_seed(0)
        for name, shape in (("base", (8, 8)), ("down", (2, 8)), ("up", (8, 2))):
            weights = [nn.Parameter(torch.randn(shape, generator=generator) * 0.4) for _ in range(LAYERS)]
            setattr(self, name, nn.ParameterList(weights))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for number in range(LAYERS):
            x = self.change(F.leaky_relu(x, 0.02 if self.fault == "slope" and number == 1 else 0.01), number)
        if not self.merges:
            return F.cross_entropy(x, labels) + 0.1 * torch.logsumexp(x, -1).square().mean()
        total = torch.logsumexp(x, -1)
        return (total - x.gather(1, labels[:, None])[:, 0]).mean() + 0.1 * total.square().mean()

    def change(self, x: torch.Tensor, number: int) -> torch.Tensor:
        base, down, up = self.base[number], self.down[number], self.up[number]
        if not self.merges:
            return F.linear(x, base) + F.linear(F.linear(x, down), up)
        weight = base + up @ down
        if self.fault == "frozen" and number == 0:
            weight = base + (up @ down).detach()
        return F.linear(x, weight)


def compare(tmp_path: Path, fault: str) -> Verdict:
    generator = torch.Generator().manual_seed(1)
    x, labels = torch.randn(6, 8, generator=generator), torch.randint(0, 8, (6,), generator=generator)
    for name, model in (("r", Adapted(False)), ("c", Adapted(True, fault))):
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x, labels).backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict


def test_layers_that_merge_their_adapters_agree(tmp_path: Path) -> None:
    assert compare(tmp_path, "").kind == "agree"


def test_behind_a_difference_a_product_of_weights_that_only_one_run_makes_is_no_difference(tmp_path: Path) -> None:
    """In the layer before the same line was shown to mean the same."""
    verdict = compare(tmp_path, "slope")
    assert "leaky_relu.1.forward" in verdict.headline and "0.02 where the reference had 0.01" in verdict.headline


def test_a_value_that_one_run_uses_twice_and_the_other_computes_twice_hides_no_gradient(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "frozen")
    assert verdict.call is not None
    assert "it lets no gradient through" in verdict.headline and "logsumexp" not in verdict.headline, verdict.headline
    assert verdict.call.candidate[-1].op == "detach"


class Normalised(nn.Module):
    """A weight of a direction and a length; two in one tensor (`joins`), or each for itself."""

    def __init__(self, joins: bool, detaches: bool = False) -> None:
        super().__init__()
        self.detaches = detaches
        weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
        self.directions = nn.ParameterList([weight] if joins else [weight[:3].clone(), weight[3:].clone()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [F.linear(x, self.normalise(direction)) for direction in self.directions]
        return torch.tanh(torch.cat(parts, -1)).square().mean()

    def normalise(self, direction: torch.Tensor) -> torch.Tensor:
        length = direction.square().sum(-1, keepdim=True).sqrt()
        return direction / (length.detach() if self.detaches else length)


def test_a_gradient_that_only_shows_in_a_parameter_that_is_joined_is_named_where_that_is_used(tmp_path: Path) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    for name, model in (("r", Normalised(False)), ("c", Normalised(True, detaches=True))):
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.call is not None and verdict.call.candidate[-1].op in ("square", "div"), verdict.headline
    assert any("line" in line and "direction" in line for line in verdict.evidence)


class Tied(nn.Module):
    """Words in, words out, with one table for both or, with the same numbers, one for each."""

    def __init__(self, ties: bool) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(torch.randn(11, 6, generator=torch.Generator().manual_seed(0)), False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight if ties else nn.Parameter(self.words.weight.detach().clone())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.words(tokens))), tokens.flip(0))


@pytest.mark.parametrize("tied", ["reference", "candidate"])
def test_weights_that_one_run_ties_are_named_where_the_other_takes_its_own(tmp_path: Path, tied: str) -> None:
    for name in ("reference", "candidate"):
        model = Tied(ties=name == tied)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(torch.arange(9)).backward()
    verdict = tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate").verdict
    assert verdict.call is not None and verdict.call.candidate[-1].op == "linear", verdict.headline
    assert f"only the {tied} ties the two" in verdict.headline
    assert "head.weight" in verdict.headline and "words.weight" in verdict.headline


class Chain(nn.Module):
    """Layers of one kind in a loop, each as one call, or written out (`writes`); labels as they are, or as vectors."""

    def __init__(self, writes: bool, repeats: bool = False) -> None:
        super().__init__()
        self.writes, self.repeats = writes, repeats
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList([torch.randn(8, 8, generator=generator) * 0.4 for _ in range(LAYERS)])
        self.biases = nn.ParameterList([torch.randn(8, generator=generator) for _ in range(LAYERS)])
        self.register_buffer("high", torch.tensor(0.9 + 0.1 / 8))
        self.register_buffer("low", torch.tensor(0.1 / 8))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for number in range(LAYERS):
            weight, bias = self.weights[0 if self.repeats else number], self.biases[number]
            made = torch.matmul(x, weight.mT) + bias if self.writes else F.linear(x, weight, bias)
            x = torch.tanh(made)
        if not self.writes:
            return F.cross_entropy(x, labels, label_smoothing=0.1)
        chosen = torch.where(F.one_hot(labels, 8) > 0, self.high, self.low)
        return -(torch.log_softmax(x, -1) * chosen).sum(-1).mean()


def test_a_line_that_is_right_in_one_layer_is_not_taken_for_right_in_the_next(tmp_path: Path) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    for name, model in (("r", Chain(False)), ("c", Chain(True, repeats=True)), ("same", Chain(True))):
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x, torch.arange(5)).backward()
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "same").verdict.kind == "agree"
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.call is not None and verdict.call.reference[-1].name == "Functional.linear.1.forward", verdict
    assert verdict.call.candidate[-1].op in ("matmul", "__add__", "add"), verdict.headline


class Attending(nn.Module):
    """One layer with an activation that multiplies; the attention in one call, or written out with its factor."""

    def __init__(self, is_written: bool, places: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 8)
        self.is_written = is_written
        self.mask = torch.full((7, 7), -1e9).triu(places)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_written:
            mask = torch.full((7, 7), float("-inf")).triu(1)
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        both = zip(self.attention.in_proj_weight.chunk(3), self.attention.in_proj_bias.chunk(3), strict=True)
        query, key, value = (F.linear(x, *one).unflatten(-1, (2, 4)).transpose(1, 2) for one in both)
        score = (query * 0.5) @ key.transpose(-1, -2) + self.mask
        return self.attention.out_proj((score.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(x)
        hidden = self.enter(x)
        if self.is_written:
            return (x + self.leave(hidden / (1 + torch.exp(-1.702 * hidden)))).square().mean()
        return (x + self.leave(hidden * torch.sigmoid(1.702 * hidden))).square().mean()


@pytest.mark.parametrize("places", [1, 2])
def test_calls_that_share_neither_a_value_nor_a_number_do_not_stand_for_each_other(tmp_path: Path, places: int) -> None:
    """The factor of the attention is not that of the activation, although both are one multiplication of the module."""
    x = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(2))
    for name, is_written, masked in (("r", False, 1), ("c", True, places)):
        torch.manual_seed(0)
        model = Attending(is_written, masked)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert (verdict.kind == "agree") is (places == 1), verdict.headline
    assert "1.702" not in verdict.headline
