"""Two small programs that are written in different ways, and what is wrong with one of them: which call is named?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Comparison

Program = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Weights(nn.Module):
    """What all programs here compute with."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name in ("a", "b", "c"):
            setattr(self, name, nn.Parameter(torch.randn(8, 8, generator=generator) * 0.4))
        self.bias = nn.Parameter(torch.randn(8, generator=generator))
        self.experts = nn.Parameter(torch.randn(3, 8, 8, generator=generator) * 0.4)
        self.program: Program | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.program is not None
        return self.program(self, x)


def record(folder: Path, program: Program) -> Path:
    model = Weights()
    model.program = program
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        loss = model(x)
        if loss.requires_grad:
            loss.backward()
    return folder


def compare(tmp_path: Path, reference: Program, candidate: Program) -> Comparison:
    return tensorprobe.compare(record(tmp_path / "r", reference), record(tmp_path / "c", candidate), by="truth")


def named(result: Comparison) -> set[str]:
    """The functions of all calls that are named."""
    call = result.verdict.call
    assert call is not None, result.verdict.headline
    calls = (*call.reference, *call.candidate, *result.verdict.suspects)
    return {one.name.split(".")[1] for one in calls}


# -- values that one run has in parts ----------------------------------------------------------------------------------


def chosen_rows(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A mixture of experts, each for the rows that chose it."""
    share, place = (x @ model.a)[:, :3].softmax(-1).topk(2)
    share = share / share.sum(-1, keepdim=True)
    total = torch.zeros_like(x)
    for number, weight in enumerate(model.experts):
        row, column = torch.where(place == number)
        total = total.index_add(0, row, F.silu(x[row] @ weight) * share[row, column].unsqueeze(-1))
    return (total @ model.b).square().mean()


def all_rows(model: nn.Module, x: torch.Tensor, is_normal: bool = True) -> torch.Tensor:
    share, place = (x @ model.a)[:, :3].softmax(-1).topk(2)
    if is_normal:
        share = share / share.sum(-1, keepdim=True)
    shares = torch.zeros(6, 3).scatter(1, place, share)
    parts = [F.silu(x @ weight) * shares[:, number, None] for number, weight in enumerate(model.experts)]
    return (sum(parts) @ model.b).square().mean()


def test_experts_for_the_rows_that_chose_them_are_those_for_all_rows(tmp_path: Path) -> None:
    assert compare(tmp_path, chosen_rows, all_rows).verdict.kind == "agree"


def test_weights_of_experts_that_do_not_add_up_to_one_are_named(tmp_path: Path) -> None:
    result = compare(tmp_path, chosen_rows, lambda model, x: all_rows(model, x, is_normal=False))
    assert named(result) & {"sum", "div", "__truediv__"}, result.verdict.headline


def weigh(rows: torch.Tensor) -> torch.Tensor:
    """A loss for which the order counts."""
    return (rows * torch.linspace(0.5, 2, len(rows)).unsqueeze(1)).square().mean()


def waves_one_by_one(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    parts = [wave(x * 2.0**octave) for octave in range(2) for wave in (torch.sin, torch.cos)]
    return weigh(torch.cat(parts, 1).reshape(24, 8) @ model.a)


def waves_at_once(model: nn.Module, x: torch.Tensor, is_exchanged: bool = False) -> torch.Tensor:
    angle = x[:, None] * torch.tensor([1.0, 2.0]).reshape(2, 1)
    pair = (torch.cos(angle), torch.sin(angle)) if is_exchanged else (torch.sin(angle), torch.cos(angle))
    return weigh(torch.stack(pair, 2).reshape(24, 8) @ model.a)


def test_parts_that_are_put_together_in_another_order_are_named_with_the_calls_that_move_them(tmp_path: Path) -> None:
    assert compare(tmp_path / "right", waves_one_by_one, waves_at_once).verdict.kind == "agree"
    result = compare(tmp_path, waves_one_by_one, lambda model, x: waves_at_once(model, x, is_exchanged=True))
    assert "stack" in named(result), result.verdict.headline


# -- what exists, but not in this place --------------------------------------------------------------------------------


def gated(model: nn.Module, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    joint = x @ model.a
    gate, value = (joint.roll(4, -1) if fault == "roll" else joint).chunk(2, -1)
    both = torch.sigmoid(gate) * torch.tanh(value)
    heads = both.view(6, 2, 2).transpose(1, 2) if fault == "heads" else both.view(6, 2, 2)
    added = x @ model.b + (0 if fault == "bias" else model.bias)
    return (torch.cat([heads.flatten(1), added], 1)[:, :8] @ model.c).square().mean() + added.square().mean()


@pytest.mark.parametrize(("fault", "word"), [("roll", "roll"), ("heads", "transpose"), ("bias", "add")])
def test_a_call_that_only_one_run_has_is_named(fault: str, word: str, tmp_path: Path) -> None:
    result = compare(tmp_path, gated, lambda model, x: gated(model, x, fault))
    assert word in {name.strip("_") for name in named(result)}, result.verdict.headline


# -- results -----------------------------------------------------------------------------------------------------------


def trained_and_tested(model: nn.Module, x: torch.Tensor, slope: float = 0.0) -> torch.Tensor:
    """Of the second part only a choice is asked for."""
    loss = (x @ model.a).square().mean()
    F.leaky_relu(x @ model.b, slope).argmax(-1)
    return loss


def test_numbers_that_only_a_choice_is_made_of_are_results(tmp_path: Path) -> None:
    result = compare(tmp_path, trained_and_tested, lambda model, x: trained_and_tested(model, x, 0.01))
    assert named(result) == {"leaky_relu"}, result.verdict.headline


def test_memory_that_is_filled_part_by_part_is_no_result_of_a_step(tmp_path: Path) -> None:
    """As many numbers lie in a part of the batch in one run as in another part in the other."""

    def program(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        joined = x.new_empty(len(x), 6)
        joined[:, :4].copy_((x @ model.a)[:, :4])
        joined[:, 4:].copy_((x @ model.b)[:, :2])
        return (joined @ model.c[:6]).square().mean()

    def halves(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (program(model, x[:3]) + program(model, x[3:])) / 2

    assert compare(tmp_path, program, halves).verdict.kind == "agree"


# -- what looks unlike behind a difference, and is not -----------------------------------------------------------------


def test_sums_in_another_order_are_no_difference_beside_one(tmp_path: Path) -> None:
    """`(a + b) + c` against `c + (a + b)` in three ways: the terms are the same, but for the one that is wrong."""

    def terms(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tanh(x @ model.a), torch.sigmoid(x @ model.b), x @ model.c

    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        first, second, third = terms(model, x)
        return ((first + second) + torch.relu(third)).square().mean()

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        first, second, third = terms(model, x)
        return torch.stack([first, second + F.gelu(third)]).sum(0).square().mean()

    assert named(compare(tmp_path, reference, candidate)) == {"relu", "gelu"}


def test_a_term_that_is_subtracted_is_named(tmp_path: Path) -> None:
    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return ((x + torch.tanh(x @ model.a)) + torch.sigmoid(x @ model.b)).square().mean()

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(x @ model.b) - torch.tanh(x @ model.a) + x).square().mean()

    assert named(compare(tmp_path, reference, candidate)) & {"add", "sub"}


def test_a_number_that_is_made_of_a_shape_says_nothing_of_the_numbers_in_it(tmp_path: Path) -> None:
    """`new_full` gives the same in both runs, whatever its tensor holds."""

    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        scores = torch.relu(x @ model.a)
        return (scores * scores.new_full((), 1.7) @ model.b).square().mean()

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        scores = F.silu(x @ model.a)
        return (scores * scores.new_full((), 1.7) @ model.b).square().mean()

    assert named(compare(tmp_path, reference, candidate)) == {"relu", "silu"}


def test_what_only_one_run_computes_in_a_coarser_dtype_is_told_although_both_mean_the_same(tmp_path: Path) -> None:
    def norm(model: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        y = torch.tanh(x @ model.a).bfloat16() @ model.b.bfloat16()
        for weight in (model.a, model.b, model.c):
            y = torch.relu(y @ weight.bfloat16())
        wide = y.to(dtype)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide.bfloat16() @ model.c.bfloat16()).float().square().mean()

    result = compare(
        tmp_path, lambda model, x: norm(model, x, torch.float32), lambda model, x: norm(model, x, torch.bfloat16)
    )
    assert result.verdict.kind == "agree"
    (told,) = (line for line in result.verdict.evidence if line.startswith("precision: "))
    assert "the first at Tensor.to." in told
    assert told.endswith("(bfloat16 instead of float32)")


def test_another_function_is_not_said_to_be_a_multiple(tmp_path: Path) -> None:
    """Inside a sigmoid there is the negative of what a ReLU is given, too."""
    result = compare(
        tmp_path,
        lambda model, x: torch.relu(x @ model.a).square().mean(),
        lambda model, x: torch.sigmoid(x @ model.a).square().mean(),
    )
    assert "times that of the reference" not in result.verdict.headline
    assert "relu" in result.verdict.headline
    assert "sigmoid" in result.verdict.headline


# -- gradients ---------------------------------------------------------------------------------------------------------


def twice_used(model: nn.Module, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    """A table of which all is taken, twice."""
    table = model.a * 2
    first, second = table[0:8], table[0:8].unsqueeze(0)
    y = torch.tanh(x @ (first.detach() if fault == "first" else first))
    gate, value = (y @ model.b).chunk(2, -1)
    z = torch.sigmoid(gate) * (value.detach() if fault == "value" else value)
    return (torch.cat([z, z], 1) @ second[0]).square().mean()


@pytest.mark.parametrize(("fault", "words"), [("first", {"matmul", "__matmul__"}), ("value", {"mul", "__mul__"})])
def test_the_call_that_stops_a_gradient_is_named_with_the_one_that_gives_it_back(
    fault: str, words: set[str], tmp_path: Path
) -> None:
    result = compare(tmp_path, twice_used, lambda model, x: twice_used(model, x, fault))
    assert named(result) & words, result.verdict.headline
    assert "detach" in named(result)
    assert "it lets no gradient through, but the reference does" in result.verdict.headline


def test_a_gradient_that_only_the_reference_stops_is_named_where_it_does(tmp_path: Path) -> None:
    """The first call whose gradients part is the product; what is missing is far before it."""

    def weigh(model: nn.Module, x: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
        share = torch.softmax(-(judged - x[:, :1]).square().mean(1), 0)
        return ((x @ model.b).square().mean(1) * share).sum()

    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return weigh(model, x, torch.tanh(x @ model.a).detach())

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return weigh(model, x, torch.tanh(x @ model.a))

    result = compare(tmp_path, reference, candidate)
    assert named(result) == {"detach", "sub"}, result.verdict.headline
    assert "it lets a gradient through, but the reference stops it there" in result.verdict.headline


def straight_through(model: nn.Module, x: torch.Tensor, is_straight: bool = True) -> torch.Tensor:
    h = x @ model.a
    code = torch.round(h * 8) * 0.125
    passed = h + (code - h).detach() if is_straight else code
    return (passed @ model.b).square().mean() + (h - code.detach()).square().mean()


def test_what_is_not_passed_straight_through_is_named(tmp_path: Path) -> None:
    result = compare(tmp_path, straight_through, lambda model, x: straight_through(model, x, is_straight=False))
    assert {"add", "__add__", "round"} & named(result), result.verdict.headline


def test_a_view_that_gets_no_gradient_is_named_where_it_is_taken(tmp_path: Path) -> None:
    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        first, second = (F.normalize(one @ model.a, dim=-1) for one in (x, x.flip(1)))
        return (first @ second.T).square().mean()

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        first, second = (one @ model.a for one in (x, x.flip(1)))
        first, second = (one / one.norm(dim=-1, keepdim=True) for one in (first, second))
        return (first @ second.detach().transpose(0, 1)).square().mean()

    result = compare(tmp_path, reference, candidate)
    assert "it lets no gradient through" in result.verdict.headline
    assert named(result) == {"matmul", "detach"}


def test_a_transpose_that_is_left_out_is_named(tmp_path: Path) -> None:
    """Its result has the numbers of what goes in: all values of the candidate exist in the reference, too."""

    def attend(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        query, key, value = ((x @ weight).view(6, 2, 4).transpose(0, 1) for weight in (model.a, model.b, model.c))
        return F.scaled_dot_product_attention(query, key, value)

    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (attend(model, x).transpose(0, 1).reshape(6, 8) @ model.experts[0]).square().mean()

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (attend(model, x).reshape(6, 8) @ model.experts[0]).square().mean()

    result = compare(tmp_path, reference, candidate)
    assert (
        "only the reference calls Tensor.transpose.3.forward before Tensor.reshape.0.forward" in result.verdict.headline
    )
    assert named(result) == {"transpose", "reshape"}
    (reshape,) = (call for call in result.ranks[0].calls if call.reference[0].name == "Tensor.reshape.0.forward")
    assert reshape.candidate[0].name == "Tensor.reshape.0.forward"


View = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (lambda rows: rows.reshape(3, 4, 4).mT, lambda rows: rows.reshape(3, 4, 4)),
        (lambda rows: torch.fft.rfft(rows).real, lambda rows: torch.fft.rfft(rows).imag),
        (lambda rows: torch.fft.rfft(rows).mH, lambda rows: torch.fft.rfft(rows).mT),
    ],
)
def test_another_view_is_named_where_it_is_taken(reference: View, candidate: View, tmp_path: Path) -> None:
    """No call makes `.mT` or `.imag`, and what makes the tensor under it is the same in both runs."""

    def write(look: View) -> Program:
        def program(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            taken = look(torch.tanh(x @ model.a))
            factor = torch.arange(1, taken.shape[-2] + 1).to(taken.dtype) + (2j if taken.is_complex() else 0)
            return torch.matmul(factor, taken).abs().square().mean()

        return program

    result = compare(tmp_path, write(reference), write(candidate))
    assert "as input.1 it takes another view of the result of" in result.verdict.headline, result.verdict
    assert named(result) == {"matmul"}
    assert any("all of the loss difference disappears" in line for line in result.verdict.evidence)


def test_a_square_weight_that_one_run_turns_by_itself_is_no_difference(tmp_path: Path) -> None:
    def reference(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, model.a)), model.b).square().mean()

    def candidate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        turned = model.b.transpose(0, 1)  # before all else
        return (F.relu(x @ model.a.transpose(0, 1)) @ turned).square().mean()

    assert named(compare(tmp_path, reference, candidate)) == {"gelu", "relu"}


# -- a wrong value that the reference has elsewhere --------------------------------------------------------------------


def turn(x: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    """Both halves, turned by their places: what `speed` gives is made of it alone."""
    angle = torch.arange(6.0)[:, None] * speed
    return x * torch.cat((angle, angle), -1).cos()


SLOW, FAST = torch.tensor([1.0, 0.3, 0.09, 0.027]), torch.tensor([1.0, 0.1, 0.01, 0.001])


def two_speeds(model: nn.Module, x: torch.Tensor, first: torch.Tensor = SLOW) -> torch.Tensor:
    return (turn(turn(x @ model.a, first) @ model.b, FAST) @ model.c).square().mean()


def test_a_table_for_another_is_named_where_it_enters(tmp_path: Path) -> None:
    """All that is made of the wrong table alone is in the reference, too: it is the right one of another layer."""
    result = compare(tmp_path, two_speeds, lambda model, x: two_speeds(model, x, FAST))
    assert result.verdict.call is not None
    assert [one.name for one in result.verdict.call.candidate] == ["Tensor.mul.0.forward"]
    assert "input.1" in result.verdict.headline


# -- a loss that is the same as far as it is known ---------------------------------------------------------------------


@torch.jit.script  # which is not executed again: so all else is known to its rounding only
def size_of(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)


def slight(model: nn.Module, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """What is wrong hardly shows in the loss."""
    hidden = F.gelu(x @ model.a / size_of(x), approximate=approximate) @ model.b
    return hidden.square().mean() * 1e-3 + (x @ model.c).square().mean()


def test_a_fault_that_shows_in_the_gradients_alone_is_named_in_the_forward(tmp_path: Path) -> None:
    result = compare(tmp_path, slight, lambda model, x: slight(model, x, "tanh"))
    assert "approximate='tanh'" in result.verdict.headline


def test_a_constant_of_one_expert_after_the_other_is_named_where_all_are_computed_at_once(tmp_path: Path) -> None:
    """Both put the rows of the experts together in their own ways, and the difference is behind that."""

    def sorted_rows(model: nn.Module, x: torch.Tensor, slope: float = 1.702) -> torch.Tensor:
        place = (x @ model.a)[:, :3].argmax(-1)
        order = place.argsort()
        hidden = torch.einsum("ni,nij->nj", x[order], model.experts[place[order]])
        hidden = hidden * torch.sigmoid(hidden * slope)
        return (torch.zeros_like(x).index_copy(0, order, hidden) @ model.b).square().mean()

    def rows_of_each(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        place, total = (x @ model.a)[:, :3].argmax(-1), torch.zeros_like(x)
        for number, weight in enumerate(model.experts):
            row = torch.where(place == number)[0].flip(0)
            hidden = x[row] @ weight
            total = total.index_copy(0, row, hidden * torch.sigmoid(hidden * 1.702))
        return (total @ model.b).square().mean()

    assert compare(tmp_path / "right", rows_of_each, sorted_rows).verdict.kind == "agree"
    result = compare(tmp_path, rows_of_each, lambda model, x: sorted_rows(model, x, 1.5))
    assert "1.702" in result.verdict.headline, result.verdict.headline


# -- what is said of runs that agree -----------------------------------------------------------------------------------


def test_of_runs_without_a_backward_no_gradient_is_said_to_be_the_same(tmp_path: Path) -> None:
    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return F.silu(x @ model.a) @ model.b

    verdict = compare(tmp_path, run, run).verdict
    assert verdict.kind == "agree"
    assert "gradient" not in verdict.headline


# -- a mistake in a block that is repeated -----------------------------------------------------------------------------


def blocks(activate: Callable[[torch.Tensor], torch.Tensor], *, is_written_out: bool = False) -> Program:
    """Two blocks with a norm of the batch each, whose mean is kept: that of the second one depends on nothing that
    comes before the norm of the first one."""

    def norm(h: torch.Tensor, kept: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if not is_written_out:
            return F.batch_norm(h, kept, torch.ones(8), None, bias, training=True, momentum=0.3)
        mean = h.mean(0)
        kept.copy_(0.7 * kept + 0.3 * mean)
        return (h - mean) / (h.var(0, unbiased=False) + 1e-5).sqrt() + bias

    def program(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for weight in (model.a, model.b):
            x = norm(x @ weight, torch.zeros(8), model.bias)
            x = activate(x @ model.c) @ model.c.T
            x = norm(x, torch.zeros(8), model.bias)
        return x.square().mul(torch.linspace(0, 1, 8)).mean()

    return program


def test_another_activation_in_every_block_is_named_and_no_norm_that_is_only_written_out(tmp_path: Path) -> None:
    result = compare(tmp_path, blocks(F.silu), blocks(F.relu, is_written_out=True))
    assert named(result) == {"silu", "relu"}
    assert {one.name.split(".")[2] for one in result.verdict.call.candidate} == {"0"}  # type: ignore[union-attr]


def test_blocks_that_are_only_written_out_agree(tmp_path: Path) -> None:
    assert compare(tmp_path, blocks(F.silu), blocks(F.silu, is_written_out=True)).verdict.kind == "agree"


@pytest.mark.parametrize("momentum", [0.3, 0.7])
def test_a_norm_whose_channels_come_last_agrees_if_it_keeps_the_same(momentum: float, tmp_path: Path) -> None:
    def channels_first(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = F.conv1d(x.reshape(2, 3, 8).transpose(1, 2), model.a.unsqueeze(-1))
        kept = torch.zeros(8), torch.ones(8)
        return F.batch_norm(y, *kept, None, model.bias, training=True, momentum=0.3).pow(3).mean()

    def channels_last(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, model.a)
        kept = torch.zeros(8), torch.ones(8)
        return F.batch_norm(y, *kept, None, model.bias, training=True, momentum=momentum).pow(3).mean()

    verdict = compare(tmp_path, channels_first, channels_last).verdict
    assert (verdict.kind == "agree") is (momentum == 0.3), verdict.headline


def test_what_a_value_was_before_is_not_taken_for_what_it_should_be(tmp_path: Path) -> None:
    """The reference looks numbers up in a mean of two tables; the candidate in the first of them, as it was."""
    places = torch.tensor([0, 3, 3, 5])

    def look_up(model: nn.Module, x: torch.Tensor, *, is_mixed: bool) -> torch.Tensor:
        table = torch.lerp(model.a.detach(), model.b.detach(), 0.2) if is_mixed else model.a.detach()
        return (F.embedding(places, table) @ model.c).square().mean() + x.square().mean()

    result = compare(
        tmp_path, lambda model, x: look_up(model, x, is_mixed=True), lambda model, x: look_up(model, x, is_mixed=False)
    )
    assert named(result) == {"lerp", "embedding"}, result.verdict.headline


def test_what_is_computed_twice_in_the_place_of_something_else_is_named(tmp_path: Path) -> None:
    """A loss over the rows and over the columns: in the candidate over the rows, twice."""

    def compute(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        scores, labels = x[:6] @ model.a[:, :6], torch.arange(6)
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2

    def write_out(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        scores = x[:6] @ model.a[:, :6]
        rows = -scores.log_softmax(dim=1).diagonal().mean()
        return 0.5 * (rows - scores.log_softmax(dim=1).diagonal().mean())

    result = compare(tmp_path, compute, write_out)
    assert named(result) == {"t", "log_softmax"}, result.verdict.headline


def test_a_product_that_casts_and_one_under_autocast_lose_the_same_digits(tmp_path: Path) -> None:
    def under_autocast(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = F.linear(F.layer_norm(x, (8,)), model.a)
            return F.linear(F.layer_norm(hidden, (8,)), model.b).float().square().mean()

    def with_casts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(F.layer_norm(x, (8,)).bfloat16(), model.a.bfloat16())
        return F.linear(F.layer_norm(hidden.float(), (8,)).bfloat16(), model.b.bfloat16()).float().square().mean()

    verdict = compare(tmp_path, under_autocast, with_casts).verdict
    assert verdict.kind == "agree", verdict.headline


class Turn(nn.Module):
    """Two tables of frequencies, as networks have them whose layers look near and far."""

    def __init__(self, near: float, far: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))
        for name, base in (("near", near), ("far", far)):
            self.register_buffer(name, base ** -(torch.arange(8) / 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near, far = ((x[:, :1] * getattr(self, name)).cos() for name in ("near", "far"))
        return ((x * near) @ self.weight * far).square().mean()


def test_a_table_that_the_other_run_has_in_another_place_is_named_as_the_start(tmp_path: Path) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for name, bases in (("r", (100.0, 100.0)), ("c", (20.0, 100.0))):
        model = Turn(*bases)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert "near differs at the start" in verdict.headline or "input.1 of Tensor.mul.0" in verdict.headline
