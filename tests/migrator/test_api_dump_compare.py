"""api_dump_compare: two dumps of one framework or of two, TroubleShooter's tables, and the call that went wrong."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
import torch
from mindspore import Tensor
from mindspore import nn as cells
from torch import nn
from torch.nn import functional as F

from tensorprobe import migrator
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.migrator import api_dump_compare, api_dump_init
from tests.cli.command import run_here
from tests.migrator.api_dump_run import Dumped, forget_session, window
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
FILES = ("ts_api_mapping.csv", "ts_api_forward_compare.csv", "ts_api_backward_compare.csv")


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.fc2 = nn.Linear(8, 2)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.tanh(self.norm(self.fc1(x))))


class FunctionalNet(TorchNet):
    """The same, with a function in the place of a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(self.fc1(x), (8,), self.norm.weight, self.norm.bias)
        return self.fc2(torch.tanh(x))


class MindSporeNet(cells.Cell):
    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.fc1 = cells.Dense(6, 8)
        self.norm = cells.LayerNorm((8,), epsilon=epsilon)
        self.fc2 = cells.Dense(8, 2)
        weights = {name: value.numpy() for name, value in TorchNet().state_dict().items()}
        names = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
        for name, parameter in self.parameters_and_names():
            parameter.set_data(Tensor(weights[names.get(name, name)]))

    def construct(self, x: Tensor) -> Tensor:
        return self.fc2(mindspore.ops.tanh(self.norm(self.fc1(x))))


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    forget_session()
    yield
    forget_session()


def dump_torch(
    path: Path, net: nn.Module | None = None, *, steps: int = 1, backward: bool = False, **options: Any
) -> Path:
    net, x = net or TorchNet(), torch.from_numpy(X)
    api_dump_init(net, path, retain_backward=backward)
    for _ in range(steps):
        with window(**options):
            result = net(x)
            if backward:
                result.sum().backward()
    forget_session()
    return path


def dump_mindspore(path: Path, net: cells.Cell | None = None, *, backward: bool = False, **options: Any) -> Path:
    net, x = net or MindSporeNet(), Tensor(X)
    api_dump_init(net, path, retain_backward=backward)
    run: Callable[[Tensor], Any] = net
    if backward:
        run = mindspore.value_and_grad(lambda value: net(value).sum(), None, net.trainable_params())
    with window(**options):
        run(x)
    forget_session()
    return path


def read_rows(path: Path) -> list[list[str]]:
    return list(csv.reader(path.open(newline="")))


def test_a_torch_run_and_a_mindspore_run_of_the_same_net_agree(tmp_path: Path, capsys: Any) -> None:
    torch_dump, mindspore_dump = (
        dump_torch(tmp_path / "t", backward=True),
        dump_mindspore(tmp_path / "m", backward=True),
    )
    capsys.readouterr()
    result = api_dump_compare(str(torch_dump), str(mindspore_dump), str(tmp_path / "result"))
    printed = capsys.readouterr().out
    assert result, result.verdict.headline
    mapping, forward, backward = (read_rows(tmp_path / "result" / name) for name in FILES)
    assert mapping == [
        ["ORIGIN NET (pytorch)", "TARGET NET (mindspore)"],
        ["NN_Linear_0", "NN_Dense_0"],
        ["NN_LayerNorm_0", "NN_LayerNorm_0"],
        ["Torch_tanh_0", "Functional_tanh_0"],
        ["NN_Linear_1", "NN_Dense_1"],
        ["Tensor_sum_0", "Tensor_sum_0"],
    ]
    assert ["NN_Linear_1_forward_output", "NN_Dense_1_forward_output", "[4, 2]", "[4, 2]", "True"] in [
        row[:5] for row in forward
    ]
    assert ["NN_Linear_0_backward_input", "NN_Dense_0_backward_input"] in [row[:2] for row in backward]
    assert all(row[4] == "True" for row in [*forward[1:], *backward[1:]])
    for title in ("The APIs mapping results of the two frameworks", "The forward comparison results", "The runs agree"):
        assert title in printed
    widths = {len(line) for line in printed.splitlines() if line.startswith("| NN_LayerNorm")}
    assert len(widths) <= 2 and max(widths) > 150  # never wrapped


def test_a_fault_of_the_port_is_named_by_its_layer(tmp_path: Path) -> None:
    result = api_dump_compare(dump_torch(tmp_path / "t"), dump_mindspore(tmp_path / "m", MindSporeNet(epsilon=0.1)))
    assert not result and result.verdict.call is not None
    assert result.verdict.call.name == "NN_LayerNorm_0_forward"
    assert any("x = self" in line or "self.norm" in line for line in result.verdict.evidence)


def test_a_weight_that_was_not_carried_over_is_told_from_a_wrong_layer(tmp_path: Path) -> None:
    wrong = MindSporeNet()
    wrong.fc2.weight.set_data(Tensor(-TorchNet().fc2.weight.detach().numpy()))
    result = api_dump_compare(dump_torch(tmp_path / "t"), dump_mindspore(tmp_path / "m", wrong))
    assert not result and "parameters.weight differs" in result.verdict.headline


def test_mindspore_against_mindspore_and_torch_against_torch(tmp_path: Path) -> None:
    assert api_dump_compare(dump_mindspore(tmp_path / "a"), dump_mindspore(tmp_path / "b"))
    assert callable(migrator.api_dump_compare)  # no module of that name has taken its place
    first, second = dump_torch(tmp_path / "c", steps=2), dump_torch(tmp_path / "d", steps=2)
    result = api_dump_compare(first, second)
    assert result and len(result.ranks[0].calls) == 8  # the last step too, although it has no backward


def test_what_a_program_has_just_recorded_is_complete(tmp_path: Path) -> None:
    first, net = dump_torch(tmp_path / "a", backward=True), TorchNet()
    api_dump_init(net, tmp_path / "b", retain_backward=True)
    with window():
        result = net(torch.from_numpy(X)).sum()
    result.backward()
    found = api_dump_compare(first, tmp_path / "b")  # Tensor_sum was in the window of the other
    assert found and "ended early" not in found.verdict.headline and not found.ranks[0].problems


def test_a_layer_stands_against_the_function_that_does_the_same(tmp_path: Path) -> None:
    result = api_dump_compare(dump_torch(tmp_path / "a"), dump_torch(tmp_path / "b", FunctionalNet()), tmp_path / "r")
    assert ["NN_LayerNorm_0", "Functional_layer_norm_0"] in read_rows(tmp_path / "r" / FILES[0])
    assert result


def test_without_backward_data_there_is_only_a_header(tmp_path: Path, capsys: Any) -> None:
    api_dump_compare(dump_torch(tmp_path / "a"), dump_torch(tmp_path / "b"), tmp_path / "new" / "result")
    assert "backward comparison" not in capsys.readouterr().out
    (header,) = read_rows(tmp_path / "new" / "result" / FILES[2])
    assert header[:4] == ["ORIGIN NET (pytorch)", "TARGET NET (pytorch)", "shape of orig", "shape of target"]


def test_a_call_is_mapped_once_where_only_one_side_has_its_backward(tmp_path: Path) -> None:
    api_dump_compare(dump_torch(tmp_path / "a", backward=True), dump_torch(tmp_path / "b"), tmp_path / "r")
    mapping, _, backward = (read_rows(tmp_path / "r" / name) for name in FILES)
    assert [row[0] for row in mapping[1:]] == [
        "NN_Linear_0",
        "NN_LayerNorm_0",
        "Torch_tanh_0",
        "NN_Linear_1",
        "Tensor_sum_0",
    ]
    assert all(row[0] == row[1] for row in mapping[1:-1])
    assert {row[4] for row in backward[1:]} == {"only in orig"}


def test_the_files_are_written_although_nobody_reads_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str) -> int:
        raise BrokenPipeError

    first, second = dump_torch(tmp_path / "a"), dump_torch(tmp_path / "b")
    monkeypatch.setattr(sys.stdout, "write", refuse)
    with pytest.raises(BrokenPipeError):
        api_dump_compare(first, second, tmp_path / "r")
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == sorted(FILES)


def test_statistics_are_compared_too(tmp_path: Path) -> None:
    first, second = (dump_torch(tmp_path / name, dump_type="statistics") for name in "ab")
    assert api_dump_compare(first, second, tmp_path / "r")
    rows = read_rows(tmp_path / "r" / FILES[1])
    assert rows[0][-1] == "max, min, mean diffs" and rows[1][-1] == "0.00000, 0.00000, 0.00000"


class NumberedNet(TorchNet):
    """With what TroubleShooter's filter leaves out: single numbers, whole numbers, a call without anything else."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, _ = super().forward(x * self.factor).topk(1)
        return values.mean() + torch.arange(3).max()


def strip_ours(dump: Path) -> Path:
    """What TroubleShooter would have written."""
    for name in ("dump.json", "run.json"):
        (dump / "rank0" / name).unlink()
    for path in (dump / "rank0" / "torch_api_dump").glob("*_parameters.*"):
        path.unlink()
    return dump


def test_a_dump_of_troubleshooter_itself_is_read(tmp_path: Path) -> None:
    ours = dump_torch(tmp_path / "ours", NumberedNet(), backward=True)
    theirs = strip_ours(dump_torch(tmp_path / "theirs", NumberedNet(), backward=True))
    for first, second in ((ours, theirs), (theirs, ours)):
        result = api_dump_compare(first, second)
        assert result, result.verdict.headline
        assert "could not be compared" not in result.verdict.headline
        forward = [call.name for call in result.ranks[0].calls if call.name.endswith("_forward")]
        assert forward[0] == "Tensor_mul_0_forward" and forward[-1] == "Tensor_mean_0_forward" and len(forward) == 7
    other = dump_torch(tmp_path / "other", NumberedNet(factor=2.1), backward=True)
    found = api_dump_compare(theirs, other)
    assert not found and "Tensor_mul_0_forward" in found.verdict.headline


def test_a_dump_of_troubleshooter_with_the_gradients_of_results_only_is_compared_by_them(tmp_path: Path) -> None:
    ours = dump_torch(tmp_path / "ours", NumberedNet(), backward=True)
    theirs = strip_ours(dump_torch(tmp_path / "theirs", NumberedNet(), backward=True))
    info = theirs / "rank0" / "torch_api_dump_info.pkl"
    info.write_text("".join(line for line in info.open() if "_backward_output" not in line))
    for first, second in ((ours, theirs), (theirs, ours)):
        result = api_dump_compare(first, second)
        assert result, result.verdict.headline
        assert any(call.name == "NN_LayerNorm_0_backward" for call in result.ranks[0].calls)


def test_a_dump_of_troubleshooter_without_its_filter_has_numbers(tmp_path: Path) -> None:
    ours = dump_torch(tmp_path / "ours", NumberedNet())
    theirs = strip_ours(dump_torch(tmp_path / "theirs", NumberedNet(factor=2.1), filter_data=False))
    found = api_dump_compare(ours, theirs)
    assert "input.1=2.1 where the reference had 2.0" in found.verdict.headline


def test_the_commands_read_an_api_dump(tmp_path: Path, capsys: Any) -> None:
    first, second = dump_torch(tmp_path / "a"), dump_torch(tmp_path / "b")
    shown = run_here(capsys, "show", first)
    assert shown.returncode == 0 and "NN_LayerNorm_0" in shown.stdout
    assert run_here(capsys, "compare", first, second).returncode == 0
    assert Dumped(first, "torch").calls == list(Dumped(first, "torch").records)


def test_what_is_no_api_dump_is_refused(tmp_path: Path) -> None:
    dump = dump_torch(tmp_path / "a")
    with pytest.raises(DumpError, match="nowhere does not exist"):
        api_dump_compare(dump, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpError, match="holds no dump"):
        api_dump_compare(tmp_path / "empty", dump)
    other = tmp_path / "other" / "step0" / "rank"
    other.mkdir(parents=True)
    (other / "dump.json").write_text(json.dumps({"task": "statistics", "data": {}}))
    with pytest.raises(DumpError, match="is a dump, but not one of api_dump"):
        api_dump_compare(dump, tmp_path / "other")
    with pytest.raises(UsageError, match="origin_path 3 is not a path"):
        api_dump_compare(3, dump)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"output_path .*file is a file. Give a folder"):
        api_dump_compare(dump, dump, tmp_path / "file")
    with pytest.raises(UsageError, match="lies in the dump"):
        api_dump_compare(dump, dump, dump / "rank0" / "result")


def test_every_word_of_a_layer_is_a_function_of_torch() -> None:
    from tensorprobe.word.layer_word import layer_functions

    for layer, function in layer_functions().items():
        assert hasattr(nn, layer), layer
        assert hasattr(F, function) or layer == "AdaptiveLogSoftmaxWithLoss", function
