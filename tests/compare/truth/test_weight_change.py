"""A correct refactor of how weights are held agrees, and the comparison says what became of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q(x).tanh(), self.k(x).exp(), self.v(x).sigmoid()], -1)


class Fused(nn.Module):
    def __init__(self, source: Split) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 32)
        parts = (source.q, source.k, source.v)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split([16, 8, 8], -1)
        return torch.cat([q.tanh(), k.exp(), v.sigmoid()], -1)


class Layers(nn.Module):
    """Several of one kind, one after the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)[..., :16]
        return x


class Experts(nn.Module):
    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 12, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts]).tanh().sum(0)


class Stacked(nn.Module):
    def __init__(self, source: Experts, scale: float = 1.0) -> None:
        super().__init__()
        weights = [expert.weight.detach().T for expert in source.experts]  # type: ignore[union-attr, operator]
        self.experts = nn.Parameter(torch.stack(weights))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,eio->ebo", x, self.experts).mul(self.scale).tanh().sum(0)


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.words(x)))


class OneTable(nn.Module):
    def __init__(self, source: TiedHead) -> None:
        super().__init__()
        self.table = nn.Parameter(source.words.weight.detach().clone())
        self.middle = nn.Linear(8, 8)
        self.middle.load_state_dict(source.middle.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.middle(F.embedding(x, self.table)), self.table)


def compare(
    tmp_path: Path, models: tuple[nn.Module, nn.Module], task: str = "tensor", level: str = "L1", trains: bool = True
) -> Verdict:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(0, 20, (3, 4), generator=generator)
    x = words if isinstance(models[0], TiedHead) else torch.randn(6, 16, generator=generator)
    for name, model in zip(("r", "c"), models, strict=True):
        with tensorprobe.capture(model, tmp_path / name, task=task, level=level), torch.set_grad_enabled(trains):
            loss = model(x).square().mean()
            if trains:
                loss.backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict


def weights(verdict: Verdict) -> list[str]:
    return [line.removeprefix("weights: ") for line in verdict.evidence if line.startswith("weights: ")]


ALL = pytest.mark.parametrize(("task", "level"), [("tensor", "L1"), ("tensor", "mix"), ("statistics", "mix")])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@ALL
def test_three_projections_in_one_agree_and_the_rows_of_each_are_named(tmp_path: Path, task: str, level: str) -> None:
    source = Split()
    verdict = compare(tmp_path, (source, Fused(source)), task, level)
    assert verdict.kind == "agree", verdict
    assert weights(verdict) == [
        "q.weight, k.weight and v.weight of the reference are rows 0–15, 16–23 and 24–31 of qkv.weight of the "
        "candidate",
        "q.bias, k.bias and v.bias of the reference are elements 0–15, 16–23 and 24–31 of qkv.bias of the candidate",
    ]


@ALL
def test_a_stack_of_experts_agrees_and_the_place_of_each_is_named(tmp_path: Path, task: str, level: str) -> None:
    source = Experts()
    verdict = compare(tmp_path, (source, Stacked(source)), task, level)
    assert verdict.kind == "agree", verdict
    assert weights(verdict) == [
        "experts.0.weight, experts.1.weight, experts.2.weight and experts.3.weight of the reference are "
        "experts[0], experts[1], experts[2] and experts[3] of the candidate, transposed"
    ]


@ALL
def test_a_tied_head_that_became_one_table_agrees_and_is_named(tmp_path: Path, task: str, level: str) -> None:
    source = TiedHead()
    verdict = compare(tmp_path, (source, OneTable(source)), task, level)
    assert verdict.kind == "agree", verdict
    assert weights(verdict) == ["words.weight of the reference (shared by words and head) is table of the candidate"]


def test_the_same_in_the_other_direction(tmp_path: Path) -> None:
    source = Experts()
    verdict = compare(tmp_path, (Stacked(source), source))
    assert verdict.kind == "agree", verdict
    assert (
        "of the candidate are experts[0], experts[1], experts[2] and experts[3] of the reference" in weights(verdict)[0]
    )


def test_many_experts_are_named_by_the_first_and_the_last(tmp_path: Path) -> None:
    source = Experts(8)
    verdict = compare(tmp_path, (source, Stacked(source)))
    assert weights(verdict) == [
        "experts.0.weight, experts.1.weight, … experts.7.weight of the reference are "
        "experts[0], experts[1], … experts[7] of the candidate, transposed"
    ]


def test_the_same_change_in_every_layer_is_one_line_for_all(tmp_path: Path) -> None:
    sources = [Split() for _ in range(3)]
    verdict = compare(tmp_path, (Layers(list(sources)), Layers([Fused(one) for one in sources])))
    assert verdict.kind == "agree", verdict
    assert weights(verdict)[0] == (
        "layers.0.q.weight, layers.0.k.weight and layers.0.v.weight of the reference are rows 0–15, 16–23 and 24–31 "
        "of layers.0.qkv.weight of the candidate; 2 more like this"
    )
    assert len(weights(verdict)) == 2


def test_what_became_of_the_weights_is_said_without_a_backward_too(tmp_path: Path) -> None:
    source = Experts()
    verdict = compare(tmp_path, (source, Stacked(source)), trains=False)
    assert verdict.kind == "agree", verdict
    assert "are experts[0], experts[1], experts[2] and experts[3] of the candidate" in weights(verdict)[0]


def test_what_became_of_the_weights_is_said_beside_a_difference(tmp_path: Path) -> None:
    source = Experts()
    verdict = compare(tmp_path, (source, Stacked(source, scale=1.1)))
    assert verdict.kind == "source", verdict
    assert "are experts[0], experts[1], experts[2] and experts[3] of the candidate" in weights(verdict)[0]


def test_another_name_is_told_and_the_same_names_are_not(tmp_path: Path) -> None:
    source, again = Experts(2), Experts(2)
    again.load_state_dict(source.state_dict())
    assert weights(compare(tmp_path / "same", (source, again))) == []
    again.others = again.experts
    del again.experts
    again.forward = lambda x: sum(one(x).tanh() for one in again.others)  # type: ignore[union-attr]
    assert weights(compare(tmp_path / "other", (source, again))) == [
        "2 have a different name in the candidate: experts.0.weight is others.0.weight and "
        "experts.1.weight is others.1.weight"
    ]


class Named(nn.Module):
    """Several, each under a name of its own."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts.values():
            x = x + part(x)[..., :16]
        return x


@pytest.mark.parametrize(("names", "count", "last"), [("ab", 4, "b.qkv.bias"), ("abc", 4, "3 more lines like these")])
def test_a_few_kinds_of_change_are_all_said_and_many_are_counted(
    tmp_path: Path, names: str, count: int, last: str
) -> None:
    parts = {name: Split() for name in names}
    models = (Named({**parts}), Named({name: Fused(part) for name, part in parts.items()}))
    said = weights(compare(tmp_path, models))
    assert len(said) == count and last in said[-1], said
