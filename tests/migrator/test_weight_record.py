"""Recorded steps of both networks decide what names and shapes leave open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from tensorprobe import UsageError
from tensorprobe import mindspore as mindspore_face
from tensorprobe import pytorch as pytorch_face
from tensorprobe.migrator import convert_weight
from tests.migrator.test_converted_attention import DATA, assert_same
from tests.migrator.test_weight_choice import IDS, IMAGE, losses
from tests.migrator.weight_network import (
    CellLlama,
    CellSplit,
    CellUnet,
    TorchFused,
    TorchLlama,
    TorchUnet,
    randomize,
)

ms.runtime.launch_blocking()
STAGES = ("stage_a", "stage_b", "stage_c", "stage_d", "stage_e")


def record(face: Any, network: Any, data: Any, folder: Path, level: str) -> Path:
    face.PrecisionDebugger.reset()
    debugger = face.PrecisionDebugger(dump_path=str(folder), level=level, task="statistics")
    debugger.start(network)
    network(data)
    debugger.stop()
    debugger.step()
    face.PrecisionDebugger.reset()
    return folder


def record_both(module: Any, cell: Any, data: np.ndarray, folder: Path, level: str) -> tuple[Path, Path]:
    return (
        record(pytorch_face, module, torch.from_numpy(data), folder / "pytorch", level),
        record(mindspore_face, cell.set_train(False), ms.Tensor(data), folder / "mindspore", level),
    )


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_place_in_the_computation_decides_before_anything_is_converted(level: str, tmp_path: Path) -> None:
    module, cell = randomize(TorchLlama()), CellLlama(("norm_a", "norm_b"))
    dumps = record_both(module, cell, IDS, tmp_path, level)

    result = convert_weight(module, cell, load=True, dumps=dumps)

    assert result, result.report
    assert "recorded" in {row.rule for row in result.rows}
    np.testing.assert_allclose(*losses(module, cell, IDS), rtol=1e-5)


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_u_net_whose_names_say_nothing_is_known_by_what_it_does(level: str, tmp_path: Path) -> None:
    module, cell = randomize(TorchUnet()), CellUnet(STAGES)
    dumps = record_both(module, cell, IMAGE, tmp_path, level)

    assert not convert_weight(module, cell)
    assert convert_weight(module, cell, load=True, dumps=dumps)
    np.testing.assert_allclose(*losses(module, cell, IMAGE), rtol=1e-5)


def test_equal_numbers_in_both_runs_decide_against_names_that_say_otherwise(tmp_path: Path) -> None:
    module = randomize(torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)}))
    module.forward = lambda x: module["a"](x) + module["b"](x)  # type: ignore[method-assign]
    cell = ms.nn.CellDict({"b": ms.nn.Dense(3, 3), "a": ms.nn.Dense(3, 3)})
    convert_weight(module, cell, load=True, mapping={"a": "b", "b": "a"})
    cell.construct = lambda x: cell["b"](x) + cell["a"](x)
    dumps = record_both(module, cell, np.ones((2, 3), np.float32), tmp_path, "L0")

    result = convert_weight(module, cell, dumps=dumps)

    assert result and {(row.source.name, row.target.name, row.rule) for row in result.rows} == {
        (f"{one}.{leaf}", f"{other}.{leaf}", "equal values")
        for one, other in ("ab", "ba")
        for leaf in ("weight", "bias")
    }


def test_layers_that_take_the_same_input_are_not_paired_by_who_is_called_first(tmp_path: Path) -> None:
    """At level L0 nothing tells what uses their results; the names are the only thing that does."""
    module, cell = randomize(TorchLlama()), CellLlama()
    dumps = record_both(module, cell, IDS, tmp_path, "L0")

    result = convert_weight(module, cell, dumps=dumps)

    pairs = {row.source.name: (row.target.name, row.rule) for row in result.rows}
    assert pairs["model.layers.0.self_attn.q_proj.weight"] == ("layers.0.attention.wq.weight", "alike")


@pytest.mark.parametrize("is_in_blocks", [True, False])
def test_how_a_recorded_step_cuts_query_key_and_value_decides(is_in_blocks: bool, tmp_path: Path) -> None:
    module, cell = randomize(TorchFused("qkv", is_in_blocks)), CellSplit()
    dumps = record_both(module, cell, DATA, tmp_path, "L1")

    there = convert_weight(module, cell, load=True, dumps=dumps)
    back = convert_weight(cell, module, dumps=dumps[::-1])

    assert bool(there) == bool(back) == is_in_blocks
    if is_in_blocks:
        assert_same(module, cell)
        assert all(torch.equal(back.state_dict[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("dumps", "message"),
    [("one", "must be two: the dump of the source's network"), (("nowhere", "nowhere"), "nowhere")],
)
def test_dumps_that_are_none_are_refused(dumps: Any, message: str) -> None:
    with pytest.raises(Exception, match=message) as raised:
        convert_weight({"a": np.ones(2)}, {"b": np.ones(2)}, dumps=dumps)
    assert type(raised.value).__module__ == "tensorprobe.errors"
    with pytest.raises(UsageError, match=r"dumps=...\) needs a target"):
        convert_weight({"a.gamma": np.ones(2)}, dumps=("a", "b"))
