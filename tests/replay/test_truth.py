"""One run against its truth: what is wrong is named, and nothing else is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.pytorch import seed_all
from tests.cli.command import run_here
from tests.replay.program import PROGRAMS, make_program, record


class Tanh(torch.autograd.Function):
    """Right, or with a derivative that lacks a square."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, is_right: bool) -> torch.Tensor:
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        ctx.is_right = is_right
        return y * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return gradient * (1 - (y * y if ctx.is_right else y)), None


def change_gradient(h: torch.Tensor) -> torch.Tensor:
    h.register_hook(lambda gradient: gradient * 1.01)
    return h


def write_unseen(h: torch.Tensor) -> torch.Tensor:
    h = F.relu(h)
    h.detach().numpy()[1, 3] = 0.5
    return h * 2


def overflow(h: torch.Tensor) -> torch.Tensor:
    return (h.half() * 30_000 * 10).clamp(-60_000, 60_000).float() / 300_000


def train(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    torch.manual_seed(0)
    first, last = nn.Linear(16, 32), nn.Linear(32, 8)
    x, y = torch.randn(64, 16), torch.randint(0, 8, (64,))
    return record(folder, nn.ModuleList([first, last]), lambda: F.cross_entropy(last(change(first(x))), y))


PLANTED = {
    "derivative": (lambda h: Tanh.apply(h, False), "Autograd.Tanh.0.backward"),
    "sum": (change_gradient, "Functional.linear.0.backward"),
    "write": (write_unseen, "Tensor.mul.0.forward"),
    "overflow": (overflow, "Tensor.mul.1.forward"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_wrong_is_named_without_a_reference(kind: str, tmp_path: Path) -> None:
    change, place = PLANTED[kind]
    findings = tensorprobe.truth(train(tmp_path, change)).findings
    assert (kind, place) in [(finding.kind, finding.record) for finding in findings]
    explained = {kind, "derivative"} if kind == "write" else {kind}  # the backward goes by what was written
    assert {finding.kind for finding in findings} <= explained


def test_what_is_wrong_is_told_in_the_order_in_which_it_ran(tmp_path: Path) -> None:
    """A backward begins with the last call."""
    findings = tensorprobe.truth(train(tmp_path, lambda h: Tanh.apply(Tanh.apply(h, False), False))).findings
    assert [finding.record for finding in findings] == ["Autograd.Tanh.1.backward", "Autograd.Tanh.0.backward"]


def test_a_kernel_that_errs_in_one_element_is_named(tmp_path: Path) -> None:
    library = torch.library.Library("aten", "IMPL")

    def err(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        result = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        result[1, 2] *= 1.0005
        return result

    library.impl("gelu", err, "CPU")
    try:
        folder = train(tmp_path, F.gelu)
    finally:
        library._destroy()
    (finding,) = tensorprobe.truth(folder).findings
    assert (finding.kind, finding.record) == ("kernel", "Functional.gelu.0.forward")
    assert finding.judgement is not None and finding.judgement.index == (1, 2)


def test_a_hook_on_a_parameter_is_named(tmp_path: Path) -> None:
    for level, place in (
        ("mix", ("Module.0.Linear.parameters_grad", "weight")),
        ("L1", ("backward_pass.0", "0.weight")),
    ):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)), torch.randn(5, 8)
        model[0].weight.register_hook(lambda gradient: gradient * 1.01)
        folder = record(tmp_path / level, model, lambda model=model, x=x: (model(x) ** 2).sum(), level)  # type: ignore[misc]
        (finding,) = tensorprobe.truth(folder).findings
        assert (finding.kind, finding.record, finding.slot) == ("sum", *place)


def route(h: torch.Tensor) -> torch.Tensor:
    """Two experts whose weights are one number in bfloat16, and not in float64."""
    weights = torch.stack([h[:, 0], h[:, 0] * (1 + 2.0**-12)], 1).sigmoid().bfloat16()
    values, places = weights.topk(1)
    return h * values.float() * (1 + places.float())


def take_largest(h: torch.Tensor) -> torch.Tensor:
    near = torch.stack([h[:, 0], h[:, 0] * (1 + 2.0**-12)], 1).bfloat16()
    return h * near.argmax(1, keepdim=True)


def mask(h: torch.Tensor) -> torch.Tensor:
    """Half of the rows lie just above the limit, and are rounded onto it."""
    limits = (0.5 + (h[:, :1] > 0) * 2.0**-10).bfloat16()
    return h * (limits > 0.5)


DECIDED = {
    "a router": (route, "Tensor.topk.0.forward", 2.0**-12),
    "an argmax": (take_largest, "Tensor.argmax.0.forward", 2.0**-10),
    "a mask": (mask, "Tensor.gt.1.forward", 2.0**-10),
}


@pytest.mark.parametrize("kind", DECIDED)
def test_a_decision_that_truth_makes_otherwise_is_told_with_its_margin(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, place, margin = DECIDED[kind]
    (run,) = tensorprobe.truth(train(tmp_path, change)).runs
    assert run.findings == []
    assert list(run.coverage.decisions) == [place]
    decision = run.coverage.decisions[place]
    assert 0 < decision.count < decision.total
    assert decision.margin is not None and 0 < decision.margin <= margin
    assert decision.is_explained
    done = run_here(capsys, "truth", tmp_path)
    assert done.returncode == 0
    assert f"{place} would decide otherwise without rounding, in {decision.count} of {decision.total}" in done.stdout


def test_an_overflow_that_a_clamp_hides_is_named_with_its_count(tmp_path: Path) -> None:
    report = tensorprobe.truth(train(tmp_path, overflow))
    (found,) = [finding for finding in report.findings if finding.record == "Tensor.mul.1.forward"]
    assert found.kind == "overflow" and found.count > 0


@contextmanager
def filled_memory(byte: int) -> Iterator[None]:
    """What the C library hands out holds this byte everywhere."""
    set_option, perturb = ctypes.CDLL(None).mallopt, -6
    set_option(perturb, byte ^ 0xFF)
    try:
        yield
    finally:
        set_option(perturb, 0)


def test_what_a_backward_makes_of_memory_that_nobody_has_written_to_is_no_finding(tmp_path: Path) -> None:
    """A pipeline asks in this way which shapes the gradients of its stages have. What lies there may be anything."""

    def ask_for_shapes(h: torch.Tensor) -> torch.Tensor:
        with filled_memory(0x7E):
            garbage = torch.empty_like(h)  # of 8e37
        squared = garbage.requires_grad_() * garbage
        squared.backward(torch.full_like(squared, 4.0))
        assert garbage.grad is not None and garbage.grad.isinf().all()
        return h

    (run,) = tensorprobe.truth(train(tmp_path, ask_for_shapes)).runs
    assert run.findings == []


def test_a_right_derivative_is_no_finding(tmp_path: Path) -> None:
    assert tensorprobe.truth(train(tmp_path, lambda h: Tanh.apply(h, True)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found_in_a_right_run(name: str, tmp_path: Path) -> None:
    (run,) = tensorprobe.truth(record(tmp_path, *make_program(name))).runs
    assert run.findings == [] and run.unchecked == {}
    effects = [row.effect for row in run.rows if row.effect is not None and not row.record.startswith("Autograd")]
    ((_, recorded, true),) = run.losses
    assert sum(effects) == pytest.approx(recorded - true, abs=1e-8)


def test_the_command_says_what_is_wrong_first_and_exits_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "truth", train(tmp_path, PLANTED["derivative"][0]))
    assert done.returncode == 1
    first, second, *_ = done.stdout.splitlines()
    assert first == "step0/rank: 1 thing is wrong."
    assert second.startswith("  wrong: Autograd.Tanh.0.backward is not the derivative of its forward call")


def test_a_run_of_which_nothing_can_be_said_is_no_right_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(tmp_path, F.relu)
    for path in (folder / "step0" / "rank" / "dump_tensor_data").iterdir():
        path.unlink()
    done = run_here(capsys, "truth", folder)
    assert done.returncode == 2 and "could not be checked" in done.stdout
    assert not tensorprobe.truth(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"level": "L0", "task": "tensor"}, "has no calls to replay"), ({"level": "L1"}, "keeps no tensors")],
)
def test_a_dump_that_cannot_be_replayed_says_what_to_record(tmp_path: Path, settings: Any, said: str) -> None:
    model = nn.Linear(2, 2)
    with tensorprobe.capture(model, tmp_path, **settings) as run:
        model(torch.ones(1, 2)).sum().backward()
        run.step()
    with pytest.raises(tensorprobe.DumpError, match=said):
        tensorprobe.truth(tmp_path)


def test_a_filter_that_no_call_passes_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "truth", train(tmp_path, F.relu), "--filter", "nowhere")
    assert done.returncode == 0 and "has 'nowhere' in its name" in done.stderr


class Everywhere(nn.Module):
    """Dropout in a layer, in attention, between the layers of an LSTM; one tensor is query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.lstm, self.dropout = nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(x + self.attention(x, x, x, need_weights=False)[0])
        return self.lstm(F.scaled_dot_product_attention(x, x, x, dropout_p=0.3))[0]


def test_dropouts_that_were_removed_drop_nothing_in_the_truth(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Everywhere(), torch.randn(2, 5, 8)
    with seed_all(1, rm_dropout=True):
        record(tmp_path, model, lambda: (model(x) ** 2).mean())
        wanted = float((model.double()(x.double()) ** 2).mean())
    (found,) = tensorprobe.truth(tmp_path).runs
    assert not found.findings and not found.unchecked
    assert found.losses[0][2] == pytest.approx(wanted, abs=1e-12)


class _Scaled(torch.autograd.Function):
    """Whose backward is 2 % too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.02


def _hook(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: gradient * 1.02)
    return x


@pytest.mark.parametrize(
    ("change", "kind"),
    [(_hook, "sum"), (_Scaled.apply, "derivative"), (lambda x: x, None)],
    ids=["hook", "Function", "none"],
)
def test_a_gradient_that_is_a_little_too_large_everywhere_is_found_in_bfloat16(
    change: Any, kind: str | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).bfloat16()
    x = torch.randn(16, 32).bfloat16()
    dump = record(tmp_path, model, lambda: model[1](change(model[0](x)).relu()).square().mean())
    found = tensorprobe.truth(dump).findings
    assert [finding.kind for finding in found] == ([kind] if kind else [])


def test_a_run_that_was_killed_in_the_step_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = train(tmp_path, lambda h: h * 2)
    assert "ended before" not in run_here(capsys, "truth", dump).stdout
    run = next(dump.glob("step0/*/run.json"))
    run.write_text(run.read_text().replace('"complete": true', '"complete": false'))
    assert "the run ended before this step did" in run_here(capsys, "truth", dump).stdout
