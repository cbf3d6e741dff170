"""Golden records: what is in the file, what it tells apart, and what it says when it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.check.golden import read_golden
from tensorprobe.check.golden_run import GoldenRun, describe_failure, golden_path
from tensorprobe.errors import DumpError, TensorprobeError, UsageError
from tests.check.network import make_input, make_network


@pytest.fixture
def runs(tmp_path: Path) -> GoldenRun:
    """With the record of the network in it."""
    runs = GoldenRun(tmp_path / "test_network.py", "test_forward")
    assert runs.update("test_forward", make_network(), (make_input(),), {})
    return runs


def path_in(folder: Path) -> Path:
    return folder / "__tensorprobe__" / "test_network" / "test_forward.json"


def test_the_same_run_agrees_bit_for_bit(runs: GoldenRun) -> None:
    found = runs.compare("test_forward", make_network(), (make_input(),), {})
    assert found
    assert "bit for bit" in found.verdict.headline


def test_a_fault_is_named_and_the_message_says_how_to_accept_it(runs: GoldenRun, tmp_path: Path) -> None:
    found = runs.compare("test_forward", make_network(eps=0.1), (make_input(),), {})
    lines = describe_failure(found).splitlines()
    assert lines[0].startswith("The runs first differ at Functional.layer_norm.0.forward in module norm")
    assert any("network.py" in line for line in lines)
    assert f"reference: {path_in(tmp_path)}" in lines
    assert lines[-1].endswith("write the record anew and review its diff: pytest --tensorprobe-update")


def test_other_weights_are_said_to_be_other_weights(runs: GoldenRun) -> None:
    model = make_network()
    with torch.no_grad():
        model.first.weight.mul_(1.5)
    found = runs.compare("test_forward", model, (make_input(),), {})
    assert not found
    assert "first.weight" in found.verdict.headline


def test_a_permutation_of_a_result_is_seen(tmp_path: Path) -> None:
    runs = GoldenRun(tmp_path / "test_a.py", "test_b")
    runs.update("test_b", torch.exp, (make_input(),), {})
    assert not runs.compare("test_b", lambda x: torch.exp(x).flip(0), (make_input(),), {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_of_another_machine_is_no_failure(tmp_path: Path, dtype: torch.dtype) -> None:
    """Another machine gives a kernel's result with another rounding of each element."""
    x, y = (torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (2, 3))
    result = x @ y
    signs = torch.randn(64, 64, generator=torch.Generator().manual_seed(4)).sign().to(dtype)
    rounded = result * (1 + signs * torch.finfo(dtype).eps)
    assert not torch.equal(result, rounded)
    runs = GoldenRun(tmp_path / "test_a.py", "test_b")
    runs.update("test_b", _with_result(result), (x, y), {})
    found = runs.compare("test_b", _with_result(rounded), (x, y), {})
    assert found, found.verdict
    assert "bit for bit" not in found.verdict.headline


class _Result(torch.autograd.Function):
    """A kernel that gives this result."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, y: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return result.clone()


def _with_result(result: torch.Tensor) -> Any:
    return lambda x, y: _Result.apply(x, y, result)


def test_the_text_is_the_same_every_time_and_holds_no_path(tmp_path: Path, runs: GoldenRun) -> None:
    text = path_in(tmp_path).read_text()
    other = tmp_path / "elsewhere"
    GoldenRun(other / "test_network.py", "test_forward").update("test_forward", make_network(), (make_input(),), {})
    assert path_in(other).read_text() == text
    assert str(tmp_path) not in text and "network.py" not in text


def test_the_text_has_one_line_for_each_tensor_and_each_value_once(tmp_path: Path, runs: GoldenRun) -> None:
    lines = path_in(tmp_path).read_text().splitlines()
    tensors = [line for line in lines if '"hash"' in line]
    assert len(tensors) > 20
    assert all(line.count('"dtype"') == 1 for line in tensors)
    hashes = [
        json.loads("{" + line[line.index('"hash"') :].partition(",")[0].rstrip("},") + "}")["hash"] for line in tensors
    ]
    shapes = [line.partition('"shape": ')[2].partition("]")[0] for line in tensors]
    assert len(set(zip(hashes, shapes, strict=True))) == len(tensors)
    assert max(map(len, lines)) < 400


def test_an_update_that_changes_nothing_leaves_the_file_alone(tmp_path: Path, runs: GoldenRun) -> None:
    path = path_in(tmp_path)
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))
    before = path.read_text()
    assert not runs.update("test_forward", make_network(), (make_input(),), {})
    assert path.read_text() == before
    assert runs.update("test_forward", make_network(eps=0.1), (make_input(),), {})
    assert path.read_text() != before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_update_that_changes_nothing_leaves_a_record_with_nan_alone(tmp_path: Path) -> None:
    runs = GoldenRun(tmp_path / "test_network.py", "test_forward")
    assert runs.update("test_forward", lambda x: x / x, (torch.zeros(3),), {})
    assert not runs.update("test_forward", lambda x: x / x, (torch.zeros(3),), {})


def test_a_run_without_tensors_is_refused_when_its_record_is_to_be_written(tmp_path: Path) -> None:
    runs = GoldenRun(tmp_path / "test_network.py", "test_forward")
    with pytest.raises(UsageError, match="test_forward recorded no tensor, so there is nothing to compare"):
        runs.update("test_forward", lambda x: None, (torch.zeros(3),), {})
    assert not path_in(tmp_path).exists()


def test_a_record_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "__tensorprobe__").write_text("a file where the folder should be")
    runs = GoldenRun(tmp_path / "test_network.py", "test_forward")
    with pytest.raises(DumpError, match=r"the golden record .*test_forward.json cannot be written"):
        runs.update("test_forward", torch.exp, (torch.zeros(3),), {})


def test_a_failure_says_with_which_version_the_record_was_written(tmp_path: Path, runs: GoldenRun) -> None:
    path = path_in(tmp_path)
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))
    found = runs.compare("test_forward", make_network(eps=0.1), (make_input(),), {})
    assert found.verdict.evidence[-1] == (
        f"the golden record was written with torch 1.0, this run used torch {torch.__version__}"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tensorprobe_golden": 1,', "is damaged ("),
        ("[]", "is no golden record. Make it anew"),
        (
            '{"tensorprobe_golden": 2, "records": {}}',
            "was written by a newer tensorprobe: its format is 2, and this version reads 1. Install that version",
        ),
        (
            '{"tensorprobe_golden": 1, "test": "test_FORWARD", "records": {}}',
            "is the golden record of 'test_FORWARD', and 'test_forward' would have the same file. Rename one",
        ),
        (
            '{"tensorprobe_golden": 1, "test": "test_forward", "records": {"Torch.exp.0.forward": {"output": '
            '[{"same": "x"}]}}, "saved": {}}',
            "is damaged (KeyError('x'))",
        ),
    ],
)
def test_a_record_that_cannot_be_used_says_why(tmp_path: Path, runs: GoldenRun, content: str, message: str) -> None:
    path_in(tmp_path).write_text(content)
    with pytest.raises(TensorprobeError) as caught:
        runs.compare("test_forward", make_network(), (make_input(),), {})
    assert str(caught.value).startswith(f"{path_in(tmp_path)} {message}")


def test_a_missing_record_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"does not exist\. Make it with: pytest --tensorprobe-update"):
        read_golden(tmp_path / "a.json", "test_a")


def test_names_with_odd_characters_have_files_of_their_own(tmp_path: Path) -> None:
    names = [
        "test_a",
        "test_a[x/y]",
        "test_a[x:y]",
        "test_a[x_y]",
        "TestA::test_a",
        f"test_a[{'long' * 50}]",
        "test_a[ü]",
    ]
    paths = [golden_path(tmp_path / "test_m.py", name) for name in names]
    assert len(set(paths)) == len(names)
    assert all(path.parent == tmp_path / "__tensorprobe__" / "test_m" for path in paths)
    assert all(path.name.isascii() and len(path.name) < 130 for path in paths)
    assert paths[0].name == "test_a.json" and paths[4].name == "TestA.test_a.json"


def test_several_runs_of_one_test_have_records_of_their_own(tmp_path: Path) -> None:
    runs = GoldenRun(tmp_path / "test_m.py", "test_a")
    assert [runs.name_run(name) for name in (None, None, "gelu")] == ["test_a", "test_a::2", "test_a::gelu"]
    with pytest.raises(UsageError, match="test_a has two golden records of the name 'gelu'"):
        runs.name_run("gelu")


def test_an_option_that_a_record_has_no_use_for_is_refused(runs: GoldenRun) -> None:
    with pytest.raises(UsageError, match="'keep' is not an option of golden_run: the record beside the test"):
        runs.compare("test_forward", make_network(), (make_input(),), {"keep": "x"})


def test_an_update_does_not_write_over_the_record_of_another_test(tmp_path: Path, runs: GoldenRun) -> None:
    path = path_in(tmp_path)
    path.write_text(path.read_text().replace('"test_forward"', '"test_FORWARD"'))
    before = path.read_text()
    with pytest.raises(UsageError, match="is the golden record of 'test_FORWARD'"):
        runs.update("test_forward", make_network(), (make_input(),), {})
    assert path.read_text() == before
