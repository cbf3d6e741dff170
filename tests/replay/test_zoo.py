"""Models of several kinds, tiny: nothing is wrong with them, every call is replayed, and every bit comes out again.

All ten in five precisions: `python benchmarks/truth.py models`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from tests.replay.program import count_gradients, run_replay

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SAMPLE = [
    ("GPT", "float32"),
    ("CNN", "autocast float16"),
    ("LSTM", "float16"),
    ("U-Net", "bfloat16"),
    ("Llama", "autocast bfloat16"),
    ("T5", "float32"),
]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module("truth")
    torch.set_num_threads(count)
    for name in ("truth", "zoo", "gpt"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("model", "precision"), SAMPLE)
@pytest.mark.some(2)
def test_a_right_model_is_replayed_whole(model: str, precision: str, benchmark: Any, tmp_path: Path) -> None:
    if model in ("Llama", "T5"):
        pytest.importorskip("transformers")  # not on every lane
    benchmark.record(model, precision, tmp_path)
    replay, differences = run_replay(tmp_path, "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})
    assert replay.coverage.replayed == replay.coverage.call_count
    assert differences.gradient_count == count_gradients(tmp_path)
    (run,) = tensorprobe.truth(tmp_path).runs
    assert run.findings == [] and run.unchecked == {}
