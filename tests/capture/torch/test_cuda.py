"""On a GPU: bit-identical, nobody waits, and the numbers are those of the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.capture.torch import tensor_copy
from tensorprobe.capture.torch.tensor_copy import TensorCopy
from tensorprobe.capture.torch.tensor_file import TorchFiles
from tensorprobe.capture.torch.verification import is_wanted
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.training import Observed, difference, open_session, recorded_step, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WAYS: list[dict[str, Any]] = [
    {"task": "statistics"},
    {"task": "tensor"},
    {"task": "statistics", "summary_mode": "md5"},
    {"task": "statistics", "summary_mode": "hash"},
    {"task": "tensor", "async_dump": True},
]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@cache
def plain(model: str) -> Observed:
    return train(model, device="cuda")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_training_on_a_gpu_is_bit_identical_while_it_is_recorded(
    model: str, level: str, way: dict[str, Any], tmp_path: Path
) -> None:
    session = open_session(tmp_path, level=level, **way)
    captured = train(model, partial(recorded_step, session), device="cuda")
    assert difference(plain(model), captured) == []
    assert session.recorder.coverage.failed == 0
    session.close()


@pytest.mark.skipif(is_wanted(), reason="verify mode waits for every value")
@pytest.mark.parametrize("way", [{}, {"summary_mode": "md5"}, {"summary_mode": "hash"}, {"task": "tensor"}], ids=str)
def test_nobody_waits_for_the_device_while_calls_are_recorded(tmp_path: Path, way: dict[str, Any]) -> None:
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    session = open_session(tmp_path, level="L1", **way)
    session.start()
    torch.cuda.set_sync_debug_mode("error")  # a synchronisation inside capture would be counted as a failure
    try:
        (torch.relu(x) @ x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    session.stop()
    assert session.recorder.coverage.failed == 0
    assert session.recorder.coverage.recorded == 6
    session.close()


@pytest.mark.parametrize("mode", ["hash", "md5"])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_statistics_and_checksums_are_those_of_the_host(tmp_path: Path, mode: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    content = (torch.randn(300, 257) * 5).to(dtype)
    if dtype.is_floating_point:
        content[3, 4], content[5, 6] = float("nan"), float("inf")
    leaves = [describe(tmp_path / device, content.to(device), mode) for device in ("cpu", "cuda")]
    for reference, candidate in zip(*leaves, strict=True):
        assert candidate[mode] == reference[mode]
        assert candidate.get("nan_count") == reference.get("nan_count")
        assert candidate.get("inf_count") == reference.get("inf_count")
        for key in ("Max", "Min", "Mean", "Norm"):
            assert candidate[key] == pytest.approx(reference[key], rel=1e-6)
        size = float(content[content.isfinite()].double().norm())
        assert candidate["Sketch"] == pytest.approx(reference["Sketch"], abs=1e-6 * size)


def describe(folder: Path, content: torch.Tensor, mode: str) -> list[dict[str, Any]]:
    """Leaves of a tensor, of a transposed view, and of a view with gaps."""
    session = open_session(folder, level="L1", summary_mode=mode)
    session.start()
    content.clone(), content.t(), content[:, 3:9]
    session.close()
    return [fields["output"][0] for fields in only_step(folder).records.values()]


def make_deep(wrap: Any) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(5)
    layers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Dropout(0.5)) for _ in range(4)
    ).cuda()

    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = wrap(layer, x)
            return x.square().sum()

    return Deep(), torch.randn(8, 64, device="cuda", requires_grad=True)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_on_a_gpu_is_recorded_though_its_backward_runs_in_another_thread(
    tmp_path: Path, level: str, reentrant: bool
) -> None:
    from torch.utils.checkpoint import checkpoint

    def run(session: Any) -> list[torch.Tensor]:
        model, x = make_deep(lambda layer, value: checkpoint(layer, value, use_reentrant=reentrant))
        if session is not None:
            session.start(model)
        loss = model(x)
        loss.backward()
        if session is not None:
            session.stop()
        assert x.grad is not None
        return [loss.detach(), x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]

    expected = run(None)
    session = open_session(tmp_path, level=level)
    observed = run(session)
    coverage = session.recorder.coverage
    session.close()
    assert all(torch.equal(a, b) for a, b in zip(expected, observed, strict=True))
    assert coverage.failed == 0 and coverage.recomputed > 0 and coverage.recomputed_differently == 0
    assert coverage.unseen == {}
    records = only_step(tmp_path).records
    stems = ["Functional.linear.{}.backward"] if level == "L1" else ["Module.layers.{}.0.Linear.backward.0"]
    assert all(stem.format(number) in records for stem in stems for number in range(4))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_a_hook_writes_in_the_thread_of_the_device_is_noticed(tmp_path: Path, level: str) -> None:
    def wrap(layer: torch.nn.Module, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = layer(value)

        def double(gradient: torch.Tensor) -> None:
            gradient.data.mul_(2)

        result.register_hook(double)
        return result

    model, x = make_deep(wrap)
    session = open_session(tmp_path, level=level, task="tensor")
    session.start(model)
    model(x).backward()
    session.close()
    dump = only_step(tmp_path)
    for fields in dump.records.values():
        for leaf in (*fields.get("input", ()), *fields.get("output", ())):
            if isinstance(leaf, dict) and "data_name" in leaf:
                assert leaf["Norm"] == pytest.approx(dump.tensor(leaf).double().norm().item(), rel=1e-6)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_cuda_graph_can_be_captured_and_replayed_in_a_window(tmp_path: Path, level: str) -> None:
    weight = torch.randn(64, 64, device="cuda")
    x = torch.randn(64, 64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.tanh(x @ weight)
    torch.cuda.synchronize()
    model = torch.nn.Identity()
    session = open_session(tmp_path, level=level)
    session.start(model)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(torch.tanh(x @ weight))
    x.fill_(0.25)
    graph.replay()
    first = model(y * 1)
    x.fill_(0.5)
    graph.replay()
    second = model(y * 1)
    session.stop()
    coverage = session.recorder.coverage
    session.close()
    assert torch.equal(second, torch.tanh(torch.full_like(x, 0.5) @ weight)) and not torch.equal(first, second)
    assert coverage.failed == 0 and coverage.unseen["CUDA graph replay"] == 2
    assert coverage.unseen["call inside a CUDA graph capture"] > 0
    records = only_step(tmp_path).records
    if level != "L0":
        norms = [records[f"Tensor.mul.{number}.forward"]["input_args"][0]["Norm"] for number in range(2)]
        assert norms == pytest.approx([first.double().norm().item(), second.double().norm().item()], rel=1e-6)
        assert "Jit.CUDAGraph.1.forward" in records


@pytest.mark.skipif(is_wanted(), reason="verify mode waits for every value")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("most_bytes", [1 << 26, 1 << 12], ids=["at once", "in pieces"])
def test_a_cuda_graph_can_be_captured_while_the_window_before_it_is_still_written(
    way: dict[str, Any], most_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_copy, "_MAX_PINNED_BYTES", most_bytes)
    monkeypatch.setattr(tensor_copy, "_PIECE_BYTES", 1 << 11)
    x = torch.randn(64, 64, device="cuda")
    expected = torch.tanh(x)
    session = open_session(tmp_path, level="L1", **way)
    for _ in range(2):  # what is compiled is compiled then
        session.start()
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        torch.relu(x)
        session.stop()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            y = torch.tanh(x)
            time.sleep(0.5)  # now the device has the numbers of the window
            graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, expected)
        session.step()
    assert session.recorder.coverage.failed == 0
    session.close()
    assert len(list(tmp_path.rglob("dump.json"))) == 2


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_graphed_callable_is_recorded_at_its_boundary(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()).cuda()
    sample = torch.randn(4, 32, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    x = torch.randn(4, 32, device="cuda", requires_grad=True)
    expected = graphed(x).sum()
    expected.backward()
    gradient = x.grad.clone()  # type: ignore[union-attr]
    x.grad = None
    session = open_session(tmp_path, level=level)
    session.start(graphed)
    loss = graphed(x).sum()
    loss.backward()
    session.stop()
    coverage = session.recorder.coverage
    session.close()
    assert torch.equal(loss, expected) and torch.equal(x.grad, gradient)  # type: ignore[arg-type]
    assert coverage.failed == 0 and coverage.unseen["CUDA graph replay"] >= 1
    if level != "L0":
        records = only_step(tmp_path).records
        assert records["Jit.Graphed.0.forward"]["output"][0]["shape"] == [4, 32]
        assert "Jit.Graphed.0.backward" in records


def test_the_first_nan_on_a_gpu_is_found_at_its_call(tmp_path: Path) -> None:
    from tensorprobe.errors import NonFiniteError

    x = torch.tensor([4.0, -1.0], device="cuda")
    session = open_session(tmp_path, level="L1", on_nonfinite="stop")
    session.start()
    with pytest.raises(NonFiniteError, match=r"Torch\.sqrt\.0\.forward"):
        torch.sin(torch.sqrt(x))
    session.close()
    assert list(only_step(tmp_path).records) == ["Torch.sqrt.0.forward"]


def test_compiled_backward_on_a_gpu_is_left_alone(tmp_path: Path) -> None:
    compiled = torch.compile(lambda value: torch.tanh(value).sum())
    x = torch.randn(64, device="cuda", requires_grad=True)
    compiled(x).backward()
    session = open_session(tmp_path, level="L1")
    session.start()
    compiled(torch.sin(x)).backward()
    session.stop()
    assert session.recorder.coverage.unseen == {"compiled region": 1} and session.recorder.coverage.failed == 0
    session.close()


def test_many_tensors_that_one_kernel_changes_are_read_again(tmp_path: Path) -> None:
    """torch._foreach_* changes tensors on a GPU without a new version."""
    tensors = [torch.zeros(8, device="cuda") + number for number in range(3)]
    session = open_session(tmp_path, level="L1")
    session.start()
    changed = [tensor + 1 for tensor in tensors]
    torch._foreach_mul_(changed, 3.0)
    changed[2] * 1
    session.close()
    leaf = only_step(tmp_path).records["Tensor.mul.0.forward"]["input_args"][0]
    assert leaf["Max"] == 9.0


@pytest.mark.skipif(is_wanted(), reason="verify mode waits for every value")
def test_nobody_waits_for_the_device_while_undefined_memory_is_filled(tmp_path: Path) -> None:
    ones = torch.ones(64, 64, device="cuda")
    session = open_session(tmp_path, level="L1")
    session.start()
    torch.cuda.set_sync_debug_mode("error")
    try:
        memory = torch.empty(64, 64, device="cuda")
        memory.view(-1)[:32].fill_(1.0)
        memory[1:].copy_(ones[1:])
        torch.mul(ones, 2, out=memory)
        memory + 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    session.stop()
    assert session.recorder.coverage.failed == 0
    session.close()
    records = only_step(tmp_path).records
    assert records["Tensor.copy_.0.forward"]["output"][0].get("note") is None
    assert records["Torch.mul.0.forward"]["input_kwargs"]["out"]["note"] == "undefined memory"
    assert records["Tensor.add.0.forward"]["output"][0].get("note") is None


def test_memory_that_a_kernel_of_triton_fills_is_data(tmp_path: Path) -> None:
    from tests.capture.torch.triton_kernel import double

    session = open_session(tmp_path, level="L1", on_nonfinite="stop")
    session.start()
    result = double(torch.ones(1000, device="cuda"))
    result + 1
    torch.empty(1000, device="cuda") + 1
    session.stop()
    assert session.recorder.coverage.failed == 0
    session.close()
    records = only_step(tmp_path).records
    assert records["Tensor.add.0.forward"]["input_args"][0]["Max"] == 2
    assert records["Tensor.add.0.forward"]["output"][0].get("note") is None
    assert records["Tensor.add.1.forward"]["output"][0]["note"] == "undefined memory"


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_fsdp2_on_a_gpu_is_not_stopped_by_buffers_that_nobody_has_written_to(tmp_path: Path, level: str) -> None:
    """Its backward runs in another thread, where no call is seen."""
    from torch.distributed._composable.fsdp import fully_shard

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        session = open_session(tmp_path / "dump", level=level, on_nonfinite="stop")
        for _ in range(2):
            session.start(model)
            for _ in range(2):
                model(torch.ones(4, 8, device="cuda")).sum().backward()
            session.stop()
            assert session.recorder.coverage.failed == 0
            session.step()
        session.close()
    finally:
        torch.distributed.destroy_process_group()
    folder = tmp_path / "dump" / "step1" / "rank0"
    records = DumpOnDisk(folder).records
    linear = [fields for name, fields in records.items() if name.startswith("Functional.linear") and "forward" in name]
    assert len(linear) == 4
    assert not any("note" in leaf for fields in linear for leaf in (*fields["input_args"], *fields["output"]) if leaf)


@pytest.mark.parametrize("has_hash", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_kernel_agrees_with_float64_whatever_the_size_and_the_place(dtype: torch.dtype, has_hash: bool) -> None:
    """Sizes around a row of the sketch, tensors that begin at no multiple of 16 bytes, gaps, and what is not finite."""
    from tensorprobe.capture.torch.digest import hash_digest
    from tensorprobe.capture.torch.reducer import Reducer
    from tensorprobe.model.record import Value

    torch.manual_seed(3)
    memory = (torch.randn((1 << 21) + 64, device="cuda") * 3).to(dtype)
    tensors = [
        memory[start : start + size] for start in (0, 1, 8) for size in (1, 5, 2031, 2032, 2033, 100_003, 1 << 21)
    ]
    tensors += [memory[: 1 << 20].view(1024, 1024).t(), memory[::3], memory[:3].expand(5, 3)]
    broken = memory[:5000].clone()
    broken[7], broken[4999], broken[2032] = float("nan"), float("inf"), float("-inf")
    reducer = Reducer()
    values = [Value(None) for _ in (*tensors, broken)]
    for tensor, value in zip([*tensors, broken], values, strict=True):
        value.stats = reducer.reduce(tensor, 0, value if has_hash else None)
    reducer.fetch()
    for tensor, value in zip(tensors, values, strict=False):
        stats, exact = value.stats, tensor.double()
        assert stats is not None and (stats.max, stats.min) == (exact.max().item(), exact.min().item())
        assert stats.norm == pytest.approx(exact.norm().item(), rel=1e-7)
        assert stats.mean == pytest.approx(exact.mean().item(), abs=1e-9 * exact.norm().item())
        assert not has_hash or value.digest == hash_digest(tensor.cpu())
    stats = values[-1].stats
    assert stats is not None and (stats.nan_count, stats.inf_count) == (1, 2)
    assert (stats.max, stats.min) == (float("inf"), float("-inf"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64, torch.int64, torch.bool])
def test_a_large_tensor_comes_to_its_file_in_pieces(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_copy, "_MAX_PINNED_BYTES", 1 << 12)
    monkeypatch.setattr(tensor_copy, "_PIECE_BYTES", 1 << 10)
    tensor = (torch.randn(3, 500, 7, device="cuda") * 9).to(dtype).transpose(0, 2)
    copy = TensorCopy(tensor.clone())
    tensor.zero_()
    assert copy.is_for_pieces
    with (tmp_path / "tensor.pt").open("wb") as file:
        TorchFiles().write_copy(copy, file)
    read = torch.load(tmp_path / "tensor.pt", weights_only=True)
    assert read.stride() == copy.kind[2] and torch.equal(read, copy.to_host())


@pytest.mark.parametrize("has_hash", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    ],
)
def test_the_kernel_knows_integers_exactly_whatever_the_size_and_the_place(dtype: torch.dtype, has_hash: bool) -> None:
    """Up to the ends of each dtype, which float64 does not tell from their neighbours."""
    from tensorprobe.capture.torch.digest import hash_digest
    from tensorprobe.capture.torch.reducer import Reducer
    from tensorprobe.model.record import Value

    torch.manual_seed(4)
    numbers = torch.randint(-(1 << 63), (1 << 63) - 1, ((1 << 20) + 64,))
    memory = (numbers % 2).to(torch.bool) if dtype is torch.bool else numbers.view(dtype)[: len(numbers)]
    tensors = [
        memory[start : start + size] for start in (0, 1, 8) for size in (1, 5, 2031, 2032, 2033, 100_003, 1 << 20)
    ]
    tensors += [memory[: 1 << 20].view(1024, 1024).t(), memory[: 1 << 18].view(512, 512)[:, 16:80], memory[::3]]
    tensors.append(memory[:3].expand(5, 3))
    reducer = Reducer()
    whole = memory.cuda()
    on_device = [whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in tensors]
    values = [Value(None) for _ in tensors]
    for tensor, value in zip(on_device, values, strict=True):
        value.stats = reducer.reduce(tensor, 0, value if has_hash else None)
        assert reducer._buffers == {}, "not by the kernel"
    reducer.fetch()
    for tensor, value in zip(tensors, values, strict=True):
        host = Reducer().reduce(tensor)
        exact = [int(number) for number in tensor.reshape(-1).tolist()]
        stats = value.stats
        assert stats is not None and (stats.max, stats.min) == (max(exact), min(exact))
        assert type(stats.max) is (bool if dtype is torch.bool else int)
        assert (stats.nan_count, stats.inf_count) == (host.nan_count, host.inf_count)
        assert stats.norm == pytest.approx(host.norm, rel=1e-12)
        assert stats.mean == pytest.approx(host.mean, abs=1e-12 * (host.norm or 0))
        assert stats.sketch == pytest.approx(host.sketch, abs=1e-9 * (host.norm or 0))
        assert not has_hash or value.digest == hash_digest(tensor)
