"""A kernel that nothing sees into, and somebody who says what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.replay.meaning import registry
from tests.cli.command import run_here
from tests.replay.program import record


class Softplus(torch.autograd.Function):
    """log(1 + exp(x · factor)), in numpy: no call inside it is recorded that computes anything."""

    error_at: tuple[int, int] | None = None
    slope = 1.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        wide = x.detach().numpy().astype(np.float64)
        result = np.log1p(np.exp(wide * factor))
        ctx.gradient = (factor / (1 + np.exp(-wide * factor)) * Softplus.slope).astype(np.float32)
        if Softplus.error_at is not None:
            result[Softplus.error_at] *= 1.0001
        return torch.from_numpy(result.astype(np.float32))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.from_numpy(gradient.numpy() * ctx.gradient), None


class Halves(torch.autograd.Function):
    """Two results, and one that means nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        array = x.detach().numpy()
        return tuple(torch.from_numpy(part.copy()) for part in (array[:, :16], array[:, 16:], array[:, :1] * 0 + 7))

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> Any:
        return torch.cat((first, second), 1)


@pytest.fixture(autouse=True)
def forgotten_meanings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_GIVEN", {})
    monkeypatch.setattr(Softplus, "error_at", None)
    monkeypatch.setattr(Softplus, "slope", 1.0)
    yield
    registry.list_entries.cache_clear()


def train(folder: Path, call: Any = lambda h: Softplus.apply(h, 2.0)) -> Path:
    torch.manual_seed(0)
    first, last = nn.Linear(16, 32), nn.Linear(32, 8)
    x, y = torch.randn(64, 16), torch.randint(0, 8, (64,))
    return record(folder, nn.ModuleList([first, last]), lambda: F.cross_entropy(last(call(first(x))), y))


def say_softplus(x: torch.Tensor, factor: float) -> torch.Tensor:
    return F.softplus(x * factor)


def test_without_a_meaning_it_is_a_gap_and_the_report_says_how_to_give_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "truth", train(tmp_path))
    assert done.returncode == 0
    assert "not checked: Autograd.Softplus.0.forward (it made no recorded calls that give its results)" in done.stdout
    assert (
        "no function of torch: Autograd.Softplus. To have this checked, say what it computes: "
        '@tensorprobe.meaning("Autograd.Softplus") on a plain function of torch, in a file for --meaning'
    ) in " ".join(done.stdout.split())


def test_with_a_meaning_it_is_covered_forward_and_backward(tmp_path: Path) -> None:
    tensorprobe.meaning("Autograd.Softplus")(say_softplus)
    (run,) = tensorprobe.truth(train(tmp_path)).runs
    assert (run.findings, run.unchecked, run.coverage.without_meaning) == ([], {}, {})
    judged = {(row.record, row.slot) for row in run.rows if row.own is not None and row.accumulated is not None}
    assert {("Autograd.Softplus.0.forward", "output.0"), ("Autograd.Softplus.0.backward", "output.0")} <= judged
    assert all(row.share_of(run.largest_gradient) < 1e-5 for row in run.parameter_gradients)


def test_an_error_of_the_kernel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorprobe.meaning("Autograd.Softplus")(say_softplus)
    monkeypatch.setattr(Softplus, "error_at", (5, 7))
    (finding,) = tensorprobe.truth(train(tmp_path)).findings
    assert (finding.kind, finding.record) == ("kernel", "Autograd.Softplus.0.forward")
    assert finding.judgement is not None and finding.judgement.index == (5, 7)


def test_a_wrong_backward_of_the_kernel_is_named_with_its_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tensorprobe.meaning("Autograd.Softplus")(say_softplus)
    monkeypatch.setattr(Softplus, "slope", 1.001)
    folder = train(tmp_path)
    (finding,) = tensorprobe.truth(folder).findings
    assert (finding.kind, finding.record) == ("derivative", "Autograd.Softplus.0.backward")
    said = " ".join(run_here(capsys, "truth", folder).stdout.split())
    assert "is not the derivative of its meaning (tests.replay.meaning.test_registry.say_softplus)" in said


def test_a_meaning_of_a_custom_operator_is_found_without_its_overload(tmp_path: Path) -> None:
    @torch.library.custom_op("tensorprobe_test::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 3)

    tensorprobe.meaning("Ops.tensorprobe_test.triple")(lambda x: x * 3)
    (run,) = tensorprobe.truth(train(tmp_path, lambda h: h + triple(h.detach()))).runs
    assert (run.findings, run.unchecked) == ([], {})


WRONG = {
    "raised ZeroDivisionError: division by zero": lambda x, factor: 1 / 0,
    "gave 2 results where the kernel gave 1 result": lambda x, factor: (x, x),
    "gave a tensor of [64, 31] where the kernel gave [64, 32] (output.0)": lambda x, factor: x[:, 1:],
    "gave float where the kernel gave a tensor (output.0)": lambda x, factor: 1.0,
    "gave torch.float32 (output.0) for arguments in float64: name no dtype in it": lambda x, factor: x.float(),
    "does not cover a factor of 2": lambda x, factor: _refuse("a factor of 2"),
    "raised TypeError": lambda x: x,
}


def _refuse(what: str) -> None:
    raise NotImplementedError(what)


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_meaning_is_told_in_plain_words_for_that_call_alone(said: str, tmp_path: Path) -> None:
    tensorprobe.meaning("Autograd.Softplus")(WRONG[said])
    (run,) = tensorprobe.truth(train(tmp_path)).runs
    assert list(run.unchecked) == ["Autograd.Softplus.0.forward"]
    assert said in run.unchecked["Autograd.Softplus.0.forward"]
    assert run.findings == [] and run.coverage.replayed == run.coverage.call_count - 1


def test_a_result_that_a_meaning_does_not_say_is_taken_as_recorded(tmp_path: Path) -> None:
    tensorprobe.meaning("Autograd.Halves")(lambda x: (x[:, :16], x[:, 16:], None))
    folder = train(tmp_path, lambda h: torch.cat(Halves.apply(h)[:2], 1) + Halves.apply(h)[2].detach())
    (run,) = tensorprobe.truth(folder).runs
    assert (run.findings, run.unchecked) == ([], {})


class LigerSiLUMulFunction(torch.autograd.Function):
    """What tensorprobe knows by this name, or another one of the same name, whose calls are recorded."""

    is_other = False

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*given)
        if LigerSiLUMulFunction.is_other:
            return given[0] * 2
        first, second = (tensor.detach().numpy() for tensor in given)
        return torch.from_numpy(first / (1 + np.exp(-first)) * second)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if LigerSiLUMulFunction.is_other:
            return gradient * 2
        first, second = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            return torch.autograd.grad(F.silu(first) * second, (first, second), gradient)


def test_a_meaning_that_is_built_in_needs_nothing_from_the_user(tmp_path: Path) -> None:
    (run,) = tensorprobe.truth(train(tmp_path, lambda h: LigerSiLUMulFunction.apply(h, h * 2))).runs
    assert (run.findings, run.unchecked) == ([], {})


def test_the_meaning_of_the_user_wins_over_one_that_is_built_in(tmp_path: Path) -> None:
    tensorprobe.meaning("Autograd.LigerSiLUMulFunction")(lambda first, second: F.silu(first) * second * 1.001)
    (run,) = tensorprobe.truth(train(tmp_path, lambda h: LigerSiLUMulFunction.apply(h, h * 2))).runs
    assert {finding.record.rpartition(".")[0] for finding in run.findings} == {"Autograd.LigerSiLUMulFunction.0"}


def test_another_function_of_a_name_that_is_built_in_is_replayed_by_its_own_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LigerSiLUMulFunction, "is_other", True)
    (run,) = tensorprobe.truth(train(tmp_path, LigerSiLUMulFunction.apply)).runs
    assert (run.findings, run.unchecked) == ([], {})


class Fused(torch.autograd.Function):
    """A Function that calls a custom operator, as flash_attn does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.tensorprobe_test.negate(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


def test_a_kernel_inside_a_function_with_a_meaning_needs_none_of_its_own(tmp_path: Path) -> None:
    @torch.library.custom_op("tensorprobe_test::negate", mutates_args=())
    def negate(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(-x.numpy())

    folder = train(tmp_path, Fused.apply)
    assert "Ops.tensorprobe_test.negate.0.forward" in tensorprobe.truth(folder).runs[0].unchecked
    tensorprobe.meaning("Autograd.Fused")(lambda x: -x)
    (run,) = tensorprobe.truth(folder).runs
    assert (run.findings, run.unchecked) == ([], {})
    assert run.coverage.replayed == run.coverage.call_count


def test_an_installed_package_gives_meanings_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = train(tmp_path)
    place = f"{__name__}:say_softplus"
    entry = EntryPoint("Autograd.Softplus", place, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == "tensorprobe.meanings" else [])
    registry.list_entries.cache_clear()
    assert tensorprobe.truth(folder).runs[0].unchecked == {}
    broken = EntryPoint("Autograd.Softplus", "tensorprobe_nowhere:f", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken])
    registry.list_entries.cache_clear()
    ((record_name, said),) = tensorprobe.truth(folder).runs[0].unchecked.items()
    assert record_name == "Autograd.Softplus.0.forward"
    assert said.startswith("its meaning, tensorprobe_nowhere:f of an installed package, cannot be imported")


def test_the_command_takes_a_file_of_meanings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(
        "import tensorprobe\nimport torch\n\n"
        '@tensorprobe.meaning("Autograd.Softplus")\ndef softplus(x, factor):\n'
        "    return torch.nn.functional.softplus(x * factor)\n"
    )
    done = run_here(capsys, "truth", train(tmp_path / "dump"), "--meaning", file)
    assert done.returncode == 0 and "nothing is wrong" in done.stdout
    for text, said in (("x = 1", "gives no meaning"), ("1 / 0", "could not be run (ZeroDivisionError")):
        file.write_text(text)
        done = run_here(capsys, "truth", tmp_path / "dump", "--meaning", file)
        assert done.returncode == 2 and said in done.stderr
    done = run_here(capsys, "truth", tmp_path / "dump", "--meaning", tmp_path / "nowhere.py")
    assert done.returncode == 2 and "is not a Python file" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Softplus", "'Softplus' is not the name of a call: write it as `tensorprobe show` has it"),
        ("Autograd.Softplus.0.forward", "leave out its number and direction, tensorprobe.meaning('Autograd.Softplus')"),
        (3, "3 is not the name of a call"),
    ],
)
def test_a_name_that_no_call_can_have_is_refused_at_once(name: Any, said: str) -> None:
    with pytest.raises(tensorprobe.UsageError) as caught:
        tensorprobe.meaning(name)
    assert said in str(caught.value)
    with pytest.raises(tensorprobe.UsageError, match="needs the name of a call"):
        tensorprobe.meaning()
