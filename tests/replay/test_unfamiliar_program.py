"""Programs of kinds that no other test has: right ones, of which nothing is named and every value comes again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tests.cli.command import run_here
from tests.integration.script import run_script as run_program
from tests.warm import run_warm

Capture = pytest.CaptureFixture[str]
Program = tuple[nn.Module, Callable[[], Any]]


class Double(torch.autograd.Function):
    """Writes into what it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Cube(torch.autograd.Function):
    """Its backward rounds otherwise than the derivative of what it calls."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * gradient * x**2


def train_cells() -> Program:
    """`lstm_cell` makes its first result of its second."""
    cell, x = nn.LSTMCell(4, 5), torch.randn(3, 6, 4)

    def step() -> None:
        state = torch.zeros(3, 5), torch.zeros(3, 5)
        for number in range(6):
            state = cell(x[:, number], state)
        (state[0] * state[1]).mean().backward()

    return cell, step


def train_twice_on_one_graph() -> Program:
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)

    def step() -> None:
        hidden = layer(x).tanh()
        (hidden.sum() * 0.1).backward(retain_graph=True)
        hidden[:, 0].mean().backward()

    return layer, step


def train_two_steps() -> Program:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(5, 4)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def step() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    return model, step


def penalize_the_gradient() -> Program:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 1)), torch.randn(5, 4)

    def step() -> None:
        given = x.clone().requires_grad_()
        result = model(given)
        (slope,) = torch.autograd.grad(result.sum(), given, create_graph=True)
        (result.mean() + (slope.norm(2, 1) - 1).square().mean()).backward()

    return model, step


def train_in_two_parts() -> Program:
    """The first part is trained with the gradient that came to what it handed over."""
    model, x = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 2)]), torch.randn(5, 4)

    def step() -> None:
        handed_over = model[0](x).relu()
        received = handed_over.detach().requires_grad_()
        model[1](received).square().mean().backward()
        handed_over.backward(received.grad)

    return model, step


def call_functions() -> Program:
    layer, x = nn.Linear(4, 4), torch.randn(5, 4)
    return layer, lambda: (Double.apply(layer(x).clone()).tanh() + Cube.apply(layer(x))).sum().backward()


def drop_channels() -> Program:
    layer, x = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 6, 6)
    return layer, lambda: F.dropout2d(layer(x), 0.4).square().mean().backward()


def pack_a_sequence() -> Program:
    network, x = nn.LSTM(4, 5, 2, dropout=0.3), [torch.randn(length, 4) for length in (6, 4, 1)]

    def step() -> None:
        packed = nn.utils.rnn.pack_sequence(x)
        nn.utils.rnn.pad_packed_sequence(network(packed)[0])[0].square().mean().backward()

    return network, step


def fill_new_memory() -> Program:
    layer, x = nn.Linear(4, 4), torch.randn(5, 4)

    def step() -> None:
        with torch.no_grad():
            rows = torch.empty(10, 4)
            torch.mul(x, 2, out=rows[::2])
            torch.mul(x, 3, out=rows[1::2])
        (layer(x) * rows[:5]).sum().backward()

    return layer, step


def make_a_layer_on_the_way() -> Program:
    layer, x = nn.Linear(4, 4), torch.randn(5, 4)
    return layer, lambda: nn.Linear(4, 2)(layer(x)).square().mean().backward()


def choose_by_lists() -> Program:
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)

    def step() -> None:
        y = layer(x)
        (y[:, [True, False, True]].sum() + y[torch.tensor(1)].prod() + y[[0, 2]].square().sum()).backward()

    return layer, step


PROGRAMS = (
    train_cells,
    train_twice_on_one_graph,
    train_two_steps,
    penalize_the_gradient,
    train_in_two_parts,
    call_functions,
    drop_channels,
    pack_a_sequence,
    fill_new_memory,
    make_a_layer_on_the_way,
    choose_by_lists,
)


def record(folder: Path, make: Callable[[], Program], level: str = "mix", task: str = "tensor") -> Path:
    torch.manual_seed(0)
    model, step = make()
    with tensorprobe.capture(model, folder, level=level, task=task) as run:
        step()
        run.step()
    return folder


@pytest.mark.parametrize("make", PROGRAMS)
def test_nothing_is_wrong_with_it_and_all_of_it_is_checked(
    make: Callable[[], Program], tmp_path: Path, capsys: Capture
) -> None:
    done = run_here(capsys, "truth", record(tmp_path, make))
    assert (done.returncode, done.stdout.partition(". ")[0]) == (0, "step0/rank: nothing is wrong"), done.stdout


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.some(2)
def test_every_bit_of_it_comes_again(make: Callable[[], Program], level: str, tmp_path: Path, capsys: Capture) -> None:
    done = run_here(capsys, "replay", record(tmp_path, make, level), "--dtype", "recorded")
    assert done.returncode == 0 and "as recorded, bit for bit" in done.stdout, done.stdout


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.some(2)
def test_the_small_dump_of_it_gives_every_tensor_again(
    make: Callable[[], Program], tmp_path: Path, capsys: Capture
) -> None:
    whole, small = record(tmp_path / "whole", make, "L1"), record(tmp_path / "small", make, "L1", "replay")
    done = run_here(capsys, "replay", small, "--dtype", "recorded", "-o", tmp_path / "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_here(capsys, "compare", whole, tmp_path / "again").returncode == 0
    assert run_here(capsys, "truth", small).returncode == 0


def test_one_tensor_of_a_small_dump_is_computed_though_later_passes_change_gradients(
    tmp_path: Path, capsys: Capture
) -> None:
    dump = record(tmp_path / "dump", penalize_the_gradient, "L1", "replay")
    done = run_here(capsys, "tensor", dump, "Tensor.norm.0.forward", "-o", tmp_path / "tensors")
    assert done.returncode == 0, done.stderr


def test_what_was_never_written_is_refused_with_its_reason(tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "dump", fill_new_memory, "L1", "replay")
    done = run_here(capsys, "tensor", dump, "Torch.empty.0.forward", "-o", tmp_path / "tensors")
    assert done.returncode == 2
    assert "has no content of Torch.empty.0.forward.output.0" in done.stderr and "Traceback" not in done.stderr


def test_a_hook_on_one_result_of_a_cell_is_still_named(tmp_path: Path) -> None:
    def train() -> Program:
        cell, x = nn.LSTMCell(4, 5), torch.randn(3, 4)

        def step() -> None:
            hidden, state = cell(x)
            state.register_hook(lambda gradient: gradient * 1.01)
            (hidden.square().sum() + state.square().sum()).backward()

        return cell, step

    (finding,) = tensorprobe.truth(record(tmp_path, train)).findings
    assert (finding.kind, finding.record) == ("sum", "Torch.lstm_cell.0.backward")


def make_constants(dtype: torch.dtype) -> Program:
    """What is made without a dtype has the one that is set."""
    layer = nn.Linear(7, 7).to(dtype)

    def step() -> torch.Tensor:
        places = torch.linspace(0, 1, 7) + torch.arange(7) / 3 + torch.tensor(0.1) * torch.hann_window(7)
        loss = layer(places).square().mean()
        loss.backward()
        return loss

    return layer, step


def test_what_is_made_without_a_dtype_has_the_truth_of_float64(tmp_path: Path) -> None:
    dump = record(tmp_path, lambda: make_constants(torch.float32))
    ((_, _, true),) = tensorprobe.truth(dump).runs[0].losses
    torch.manual_seed(0)
    _, step = make_constants(torch.float64)  # with the numbers that float32 has
    torch.set_default_dtype(torch.float64)
    try:
        assert abs(true - float(step())) < 1e-12
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_default_dtype_comes_again(tmp_path: Path, capsys: Capture) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        dump = record(tmp_path, lambda: make_constants(torch.float64))
    finally:
        torch.set_default_dtype(torch.float32)
    done = run_here(capsys, "replay", dump, "--dtype", "recorded")
    assert done.returncode == 0 and "bit for bit" in done.stdout, done.stdout


def run_script(dump: Path, call: str, folder: Path, capsys: Capture) -> str:
    assert run_here(capsys, "repro", dump, call, "-o", folder).returncode == 0
    (done,) = run_warm("torch", folder, [str(folder / "repro.py")], os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_of_a_call_under_autocast_casts_as_the_run_did(tmp_path: Path, capsys: Capture) -> None:
    def train() -> Program:
        layer, x = nn.Linear(6, 5), torch.randn(3, 6)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(x)
            y.float().square().mean().backward()

        return layer, step

    dump = record(tmp_path / "dump", train)
    same, _, wide = run_script(dump, "Functional.linear.0.forward", tmp_path / "bug", capsys).partition("float64")
    assert "output.0: largest difference 0 of" in same
    assert "output.0: largest difference" in wide


def test_a_script_of_a_write_by_index_shows_what_was_written(tmp_path: Path, capsys: Capture) -> None:
    def train() -> Program:
        layer, x = nn.Linear(4, 3), torch.randn(5, 4)

        def step() -> None:
            y = layer(x).clone()
            y[1] = y[0] * 2
            y.sum().backward()

        return layer, step

    dump = record(tmp_path / "dump", train)
    assert "recorded against float64" in run_script(dump, "Tensor.__setitem__.0.forward", tmp_path / "bug", capsys)


def test_a_gradient_that_is_zero_but_for_rounding_is_no_finding(tmp_path: Path) -> None:
    """A query that looks at one key only: whatever comes back, its derivative is zero."""

    def train() -> Program:
        layer, x = nn.Linear(8, 24), torch.randn(2, 1, 5, 8)

        def step() -> None:
            query, key, value = layer(x).chunk(3, -1)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            (mixed[:, :, 0] * torch.linspace(1, 2, 8)).square().sum().backward()

        return layer, step

    assert tensorprobe.truth(record(tmp_path, train)).findings == []


def test_what_a_kernel_rounds_on_its_way_is_no_finding(tmp_path: Path) -> None:
    """ctc_loss adds up logarithms of all ways, which are larger than what goes in and what comes out."""

    def train() -> Program:
        layer, x, labels = nn.Linear(8, 12), torch.randn(60, 2, 8), torch.randint(1, 12, (2, 5))
        lengths = torch.tensor([60, 60]), torch.tensor([5, 5])
        return layer, lambda: F.ctc_loss(layer(x).log_softmax(-1), labels, *lengths).backward()

    assert tensorprobe.truth(record(tmp_path, train)).findings == []


def test_gradients_that_overflow_are_counted_and_give_no_shares(tmp_path: Path, capsys: Capture) -> None:
    def train() -> Program:
        layer, x = nn.Linear(16, 4), torch.randn(6, 16)

        def step() -> None:
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(layer(x), torch.arange(6) % 4)
            (loss * 2.0**24).backward()

        return layer, step

    done = run_here(capsys, "truth", record(tmp_path, train))
    assert done.returncode == 1 and "nan" not in done.stdout
    assert "gradients of 2 parameters" in done.stdout
    assert "2 of them with Inf or NaN, which are left out, where the truth is a number" in done.stdout


def test_a_replay_warns_of_nothing(tmp_path: Path) -> None:
    dump = record(tmp_path, train_two_steps)
    program = "from tensorprobe.__main__ import main\nmain()\n"
    assert "Warning" not in run_program(tmp_path, program, "replay", str(dump), "--dtype", "recorded").stderr


def test_a_script_of_a_call_on_nothing_runs(tmp_path: Path, capsys: Capture) -> None:
    layer, x = nn.Linear(4, 3), torch.randn(0, 4)
    dump = record(tmp_path / "dump", lambda: (layer, lambda: layer(x).sum().backward()))
    assert "gradient of input.1" in run_script(dump, "Functional.linear.0.forward", tmp_path / "bug", capsys)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_that_have_no_truth_are_counted(level: str, tmp_path: Path, capsys: Capture) -> None:
    """What another thread calls is not recorded: a gradient does not come through it."""

    def train() -> Program:
        layer, x = nn.Linear(4, 3), torch.randn(5, 4)

        def step() -> None:
            results: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: results.append(layer(x).tanh().sum()))
            thread.start()
            thread.join()
            (results[0] * 2).backward()

        return layer, step

    done = run_here(capsys, "truth", record(tmp_path, train, level))
    assert "the gradients of 2 parameters have no truth" in done.stdout
