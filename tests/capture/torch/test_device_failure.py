"""A device that is lost in the middle of a step: every record is written, and says why it has no statistics. Here the
CPU stands for it; test_cuda_error.py loses a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.capture.torch import look
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.capture.torch.statistics import DeviceBuffer, Extent
from tensorprobe.capture.torch.tensor_copy import TensorCopy
from tensorprobe.capture.torch.verification import is_wanted
from tensorprobe.model.record import Stats, Value
from tests.capture.torch.dump import leaves_in, only_step
from tests.capture.torch.training import open_session

LOST = "CUDA error: device-side assert triggered"
REASON = f"not computed: {LOST}"


class LateDevice:
    """The CPU as a device whose numbers are there only when they are fetched; it can be lost before."""

    def __init__(self) -> None:
        self.is_lost = False

    def reduce(self, reducer: Reducer, tensor: torch.Tensor, zeros: int = 0, hashed: Value | None = None) -> Stats:
        return reducer._buffer_on(tensor.device).add(tensor, Extent(tensor.dtype, tensor.numel()))

    def rows_on_host(self, buffer: DeviceBuffer, used: int) -> torch.Tensor:
        if self.is_lost:
            raise RuntimeError(f"{LOST}\nCompile with TORCH_USE_CUDA_DSA")
        return buffer._rows[:used].clone()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    late = LateDevice()
    monkeypatch.setattr(Reducer, "reduce_line", lambda *_: None)
    monkeypatch.setattr(look, "compiled", None)  # it would read the memory by itself
    monkeypatch.setattr(Reducer, "reduce", lambda *arguments: late.reduce(*arguments))
    monkeypatch.setattr(DeviceBuffer, "_rows_on_host", lambda *arguments: late.rows_on_host(*arguments))
    return late


@pytest.mark.skipif(is_wanted(), reason="verify mode looks at every value at once")
@pytest.mark.parametrize("options", [{}, {"on_nonfinite": "stop"}], ids=["plain", "watched"])
def test_records_of_a_lost_device_say_why_they_have_no_statistics(
    tmp_path: Path, device: LateDevice, options: dict[str, Any]
) -> None:
    x = torch.ones(3, requires_grad=True)
    session = open_session(tmp_path, level="L1", **options)
    session.start()
    y = torch.sin(x)
    assert session._sink is not None
    session._sink.flush()
    device.is_lost = True
    torch.exp(y).sum().backward()
    session.close("RuntimeError: lost")
    records = only_step(tmp_path).records
    assert list(records) == [
        *("Torch.sin.0.forward", "Torch.exp.0.forward", "Tensor.sum.0.forward"),
        *("Tensor.sum.0.backward", "Torch.exp.0.backward", "Torch.sin.0.backward"),
    ]
    assert all(leaf["Max"] is not None for leaf in leaves_in(records["Torch.sin.0.forward"]))
    (result,) = records["Torch.exp.0.forward"]["output"]
    assert (result["Max"], result["reason"]) == (None, REASON)
    assert "note" not in records["Torch.exp.0.forward"]
    for fields in records.values():
        assert all((leaf["Max"] is None) == ("reason" in leaf) for leaf in leaves_in(fields))
    run = only_step(tmp_path).read("run.json")
    assert run["ended"] == "RuntimeError: lost" and not run["complete"] and run["coverage"]["failed"] > 0


def test_a_device_that_fails_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reducer = Reducer()
    lost, sound = DeviceBuffer(torch.device("cpu")), DeviceBuffer(torch.device("cpu"))
    reducer._buffers = {torch.device("cpu", 0): lost, torch.device("cpu", 1): sound}
    monkeypatch.setattr(lost, "_rows_on_host", _fail)
    stats = [buffer.add(torch.tensor([2.0]), Extent(torch.float32, 1)) for buffer in (lost, sound)]
    with pytest.raises(RuntimeError, match="device-side assert"):
        reducer.fetch()
    assert (stats[0].max, stats[0].reason) == (None, REASON)
    assert (stats[1].max, stats[1].reason) == (2.0, None)


def test_checksums_that_waited_for_a_lost_device_are_not_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = TorchReader(has_stats=True, digest_kind="md5")
    copies = [TensorCopy(torch.ones(2)), TensorCopy(torch.ones(2))]
    values = [Value(Stats(max=1.0)) for _ in copies]
    reader._digests.late.extend((value, copy, 8) for value, copy in zip(values, copies, strict=True))
    monkeypatch.setattr(reader._reducer, "fetch", _fail)
    monkeypatch.setattr(TensorCopy, "to_host", lambda copy: _fail() if copy is copies[1] else torch.ones(2))
    with pytest.raises(RuntimeError, match="device-side assert"):
        reader.fetch()
    assert values[0].digest is not None
    assert values[1].stats is not None and values[1].stats.reason == f"no md5, {REASON}"


def _fail(*_: Any) -> Any:
    raise RuntimeError(LOST)
