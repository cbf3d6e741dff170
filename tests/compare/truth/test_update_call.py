"""Which calls update a parameter?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorprobe.compare.truth.update_call import find_update_calls
from tensorprobe.run.step import Run
from tests.compare.judge.sketched_recording import Parameter, SketchedRecording

X, W = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)


def record(folder: Path, update: str, caller: str | None = None) -> Run:
    run = SketchedRecording()
    w = run.parameter("fc.weight", W)
    z = run.api("Functional.linear", run.data(X), w, output=X @ W.T)
    g = run.backward("Functional.linear.0", run.data(z.array), [None, z.array.T @ X])[1]
    if update:
        fields = {"caller": caller} if caller else {}
        made = Parameter(W - g.array, None, True, "fc.weight")
        run.api(update, *([g] if update.startswith("Jit.") else [w, g]), output=made, fields=fields)
        run.api("Torch.lerp", run.data(X), w, output=X + W)  # a mean of the weights only looks at them
    return run.read(folder)


@pytest.mark.parametrize(
    ("update", "caller"), [("Tensor.add_", None), ("Tensor.addcdiv_", "optimizer"), ("Jit.Momentum", "optimizer")]
)
def test_the_call_behind_the_backward_that_writes_to_it(update: str, caller: str | None, tmp_path: Path) -> None:
    runs = {"reference": record(tmp_path / "r", "Tensor.add_"), "candidate": record(tmp_path / "c", update, caller)}
    found = find_update_calls(runs, dict.fromkeys(runs, "fc.weight"))
    assert found.result is not None
    assert found.result.reference[0].name == "Tensor.add_.0.forward"
    assert found.result.candidate[0].name == f"{update}.0.forward"
    assert found.lines and all("model.py" in line for line in found.lines)


def test_nothing_is_named_where_no_update_is_recorded(tmp_path: Path) -> None:
    runs = {"reference": record(tmp_path / "r", ""), "candidate": record(tmp_path / "c", "")}
    found = find_update_calls(runs, dict.fromkeys(runs, "fc.weight"))
    assert found.result is None and not found.lines
