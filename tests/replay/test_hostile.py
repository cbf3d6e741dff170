"""Dumps that somebody has made to do harm, or that are broken: one clear error, or a call that is not checked."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.fuzz import mutate_calls
from rich.console import Console
from torch import nn

import tensorprobe
from tensorprobe.errors import TensorprobeError
from tensorprobe.report.truth_file import iter_truth_json
from tensorprobe.report.truth_row import build_truth_rows
from tensorprobe.report.truth_text import print_truth
from tests.length import IS_LONG
from tests.replay.program import make_program, record

Records = dict[str, Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("dump"), *make_program("in_place"))


def tell_truth(folder: Path) -> Any:
    """The only step of a dump, with all that is said of it."""
    (run,) = tensorprobe.truth(folder).runs
    print_truth(Console(file=io.StringIO()), run, build_truth_rows(run))
    assert all(isinstance(piece, str) for piece in iter_truth_json([run]))
    return run


def change(recorded: Path, tmp_path: Path, edit: Callable[[Records], None], file: str = "dump.json") -> Path:
    folder = tmp_path / "changed"
    shutil.copytree(recorded, folder)
    path = folder / "step0" / "rank" / file
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return folder


def iter_tensors(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict) and "shape" in tree:
        yield tree
    elif isinstance(tree, (dict, list)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from iter_tensors(item)


def set_everywhere(key: str, value: Any) -> Callable[[Records], None]:
    def edit(content: Records) -> None:
        for leaf in iter_tensors(content["data"]):
            leaf[key] = value

    return edit


def nest(content: Records) -> None:
    deep: Any = {"type": "int", "value": 1}
    for _ in range(400):
        deep = [deep]
    content["data"]["Torch.zeros.7.forward"] = {"input_args": [deep], "input_kwargs": {}, "output": []}


def add_calls(*calls: tuple[str, list[Any], list[int]]) -> Callable[[Records], None]:
    def edit(content: Records) -> None:
        for number, (stem, arguments, shape) in enumerate(calls):
            leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, "tensor": 900 + number}
            values = [{"type": type(value).__name__, "value": value} for value in arguments]
            content["data"][f"{stem}.77.forward"] = {"input_args": values, "input_kwargs": {}, "output": [leaf]}

    return edit


EDITS: dict[str, Callable[[Records], None]] = {
    "one tensor number for all": set_everywhere("tensor", 1),
    "one storage for all": set_everywhere("storage", 1),
    "an offset outside of its storage": set_everywhere("offset", 10**15),
    "strides outside of it": set_everywhere("stride", [10**15, 1]),
    "negative strides": set_everywhere("stride", [-1, 1]),
    "no numbers for strides": set_everywhere("stride", ["x", None]),
    "strides of zero": set_everywhere("stride", [0, 0]),
    "a source that comes later": set_everywhere("source", "Tensor.mean.0.forward"),
    "a source that is not there": set_everywhere("source", "Tensor.nowhere.0.forward"),
    "numbers without end": set_everywhere("tensor", 10**400),
    "a shape of NaN": set_everywhere("shape", [float("nan"), 2]),
    "a shape below zero": set_everywhere("shape", [-1]),
    "no shape": set_everywhere("shape", None),
    "another dtype": set_everywhere("dtype", "torch.int32"),
    "a dtype that is none": set_everywhere("dtype", "torch.nn"),
    "a complex dtype": set_everywhere("dtype", "torch.complex64"),
    "one file for all": set_everywhere("data_name", "Functional.linear.0.forward.output.0.pt"),
    "files outside": set_everywhere("data_name", "../../../x.pt"),
    "one parameter for all": set_everywhere("parameter", "layer.weight"),
    "gradients everywhere": set_everywhere("requires_grad", True),
    "arguments nested deep": nest,
}


@pytest.mark.parametrize("name", EDITS)
def test_a_spoilt_dump_gives_one_error_or_calls_that_are_not_checked(name: str, recorded: Path, tmp_path: Path) -> None:
    try:
        run = tell_truth(change(recorded, tmp_path, EDITS[name]))
    except TensorprobeError as error:
        assert str(error)
    else:
        assert run.coverage.call_count


@pytest.mark.parametrize("shape", [[10**6, 10**6], [(1 << 63) - 1] * 3])
def test_shapes_that_no_memory_holds_are_refused_with_the_figure(
    shape: list[int], recorded: Path, tmp_path: Path
) -> None:
    with pytest.raises(tensorprobe.DumpError, match=r"would take [\d,.]+ GiB of memory"):
        tell_truth(change(recorded, tmp_path, set_everywhere("shape", shape)))


def test_a_call_that_gives_more_than_was_recorded_is_not_made(recorded: Path, tmp_path: Path) -> None:
    edit = add_calls(("Torch.zeros", [10**12], [3]), ("Torch.eye", [10**6], [2]), ("Torch.arange", [1 << 62], [1]))
    run = tell_truth(change(recorded, tmp_path, edit))
    assert {name.split(".")[1] for name in run.unchecked} == {"zeros", "eye", "arange"}
    assert all("GiB" in reason or "were recorded" in reason for reason in run.unchecked.values())


def test_a_dump_calls_nothing_that_opens_files_or_changes_torch(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "written"
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(), torch.get_num_threads())
    state = torch.get_rng_state()
    edit = add_calls(
        ("Ops.aten.save", [1, str(target)], [1]),
        ("Torch.save", [1, str(target)], [1]),
        ("Torch.load", [str(target)], [1]),
        ("Ops.aten.from_file", [str(target), True, 4], [4]),
        ("Ops.aten.manual_seed", [3], [1]),
        ("Ops.aten.set_grad_enabled", [False], [1]),
        ("Torch.set_default_dtype", ["float64"], [1]),
        ("Torch.set_num_threads", [1], [1]),
        ("Torch.dropout", [0.5, True], [1]),
    )
    run = tell_truth(change(recorded, tmp_path, edit))
    assert len(run.unchecked) == 9
    assert not target.exists()
    after = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(), torch.get_num_threads())
    assert after == before and torch.equal(torch.get_rng_state(), state)


PASSES: dict[str, Any] = {
    "no list": 3,
    "no passes": [None, 1, {}, {"roots": 1}, {"records": "x"}],
    "numbers without end": [{"records": 10**400, "roots": [{"tensor": 10**400}]}],
    "before the beginning": [{"records": -(10**30), "roots": [{"tensor": 1}]}],
    "roots that do not exist": [{"records": 3, "roots": [{"tensor": 10**9}, {"tensor": None}, None]}] * 100,
    "from every tensor": [{"records": 10**6, "roots": [{"tensor": number} for number in range(60)]}],
    "from every tensor, early": [{"records": number, "roots": [{"tensor": number}]} for number in range(60)],
    "very many": [{"records": 0, "roots": []}] * 10**5,
}


@pytest.mark.parametrize("name", PASSES)
def test_absurd_backward_passes_end_in_words(name: str, recorded: Path, tmp_path: Path) -> None:
    def edit(content: Records) -> None:
        content["backward_passes"] = PASSES[name]

    assert tell_truth(change(recorded, tmp_path, edit, "run.json")).coverage.call_count


def test_modules_in_circles_or_deeper_than_any_program_are_taken_one_after_the_other(
    recorded: Path, tmp_path: Path
) -> None:
    count = 3_000

    def add_modules(content: Records) -> None:
        for number in range(count):
            fields = {"input_args": [], "input_kwargs": {}, "output": []}
            content["data"][f"Module.a{number}.Linear.forward.0"] = fields

    def chain(content: Records) -> None:
        for number in range(count):
            content[f"Module.a{number}.Linear.forward.0"] = f"Module.a{(number + 1) % count}.Linear.forward.0"

    folder = change(recorded, tmp_path, add_modules)
    path = folder / "step0" / "rank" / "construct.json"
    content = json.loads(path.read_text())
    chain(content)
    path.write_text(json.dumps(content))
    assert tell_truth(folder).coverage.replayed
    content[f"Module.a{count - 1}.Linear.forward.0"] = None
    path.write_text(json.dumps(content))
    assert tell_truth(folder).coverage.replayed


def test_very_many_calls_take_time_in_proportion(recorded: Path, tmp_path: Path) -> None:
    """Each of them looks at a constant number of others: ten thousand end soon, where each with each would not."""
    count = 100_000 if IS_LONG else 10_000

    def edit(content: Records) -> None:
        for number in range(count):
            leaf = {
                "type": "torch.Tensor",
                "dtype": "torch.float32",
                "shape": [1, 1],
                "storage": 3,
                "tensor": 5000 + number,
            }
            fields = {"input_args": [leaf], "input_kwargs": {}, "output": [], "inside": "Autograd.X.0.forward"}
            content["data"][f"Autograd.X.{number}.forward"] = fields

    assert tell_truth(change(recorded, tmp_path, edit)).coverage.call_count > count


def test_records_that_were_changed_at_random_break_nothing(tmp_path: Path) -> None:
    """A sample of what benchmarks/fuzz.py does for as long as one likes."""
    model = nn.Linear(3, 3)
    folder = record(tmp_path / "dump", model, lambda: (model(torch.ones(2, 3)).relu() + torch.zeros(2, 3)).sum())
    path = folder / "step0" / "rank" / "dump.json"
    seed = b"dump.json\n" + path.read_bytes()
    chance = random.Random(0)
    for _ in range(400 if IS_LONG else 40):
        path.write_bytes(mutate_calls(chance, [seed]).partition(b"\n")[2])
        try:
            tell_truth(folder)
        except TensorprobeError as error:
            assert str(error)
