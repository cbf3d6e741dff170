"""Every kind of tensor becomes a leaf: with its statistics and its file, or with the reason why it has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.model.record import TensorLeaf
from tensorprobe.store.encode import encode_tree
from tensorprobe.store.sketch import sketch_array
from tests.capture.torch.dump import only_step
from tests.capture.torch.reference import check_stats, make_tensor, numbers_of
from tests.capture.torch.training import open_session


def make_reader(digest_kind: str | None = None) -> TorchReader:
    return TorchReader(has_stats=True, digest_kind=digest_kind)


def read(tensor: torch.Tensor) -> TensorLeaf:
    return make_reader().read(tensor, None)


def check(leaf: TensorLeaf, numbers: np.ndarray[Any, Any]) -> None:
    assert leaf.value.stats is not None
    check_stats(leaf.value.stats, numbers)
    assert leaf.is_storable


def reason_of(leaf: TensorLeaf) -> str | None:
    assert leaf.value.stats is not None
    return leaf.value.stats.reason


# -- kinds of tensors --------------------------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    """A user's subclass that notices what is done with it."""

    calls: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_read_and_notices_nothing() -> None:
    content = make_tensor(torch.float32, (3, 5))
    tensor = content.as_subclass(Tagged)
    Tagged.calls.clear()
    for kind in ("md5", "hash"):
        reader = make_reader(kind)
        leaf = reader.read(tensor, None)
        reader.copy(tensor)
        reader.size_bytes(tensor)
        assert leaf.value.digest is not None
    assert Tagged.calls == []
    check(leaf, numbers_of(content))


def test_parameters_and_buffers() -> None:
    content = make_tensor(torch.float32, (3, 5))
    parameter = read(nn.Parameter(content))
    check(parameter, numbers_of(content))
    assert parameter.requires_grad is True
    buffer = read(nn.Buffer(content))
    check(buffer, numbers_of(content))
    assert buffer.requires_grad is False


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_a_nested_tensor_counts_as_the_tensor_that_holds_its_values() -> None:
    parts = [torch.ones(2, 3), torch.full((4, 3), 2.0)]
    for layout in (torch.strided, torch.jagged):
        leaf = read(torch.nested.nested_tensor(parts, layout=layout))
        check(leaf, torch.cat(parts).double().numpy().ravel())
        assert leaf.note == "nested"
        assert json.loads(encode_tree(leaf))["shape"] in ([6, 3], [18])


def test_a_tensor_in_the_layout_of_mkldnn() -> None:
    content = make_tensor(torch.float32, (3, 5))
    leaf = read(content.to_mkldnn())
    check(leaf, numbers_of(content))
    assert leaf.note == "mkldnn"


def test_tensors_without_content_say_why() -> None:
    with FakeTensorMode() as mode:
        inside = torch.ones(3)
        assert reason_of(read(inside)) == "fake tensor"
    assert reason_of(read(mode.from_tensor(torch.ones(3)))) == "fake tensor"
    assert reason_of(read(torch.ones(3, device="meta"))) == "meta tensor"
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    assert reason_of(read(freed)) == "memory not allocated"
    for tensor in (inside, torch.ones(3, device="meta"), freed):
        assert not read(tensor).is_storable


def test_a_lazy_parameter_says_that_it_is_not_initialized() -> None:
    leaf = read(nn.LazyLinear(3).weight)
    assert reason_of(leaf) == "not initialized"
    assert (leaf.shape, leaf.requires_grad, leaf.is_storable) == ((), True, False)


# -- function transforms -----------------------------------------------------------------------------------------------

TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "grad": torch.func.grad,
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum()),
    "vmap": lambda f: torch.vmap(f),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(f)),
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
}


@pytest.mark.parametrize("kind", [None, "md5", "hash"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_reading_inside_a_function_transform(
    transform: Callable[[Callable[[torch.Tensor], torch.Tensor]], Any], kind: str | None
) -> None:
    outside = [make_tensor(dtype, (4, 3)) for dtype in (torch.float32, torch.int64, torch.bool)]
    numbers = [numbers_of(tensor) for tensor in outside]
    reader = make_reader(kind)
    leaves: list[TensorLeaf] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        for tensor, expected in zip(outside, numbers, strict=True):
            check(reader.read(tensor, None), expected)
        y = (x * 2).sin()
        leaves.extend(reader.read(tensor, "Torch.sin.0.forward") for tensor in (x, y))
        return y.sum() * outside[0].sum()

    x = make_tensor(torch.float32, (4, 3))
    plain = transform(lambda x: (x * 2).sin().sum() * outside[0].sum())(x)
    assert torch.equal(transform(function)(x), plain)
    assert leaves
    for leaf in leaves:
        assert leaf.value.stats is not None
        assert (leaf.value.stats.max is None) == (leaf.value.stats.reason is not None)
        json.loads(encode_tree(leaf))


def test_what_grad_follows_has_statistics_and_what_vmap_batches_says_why() -> None:
    x = make_tensor(torch.float32, (4, 3))
    leaves: list[TensorLeaf] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        leaves.append(read(x))
        return x.sum()

    torch.func.grad(function)(x)
    check(leaves[0], numbers_of(x))
    assert leaves[0].requires_grad is True
    torch.vmap(function)(x)
    assert reason_of(leaves[1]) == "inside a function transform"
    assert leaves[1].shape == (3,)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_function_transform_in_a_recorded_window(tmp_path: Path, task: str) -> None:
    session = open_session(tmp_path, level="L1", task=task)
    x = torch.randn(4, 3)
    session.start()
    gradient = torch.func.grad(lambda x: torch.sin(x).sum())(x)
    torch.vmap(torch.sin)(x)
    session.close()
    assert torch.equal(gradient, x.cos())
    records = only_step(tmp_path).records
    assert records["Torch.sin.0.forward"]["input_args"][0]["Norm"] == pytest.approx(x.norm().item())
    assert records["Torch.sin.1.forward"]["input_args"][0]["reason"] == "inside a function transform"


# -- what the user's modes see -----------------------------------------------------------------------------------------


class CountingFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


class CountingOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make_mode", [CountingFunctions, CountingOperators])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_mode_of_the_user_does_not_see_the_reading(make_mode: Callable[[], Any], dtype: torch.dtype) -> None:
    tensor = make_tensor(dtype, (3, 5))
    reader = make_reader("hash")
    with make_mode() as mode:
        leaf = reader.read(tensor, None)
        reader.copy(tensor)
    assert mode.calls == []
    check(leaf, numbers_of(tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_real_tensors_where_new_ones_would_be_without_content(dtype: torch.dtype) -> None:
    tensor = make_tensor(dtype, (30, 50))
    for mode in (torch.device("meta"), FakeTensorMode()):
        with mode:
            leaf = make_reader("hash").read(tensor, None)
        check(leaf, numbers_of(tensor))


# -- nothing is left behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "md5", "hash"])
def test_the_tensor_is_left_as_it_was(kind: str | None) -> None:
    tensor = torch.randn(4, 5, requires_grad=True)
    content, state = tensor.detach().clone(), torch.get_rng_state()
    reader = make_reader(kind)
    reader.read(tensor, "Torch.randn.0.forward")
    reader.copy(tensor)
    assert torch.equal(tensor, content)
    assert torch.equal(torch.get_rng_state(), state)
    assert vars(tensor) == {}
    assert (tensor._version, tensor.grad_fn, tensor.grad, tensor._backward_hooks) == (0, None, None, None)
    assert tensor.untyped_storage().resizable()


def test_a_structure_has_no_statistics() -> None:
    reader = TorchReader(has_stats=False, digest_kind=None)
    leaf = reader.read(torch.ones(2, 3), None)
    assert leaf.value.stats is None
    assert leaf.shape == (2, 3)
    assert not reader.read(torch.ones(2, device="meta"), None).is_storable


# -- checksums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["md5", "hash"])
def test_a_permuted_view_has_the_statistics_of_its_base_and_a_checksum_and_a_sketch_of_its_own(kind: str) -> None:
    reader = make_reader(kind)
    tensor = make_tensor(torch.float32, (3, 5))
    base, view = reader.read(tensor, "Torch.randn.0.forward"), reader.read(tensor.t(), "Tensor.t.0.forward")
    own, known = view.value.stats, base.value.stats
    assert own is not None and known is not None
    assert (own.max, own.min, own.mean, own.norm) == (known.max, known.min, known.mean, known.norm)
    assert own.sketch == sketch_array(tensor.t().numpy())
    assert own.sketch != known.sketch
    assert view.value.digest == make_reader(kind).read(tensor.t().contiguous(), None).value.digest
    assert view.value.digest != base.value.digest
    assert view.value.digest_kind == kind


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["md5", "hash"])
def test_a_quantized_tensor_has_the_checksum_of_what_it_stands_for(kind: str) -> None:
    quantized = torch.quantize_per_tensor(make_tensor(torch.float32, (3, 5)), 0.1, 0, torch.qint8)
    reader = make_reader(kind)
    assert reader.read(quantized, None).value.digest == reader.read(quantized.dequantize(), None).value.digest


# -- sources -----------------------------------------------------------------------------------------------------------


def test_each_input_names_the_record_that_produced_it(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1")
    outside = torch.randn(3, 5)
    session.start()
    x = torch.relu(outside)
    y = x.view(15)
    torch.exp(y)
    torch.exp(x)
    torch.exp(x.T)  # the view is no record: its content is that of relu
    torch.exp(x[1:])
    y.add_(1)
    torch.exp(y)
    torch.exp(x)  # changed by add_ through its view
    x[0] = 5
    torch.exp(x)  # changed by the assignment
    session.close()
    records = only_step(tmp_path).records
    sources = [records[f"Torch.exp.{number}.forward"]["input_args"][0].get("source") for number in range(7)]
    assert sources == [
        "Tensor.view.0.forward",
        "Torch.relu.0.forward",
        "Torch.relu.0.forward",
        "Tensor.__getitem__.0.forward",
        "Tensor.add_.0.forward",
        "Tensor.add_.0.forward",
        "Tensor.__setitem__.0.forward",
    ]
    assert "source" not in records["Torch.relu.0.forward"]["input_args"][0]
    assert "source" not in records["Torch.relu.0.forward"]["output"][0]


def test_a_module_returns_what_its_last_call_produced(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
    session = open_session(tmp_path, level="mix")
    session.start(model)
    model(torch.randn(3, 5))
    session.close()
    records = only_step(tmp_path).records
    assert records["Module.1.ReLU.forward.0"]["input_args"][0]["source"] == "Functional.linear.0.forward"
    assert records["Module.Sequential.forward.0"]["output"][0]["source"] == "Functional.relu.0.forward"


def test_gradients_name_the_record_that_produced_them(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1")
    x = torch.randn(3, 5, requires_grad=True)
    session.start()
    torch.exp(torch.sin(x)).sum().backward()
    session.close()
    records = only_step(tmp_path).records
    assert records["Torch.sin.0.backward"]["input"][0]["source"] == "Torch.exp.0.backward"


# -- sparse ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_dense(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        raise MemoryError("a sparse tensor was made dense")

    monkeypatch.setattr(torch.Tensor, "to_dense", to_dense)


@pytest.mark.usefixtures("no_dense")
@pytest.mark.parametrize(
    "options", [{}, {"task": "tensor"}, {"summary_mode": "md5"}, {"summary_mode": "hash"}], ids=str
)
def test_the_gradient_of_a_sparse_embedding_is_not_made_dense(tmp_path: Path, options: dict[str, Any]) -> None:
    model = nn.Embedding(50_000, 64, sparse=True)
    session = open_session(tmp_path, level="mix", **options)
    session.start(model)
    (model(torch.tensor([[3, 3, 40_000], [7, 3, 0]])) * torch.arange(1.0, 65)).sum().backward()
    session.close()
    gradient = model.weight.grad
    assert gradient is not None
    step = only_step(tmp_path)
    leaf = step.records["Module.Embedding.parameters_grad"]["weight"][0]
    numbers = np.zeros((50_000, 64))
    np.add.at(numbers, [3, 3, 40_000, 7, 3, 0], np.arange(1.0, 65))
    assert (leaf["Max"], leaf["Min"]) == (192.0, 0.0)
    assert leaf["Mean"] == pytest.approx(numbers.mean())
    assert leaf["Norm"] == pytest.approx(np.sqrt((numbers**2).sum()))
    assert leaf["note"] == "sparse_coo"
    if options.get("task") == "tensor":
        stored = step.tensor(leaf)
        assert torch.equal(stored.coalesce().values(), gradient.coalesce().values())
        assert (step.folder / "dump_tensor_data" / leaf["data_name"]).stat().st_size < 10_000
    if "summary_mode" in options:
        assert leaf[options["summary_mode"]]


def test_a_sparse_tensor_that_no_machine_could_make_dense() -> None:
    huge = torch.sparse_coo_tensor([[5, 9], [7, 7]], [3.0, -4.0], (10**9, 10**6), check_invariants=True)
    for kind in ("md5", "hash"):
        leaf = make_reader(kind).read(huge, None)
        stats = leaf.value.stats
        assert stats is not None
        assert (stats.max, stats.min, stats.norm) == (3.0, -4.0, 5.0)
        assert stats.mean == pytest.approx(-1e-15)
        assert leaf.value.digest is not None
    assert make_reader().size_bytes(huge) == 8


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_shares_of_a_gradient_add_up_unseen() -> None:
    first, second = torch.ones(3, requires_grad=True), torch.ones(3)
    total = make_reader().add(first, second)
    assert torch.equal(total, torch.full((3,), 2.0))
    assert not total.requires_grad
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(make_reader().add(sparse, torch.ones(3, 3)), torch.eye(3) + 1)


@pytest.mark.parametrize(
    ("value", "leaf"),
    [
        (torch.Size([2, 3]), {"type": "torch.Size", "value": [2, 3]}),
        (torch.float32, {"type": "torch.dtype", "value": "torch.float32"}),
        (torch.device("cpu"), {"type": "torch.device", "value": "cpu"}),
        (torch.channels_last, {"type": "torch.memory_format", "value": "torch.channels_last"}),
        (torch.strided, {"type": "torch.layout", "value": "torch.strided"}),
        (3, None),
        ("text", None),
    ],
)
def test_objects_of_torch_that_are_no_tensors(value: Any, leaf: dict[str, Any] | None) -> None:
    assert make_reader().describe_object(value) == leaf


def test_zeros_that_nobody_has_stored_are_read() -> None:
    reader = TorchReader(has_stats=True, digest_kind=None)
    with hidden():
        leaf = reader.read(torch._efficientzerotensor((3,)), "Torch.zeros.0.forward")
    assert leaf.shape == (3,) and leaf.value.stats is not None
