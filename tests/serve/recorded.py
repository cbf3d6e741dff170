"""Small dumps with tensor files, and the page of their comparison, put together by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.report.dump_files import forward, tensor, write_rank

NAME = "Functional.linear.0.forward"
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_run(path: Path, values: Any = VALUES, **more: Any) -> Path:
    """A run of one call whose result is saved, and whose input is not."""
    folder = path / "step0" / "rank"
    record = forward(tensor(), 1.5, output=tensor(data_name=f"{NAME}.output.0.npy"), module_path="fc")
    stack = ["File model.py, line 18, in forward, \n x = self.fc(x)", "File train.py, line 3, in main, \n model(x)"]
    write_rank(folder, {NAME: record}, stacks={"0": [[NAME], stack]}, **more)
    (folder / "dump_tensor_data").mkdir()
    np.save(folder / "dump_tensor_data" / f"{NAME}.output.0.npy", np.asarray(values))
    return path


def make_page(reference: object, candidate: object) -> dict[str, Any]:
    """One call, four rows: what came out, what went in, an argument, and a call without a partner."""
    strings = [NAME, f"{NAME}.output.0", f"{NAME}.input.0", f"{NAME}.input.1", "Torch.relu.0.forward"]
    return {
        "kind": "comparison",
        "title": "source: good against bad",
        "reference": str(reference),
        "candidate": str(candidate),
        "places": ["step0/rank"],
        "strings": strings,
        "calls": {"place": [0], "name_s": [0], "reference_s": [0], "candidate_s": [0]},
        "rows": {
            "call": [0, 0, 0, -1],
            "place": [0, 0, 0, 0],
            "reference_name_s": [1, 2, 3, 4],
            "candidate_name_s": [1, 2, 3, -1],
        },
    }
