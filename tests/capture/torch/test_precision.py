"""Every dtype and layout, at every task: statistics and files where they exist, a reason where not, and never an
exception in the user's program."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

from tensorprobe.model.record import Stats
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.reference import ALL_DTYPES, check_stats, make_tensor, numbers_of
from tests.capture.torch.training import Observed, difference, open_session, same

Make = Callable[[], torch.Tensor]
WAYS: dict[str, dict[str, Any]] = {
    "statistics": {},
    "tensor": {"task": "tensor"},
    "structure": {"task": "structure"},
    "md5": {"summary_mode": "md5"},
    "hash": {"summary_mode": "hash"},
}


class Wrapper(torch.Tensor):
    """A tensor without memory of its own: what is done to it is done to what it wraps."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        wrapper: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride()
        )
        wrapper.wrapped = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda value: getattr(value, "wrapped", value), (args, kwargs or {}))
        return tree_map(lambda value: cls(value) if type(value) is torch.Tensor else value, func(*args, **kwargs))


class Refusing(Wrapper):
    """A tensor that nothing can be done with."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError("not with me")


def dense() -> torch.Tensor:
    return make_tensor(torch.float32, (4, 4))


def freed() -> torch.Tensor:
    tensor = dense()
    tensor.untyped_storage().resize_(0)
    return tensor


def per_channel() -> torch.Tensor:
    return torch.quantize_per_channel(dense(), torch.full((4,), 0.1), torch.zeros(4), 0, torch.qint8)


WITH_NUMBERS: dict[str, Make] = {
    **{str(dtype).removeprefix("torch."): partial(make_tensor, dtype, (3, 4)) for dtype in ALL_DTYPES},
    "sparse coo": lambda: dense().to_sparse(),
    "sparse coo with repeated places": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 3)),
    "sparse coo with rows": lambda: torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (3, 3)),
    "sparse coo with nothing stored": lambda: torch.sparse_coo_tensor(size=(3, 3)),
    "sparse bfloat16": lambda: dense().bfloat16().to_sparse(),
    "sparse bool": lambda: (dense() > 0).to_sparse(),
    "sparse csr": lambda: dense().to_sparse_csr(),
    "sparse csc": lambda: dense().to_sparse_csc(),
    "sparse bsr": lambda: dense().to_sparse_bsr((2, 2)),
    "sparse bsc": lambda: dense().to_sparse_bsc((2, 2)),
    "quantized": lambda: torch.quantize_per_tensor(dense(), 0.1, 2, torch.qint8),
    "quantized, unsigned": lambda: torch.quantize_per_tensor(dense(), 0.1, 2, torch.quint8),
    "quantized, 32 bits": lambda: torch.quantize_per_tensor(dense(), 0.1, 2, torch.qint32),
    "quantized per channel": per_channel,
    "quantized, two in a byte": lambda: torch.quantize_per_channel(
        dense(), torch.full((4,), 0.1), torch.zeros(4), 0, torch.quint4x2
    ),
    "mkldnn": lambda: dense().to_mkldnn(),
    "0-d": lambda: torch.tensor(3.5),
    "conjugate": lambda: make_tensor(torch.complex64, (3, 3)).conj(),
    "conjugate complex32": lambda: make_tensor(torch.complex32, (3, 3)).conj(),
    "negative": lambda: make_tensor(torch.complex64, (3, 3)).conj().imag,
    "zeros that are nowhere": lambda: torch._efficientzerotensor(3),
    "inference": torch.inference_mode()(dense),
    "wrapper": lambda: Wrapper(dense()),
    "parameter of a wrapper": lambda: nn.Parameter(Wrapper(dense())),
    "expanded": lambda: torch.randn(1, 3).expand(1000, 3),
    "largest uint64": lambda: torch.tensor([2**64 - 1, 2**64 - 1], dtype=torch.uint64),
    "NaN and Inf": lambda: torch.tensor([math.nan, math.inf, -math.inf, 1.0]),
    "complex NaN and Inf": lambda: torch.tensor([complex(math.nan, 1), complex(math.inf, 1), 2j]),
}
WITHOUT_NUMBERS: dict[str, tuple[Make, str]] = {
    "empty": (lambda: torch.empty(0, 3), "empty"),
    "meta": (lambda: torch.ones(3, device="meta"), "meta tensor"),
    "fake": (lambda: FakeTensorMode().from_tensor(dense()), "fake tensor"),
    "freed": (freed, "memory not allocated"),
    "lazy": (lambda: nn.LazyLinear(3).weight, "not initialized"),
    "bits8": (lambda: torch.zeros(3, 4, dtype=torch.uint8).view(torch.bits8), "not computed: "),
    "uint4": (lambda: torch.zeros(3, 4, dtype=torch.uint8).view(torch.uint4), "not computed: "),
    "a subclass that refuses": (lambda: Refusing(dense()), "not computed: not with me"),
}
NESTED: dict[str, Make] = {
    "strided": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.full((4, 3), 2.0)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.full((4, 3), 2.0)], layout=torch.jagged, requires_grad=True
    ),
}


class Passing(nn.Module):
    def forward(self, tensor: torch.Tensor, *, more: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"result": tensor}


def record(tmp_path: Path, tensor: torch.Tensor, way: dict[str, Any]) -> tuple[DumpOnDisk, dict[str, Any]]:
    """What is recorded of a module call that is given the tensor and returns it; the leaf of the argument."""
    session = open_session(tmp_path, level="mix", **way)
    model = Passing()
    session.start(model)
    assert model(tensor, more=[tensor])["result"] is tensor
    session.close()
    step = only_step(tmp_path)
    fields = step.records["Module.Passing.forward.0"]
    leaves = [fields["input_args"][0], fields["input_kwargs"]["more"][0], fields["output"][0]["result"]]
    assert len({(leaf["dtype"], tuple(leaf["shape"]), repr(leaf.get("Norm")), leaf.get("md5")) for leaf in leaves}) == 1
    return step, leaves[0]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """What the tensor stands for, as a dense one."""
    tensor = getattr(tensor, "wrapped", tensor).detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.dequantize() if tensor.is_quantized else tensor.resolve_conj().resolve_neg()


def stats_of(leaf: dict[str, Any]) -> Stats:
    words = (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"])
    return Stats(*words, leaf.get("nan_count", 0), leaf.get("inf_count", 0), leaf.get("reason"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", WITH_NUMBERS.values(), ids=WITH_NUMBERS)
def test_a_tensor_with_numbers(tmp_path: Path, make: Make, way: dict[str, Any]) -> None:
    tensor = make()
    step, leaf = record(tmp_path, tensor, way)
    assert step.read("run.json")["coverage"]["failed"] == 0
    assert (leaf["dtype"], leaf["shape"]) == (str(tensor.dtype), list(tensor.shape))
    if way.get("task") == "structure":
        assert "Norm" not in leaf and "reason" not in leaf
        return
    check_stats(stats_of(leaf), numbers_of(plain(tensor)))
    if "summary_mode" in way:
        assert len(leaf[way["summary_mode"]]) == {"md5": 8, "hash": 16}[way["summary_mode"]]
    if way.get("task") == "tensor":
        stored = step.tensor(leaf)
        assert type(stored) is torch.Tensor
        assert torch.equal(as_bytes(plain(stored)), as_bytes(plain(tensor)))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("make", "reason"), WITHOUT_NUMBERS.values(), ids=WITHOUT_NUMBERS)
def test_a_tensor_without_numbers_says_why(tmp_path: Path, make: Make, reason: str, way: dict[str, Any]) -> None:
    tensor = make()
    _, leaf = record(tmp_path, tensor, way)
    assert leaf["dtype"] == str(tensor.dtype)
    if way.get("task") != "structure":
        assert leaf["reason"].startswith(reason)
        assert "Norm" not in leaf or leaf["Norm"] is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", NESTED.values(), ids=NESTED)
def test_a_nested_tensor(tmp_path: Path, make: Make, way: dict[str, Any]) -> None:
    step, leaf = record(tmp_path, make(), way)
    assert step.read("run.json")["coverage"]["failed"] == 0
    numbers = np.repeat([1.0, 2.0], [6, 12])
    if way.get("task") != "structure":
        check_stats(stats_of(leaf), numbers)
    if way.get("task") == "tensor":
        assert np.array_equal(step.tensor(leaf).flatten().numpy(), numbers)


def test_a_kind_of_tensor_that_cannot_be_copied_keeps_its_record_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step, leaf = record(tmp_path, Refusing(dense()), {"task": "tensor"})
    assert "data_name" not in leaf
    assert leaf["note"] == "no file"
    assert step.read("run.json")["coverage"]["failed"] == 3
    assert [r.getMessage() for r in caplog.records if "not with me" in r.getMessage()] == [
        "the file of a torch.float32 tensor was not recorded (NotImplementedError: not with me); "
        "further failures of this kind are counted"
    ]


def test_bits_without_arithmetic_are_stored_as_bytes(tmp_path: Path) -> None:
    content = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    step, leaf = record(tmp_path, content.view(torch.uint4), {"task": "tensor", "summary_mode": "md5"})
    assert torch.equal(step.tensor(leaf), content)
    assert leaf["md5"] == record(tmp_path / "bytes", content, {"summary_mode": "md5"})[1]["md5"]


@pytest.mark.parametrize("kind", ["md5", "hash"])
def test_a_huge_expanded_tensor_has_no_checksum_and_takes_no_memory(tmp_path: Path, kind: str) -> None:
    _, leaf = record(tmp_path, torch.ones(1).expand(10**6, 10**6), {"summary_mode": kind})
    assert leaf["Norm"] == 1e6
    assert leaf["reason"] == f"no {kind}, not computed: a few elements, expanded to 1,000,000,000,000"


# -- mixed precision ---------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """One weight is used twice: autocast casts it once and keeps the cast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.twice = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.twice(torch.relu(self.twice(self.norm(self.first(x)))))
        return y


def train_mixed(dtype: torch.dtype, session: Any = None, broken_step: int = -1) -> Observed:
    """Three steps with autocast and a gradient scaler; in one of them the gradients are infinite."""
    torch.manual_seed(3)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    observed: Observed = {}
    for step in range(3):
        batch = torch.randn(5, 6)
        if session is not None:
            session.start(model)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            output = model(batch)
            with torch.autocast("cpu", enabled=False):
                loss = output.float().square().mean() * (math.inf if step == broken_step else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        observed[f"scale {step}"] = scaler.get_scale()
        observed[f"output {step}"] = output.detach().clone()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            observed[f"gradient {step} {name}"] = parameter.grad.nan_to_num(nan=7.0)
            observed[f"weight {step} {name}"] = parameter.detach().clone()
        if session is not None:
            session.stop()
            session.step()
    return observed


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_training_with_autocast_and_a_scaler_is_bit_identical(
    tmp_path: Path, dtype: torch.dtype, level: str, way: dict[str, Any]
) -> None:
    reference = train_mixed(dtype, broken_step=1)
    assert [reference[f"scale {step}"] for step in range(3)] == [256.0, 128.0, 128.0]
    session = open_session(tmp_path, level=level, **way)
    assert difference(reference, train_mixed(dtype, session, broken_step=1)) == []
    session.close()
    for step in range(3):
        assert only_step(tmp_path, step).read("run.json")["coverage"]["failed"] == 0


def test_a_skipped_step_shows_the_infinite_gradients(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="mix")
    observed = train_mixed(torch.bfloat16, session, broken_step=1)
    session.close()
    assert same(observed["weight 0 first.weight"], observed["weight 1 first.weight"])
    leaves = [
        only_step(tmp_path, step).records["Module.first.Linear.parameters_grad"]["weight"][0] for step in range(3)
    ]
    assert [bool(leaf.get("nan_count") or leaf.get("inf_count")) for leaf in leaves] == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_calls_show_the_dtypes_they_compute_in_and_every_gradient(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    model, batch = Small(), torch.randn(5, 6)
    session = open_session(tmp_path, level="mix", task="tensor")
    session.start(model)
    with torch.autocast("cpu", dtype):
        model(batch).float().sum().backward()
    session.close()
    step = only_step(tmp_path)
    for number in range(3):
        forward, backward = (step.records[f"Functional.linear.{number}.{way}"] for way in ("forward", "backward"))
        assert forward["output"][0]["dtype"] == str(dtype)
        assert forward["input_args"][1]["dtype"] == "torch.float32"
        incoming, outgoing = step.tensors(backward["input"])[0], step.tensors(backward["output"])
        given, weight, _ = step.tensors(forward["input_args"])
        expected = incoming.float().T @ given.to(dtype).float()
        assert torch.allclose(outgoing[1].float(), expected, rtol=0.02, atol=0.02)
        if number:
            assert torch.allclose(
                outgoing[0].float(), incoming.float() @ weight.to(dtype).float(), rtol=0.02, atol=0.02
            )
        assert torch.allclose(outgoing[2].float(), incoming.float().sum(0), rtol=0.02, atol=0.02)
    for name, parameter in model.named_parameters():
        module, _, word = name.rpartition(".")
        (fields,) = [
            step.records[key] for key in step.records if key.startswith(f"Module.{module}.") and "_grad" in key
        ]
        assert torch.equal(step.tensor(fields[word][0]), parameter.grad)
