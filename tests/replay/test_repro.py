"""`tensorprobe repro`: one call as a script that needs torch alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

import tensorprobe
import tensorprobe.pytorch
from tensorprobe.store import mirror
from tests.cli.command import run_here
from tests.replay.program import make_program, record
from tests.replay.test_api_dump import record as record_layers
from tests.warm import run_warm

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dump")
    return {name: record(folder / name, *make_program(name)) for name in ("attention", "convnet", "in_place", "router")}


def run_script(script: Path) -> str:
    """In a Python that cannot import tensorprobe."""
    hidden = script.parent / "hidden.py"
    hidden.write_text("import sys; sys.modules['tensorprobe'] = None; import runpy; runpy.run_path(sys.argv[1])")
    (done,) = run_warm("torch", script.parent, [str(hidden), str(script)], os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


CALLS = {
    "attention": ("Functional.linear.0.forward", {"output.0", *(f"gradient of input.{n}" for n in range(3))}),
    "convnet": ("Functional.conv2d.0.forward", {"output.0", "gradient of input.1", "gradient of input.2"}),
    "in_place": ("Tensor.__setitem__.0.forward", {"output.0", "gradient of input.0", "gradient of input.2"}),
    "router": ("Tensor.topk.0.forward", {"output.0"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_prints_what_was_recorded_against_the_call_here_and_against_float64(
    name: str, dumps: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    call, values = CALLS[name]
    done = run_here(capsys, "repro", dumps[name], call, "-o", tmp_path / "bug")
    assert done.returncode == 0, done.stderr
    printed = run_script(tmp_path / "bug" / "repro.py")
    here, wide = printed.split("recorded against float64:")
    found = {name: float(difference) for name, difference in re.findall(r"  (.+): largest difference (\S+) of", here)}
    assert values <= found.keys(), printed
    assert set(found.values()) == {0.0}, "the same machine gives the same bits"
    assert all(float(difference) < 1e-5 for _, difference in re.findall(r"  (.+): largest difference (\S+) of", wide))


def test_a_call_that_draws_random_numbers_draws_the_same(
    dumps: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    assert run_here(capsys, "repro", dumps["convnet"], "Functional.dropout.0.forward", "-o", tmp_path).returncode == 0
    assert "output.0: largest difference 0 of" in run_script(tmp_path / "repro.py")


def test_a_call_that_is_not_there_is_said_with_what_was_meant(
    dumps: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    done = run_here(capsys, "repro", dumps["attention"], "Functional.linaer.0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and 'did you mean "Functional.linear.0.forward"?' in done.stderr
    assert not (tmp_path / "bug").exists()


def test_names_and_texts_of_a_hostile_dump_stay_texts(dumps: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "dump", *make_program("attention"))
    (file,) = dump.rglob("dump.json")
    text = file.read_text()
    file.write_text(text.replace('"Functional.layer_norm.0.forward": {', '"Functional.layer_norm(print).0.forward": {'))
    done = run_here(capsys, "repro", dump, "Functional.layer_norm(print).0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and "cannot be made into a script" in done.stderr
    keyword = text.replace('"input_kwargs": {"weight"', '"input_kwargs": {"weight=print(1)"')
    assert keyword != text
    file.write_text(keyword)
    done = run_here(capsys, "repro", dump, "Functional.layer_norm.0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and "cannot be made into a script" in done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_the_kernels_of_the_run_are_used_again(enabled: bool, tmp_path: Path, capsys: Capture) -> None:
    with torch.backends.mkldnn.flags(enabled=enabled):
        dump = record(tmp_path / "dump", *make_program("convnet"))
    with torch.backends.mkldnn.flags(enabled=not enabled):
        assert run_here(capsys, "replay", dump, "--dtype", "recorded").returncode == 0
    call, _ = CALLS["convnet"]
    assert run_here(capsys, "repro", dump, call, "-o", tmp_path / "bug").returncode == 0
    here, _ = run_script(tmp_path / "bug" / "repro.py").split("recorded against float64:")
    assert set(re.findall(r"largest difference (\S+) of", here)) == {"0"}


def differences(printed: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^  (.+): largest difference (\S+) of", printed, re.M)}


def test_whole_numbers_are_shown_too(dumps: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    assert run_here(capsys, "repro", dumps["router"], CALLS["router"][0], "-o", tmp_path).returncode == 0
    here, _ = run_script(tmp_path / "repro.py").split("recorded against float64:")
    assert differences(here).keys() >= {"output.0", "output.1"}


def test_a_tensor_that_is_given_twice_has_the_gradients_that_were_recorded(tmp_path: Path, capsys: Capture) -> None:
    """A product has one for each place; attention, made of many calls, one for the tensor."""
    x, attention = torch.randn(3, 2, 4, requires_grad=True), torch.nn.MultiheadAttention(4, 2)
    dump = record(tmp_path / "dump", attention, lambda: attention(*[torch.mul(x, x)] * 3)[0].sum())
    for name, gradients in (
        ("Torch.mul", {"input.0", "input.1"}),
        ("Functional.multi_head_attention_forward", {"input.0"}),
    ):
        done = run_here(capsys, "repro", dump, f"{name}.0.forward", "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
        here, _ = run_script(tmp_path / name / "repro.py").split("recorded against float64:")
        found = differences(here)
        assert {f"gradient of {slot}" for slot in gradients} <= found.keys() and set(found.values()) == {0.0}


def test_a_call_inside_of_autocast_is_cast_again(tmp_path: Path, capsys: Capture) -> None:
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)

    def step() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().sum()

    dump = record(tmp_path / "dump", model, step)
    assert run_here(capsys, "repro", dump, "Functional.linear.0.forward", "-o", tmp_path / "bug").returncode == 0
    here, wide = run_script(tmp_path / "bug" / "repro.py").split("recorded against float64:")
    assert set(differences(here).values()) == {0.0}
    assert 1e-4 < differences(wide)["output.0"] < 1e-1, "float64 is not cast"


def test_dropout_that_was_off_is_refused(tmp_path: Path, capsys: Capture) -> None:
    with tensorprobe.pytorch.seed_all(1, rm_dropout=True):
        dump = record(tmp_path / "dump", *make_program("convnet"))
    done = run_here(capsys, "repro", dump, "Functional.dropout.0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and "dropout was off in this run (rm_dropout=True)" in re.sub(r"\s+", " ", done.stderr)


def test_a_folder_with_a_hostile_name_is_no_code(tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "dump", *make_program("attention"))
    (file,) = dump.rglob("dump.json")
    folder = tmp_path / '"""; print(\'hostile\'); """'
    file.parent.rename(folder)
    assert run_here(capsys, "repro", folder, CALLS["attention"][0], "-o", tmp_path / "bug").returncode == 0
    assert "hostile" not in run_script(tmp_path / "bug" / "repro.py")


# -- layers of api_dump ------------------------------------------------------------------------------------------------

LAYERS = {
    "Conv2d": {"output.0"},
    "BatchNorm2d": {"output.0", "gradient of input.0"},
    "ReLU": {"output.0", "gradient of input.0"},
    "Dropout": {"output.0", "gradient of input.0"},
    "LSTM": {"output.0", "output.1.0", "output.1.1", "gradient of input.0"},
    "Embedding": {"output.0"},
    "Linear": {"output.0", "gradient of input.0"},
    "CrossEntropyLoss": {"output.0", "gradient of input.0"},
}


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_layers(tmp_path_factory.mktemp("layers"))


@pytest.mark.parametrize(
    "layer", [pytest.param(one, marks=() if one in ("Linear", "LSTM") else pytest.mark.long) for one in LAYERS]
)
def test_a_layer_is_the_functions_that_it_called(layer: str, layers: Path, tmp_path: Path, capsys: Capture) -> None:
    done = run_here(capsys, "repro", layers, f"NN_{layer}_0_forward", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    printed = run_script(tmp_path / "repro.py")
    here, _, wide = printed.partition("recorded against float64:")
    assert differences(here) == dict.fromkeys(LAYERS[layer], 0), printed
    if layer != "Dropout":  # float64 would draw other numbers
        assert all(difference < 1e-5 for difference in differences(wide).values()) and wide


def test_a_layer_without_its_calls_is_refused_with_what_to_do(tmp_path: Path, capsys: Capture) -> None:
    dump = record_layers(tmp_path / "dump")
    (file,) = dump.rglob("dump.json")
    header, records = json.loads(file.read_text()), {}
    for name, fields in header["data"].items():
        records[name] = {key: value for key, value in fields.items() if key != "calls"}
    file.write_text(json.dumps({**header, "data": records}))
    done = run_here(capsys, "repro", dump, "NN_Linear_0_forward", "-o", tmp_path / "bug")
    assert done.returncode == 2
    assert "its dump does not have the calls that the layer made. Record it" in re.sub(r"\s+", " ", done.stderr)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"name": "Functional.linear"', '"name": "Functional.linear(print)"'),
        ('"weight": {', '"weight\\"]; print(1); [\\"": {'),
    ],
)
def test_what_a_hostile_dump_says_of_a_layer_is_no_code(old: str, new: str, tmp_path: Path, capsys: Capture) -> None:
    dump = record_layers(tmp_path / "dump")
    (file,) = dump.rglob("dump.json")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    done = run_here(capsys, "repro", dump, "NN_Linear_0_forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and "cannot be made into a script" in done.stderr


def test_a_place_that_cannot_be_written_to_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = record(tmp_path / "dump", *make_program("router"))
    (tmp_path / "file").touch()
    for command in ("repro", "tensor"):
        done = run_here(capsys, command, dump, "Functional.linear.0.forward", "-o", tmp_path / "file")
        assert done.returncode == 2
        assert done.stderr == f"error: -o {tmp_path / 'file'} cannot be written to (Not a directory).\n"
    done = run_here(capsys, "truth", dump, "-o", tmp_path / "file")
    assert "is a file. Give a folder; truth.csv, truth.json, report.html are written into it." in done.stderr


def test_a_file_that_is_gone_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = record(tmp_path / "dump", *make_program("router"))
    next(dump.rglob("Functional.linear.0.forward.input.1.pt")).unlink()
    done = run_here(capsys, "repro", dump, "Functional.linear.0.forward", "-o", tmp_path / "bug")
    assert done.stderr == "error: the call cannot be made into a script: input.1: there is no file of it\n"
    done = run_here(capsys, "tensor", dump, "Functional.linear.0.forward.input.1", "-o", tmp_path / "tensors")
    assert "there is no file of Functional.linear.0.forward.input.1 in" in done.stderr
    assert 'only what task "replay" left out can be computed' in done.stderr


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_call_of_a_dump_is_named_by_its_address(
    kind: str, dumps: dict[str, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"file://{dumps['router']}"
    if kind == "memory":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        memory.store.clear()
        memory.put(str(dumps["router"]), "/run", recursive=True)
        monkeypatch.setenv("TENSORPROBE_CACHE", str(tmp_path / "cache"))
        mirror._mirrors.clear()
        address = "memory://run"
    done = run_here(capsys, "repro", address, CALLS["router"][0], "-o", tmp_path / "bug")
    assert done.returncode == 0, done.stderr
    assert "output.0: largest difference" in run_script(tmp_path / "bug" / "repro.py")
