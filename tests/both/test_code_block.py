"""The Python blocks of the README and of docs/ run, in their order, and print what the page says that they print.

A page uses names that every training program has: `model`, `loader`, `optimizer` … They are here, once for each
framework: from a block on that imports `tensorprobe.mindspore`, they are MindSpore's.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tensorprobe
from tensorprobe.cli.main import app
from tensorprobe.mindspore import PrecisionDebugger as MindSporeDebugger
from tensorprobe.pytorch import PrecisionDebugger
from tests.docs.block import PAGES, Block, find_blocks, name_of
from tests.mindspore_runtime import settle_mindspore
from tests.store.print_bytes import array_value, text_value

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def torch_names() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    data, label = torch.randn(2, 8), torch.tensor([0, 3])
    criterion = torch.nn.CrossEntropyLoss()

    def train_one_step(model: Any, data: Any, label: Any) -> Any:
        loss = criterion(model(data), label)
        loss.backward()
        return loss

    x = data.clone().requires_grad_()
    return {
        "torch": torch,
        "tensorprobe": tensorprobe,
        "model": model,
        "net": model,
        "torch_net": model,
        "cell": mindspore.nn.Dense(8, 4),
        "data": data,
        "label": label,
        "x": x,
        "y": label,
        "z": x * 2,
        "elements": [1.0, 2.0],
        "loader": [(data, label)] * 2,
        "criterion": criterion,
        "loss": criterion,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_one_step": train_one_step,
        "train_step": lambda model, batch: train_one_step(model, *batch),
        "train": lambda: train_one_step(model, data, label),
    }


def mindspore_names() -> dict[str, Any]:
    model = mindspore.nn.Dense(8, 4)
    data = mindspore.Tensor(np.ones((2, 8), np.float32))
    label = mindspore.Tensor([0, 3], mindspore.int32)
    criterion = mindspore.nn.CrossEntropyLoss()
    optimizer = mindspore.nn.SGD(model.trainable_params(), 0.1)

    def forward(data: Any, label: Any) -> Any:
        return criterion(model(data), label)

    compute = mindspore.value_and_grad(forward, None, optimizer.parameters)
    return {
        "mindspore": mindspore,
        "ms": mindspore,
        "model": model,
        "net": model,
        "forward": forward,
        "x": data,
        "data": [data, data],
        "loader": [(data, label)] * 2,
        "optimizer": optimizer,
        "train_one_step": lambda model, data, label: compute(data, label),
    }


def write_files(folder: Path) -> None:
    """What the pages take as given: two runs, folders of .npy files, a configuration, weights."""
    for name, factor in (("good", 1.0), ("bad", 1.5)):
        with tensorprobe.capture(torch.nn.Identity(), folder / name, task="tensor"):
            torch.exp(torch.full((4,), factor))
    for name in ("out_pytorch", "out_mindspore", "ms_ts_save", "torch_ts_save"):
        (folder / name / "rank0").mkdir(parents=True)
        for file in ("0_input", "1_dense", "rank0/3_x"):
            np.save(folder / name / f"{file}.npy", np.ones(3, np.float32))
    write_pair(folder)
    (folder / "config.json").write_text('{"task": "statistics", "level": "mix", "dump_path": "./dump"}')
    (folder / "print_file").write_bytes(text_value("_TS_SAVE_NAME:x") + array_value(np.ones(3, np.float32)))
    weights = torch.nn.Linear(8, 4).state_dict()
    torch.save(weights, folder / "model.pt")
    torch.save(weights, folder / "net.pth")


def write_pair(folder: Path) -> None:
    """The same layer in both frameworks, recorded, and dumped under TroubleShooter's names."""
    here, there = torch_names(), mindspore_names()
    with tensorprobe.capture(here["model"], folder / "pytorch_run"):
        here["train"]()
    with tensorprobe.capture(there["model"], folder / "mindspore_run"):
        there["train_one_step"](there["model"], *there["loader"][0])
    tensorprobe.migrator.api_dump_init(there["model"], str(folder / "dump_mindspore"), retain_backward=True)
    tensorprobe.migrator.api_dump_start()
    there["train_one_step"](there["model"], *there["loader"][0])
    tensorprobe.migrator.api_dump_stop()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settle_mindspore()
    folder = tmp_path_factory.mktemp("given")
    write_files(folder)
    return folder


@pytest.fixture
def workplace(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(shutil.copytree(given, tmp_path / "here"))
    random_state = torch.get_rng_state()
    yield tmp_path
    PrecisionDebugger.reset()
    MindSporeDebugger.reset()
    torch.set_rng_state(random_state)
    torch.use_deterministic_algorithms(False)
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def run_code(block: Block, page: Path, names: dict[str, Any]) -> str:
    """What it prints. It is a file, in which MindSpore finds the source of what it compiles."""
    file = Path(f"{page.stem}_{block.line}.py").absolute()
    file.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
    printed = io.StringIO()
    PrecisionDebugger.reset()
    MindSporeDebugger.reset()
    with contextlib.redirect_stdout(printed):
        exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    return printed.getvalue()


def without_numbers(text: str) -> str:
    """Another processor rounds in another way."""
    return _NUMBER.sub("#", text)


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text("utf-8")], ids=name_of)
def test_the_python_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page_of_documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # MindSpore looks names up there
    names, printed = vars(module), None
    names |= torch_names()
    for block in find_blocks(page):
        if block.language == "text" and printed is not None:
            assert without_numbers(printed) == without_numbers(block.text), f"{page}:{block.line}"
        if block.language == "console" and page.stem.startswith("tutorial"):
            check_command(block)
        printed = None
        if block.language == "python" and block.reason is None:
            if "tensorprobe.mindspore" in block.text:
                names |= mindspore_names()
            printed = run_code(block, page, names)


def check_command(block: Block) -> None:
    """The first lines that it prints are those of the page."""
    command, _, shown = block.text.removeprefix("$ tensorprobe ").partition("\n")
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code in (0, 1), result.output
    assert without_numbers(result.output).startswith(without_numbers(shown))
