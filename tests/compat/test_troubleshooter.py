"""The programs of TroubleShooter's manual run unchanged, and print what it says they print."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.compat.program import MANUAL, printed_in_manual, run_manual, run_program, succeed
from tests.report.test_npy_dir import TABLE, TABLE_WITH_SHAPES

API_DUMP = """
import sys
import numpy as np
import troubleshooter as ts

framework, folder = sys.argv[1:]
data = np.ones((2, 3), np.float32)
if framework == "torch":
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    torch.nn.init.ones_(net[0].weight)
    ts.migrator.api_dump_init(net, output_path=folder, retain_backward=True)
    ts.migrator.api_dump_start(mode="all", scope=[], dump_type="all", filter_data=True)
    torch.nn.functional.softmax(net(torch.tensor(data)), -1).sum().backward()
else:
    import mindspore as ms

    net = ms.nn.SequentialCell(ms.nn.Dense(3, 2, weight_init="ones"), ms.nn.ReLU())
    ts.migrator.api_dump_init(net, output_path=folder, retain_backward=True)
    ts.migrator.api_dump_start(mode="all", scope=[], dump_type="all", filter_data=True)
    ms.grad(lambda x: ms.ops.softmax(net(x)).sum())(ms.Tensor(data))
ts.migrator.api_dump_stop()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two programs of the page on saving and comparing ran."""
    return tmp_path_factory.mktemp("saved")


@pytest.mark.parametrize("framework", ["mindspore", "torch"])
def test_gradients_are_saved_and_printed(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"troubleshooter_save_grad_{framework}.py"
    expected = printed_in_manual(name)
    assert len(expected) == 2
    assert run_manual(name).splitlines() == expected


@pytest.mark.parametrize("framework", ["mindspore", "torch"])
def test_values_and_gradients_are_saved_under_the_names_of_the_manual(
    framework: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    name = f"troubleshooter_save_{framework}.py"
    expected = printed_in_manual(name)
    assert len(expected) == 1
    assert run_manual(name).splitlines() == expected


def test_what_both_saved_is_compared_as_the_manual_shows(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the files of the two tests above; the second call stands without its import in the manual."""
    monkeypatch.chdir(saved)
    for framework, folder in (("mindspore", "ms_ts_save"), ("torch", "torch_ts_save")):
        if not Path(folder).exists():  # this test was chosen alone
            run_manual(f"troubleshooter_save_{framework}.py")
    calls = [(MANUAL / f"troubleshooter_compare{end}.py").read_text() for end in ("", "_with_options")]
    ended = run_program(MANUAL / "troubleshooter_compare.py")
    assert succeed(ended) == TABLE + "\n"
    assert " - troubleshooter.log - WARNING - [*User Attention*] The compare directory information:" in ended.stderr
    assert succeed(run_program("-c", "\n".join(calls))) == f"{TABLE}\n{TABLE_WITH_SHAPES}\n"
    with Path("compare.csv").open(newline="") as file:
        assert [row[4] for row in csv.reader(file)][1:] == ["True"] * 3


def test_the_calls_of_both_frameworks_are_dumped_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for framework in ("torch", "mindspore"):
        succeed(run_program("-c", API_DUMP, framework, f"{framework}_dump"))
        parts = ("_api_dump", "_api_dump_info.pkl", "_api_dump_stack.json")
        assert {framework + part for part in parts} <= {one.name for one in Path(f"{framework}_dump/rank0").iterdir()}
    call = "import troubleshooter as ts\nts.migrator.api_dump_compare('torch_dump', 'mindspore_dump', 'result')"
    succeed(run_program("-c", call))
    assert sorted(path.name for path in Path("result").iterdir()) == [
        "ts_api_backward_compare.csv",
        "ts_api_forward_compare.csv",
        "ts_api_mapping.csv",
    ]
    assert "NN_Dense" in Path("result/ts_api_mapping.csv").read_text()
