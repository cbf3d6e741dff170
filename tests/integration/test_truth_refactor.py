"""Refactors of one program inside PyTorch, as people make them, and one mistake in some of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tensorprobe
from tensorprobe.compare.result import Verdict
from tensorprobe.pytorch import PrecisionDebugger

WIDTH = 8


def draw_data(seed: int) -> Tensor:
    return torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(seed))


def compare(
    tmp_path: Path,
    reference: nn.Module,
    candidate: nn.Module,
    *,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 3,
) -> Verdict:
    paths = []
    for name, model in (("reference", reference), ("candidate", candidate)):
        x = draw_data(seed).to(dtype)
        PrecisionDebugger.reset()
        debugger = PrecisionDebugger(dump_path=str(tmp_path / name), level="L1", task="tensor")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            debugger.start(model)
            optimizer.zero_grad()
            model(x.clone().requires_grad_()).backward()
            debugger.stop()
            optimizer.step()
            debugger.step()
        PrecisionDebugger.reset()
        paths.append(tmp_path / name)
    return tensorprobe.compare(*paths, processes=1).verdict


class Small(nn.Module):
    """Two linear layers, and a program over them."""

    def __init__(self, program: Callable[[Any, Tensor], Tensor], *, is_coarse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.code = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(5, WIDTH))
        if is_coarse:  # as from a checkpoint in bfloat16
            for parameter in self.parameters():
                parameter.data = parameter.data.bfloat16().float()
        self.program = program

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self, x)


# -- weights in parts --------------------------------------------------------------------------------------------------


class Library(nn.Module):
    """Its biases are zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0].square().mean()  # type: ignore[no-any-return]


class ByHand(nn.Module):
    def __init__(self, other: Library, scale: float = 1.0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        own, self.scale = other.attention, scale
        with torch.no_grad():
            for layer, weight, bias in zip(
                (self.q, self.k, self.v), own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3), strict=True
            ):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            self.out.load_state_dict(own.out_proj.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (2, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        chances = (q @ k.transpose(-1, -2) * self.scale / math.sqrt(WIDTH // 2)).softmax(-1)
        return self.out((chances @ v).transpose(1, 2).flatten(-2)).square().mean()  # type: ignore[no-any-return]


def test_biases_that_are_all_zero_are_told_from_each_other_by_their_gradients(tmp_path: Path) -> None:
    library = Library()
    verdict = compare(tmp_path, library, ByHand(library))
    assert verdict.kind == "agree", verdict
    assert any("q.bias, k.bias and v.bias" in line and "0–7, 8–15 and 16–23" in line for line in verdict.evidence)


def test_a_mistake_beside_such_biases_is_named(tmp_path: Path) -> None:
    library = Library()
    verdict = compare(tmp_path, library, ByHand(library, scale=1.1))
    assert verdict.call is not None and "multi_head_attention_forward" in verdict.call.name
    assert "bias" not in verdict.headline


class Recurrent(nn.Module):
    """Its cell adds two biases; that of the layer behind it is zero."""

    def __init__(self, is_bias_zero: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out = nn.RNN(WIDTH, 4, batch_first=True), nn.Linear(4, WIDTH)
        nn.init.zeros_(self.out.bias)
        if is_bias_zero:
            nn.init.zeros_(self.cell.bias_hh_l0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x)[0]).square().mean()  # type: ignore[no-any-return]


class RecurrentByHand(nn.Module):
    """With their sum, and that layer in halves."""

    def __init__(self, other: Recurrent, scale: float) -> None:
        super().__init__()
        self.into, self.on, self.scale = nn.Linear(WIDTH, 4), nn.Linear(4, 4, bias=False), scale
        with torch.no_grad():
            self.into.weight.copy_(other.cell.weight_ih_l0)
            self.on.weight.copy_(other.cell.weight_hh_l0)
            self.into.bias.copy_(other.cell.bias_ih_l0 + other.cell.bias_hh_l0)
            self.left, self.right = nn.Linear(4, WIDTH // 2), nn.Linear(4, WIDTH // 2)
            for half, weight in zip((self.left, self.right), other.out.weight.chunk(2), strict=True):
                half.weight.copy_(weight)
                half.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros(2, 4), []
        for given in self.into(x).unbind(1):
            state = torch.tanh(given + self.on(state) * self.scale)
            states.append(state)
        rows = torch.stack(states, 1)
        return torch.cat([self.left(rows), self.right(rows)], -1).square().mean()


@pytest.mark.parametrize("is_bias_zero", [False, True])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1.1])
@pytest.mark.some(3)  # each of all that varies
def test_two_biases_that_are_one_in_the_other_run(
    is_bias_zero: bool, is_turned: bool, scale: float, tmp_path: Path
) -> None:
    library = Recurrent(is_bias_zero)
    models = (RecurrentByHand(library, scale), library) if is_turned else (library, RecurrentByHand(library, scale))
    verdict = compare(tmp_path, *models)
    assert (verdict.kind == "agree") == (scale == 1), verdict


class Split(nn.Module):
    """The second layer as two, each for half of the columns."""

    def __init__(self, other: Small) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.first.load_state_dict(other.first.state_dict())
        with torch.no_grad():
            for layer, columns in zip((self.left, self.right), other.second.weight.chunk(2, 1), strict=True):
                layer.weight.copy_(columns)
            self.right.bias.copy_(other.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        first, second = F.gelu(self.first(x)).chunk(2, -1)
        return (self.left(first) + self.right(second)).square().mean()  # type: ignore[no-any-return]


def two_layers(model: Any, x: Tensor) -> Tensor:
    return model.second(F.gelu(model.first(x))).square().mean()  # type: ignore[no-any-return]


def test_columns_of_a_weight_in_which_numbers_repeat_are_found_at_later_steps_too(tmp_path: Path) -> None:
    reference = Small(two_layers, is_coarse=True)
    verdict = compare(tmp_path, reference, Split(reference), steps=2)
    assert verdict.kind == "agree", verdict


def test_parameters_of_a_coarse_dtype_may_be_rounded_to_either_side_in_an_update(tmp_path: Path) -> None:
    reference = Small(two_layers).to(torch.bfloat16)
    candidate = Split(Small(two_layers)).to(torch.bfloat16)
    verdict = compare(tmp_path, reference, candidate, steps=3, dtype=torch.bfloat16)
    assert verdict.kind == "agree", verdict


# -- what a loss is ----------------------------------------------------------------------------------------------------


def penalize(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        score = torch.tanh(model.second(F.gelu(model.first(x)))).mean((1, 2))
        penalty = (of(score, x).flatten(1).norm(dim=1) - 1).pow(2).mean()
        return F.softplus(-score).mean() + penalty

    return program


def test_what_a_gradient_inside_the_loss_is_asked_of_is_no_loss(tmp_path: Path) -> None:
    by_ones = penalize(lambda score, x: torch.autograd.grad(score, x, torch.ones_like(score), create_graph=True)[0])
    by_sum = penalize(lambda score, x: torch.autograd.grad(score.sum(), x, create_graph=True)[0])
    verdict = compare(tmp_path, Small(by_ones), Small(by_sum))
    assert verdict.kind == "agree", verdict
    assert "the loss and" in verdict.headline


def quantize(has_term: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        z = model.norm(x)
        q = model.code[(z.unsqueeze(-2) - model.code).pow(2).sum(-1).argmin(-1)]
        term = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        loss = ((z + (q - z).detach()) * x).sum()
        return loss + term if has_term else loss

    return program


def test_a_term_of_the_loss_that_is_left_out_is_named_where_the_reference_adds_it(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(quantize(True)), Small(quantize(False)))
    assert verdict.call is not None and "add" in verdict.call.reference[-1].name, verdict
    assert any("return loss + term" in line for line in verdict.evidence)


# -- single mistakes ---------------------------------------------------------------------------------------------------


def choose(has_bias: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        x = F.layer_norm(x, (WIDTH,), model.norm.weight, model.norm.bias if has_bias else None)
        y = model.first(x)
        with torch.no_grad():
            best = y[:, 1:].argmax(-1, keepdim=True)
            target = 1.0 + 0.9 * y[:, 1:].gather(-1, best)
        return F.mse_loss(y[:, :-1], target.expand(-1, -1, 2 * WIDTH))

    return program


def test_a_bias_of_zeros_that_is_forgotten_is_named_also_where_choices_are_made(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(choose(True)), Small(choose(False)))
    assert verdict.call is not None and "layer_norm" in verdict.call.name, verdict
    assert "it does not use norm.bias" in verdict.headline


def test_a_bias_of_zeros_that_is_put_in_is_named_also_where_choices_are_made(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(choose(False)), Small(choose(True)))
    assert verdict.call is not None and "layer_norm" in verdict.call.name, verdict
    assert "it uses norm.bias, but the reference does not" in verdict.headline


def add(turned: bool, factor: float) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        h = model.second(F.gelu(model.first(x)))
        h = h * factor if factor != 1 else h
        return (h + x if turned else x + h).square().mean()

    return program


def test_operands_of_a_sum_in_another_order_are_the_same_operands(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(add(False, 1.05)), Small(add(True, 1.0)))
    assert verdict.call is not None and "mul" in verdict.call.reference[-1].name, verdict
    assert any("h = h * factor" in line for line in verdict.evidence)


def place(is_wrong: bool, by_index: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        angles = torch.arange(6).unsqueeze(1) * torch.exp(torch.arange(0, WIDTH, 2) * -0.7)
        if by_index:
            table = torch.zeros(6, WIDTH)
            table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
        elif is_wrong:
            table = torch.cat([angles.sin(), angles.cos()], -1)
        else:
            table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return model.first(x + table).square().mean()  # type: ignore[no-any-return]

    return program


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_table_that_is_written_into_by_slices(is_wrong: bool, tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(place(False, True)), Small(place(is_wrong, False)))
    assert verdict.kind == ("source" if is_wrong else "agree"), verdict
    if is_wrong:
        assert verdict.call is not None and "cat" in verdict.call.candidate[-1].name


# -- choices that rounding makes ---------------------------------------------------------------------------------------


def order_rows(z: Tensor, by_sort: bool) -> Tensor:
    if by_sort:
        squares = z.detach().pow(2)
        return torch.sort((squares[..., :3].sum(-1) + squares[..., 3:].sum(-1)).sqrt(), dim=1).indices
    return z.detach().norm(dim=-1).argsort(1)


def rank(by_sort: bool, factor: float = 1.0) -> Callable[[Any, Tensor], Tensor]:
    """Rows in the order of their lengths, which a normalisation makes all but equal."""

    def program(model: Any, x: Tensor) -> Tensor:
        z = F.layer_norm(x, (WIDTH,), eps=1e-8)
        rows = z.gather(1, order_rows(z, by_sort).unsqueeze(-1).expand_as(z))
        h = torch.tanh(model.first(rows * torch.arange(1, 7).unsqueeze(1)))
        return (h * factor if factor != 1 else h).square().mean()

    return program


def find_flipped_seed() -> int:
    """Of data whose rows both ways put in another order: how a kernel rounds depends on the processor."""
    for seed in range(200):
        z = F.layer_norm(draw_data(seed), (WIDTH,), eps=1e-8)
        if not torch.equal(order_rows(z, by_sort=True), order_rows(z, by_sort=False)):
            return seed
    raise AssertionError("on this processor both ways round alike")


def test_a_choice_that_rounding_flips_in_another_call_is_no_mistake(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(rank(False)), Small(rank(True)), seed=find_flipped_seed())
    assert verdict.kind == "discontinuity", verdict
    assert verdict.call is not None and "argsort" in verdict.call.reference[-1].name


def test_a_mistake_behind_a_choice_that_rounding_flips_is_named(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(rank(False)), Small(rank(True, factor=1.1)), seed=find_flipped_seed())
    assert verdict.call is not None and "mul" in verdict.call.candidate[-1].name, verdict


def damp_twice(by_function: bool, is_stopped: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        x = model.norm(x)
        for _ in range(2):
            h = model.first(x.detach() if is_stopped else x)
            h = Damp.apply(h) if by_function else 0.1 * h + 0.9 * h.detach()
            x = x + model.second(torch.tanh(h))
        return x.square().mean()

    return program


def test_a_gradient_that_is_stopped_before_a_function_with_a_backward_of_its_own_is_named(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(damp_twice(False, False)), Small(damp_twice(True, True)))
    assert verdict.call is not None and "detach" in verdict.call.candidate[-1].name, verdict


def dampen(has_bias: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        x = F.layer_norm(x, (WIDTH,), model.norm.weight, model.norm.bias if has_bias else None)
        return model.second(torch.tanh(Damp.apply(model.first(x)))).square().mean()  # type: ignore[no-any-return]

    return program


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_bias_of_zeros_is_missed_also_where_what_was_recorded_is_taken(has_bias: bool, tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(dampen(has_bias)), Small(dampen(not has_bias)))
    assert verdict.call is not None and "layer_norm" in verdict.call.name, verdict


class Step(torch.autograd.Function):
    """Straight through a rounding."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def rank_and_round(by_sort: bool, is_half: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        z = F.layer_norm(model.second(F.gelu(model.first(x))), (WIDTH,), eps=1e-8)
        lengths = z.detach().pow(2).sum(-1).sqrt() if by_sort else z.detach().norm(dim=-1)
        order = torch.sort(lengths, dim=1).indices
        z = 0.5 * z + 0.5 * z.detach() if is_half else z
        rows = z.gather(1, order.unsqueeze(-1).expand_as(z)) * torch.arange(1, 7).unsqueeze(1)
        return Step.apply(rows @ model.code.t()).square().mean()  # type: ignore[no-any-return, no-untyped-call]

    return program


def test_what_a_backward_of_its_own_gave_back_is_not_known_for_other_choices(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(rank_and_round(False, False)), Small(rank_and_round(True, True)))
    assert verdict.kind == "source", verdict


def test_a_choice_that_no_rounding_explains_is_a_mistake(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(choose(True)), Small(choose(True)))
    assert verdict.kind == "agree", verdict
    (wrong,) = (tmp_path / "candidate").glob("**/Tensor.argmax.0.forward.output.0.*")
    torch.save(torch.load(wrong).flip(1), wrong)
    verdict = tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate", processes=1).verdict
    assert verdict.kind == "source", verdict
    assert verdict.call is not None and "argmax" in verdict.call.name


def leak(by_mask: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        h = (0.001 * model.first(x) + 1) - 1  # nothing is left of it in bfloat16, nor of its sign
        h = torch.where(h > 0, h, 0.1 * h) if by_mask else torch.maximum(h, 0.1 * h)
        return h.square().mean()

    return program


def test_a_mask_that_rounding_flips_stands_against_a_call_that_chooses_nothing(tmp_path: Path) -> None:
    reference, candidate = (Small(leak(by_mask)).to(torch.bfloat16) for by_mask in (True, False))
    verdict = compare(tmp_path, reference, candidate, dtype=torch.bfloat16)
    assert verdict.kind == "discontinuity", verdict
    assert verdict.call is not None and "gt" in verdict.call.reference[-1].name


# -- the backward of the program's own functions -----------------------------------------------------------------------


class Damp(torch.autograd.Function):
    """As gradients are reversed, or made smaller: it gives on what it is given."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 0.1


def damp(how: Callable[[Tensor], Tensor], has_penalty: bool) -> Callable[[Any, Tensor], Tensor]:
    def program(model: Any, x: Tensor) -> Tensor:
        h = how(model.first(x))
        y = model.second(torch.tanh(h))
        if not has_penalty:
            return y.square().mean()  # type: ignore[no-any-return]
        slope = torch.autograd.grad(y.square().sum(), h, create_graph=True)[0]
        return y.square().mean() + slope.square().mean()  # type: ignore[no-any-return]

    return program


@pytest.mark.parametrize("has_penalty", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.2])
@pytest.mark.some(3)  # each of both
def test_a_function_that_gives_on_a_view_of_what_it_is_given_has_its_own_backward(
    share: float, has_penalty: bool, tmp_path: Path
) -> None:
    by_share = damp(lambda h: share * h + (1 - share) * h.detach(), has_penalty)
    verdict = compare(tmp_path, Small(damp(Damp.apply, has_penalty)), Small(by_share))
    assert verdict.kind == ("agree" if share == 0.1 else "source"), verdict


# -- what goes wrong in both -------------------------------------------------------------------------------------------


def recompute(is_shifted: bool, amount: float) -> Callable[[Any, Tensor], Tensor]:
    """A region that finds other numbers when it is computed again, so that its gradients are not the derivative."""

    def program(model: Any, x: Tensor) -> Tensor:
        scales = iter((1.0, 1.0 + amount, 1.0 + amount))
        x = F.linear(x, torch.eye(WIDTH)) if is_shifted else x
        h = checkpoint(lambda z: torch.tanh(model.first(z * next(scales))), x, use_reentrant=False)
        if is_shifted:
            return (h @ model.second.weight.t() + model.second.bias).pow(2).sum() / x.numel()  # type: ignore[no-any-return]
        return model.second(h).square().mean()  # type: ignore[no-any-return]

    return program


@pytest.mark.parametrize("amount", [0.5, 0.0])
def test_what_goes_wrong_in_both_runs_is_no_difference(amount: float, tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(recompute(False, 0.5)), Small(recompute(True, amount)))
    assert (verdict.kind == "agree") == (amount == 0.5), verdict


# -- gradients ---------------------------------------------------------------------------------------------------------


def halve(is_half: bool, by_angle: bool) -> Callable[[Any, Tensor], Tensor]:
    """Of unit vectors, distances and angles are the same, and their gradients are not, until they are projected."""

    def program(model: Any, x: Tensor) -> Tensor:
        z = model.norm(model.second(F.gelu(model.first(x))))
        z = 0.5 * z.detach() + 0.5 * z if is_half else z
        e = F.normalize(z, dim=-1)
        near, far = e[:, 0], e[:, 1]
        return (2 - 2 * (near * far).sum(-1)).mean() if by_angle else (near - far).square().sum(-1).mean()

    return program


def test_a_gradient_that_is_halved_is_named_where_that_is_done(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Small(halve(True, True)), Small(halve(False, False)))
    assert verdict.call is not None and "mul" in verdict.call.reference[-1].name, verdict
    assert any("z = 0.5 * z.detach() + 0.5 * z" in line for line in verdict.evidence)


# -- a batch in halves -------------------------------------------------------------------------------------------------


class Words(nn.Module):
    def __init__(self, parts: int, *, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first = nn.Embedding(17, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.norm, self.second = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 17)
        self.parts, self.scale = parts, scale


def record_words(path: Path, model: Words, task: str) -> Path:
    tokens = torch.randint(0, 17, (4, 9), generator=torch.Generator().manual_seed(5))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(path), level="L1", task=task)
    debugger.start(model)
    parts = tokens.chunk(model.parts)
    for part in parts:
        x = model.table(part[:, :-1])
        h = F.gelu(model.first(x)) * model.scale if model.scale != 1 else F.gelu(model.first(x))
        loss = F.cross_entropy(model.second(model.norm(h)).flatten(0, 1), part[:, 1:].flatten())
        (loss / len(parts) if len(parts) > 1 else loss).backward()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    return path


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.some(2)  # the next one has statistics
def test_a_batch_that_is_taken_in_halves_agrees(task: str, tmp_path: Path) -> None:
    reference = record_words(tmp_path / "r", Words(1), task)
    verdict = tensorprobe.compare(reference, record_words(tmp_path / "c", Words(2), task), processes=1).verdict
    assert verdict.kind == "agree", verdict


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.some(2)
def test_a_mistake_in_a_batch_that_is_taken_in_halves_is_named(task: str, tmp_path: Path) -> None:
    reference = record_words(tmp_path / "r", Words(1), task)
    candidate = record_words(tmp_path / "c", Words(2, scale=1.3), task)
    verdict = tensorprobe.compare(reference, candidate, processes=1).verdict
    assert verdict.call is not None, verdict
    names = f"{verdict.headline} {verdict.call.reference[-1].name} {verdict.call.candidate[-1].name}"
    assert any(word in names for word in ("mul", "gelu", "layer_norm")), verdict


class Projected(nn.Module):
    """Three projections, or one for all three, with its bias or without."""

    def __init__(self, *, is_joined: bool, has_bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.parts = nn.ModuleList([] if is_joined else parts)
        self.weight, self.bias = (
            (nn.Parameter(torch.cat([getattr(part, name).data for part in parts])) if is_joined else None)
            for name in ("weight", "bias")
        )
        self.has_bias = has_bias

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            query, key, value = (part(x) for part in self.parts)
        else:
            query, key, value = F.linear(x, self.weight, self.bias if self.has_bias else None).chunk(3, -1)
        return (torch.softmax(query @ key.transpose(-1, -2), -1) @ value).square().mean()


def test_a_bias_that_joined_projections_forget_is_named(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Projected(is_joined=False), Projected(is_joined=True, has_bias=False))
    assert "it does not use parts.0.bias" in verdict.headline, verdict


class Spectral(nn.Module):
    """A complex weight, or its real and its imaginary part, with all axes in another order."""

    def __init__(self, *, is_apart: bool, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        weight = torch.randn(WIDTH, WIDTH, dtype=torch.complex64)
        parts = [weight] if not is_apart else [weight.real.T.contiguous(), weight.imag.T.contiguous()]
        self.parts = nn.ParameterList(parts)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if len(self.parts) == 1:
            mixed = torch.einsum("ij,...i->...j", self.parts[0], h.to(torch.complex64))
            size = torch.view_as_real(mixed).square().sum(-1)
        else:
            size = F.linear(h, self.parts[0]).square() + self.factor * F.linear(h, self.parts[1]).square()
        return self.last(size).square().mean()


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_a_complex_weight_that_is_two_real_ones_in_the_other_run(factor: float, tmp_path: Path) -> None:
    verdict = compare(tmp_path, Spectral(is_apart=False), Spectral(is_apart=True, factor=factor))
    assert (verdict.kind == "agree") is (factor == 1.0), verdict


class InParts(nn.Module):
    """Attention and a layer behind it. `fault`: what is wrong with it."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        scale = 0.5 if self.fault == "scale" else 0.25
        weights = torch.softmax(scale * self.query(x) @ x.mT, -1)
        mixed = weights @ self.value(x)
        return self.out(F.gelu(3 * mixed, approximate="tanh" if self.fault == "gelu" else "none"))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("fault", "word"), [("", ""), ("scale", "0.5"), ("gelu", "approximate"), ("share", "div")])
@pytest.mark.some(3)  # each count
def test_a_mistake_in_a_batch_that_is_computed_in_parts_is_named(
    fault: str, word: str, count: int, tmp_path: Path
) -> None:
    x, target = torch.randn(2, 4, 5, WIDTH, generator=torch.Generator().manual_seed(2))
    for name, parts in (("r", 1), ("c", count)):
        model = InParts(fault if name == "c" else "")
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            share = parts + 1 if fault == "share" and name == "c" else parts
            for one, wanted in zip(x.chunk(parts), target.chunk(parts), strict=True):
                loss = F.mse_loss(model(one), wanted)
                (loss / share if parts > 1 else loss).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == "agree" if not fault else word in verdict.headline, verdict


def test_a_last_part_of_one_row_may_lose_its_axis(tmp_path: Path) -> None:
    x, target = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(3))
    for name, sizes, factor in (("r", [6], 1.0), ("c", [5, 1], 1.1)):
        model = InParts()
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            for one, wanted in zip(x.split(sizes), target.split(sizes), strict=True):
                made = model.out(F.gelu(factor * model.query(one))).squeeze()
                (F.mse_loss(made, wanted.squeeze()) * (len(one) / 6)).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind != "agree", verdict


class Looking(nn.Module):
    """Attention with turned queries and keys, with a table of angles; written out, or as one call."""

    def __init__(self, *, is_written_out: bool, is_turned: bool = True, window: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.joint = nn.Embedding(17, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 17)
        angles = torch.outer(torch.arange(9.0), torch.arange(WIDTH // 2) / 3)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)
        self.is_written_out, self.is_turned, self.window = is_written_out, is_turned, window

    def turn(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos[: x.shape[1]] + torch.cat([-second, first], -1) * self.sin[: x.shape[1]]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        query, key, value = self.joint(self.norm(x)).chunk(3, -1)
        query, key = self.turn(query), self.turn(key) if self.is_turned else key
        place = torch.arange(tokens.shape[1])
        seen = (place[:, None] - place).abs() <= self.window
        if self.is_written_out:
            scores = (query @ key.transpose(1, 2) / WIDTH**0.5).masked_fill(~seen, float("-inf"))
            mixed = scores.softmax(-1) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.last(x + mixed)


def record_looking(path: Path, model: Looking, parts: int) -> Path:
    tokens = torch.randint(0, 17, (4, 9), generator=torch.Generator().manual_seed(5))
    with tensorprobe.capture(model, path, level="L1", task="tensor"):
        for part in tokens.chunk(parts):
            loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
            (loss / parts).backward()
    return path


@pytest.mark.parametrize("is_turned", [True, False])
def test_attention_is_looked_into_also_where_the_batch_is_taken_in_halves(is_turned: bool, tmp_path: Path) -> None:
    reference = record_looking(tmp_path / "r", Looking(is_written_out=False), 2)
    candidate = record_looking(tmp_path / "c", Looking(is_written_out=True, is_turned=is_turned), 1)
    verdict = tensorprobe.compare(reference, candidate, processes=1).verdict
    assert (verdict.kind == "agree") is is_turned, verdict.headline
    lines = " ".join(str(line) for line in verdict.evidence)
    assert is_turned or "key.transpose" in lines or "self.turn(key)" in lines or "query, key, value" in lines, verdict


class Seeing(Looking):
    """As far as the window, and not up to it."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        query, key, value = self.joint(self.norm(x)).chunk(3, -1)
        query, key = self.turn(query), self.turn(key)
        place = torch.arange(tokens.shape[1])
        seen = (place[:, None] - place).abs() < self.window
        return self.last(x + F.scaled_dot_product_attention(query, key, value, attn_mask=seen))


def test_numbers_that_are_compared_in_another_way_are_named_before_what_is_masked_by_them(tmp_path: Path) -> None:
    reference = record_looking(tmp_path / "r", Looking(is_written_out=True), 1)
    candidate = record_looking(tmp_path / "c", Seeing(is_written_out=False), 1)
    headline = tensorprobe.compare(reference, candidate, processes=1).verdict.headline
    assert "compares with `lt` where the reference compares with `le`" in headline


# -- what is moved along -----------------------------------------------------------------------------------------------


class Followed(nn.Module):
    """A network, and one that follows it slowly. `share`: how far; `is_stopped`: are its results constants?"""

    def __init__(self, share: float, *, is_stopped: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.slow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.slow.requires_grad_(False)
        self.share, self.is_stopped = share, is_stopped

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        aim = self.slow(x) + 0.5 * (y.detach() if self.is_stopped else y)
        return (y - aim).square().mean()

    @torch.no_grad()
    def follow(self, by_hand: bool) -> None:
        for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
            if by_hand:
                slow.copy_((1 - self.share) * slow + self.share * fast)
            else:
                slow.mul_(1 - self.share).add_(self.share * fast)


def record_followed(path: Path, model: Followed, by_hand: bool) -> Path:
    optimizer = torch.optim.Adam(model.net.parameters(), 0.01)
    with tensorprobe.capture(model, path, level="L1", task="tensor"):
        model(draw_data(3)).backward()
        optimizer.step()
        model.follow(by_hand)
    return path


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_network_that_is_only_moved_along_is_held_against_that_of_the_other_run(share: float, tmp_path: Path) -> None:
    paths = (
        record_followed(tmp_path / "r", Followed(0.1), False),
        record_followed(tmp_path / "c", Followed(share), True),
    )
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert (verdict.kind == "agree") is (share == 0.1), verdict.headline


def test_a_gradient_is_named_before_what_comes_of_it_after_the_update(tmp_path: Path) -> None:
    reference = record_followed(tmp_path / "r", Followed(0.1), False)
    candidate = record_followed(tmp_path / "c", Followed(0.1, is_stopped=False), True)
    verdict = tensorprobe.compare(reference, candidate, processes=1).verdict
    assert verdict.call is not None
    assert "detach" in verdict.headline or "backward" in verdict.headline, verdict.headline


class Shifted(nn.Module):
    """What is added to all of a row before a softmax has no effect."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.shift = nn.Linear(WIDTH, WIDTH), nn.Parameter(shift + torch.rand(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) + self.shift).softmax(-1)[..., 0].sum()


def test_a_parameter_that_starts_otherwise_without_an_effect_is_told(tmp_path: Path) -> None:
    verdict = compare(tmp_path, Shifted(0.0), Shifted(1.0))
    assert verdict.kind == "agree", verdict.headline
    assert any("shift started from different values, with no effect" in line for line in verdict.evidence)
