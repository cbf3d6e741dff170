"""`tensorprobe.save` and `tensorprobe.save_grad`: one call for the tensors of both frameworks, the same files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import COOTensor, CSRTensor, Parameter, Tensor, nn, ops

import tensorprobe as ts
from tensorprobe.capture import save_now
from tensorprobe.capture.context import make_session
from tensorprobe.capture.mindspore.save_face import dump_path
from tensorprobe.capture.mindspore.save_face import save as mindspore_save
from tensorprobe.capture.numbered import NumberedFiles
from tensorprobe.config import load_config
from tensorprobe.errors import UsageError
from tensorprobe.saving import save, save_grad  # as a package that passes them on has them
from tests.mindspore.mode import COMPILED, MODES, compiled, running_in

Array = np.ndarray[Any, Any]
OUT = Path("out")


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[NumberedFiles]:
    """The count belongs to the process: each test gets a new one, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    files = NumberedFiles()
    monkeypatch.setattr(save_now, "files", files)
    yield files
    files.close()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with running_in(request.param):
        yield request.param


def saved() -> list[str]:
    """The files in the order of their numbers, when all that was asked for is computed and written."""
    save_now.files.drain()
    names = [path.name for path in OUT.glob("*.npy")] if OUT.exists() else []
    return sorted(names, key=lambda name: int(name.partition("_")[0]))


def load(name: str) -> Array:
    return np.load(OUT / name, allow_pickle=False)


def make_torch(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.copy())


@contextmanager
def window(framework: str) -> Iterator[None]:
    """A capture that is recording."""
    session = make_session(load_config(dump_path="dump", level="L1"), framework)
    session.start(None)
    yield
    session.close()


def recorded() -> list[str]:
    dump = json.loads(Path("dump/step0/rank/dump.json").read_text())
    return [name for name in dump["data"] if name.endswith("forward")]


FRAMEWORKS = pytest.mark.parametrize("make", [make_torch, Tensor], ids=["torch", "mindspore"])


class Net(nn.Cell):
    """The network of the seeds, with its weights at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 2, weight_init="zeros", bias_init="zeros")
        self.path = "./out/"

    def construct(self, x: Tensor) -> Tensor:
        ts.save(self.path + "input", x)
        x = self.dense(x)
        ts.save(self.path + "dense", x)
        return ts.save_grad(self.path + "dense", x)


DATA = np.array([[0.2, 0.5, 0.2]], np.float32)
LABEL = np.array([[1, 0]], np.float32)
SEED_NAMES = ["0_input.npy", "1_dense.npy", "2_dense_backward.npy"]


def test_mindspore_writes_the_files_of_the_seed(mode: str) -> None:
    net, loss = compiled(mode, Net()), nn.CrossEntropyLoss()

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return loss(net(x), y)

    ms.value_and_grad(forward, None, net.trainable_params())(Tensor(DATA), Tensor(LABEL))
    assert saved() == SEED_NAMES
    assert np.array_equal(load(SEED_NAMES[0]), DATA) and np.array_equal(load(SEED_NAMES[2]), [[-0.5, 0.5]])


class Blocks(nn.Cell):
    """Values and gradients in turn, the last value after the last gradient was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([nn.Dense(64, 64) for _ in range(3)])

    def construct(self, x: Tensor) -> Tensor:
        number = 0
        for block in self.blocks:
            x = ops.tanh(block(x))
            ts.save(f"out/v{number}", x)
            x = ts.save_grad(f"out/g{number}", x, None)
            number = number + 1
        ts.save("out/last", x)
        return x.sum()


@pytest.mark.parametrize("way", COMPILED)
def test_a_graph_numbers_its_gradients_after_its_values_in_every_step(way: str) -> None:
    with running_in(way):
        net = Blocks()
        train = ms.grad(compiled(way, net), None, net.trainable_params())
        for _ in range(5):
            train(Tensor(np.ones((8, 64), np.float32)))
        names = [name.partition("_")[2].removesuffix(".npy") for name in saved()]
    assert names == ["v0", "v1", "v2", "last", "g2", "g1", "g0"] * 5


class BranchesAndHalves(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # noqa: SIM108  a branch of the graph
            x = ts.save_grad("out/positive", x * 2)
        else:
            x = ts.save_grad("out/negative", x * 3)
        half = ts.save_grad("out/half", x.astype(ms.bfloat16))
        return (half.astype(ms.float32) * 1.5).sum()


@pytest.mark.parametrize("way", COMPILED)
@pytest.mark.some(2)
def test_gradients_in_branches_and_of_narrow_floats_are_saved_from_a_graph(way: str) -> None:
    with running_in(way):
        gradient = ms.grad(compiled(way, BranchesAndHalves()))(Tensor([1.0, 2.0]))
        assert saved() == ["0_half_backward.npy", "1_positive_backward.npy"]
    assert np.array_equal(gradient.asnumpy(), [3.0, 3.0])
    assert all(np.array_equal(load(name), np.full(2, 1.5, np.float32)) for name in saved())


def cube(x: Tensor) -> Tensor:
    return ts.save_grad("out/y", x * x * x).sum()


def test_a_graph_that_computes_the_gradient_of_a_gradient_stays_right() -> None:
    with running_in("graph"):
        assert float(ms.grad(ms.grad(cube))(Tensor([2.0], ms.float32))[0]) == 12.0


def test_torch_writes_the_files_of_the_seed() -> None:
    dense = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(dense.weight)
    torch.nn.init.zeros_(dense.bias)
    x = make_torch(DATA)
    ts.save("./out/input", x)
    x = dense(x)
    ts.save("./out/dense", x)
    x = ts.save_grad("./out/dense", x)
    torch.nn.functional.cross_entropy(x, make_torch(LABEL)).backward()
    assert saved() == SEED_NAMES
    assert np.array_equal(load(SEED_NAMES[0]), DATA) and np.array_equal(load(SEED_NAMES[2]), [[-0.5, 0.5]])


def test_tensors_of_both_frameworks_in_one_call_share_the_count() -> None:
    ts.save("out/x", {"torch": torch.zeros(1), "ms": Tensor([1.0])})
    ts.save("out/x", torch.ones(1))
    assert saved() == ["0_x.torch.npy", "1_x.ms.npy", "2_x.npy"]


class Nested(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        save("out/dd.npy", {"k1": x, "k2": [x, (x + 1, None, 3)]}, "suf")
        save(Path("out") / "y", x, suffix="")
        save("out/none", [None, 3])
        z = save_grad("out/z", x * 2, suffix=None)
        return z.sum()


def test_nested_data_suffixes_paths_and_functions_that_were_passed_on(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    ms.grad(compiled(mode, Nested()))(Tensor([1.0, 2.0]))
    names = {name.partition("_")[2] for name in saved()}
    assert names == {"dd.k1_suf.npy", "dd.k2.0_suf.npy", "dd.k2.1.0_suf.npy", "y.npy", "z.npy"}
    assert [int(name.partition("_")[0]) for name in saved()] == list(range(5))
    assert [record.getMessage() for record in caplog.records] == [
        "save('none'): there is no tensor in it, so nothing is saved"
    ]


class Printing(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        save("out/pp", {"k": [x]}, "s", "print")
        z = save_grad("out/z", x * 2, output_mode="print")
        return (z * z).sum()


@pytest.mark.parametrize("way", ["pynative", "graph"])
def test_mindspore_prints_the_mark_the_name_and_the_tensor(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    with running_in(way):
        ms.grad(compiled(way, Printing()))(Tensor([1.0, 2.0]))
        save_now.files.drain()
        ms.runtime.synchronize()
    out = capfd.readouterr().out
    between = "\n" if way == "graph" else " "  # MindSpore's own Print breaks the line
    assert f"_TS_SAVE_NAME:pp.k.0_s{between}Tensor(shape=[2], dtype=Float32, value=" in out
    assert f"_TS_SAVE_NAME:z_backward{between}Tensor(shape=[2], dtype=Float32, value=" in out
    assert saved() == []


def test_torch_prints_the_mark_the_name_and_the_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    save("out/pp", {"k": [torch.arange(6.0).view(2, 3)]}, "s", "print")
    save_grad("out/z", torch.ones(1, requires_grad=True) * 2, output_mode="print").sum().backward()
    assert capsys.readouterr().out == (
        "_TS_SAVE_NAME:pp.k.0_s tensor([[0., 1., 2.],\n        [3., 4., 5.]])\n_TS_SAVE_NAME:z_backward tensor([1.])\n"
    )


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@FRAMEWORKS
def test_every_dtype_and_shape_is_saved_exactly(make: Callable[[Array], Any]) -> None:
    arrays = [np.array([[1, 0, 3], [0, 5, 7]]).astype(dtype) for dtype in DTYPES]
    arrays += [np.array(4.25, np.float32), np.zeros((0, 3), np.float32), np.ones((2, 1, 3), np.float32)]
    save("out/x", [make(array) for array in arrays])
    for name, array in zip(saved(), arrays, strict=True):
        got = load(name)
        assert got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes()


NARROW = [1.5, -2.0, 0.25, 0.0, -0.0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_are_saved_as_float32(dtype: str) -> None:
    save("out/x", [torch.tensor(NARROW).to(getattr(torch, dtype)), Tensor(NARROW, getattr(ms, dtype))])
    for name in saved():
        assert load(name).dtype == np.float32 and load(name).tobytes() == np.array(NARROW, np.float32).tobytes()


class SaveAll(nn.Cell):
    def construct(self, *tensors: Tensor) -> Tensor:
        save("out/x", tensors)
        return tensors[0]


@pytest.mark.parametrize("way", COMPILED)
@pytest.mark.some(2)
def test_dtypes_and_shapes_from_a_graph(way: str) -> None:
    arrays = [np.array([[1, 0, 3]]).astype(dtype) for dtype in DTYPES]
    arrays += [np.array(4.25, np.float32), np.zeros((0, 3), np.float32)]
    with running_in(way):
        compiled(way, SaveAll())(*[Tensor(array) for array in arrays], Tensor([1.5], ms.bfloat16))
        names = saved()
    for name, array in zip(names, [*arrays, np.array([1.5], np.float32)], strict=True):
        got = load(name)
        assert got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental", "ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_sparse_quantized_and_viewed_tensors_are_saved_as_what_they_show() -> None:
    eye = torch.eye(2)
    save("out/x", [eye.to_sparse(), eye.to_sparse_csr(), torch.arange(4.0).view(2, 2).t(), torch.tensor([1j]).conj()])
    save("out/q", torch.quantize_per_tensor(eye, 0.5, 0, torch.qint8))
    save("out/h", torch.tensor([1 + 2j]).to(torch.complex32))
    arrays = [load(name) for name in saved()]
    expected = [np.eye(2), np.eye(2), [[0, 2], [1, 3]], [-1j], np.eye(2), [1 + 2j]]
    assert all(np.array_equal(array, wanted) for array, wanted in zip(arrays, expected, strict=True))


def test_sparse_tensors_of_mindspore_are_saved_dense() -> None:
    values = Tensor([1.0, 2.0], ms.float32)
    coordinates = COOTensor(Tensor([[0, 1], [1, 2]], ms.int32), values, (3, 4))
    rows = CSRTensor(Tensor([0, 1, 2, 2], ms.int32), Tensor([1, 2], ms.int32), values, (3, 4))
    save("out/x", [coordinates, rows])
    expected = np.zeros((3, 4), np.float32)
    expected[0, 1], expected[1, 2] = 1, 2
    assert all(np.array_equal(load(name), expected) for name in saved()) and len(saved()) == 2


def test_a_tensor_without_numbers_is_said_and_leaves_no_hole(caplog: pytest.LogCaptureFixture) -> None:
    save("out/meta", torch.ones(2, device="meta"))
    torch.vmap(lambda x: (save("out/batched", x), x * 2)[1])(torch.ones(2, 2))
    save("out/x", torch.ones(1))
    assert saved() == ["0_x.npy"]
    assert "meta in out could not be written (TypeError: meta tensor)" in caplog.text
    assert "batched in out could not be written (TypeError: inside a function transform)" in caplog.text


def test_inside_a_window_of_torch_nothing_of_it_is_recorded() -> None:
    x = torch.ones(2, requires_grad=True)
    with window("torch"):
        save("out/x", x)
        y = save_grad("out/y", x.sin())
        y.sum().backward()
    assert recorded() == ["Tensor.sin.0.forward", "Tensor.sum.0.forward"] and len(saved()) == 2


def test_inside_a_window_of_mindspore_nothing_of_it_is_recorded() -> None:
    def run(x: Tensor) -> Tensor:
        save("out/x", x)
        return save_grad("out/y", ops.sin(x)).sum()

    with window("mindspore"):
        ms.grad(run)(Tensor([1.0, 2.0]))
    assert recorded() == ["Functional.sin.0.forward", "Tensor.sum.0.forward"] and len(saved()) == 2


@FRAMEWORKS
def test_what_is_saved_is_the_value_at_that_time(make: Callable[[Array], Any]) -> None:
    x = make(np.ones(2, np.float32))
    save("out/x", x)
    x[0] = 5.0
    saved()
    assert np.array_equal(load("0_x.npy"), [1.0, 1.0])


def test_save_grad_of_torch_returns_the_very_same_tensor_and_leaves_no_hook_on_it() -> None:
    leaf = torch.ones(2, requires_grad=True)
    derived = leaf * 2
    assert save_grad("out/a", leaf) is leaf and save_grad("out/b", derived) is derived
    assert derived._backward_hooks is None
    derived.sum().backward()
    assert saved() == ["0_b_backward.npy", "1_a_backward.npy"] and leaf._backward_hooks is None


def test_a_gradient_of_torch_that_is_only_asked_for_is_saved_too() -> None:
    leaf = torch.ones(2, requires_grad=True)
    derived = save_grad("out/derived", leaf * 2)
    torch.autograd.grad((derived * 3).sum(), derived)
    torch.autograd.grad((save_grad("out/leaf", leaf) * 5).sum(), leaf)
    torch.func.grad(lambda x: (save_grad("out/function", x) * 7).sum())(torch.ones(2))
    assert saved() == ["0_derived_backward.npy", "1_leaf_backward.npy", "2_function_backward.npy"]
    assert [load(name).tolist() for name in saved()] == [[3.0, 3.0], [5.0, 5.0], [7.0, 7.0]]


def test_a_weight_of_torch_gives_one_gradient_for_each_call() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    losses = [save_grad("out/w", weight).sum() * factor for factor in (2.0, 3.0)]
    for loss in losses:
        loss.backward()
    weight.sum().backward()
    assert [load(name).tolist() for name in saved()] == [[2.0], [3.0]]


def test_a_weight_of_mindspore_gives_one_gradient_for_each_call() -> None:
    weight = Parameter(Tensor([1.0], ms.float32), name="w")
    for factor in (2.0, 3.0):
        ms.grad(lambda x, f=factor: (save_grad("out/w", weight) * x * f).sum(), 0, [weight])(Tensor([1.0]))
    ms.grad(lambda x: (weight * x).sum(), 0, [weight])(Tensor([1.0]))
    assert [load(name).tolist() for name in saved()] == [[2.0], [3.0]]


def test_torch_without_a_gradient_to_come_passes_the_tensor_through_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            assert save_grad("out/x", x) is x
    save_grad("out/plain", torch.ones(2))
    assert [record.getMessage() for record in caplog.records] == [
        "save_grad('x'): the tensor needs no gradient here, so none will be saved",
        "save_grad('plain'): the tensor needs no gradient here, so none will be saved",
    ]


def test_mindspore_without_a_gradient_to_come_passes_the_tensor_through_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = Tensor([1.0])
    for _ in range(2):
        assert save_grad("out/x", x) is x
    assert [record.getMessage() for record in caplog.records] == [
        "save_grad('x'): the tensor needs no gradient here, so none will be saved"
    ]


class Mixture(nn.Cell):
    """Several kinds of layers, with or without saves between them."""

    def __init__(self, is_saved: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Dense(4 * 25, 3)
        self.is_saved = is_saved

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.conv(x)
        if self.is_saved:
            ts.save("out/h", {"h": h, "x": x})
            h = ts.save_grad("out/h", h)
        h = ops.relu(self.norm(h))
        if self.is_saved:
            h = ts.save_grad("out/normed", h)
        logits = self.fc(h.reshape(h.shape[0], -1))
        if self.is_saved:
            logits = ts.save_grad("out/logits", logits)
            ts.save("out/logits", logits)
        return ops.cross_entropy(logits, y)


def test_mindspore_computes_the_same_bits_with_and_without(mode: str) -> None:
    def train(is_saved: bool) -> list[bytes]:
        ms.set_seed(3)
        net = Mixture(is_saved)
        x = Tensor(np.random.default_rng(0).normal(size=(4, 1, 5, 5)).astype(np.float32))
        y = Tensor(np.array([0, 1, 2, 1], np.int32))
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        run = ms.value_and_grad(compiled(mode, net), 0, optimizer.parameters)
        bits = []
        for _ in range(2):
            loss, (of_input, of_weights) = run(x, y)
            optimizer(of_weights)
            bits += [value.asnumpy().tobytes() for value in (loss, of_input, *of_weights)]
        return bits + [weight.asnumpy().tobytes() for weight in net.get_parameters()]

    assert train(False) == train(True)
    assert len(saved()) == 2 * 6


def test_torch_computes_the_same_bits_with_and_without() -> None:
    def train(is_saved: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5))
        x = torch.randn(4, 1, 5, 5, requires_grad=True)
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        bits = []
        for _ in range(2):
            h = x
            for layer in net:
                h = layer(h)
                if is_saved:
                    ts.save("out/h", {"h": h, "x": x})
                    h = ts.save_grad("out/h", h)
                    ts.save_grad("out/x", x)
            loss = h.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bits += [loss.detach(), x.grad.clone(), *(weight.detach().clone() for weight in net.parameters())]
        return bits

    assert all(torch.equal(plain, watched) for plain, watched in zip(train(False), train(True), strict=True))
    assert len(saved()) == 2 * (3 * 2 + 3 + 1)


def test_a_function_under_torch_compile_saves_and_computes_the_same() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        ts.save("out/y", y)
        return ts.save_grad("out/y", y).sum()

    x = torch.ones(2, requires_grad=True)
    torch.compile(run, backend="eager")(x).backward()
    assert saved() == ["0_y.npy", "1_y_backward.npy"]
    assert torch.equal(x.grad, torch.ones(2).cos())


class Wrong(nn.Cell):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def construct(self, x: Tensor) -> Tensor:
        if self.call == "name":
            save("out/", x)
        elif self.call == "mode":
            save("out/x", x, output_mode="txt")
        elif self.call == "data":
            save("out/x", 3)
        elif self.call == "list":
            x = save_grad("out/x", [x])
        return x


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("name", "file ends in the name of the data, such as './out/dense', not 'out/'"),
        ("mode", "output_mode is 'npy' or 'print', not 'txt'"),
        ("data", "or a dict, list or tuple of them, not a number"),
        ("list", "data is a tensor of PyTorch or MindSpore, not list"),
    ],
)
def test_a_wrong_argument_in_a_graph_is_an_error_that_says_so(call: str, words: str) -> None:
    with running_in("graph"), pytest.raises(UsageError, match=words):
        Wrong(call)(Tensor([1.0]))
    assert saved() == []


def test_the_functions_for_mindspore_take_what_the_public_ones_pass_on() -> None:
    mindspore_save("out/x", Tensor([1.0]), None, "npy")
    assert saved() == ["0_x.npy"]


def test_where_mindspore_writes_by_itself_the_rank_is_in_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dump_path("out", "x_backward") == "out/x_backward"
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "4")
    assert dump_path("out", "x_backward") == "out/rank3/x_backward"
