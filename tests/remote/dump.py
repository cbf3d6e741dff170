"""Small dumps with tensors, written as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_run(path: Path, scale: float = 1.0, size: int = 6, count: int = 1) -> None:
    """One step: so many products of numbers with a scale."""
    folder = path / "step0" / "rank"
    (folder / "dump_tensor_data").mkdir(parents=True)
    numbers = np.random.default_rng(0)
    records = {}
    for index in range(count):
        name, given = f"Tensor.mul.{index}.forward", numbers.standard_normal(size, dtype=np.float32)
        records[name] = {
            "input_args": [_save(folder, f"{name}.input.0", given)],
            "input_kwargs": {},
            "output": [_save(folder, f"{name}.output.0", given * np.float32(scale))],
        }
    head = {"task": "tensor", "level": "L1", "framework": "mindspore", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**head, "data": records}))


def _save(folder: Path, name: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    np.save(folder / "dump_tensor_data" / f"{name}.npy", value)
    return {
        "type": "mindspore.Tensor",
        "dtype": "Float32",
        "shape": list(value.shape),
        "Max": float(value.max()),
        "Min": float(value.min()),
        "Mean": float(value.mean()),
        "Norm": float(np.linalg.norm(value)),
        "requires_grad": False,
        "data_name": f"{name}.npy",
    }
