"""Small dumps, written here as text in the format of the disk, so that the reader is not tested with our writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADER = '{"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": null, "data": {'
RUN = {
    "tensorprobe": "0.1.0",
    "framework": "pytorch",
    "versions": {"torch": "2.13.0"},
    "coverage": {
        "seen": 10,
        "recorded": 8,
        "filtered": 1,
        "excluded": 40,
        "failed": 0,
        "unseen": {"compiled region": 2},
    },
    "complete": True,
}


def tensor(value: float = 1.0, shape: tuple[int, ...] = (2, 3), **more: Any) -> dict[str, Any]:
    """A leaf whose statistics are all `value`."""
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape)}
    return {**leaf, "Max": value, "Min": value, "Mean": value, "Norm": value, "requires_grad": False, **more}


def forward(*inputs: Any, output: Any = None, **more: Any) -> dict[str, Any]:
    """A forward record."""
    return {"input_args": list(inputs), "input_kwargs": {}, "output": [output or tensor()], **more}


def backward(*gradients: Any, output: Any = None, **more: Any) -> dict[str, Any]:
    """A backward record: gradients of the results in, gradients of the inputs out."""
    return {"input": list(gradients), "output": [output or tensor()], **more}


def write_lines(path: Path, header: str, entries: dict[str, Any] | list[tuple[str, Any]], closing: str) -> Path:
    """One entry a line; without a closing it is a part."""
    items = entries.items() if isinstance(entries, dict) else entries
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in items)
    end = f"\n{closing}\n" if closing else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + ("\n" + lines if lines else "") + end, encoding="utf-8")
    return path


def write_rank(
    folder: Path,
    records: dict[str, Any] | list[tuple[str, Any]],
    parents: dict[str, str | None] | None = None,
    run: dict[str, Any] | None = RUN,
    stacks: dict[str, Any] | None = None,
) -> Path:
    """A complete rank folder."""
    write_lines(folder / "dump.json", HEADER, records, "}}")
    write_lines(folder / "construct.json", "{", parents or {}, "}")
    (folder / "stack.json").write_text(json.dumps(stacks or {}))
    if run is not None:
        (folder / "run.json").write_text(json.dumps(run))
    return folder


def write_killed_rank(folder: Path, records: dict[str, Any], cut: str = '"Functional.linear.7.forward": {"inp') -> Path:
    """What a SIGKILL leaves: parts without an end, the last line cut."""
    write_lines(folder / "dump.json.part", HEADER, records, "")
    write_lines(folder / "construct.json.part", "{", dict.fromkeys(records), "")
    for name in ("dump.json.part", "construct.json.part"):
        with (folder / name).open("a") as file:
            file.write(",\n" + cut)
    frames = ["File /x/model.py, line 18, in forward, \n x = self.fc(x)"]
    lines = [json.dumps(["stack", 0, frames]), *(json.dumps(["call", 0, name]) for name in records), '["call", 0, "Fun']
    (folder / "stack.json.part").write_text("\n".join(lines))
    return folder


def model_records() -> dict[str, Any]:
    """One step of a model with one block: what a training loop at level mix records."""
    nan = tensor(1.0, nan_count=2)
    return {
        "Functional.linear.0.forward": forward(tensor(), tensor(0.5), output=tensor(2.0), module_path="block.fc"),
        "Module.block.fc.Linear.forward.0": forward(tensor(), output=tensor(2.0), parameters={"weight": tensor(0.5)}),
        "Torch.log.0.forward": forward(tensor(2.0), output=nan, module_path="block"),
        "Module.block.Block.forward.0": forward(tensor(), output=nan),
        "Module.Net.forward.0": forward(tensor(), output=nan),
        "Functional.mse_loss.0.forward": forward(nan, output=tensor(float("nan"), (), nan_count=1)),
        "Functional.linear.0.backward": backward(nan, output=nan, module_path="block.fc"),
        "Module.block.fc.Linear.backward.0": backward(nan, output=nan),
        "Module.block.fc.Linear.parameters_grad": {"weight": [nan], "bias": [tensor(0.0)]},
        "Tensor.add_.0.forward": forward(nan, output=nan, caller="optimizer"),
    }


def model_parents() -> dict[str, str | None]:
    """The nesting of `model_records`."""
    return {
        "Functional.linear.0.forward": "Module.block.fc.Linear.forward.0",
        "Module.block.fc.Linear.forward.0": "Module.block.Block.forward.0",
        "Torch.log.0.forward": "Module.block.Block.forward.0",
        "Module.block.Block.forward.0": "Module.Net.forward.0",
        "Module.Net.forward.0": None,
        "Functional.mse_loss.0.forward": None,
        "Functional.linear.0.backward": "Module.block.fc.Linear.backward.0",
        "Module.block.fc.Linear.backward.0": None,
        "Module.block.fc.Linear.parameters_grad": None,
        "Tensor.add_.0.forward": None,
    }


MODEL_STACKS = {"0": [["Torch.log.0.forward"], ["File /x/model.py, line 18, in forward, \n y = torch.log(x)"]]}
