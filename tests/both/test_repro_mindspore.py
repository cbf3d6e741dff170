"""`tensorprobe repro` of a dump of MindSpore: one call as a script that needs MindSpore alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from tensorprobe import migrator
from tensorprobe import mindspore as mindspore_face
from tensorprobe.replay import make_repro
from tensorprobe.replay.mindspore_bit import check_bits
from tensorprobe.store.reader import open_dump
from tests.cli.command import run_here
from tests.warm import run_warm

Capture = pytest.CaptureFixture[str]
RUN_SCRIPTS = """
import runpy, sys
sys.modules["tensorprobe"] = sys.modules["torch"] = None
import mindspore
mindspore.device_context.cpu.op_tuning.threads_num(1)  # as the tests do that have recorded
for script in sys.argv[1:]:
    print("script", script)
    runpy.run_path(script)
"""


class Net(nn.Cell):
    """Primitives that cells have, and that are made where they are called; functions and methods of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()
        self.head = nn.Dense(12, 6)

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x))).mean((2,))
        x = self.head(x.reshape(x.shape[0], -1))
        first, second = mint.chunk(x, 2, dim=-1)
        first = first.masked_fill(first > 0.3, float("-inf"))
        second = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1)(second, ops.ones(3), ops.zeros(3))[0]
        second[0] = 0.5
        short = ops.cast(second, mindspore.bfloat16) * 2
        return (mint.nn.functional.softmax(first, -1) * short.astype(mindspore.float32)).sum()


def record(folder: Path, model: nn.Cell, *inputs: Tensor, task: str = "tensor") -> Path:
    mindspore_face.PrecisionDebugger.reset()
    debugger = mindspore_face.PrecisionDebugger(dump_path=str(folder), level="L1", task=task)
    debugger.start(model)
    mindspore.value_and_grad(model, None, model.trainable_params())(*inputs)
    debugger.stop()
    debugger.step()
    mindspore_face.PrecisionDebugger.reset()
    return folder


def batch(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def run_scripts(*scripts: Path) -> dict[str, str]:
    """What each prints, by the names of their folders: in a Python that can import neither tensorprobe nor torch."""
    program = scripts[0].parent.parent / "run_scripts.py"
    program.write_text(RUN_SCRIPTS, encoding="utf-8")
    arguments = [str(path) for path in (program, *scripts)]
    (done,) = run_warm("mindspore", Path.cwd(), arguments, {**os.environ, "GLOG_v": "4"})
    assert not done.returncode, done.stderr
    pieces = re.split(r"^script (.+)\n", done.stdout, flags=re.MULTILINE)[1:]
    return {Path(name).parent.name: text for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


def differences(printed: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^  (.+): largest difference (\S+) of", printed, re.M)}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mindspore.set_seed(1)
    return record(tmp_path_factory.mktemp("dump"), Net().set_train(), batch(4, 2, 4, 4))


@pytest.fixture(scope="module")
def printed(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script of every call of the program prints."""
    folder = tmp_path_factory.mktemp("scripts")
    names = [record.name for record in next(open_dump(dump).ranks()).records() if record.name.endswith(".forward")]
    return run_scripts(*(make_repro(open_dump(dump), name, folder / name) for name in names))


def halves(text: str) -> tuple[str, str]:
    here, wide = text.split("recorded against float64:")
    return here, wide


def test_every_call_gives_the_recorded_bits_again(printed: dict[str, str]) -> None:
    assert len(printed) == 20
    for name, text in printed.items():
        lines = halves(text)[0].splitlines()[1:]
        assert lines and all(line.endswith(", the same bits") for line in lines), (name, text)


CALLS = {
    "Primitive.matmul.MatMul.0.forward": {"output.0", "gradient of input.0", "gradient of input.1"},
    "Primitive.LayerNorm.0.forward": {"output.0", "gradient of input.0"},
    "Tensor.mean.0.forward": {"output.0", "gradient of input.0"},
    "Mint.chunk.0.forward": {"output.0", "output.1", "gradient of input.0"},
    "MintFunctional.softmax.0.forward": {"output.0", "gradient of input.0"},
    "Tensor.__setitem__.0.forward": {"output.0", "gradient of input.0"},
}


@pytest.mark.parametrize("name", CALLS)
def test_it_prints_what_was_recorded_against_the_call_here_and_against_float64(
    name: str, printed: dict[str, str]
) -> None:
    here, wide = map(differences, halves(printed[name]))
    assert CALLS[name] <= here.keys() == wide.keys()
    assert all(difference < 1e-5 for difference in wide.values())


def test_float64_has_more_digits_and_where_it_has_not_that_is_said(printed: dict[str, str]) -> None:
    _, wide = halves(printed["Primitive.matmul.MatMul.0.forward"])
    assert 0 < differences(wide)["output.0"] < 1e-6 and "no more digits" not in wide
    _, wide = halves(printed["Primitive.relu.ReLU.0.forward"])
    assert "output.0: largest difference 0 of" in wide and ", with no more digits than float32" in wide


def test_where_mindspore_has_no_kernel_for_float64_that_is_said(printed: dict[str, str]) -> None:
    for name in ("Primitive.conv2d.Conv2D.0.forward", "Primitive.bn_train.BatchNorm.0.forward"):
        _, wide = halves(printed[name])
        assert "MindSpore does not compute this call in float64 here: For primitive" in wide, wide


def test_a_mask_of_infinities_is_no_difference(printed: dict[str, str]) -> None:
    here, _ = halves(printed["Tensor.masked_fill.0.forward"])
    assert "output.0: largest difference 0 of inf, the same bits" in here


def test_bfloat16_is_handed_over_bit_by_bit(printed: dict[str, str]) -> None:
    here, wide = halves(printed["Functional.cast.0.forward"])
    assert "output.0: largest difference 0 of" in here
    assert 1e-4 < differences(wide)["output.0"] < 1e-1, "what the cast rounds away"


def test_a_replay_of_the_bits_makes_the_same_calls(dump: Path) -> None:
    found = check_bits(next(open_dump(dump).ranks()))
    assert found and not found.not_run and not found.gradients_not_run


def test_a_dump_without_gradients_gives_a_script_without_them(tmp_path: Path) -> None:
    dump = record(tmp_path / "dump", Net().set_train(), batch(4, 2, 4, 4), task="replay")
    script = make_repro(open_dump(dump), "Primitive.matmul.MatMul.0.forward", tmp_path / "bug")
    here, wide = map(differences, halves(run_scripts(script)["bug"]))
    assert here == {"output.0": 0} and wide.keys() == {"output.0"}


# -- what cannot be made into a script ---------------------------------------------------------------------------------


def refuse(capsys: Capture, dump: Path, name: str, folder: Path) -> str:
    done = run_here(capsys, "repro", dump, name, "-o", folder)
    assert done.returncode == 2 and f"{name} cannot be made into a script: " in done.stderr, done.stderr
    assert not folder.exists()
    return re.sub(r"\s+", " ", done.stderr)


class Dropped(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return ops.dropout(self.head(x), 0.4, True).sum()


def test_a_call_that_draws_random_numbers_is_refused(tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "dump", Dropped().set_train(), batch(3, 4))
    said = refuse(capsys, dump, "Functional.dropout.0.forward", tmp_path / "bug")
    assert "it draws random numbers, and MindSpore does not tell how it came to them" in said


def test_a_layer_of_api_dump_is_refused_with_what_to_record_instead(tmp_path: Path, capsys: Capture) -> None:
    model, dump = Dropped(), tmp_path / "dump"
    migrator.api_dump_init(model, dump, retain_backward=True)
    migrator.api_dump_start(filter_data=False)
    model(batch(3, 4))
    migrator.api_dump_stop()
    said = refuse(capsys, dump, "NN_Dense_0_forward", tmp_path / "bug")
    assert "Dense is a layer, and a script makes one call of MindSpore" in said
    assert "PrecisionDebugger at level L1 or mix" in said


def edit(dump: Path, old: str, new: str) -> None:
    file = next(dump.glob("step0/*/dump.json"))
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_primitive_that_is_seen_with_other_arguments_than_it_takes_is_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    dump = record(tmp_path / "dump", Dropped().set_train(), batch(3, 4))
    edit(dump, '"transpose_b"', '"transposed"')
    said = refuse(capsys, dump, "Primitive.matmul.MatMul.0.forward", tmp_path / "bug")
    assert "MindSpore does not take its arguments again: TypeError: got an unexpected keyword argument" in said


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (
            '"Primitive.matmul.MatMul.0.f',
            '"Primitive.matmul.MatMul(print).0.f',
            "Primitive.matmul.MatMul(print).0.forward",
        ),
        ('"transpose_a"', '"transpose_a=print(1), transpose_a"', "Primitive.matmul.MatMul.0.forward"),
        ('"Primitive.matmul.MatMul.0.f', '"Functional.print_.0.f', "Functional.print_.0.forward"),
    ],
)
def test_names_of_a_hostile_dump_are_refused(old: str, new: str, name: str, tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "dump", Dropped().set_train(), batch(3, 4))
    edit(dump, old, new)
    refuse(capsys, dump, name, tmp_path / "bug")


def test_the_name_that_a_cell_has_for_a_primitive_is_no_code(tmp_path: Path) -> None:
    dump = record(tmp_path / "dump", Dropped().set_train(), batch(3, 4))
    hostile = '"""; print(\'hostile\'); """'
    for direction in ("forward", "backward"):
        name = f"Primitive.{hostile}.MatMul.0.{direction}".replace('"', '\\"')
        edit(dump, f'"Primitive.matmul.MatMul.0.{direction}": {{', f'"{name}": {{')
    script = make_repro(open_dump(dump), f"Primitive.{hostile}.MatMul.0.forward", tmp_path / "bug")
    assert script.read_text().startswith(
        '"""Primitive.???? print??hostile??? ???.MatMul.0.forward, recorded in step0/rank.'
    )
    assert run_scripts(script)["bug"].startswith("recorded against the same call here:\n")
