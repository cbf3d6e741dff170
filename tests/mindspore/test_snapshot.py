"""`save`, `save_grad` and `step` of the face: the same files from PyNative, GRAPH_MODE and `@ms.jit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from tensorprobe import UsageError
from tensorprobe.capture.mindspore.rank import current_rank
from tensorprobe.capture.mindspore.snapshot import array_of
from tensorprobe.capture.snapshot import Snapshots
from tensorprobe.mindspore import PrecisionDebugger, save, save_grad, snapshot, step
from tests.mindspore.mode import COMPILED, MODES, compiled, running_in
from tests.mindspore.program import DUMP, dump_of

OUT = Path("out")


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step counter belongs to the process: each test gets a new one."""
    monkeypatch.setattr(snapshot, "_snapshots", Snapshots(Tensor, array_of, current_rank))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with running_in(request.param):
        yield request.param


def saved(step_number: int = 0) -> list[str]:
    """The files of a step, when all that was asked for is computed."""
    snapshot.wait_for_results()
    folder = OUT / f"step{step_number}" / "rank0"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def load(name: str, step_number: int = 0) -> np.ndarray[Any, Any]:
    return np.load(OUT / f"step{step_number}" / "rank0" / name, allow_pickle=False)


def ones(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))


class TwoSaves(nn.Cell):
    """Saves what goes in, and the gradient of what comes out."""

    def construct(self, x: Tensor) -> Tensor:
        save("out", "x", x)
        z = x * 2
        z = save_grad("out", "z", z)
        return (z * z).sum()


def test_a_tensor_and_a_gradient_are_saved_under_their_name_dtype_and_count(mode: str) -> None:
    x = Tensor(np.array([[1.0, 2.0]], np.float32))
    net = compiled(mode, TwoSaves())
    value, gradient = ms.value_and_grad(net)(x)
    assert saved() == ["x_float32_0.npy", "z_grad_float32_0.npy"]
    assert np.array_equal(load("x_float32_0.npy"), [[1.0, 2.0]])
    assert np.array_equal(load("z_grad_float32_0.npy"), [[4.0, 8.0]])
    assert float(value) == 20.0 and np.array_equal(gradient.asnumpy(), [[8.0, 16.0]])


class Nested(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        save("out", "d", {"key": x, "list": [x, (x + 1, None, "text", 3)], 7: x})
        save("out", "none", None)
        return x * 2


def test_nested_data_is_unfolded(mode: str) -> None:
    compiled(mode, Nested())(ones(1))
    expected = ["d.7_float32_0.npy", "d.key_float32_0.npy", "d.list.0_float32_0.npy", "d.list.1.0_float32_0.npy"]
    assert saved() == expected
    assert np.array_equal(load("d.list.1.0_float32_0.npy"), [2.0])


class Block(nn.Cell):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.norm = nn.LayerNorm((4,))
        self.name = f"block{number}"

    def construct(self, x: Tensor) -> Tensor:
        h = ops.gelu(self.dense(self.norm(x)))
        h = save_grad("out", self.name, h)
        save("out", self.name, h)
        return x + h


class SixBlocks(nn.Cell):
    """Blocks with a name each, and a name that all of them share."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(number) for number in range(6)])

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            x = save_grad("out", "stream", x)
            save("out", "stream", x)
        return (x * x).mean()


SIX_BLOCKS = sorted(
    [f"block{n}_float32_0.npy" for n in range(6)]
    + [f"block{n}_grad_float32_0.npy" for n in range(6)]
    + [f"stream_float32_{n}.npy" for n in range(6)]
    + [f"stream_grad_float32_{n}.npy" for n in range(6)]
)


@pytest.mark.some(3)
def test_a_loop_of_training_steps_has_exactly_its_files_each_step(mode: str) -> None:
    ms.set_seed(1)
    net = SixBlocks()
    x = Tensor(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    train = ms.value_and_grad(compiled(mode, net), None, optimizer.parameters)
    losses = []
    for _ in range(3):
        loss, gradients = train(x)
        optimizer(gradients)
        losses.append(float(loss))
        step()
    assert [saved(number) for number in range(4)] == [SIX_BLOCKS, SIX_BLOCKS, SIX_BLOCKS, []]
    for number in range(3):
        last, last_gradient = load("stream_float32_5.npy", number), load("stream_grad_float32_0.npy", number)
        assert np.isclose(np.square(last).mean(), losses[number], rtol=1e-6)
        assert np.allclose(last_gradient, last * 2 / last.size, rtol=1e-6), "the last block has the first gradient"
    assert len(set(losses)) == 3


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
            save("out", "h", {"h": h, "x": x})
            h = save_grad("out", "h", h)
        h = ops.relu(self.norm(h))
        if self.is_saved:
            h = save_grad("out", "normed", h)
        logits = self.fc(h.reshape(h.shape[0], -1))
        if self.is_saved:
            logits = save_grad("out", "logits", logits)
            save("out", "logits", logits)
        return ops.cross_entropy(logits, y)


@pytest.mark.some(2)  # tests/both/test_save.py has the same of each mode
def test_loss_gradients_and_weights_are_unchanged_bit_for_bit(mode: str) -> None:
    def train(is_saved: bool) -> list[bytes]:
        ms.set_seed(3)
        net = Mixture(is_saved)
        generator = np.random.default_rng(0)
        x = Tensor(generator.normal(size=(4, 1, 5, 5)).astype(np.float32))
        y = Tensor(np.array([0, 1, 2, 1], np.int32))
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        run = ms.value_and_grad(compiled(mode, net), 0, optimizer.parameters)
        bits = []
        for _ in range(3):
            loss, (of_input, of_weights) = run(x, y)
            optimizer(of_weights)
            bits += [value.asnumpy().tobytes() for value in (loss, of_input, *of_weights)]
        return bits + [weight.asnumpy().tobytes() for weight in net.get_parameters()]

    assert train(False) == train(True)
    assert len(saved()) == 3 * 6


DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["bool", "complex64", "complex128"]


class Save(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        save("out", "x", x)
        return x


class SaveAll(nn.Cell):
    def construct(self, *tensors: Tensor) -> Tensor:
        save("out", "x", tensors)
        return tensors[0]


def test_every_dtype_is_saved_exactly(mode: str) -> None:
    arrays = [np.array([[1, 0, 3], [0, 5, 7]]).astype(dtype) for dtype in DTYPES]
    for array in arrays:
        if array.dtype.kind in "fc":
            array[0] = [np.nan, -0.0, np.inf]
    compiled(mode, SaveAll())(*[Tensor(array) for array in arrays])
    assert saved() == sorted(f"x.{number}_{dtype}_0.npy" for number, dtype in enumerate(DTYPES))
    for number, array in enumerate(arrays):
        got = load(f"x.{number}_{DTYPES[number]}_0.npy")
        assert got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes()


SHAPES: list[tuple[int, ...]] = [(), (1,), (1, 1), (2, 1, 3), (0, 3)]


def test_every_shape_is_saved_exactly(mode: str) -> None:
    arrays = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in SHAPES]
    compiled(mode, SaveAll())(*[Tensor(array) for array in arrays])
    assert len(saved()) == len(SHAPES)
    for number, array in enumerate(arrays):
        got = load(f"x.{number}_float32_0.npy")
        assert got.shape == array.shape and np.array_equal(got, array)


BFLOAT16 = np.array([0x3F80, 0x8000, 0x7F80, 0xFFC1, 0x0001, 0x7F81], np.uint16)
"""1, -0, infinity, a negative NaN, the smallest number, a signalling NaN."""


def test_bfloat16_is_kept_bit_for_bit(mode: str) -> None:
    wide = (BFLOAT16.astype(np.uint32) << 16).view(np.float32)
    tensors = [Tensor(array).astype(ms.bfloat16) for array in (wide, wide.reshape(2, 3), wide[3])]
    compiled(mode, SaveAll())(*tensors)
    assert saved() == [f"x.{number}_bfloat16_0.npy" for number in range(3)]
    for number, tensor in enumerate(tensors):
        got = load(f"x.{number}_bfloat16_0.npy")
        assert got.dtype == np.dtype("V2") and got.shape == tensor.shape
        assert got.tobytes() == tensor.asnumpy().tobytes()


class HalfGradient(nn.Cell):
    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype

    def construct(self, x: Tensor) -> Tensor:
        h = save_grad("out", "h", (x * 3).astype(self.dtype))
        return (h.astype(ms.float32) * 1.5).sum()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_gradient_has_the_dtype_of_its_tensor(mode: str, dtype: str) -> None:
    gradient = ms.grad(compiled(mode, HalfGradient(getattr(ms, dtype))))(ones(2))
    assert saved() == [f"h_grad_{dtype}_0.npy"]
    got = load(f"h_grad_{dtype}_0.npy")
    assert got.tobytes() == Tensor(np.full(2, 1.5), getattr(ms, dtype)).asnumpy().tobytes()
    assert np.array_equal(gradient.asnumpy(), [4.5, 4.5])


class Branches(nn.Cell):
    """A loop that the compiler unrolls, a branch that it decides, and one that the numbers decide."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True

    def construct(self, x: Tensor) -> Tensor:
        for number in range(3):
            x = save_grad("out", f"static{number}", x * 2)
            save("out", f"static{number}", x)
        if self.is_on:
            save("out", "on", x)
        else:
            save("out", "off", x)
        if x.sum() > 0:
            x = save_grad("out", "positive", x * 2)
            save("out", "positive", x)
        else:
            x = save_grad("out", "negative", x * 3)
            save("out", "negative", x)
        return x.sum()


@pytest.mark.some(3)
def test_branches_save_what_runs(mode: str) -> None:
    run = ms.grad(compiled(mode, Branches()))
    gradient = run(ones(2))
    step()
    run(-2 * ones(2))
    static = [f"static{number}_{rest}" for number in range(3) for rest in ("float32_0.npy", "grad_float32_0.npy")]
    static.append("on_float32_0.npy")
    assert saved() == sorted(["positive_float32_0.npy", "positive_grad_float32_0.npy", *static])
    assert saved(1) == sorted(["negative_float32_0.npy", "negative_grad_float32_0.npy", *static])
    assert np.array_equal(load("static0_grad_float32_0.npy"), [8.0, 8.0])
    assert np.array_equal(gradient.asnumpy(), [16.0, 16.0])


class ComputedLoop(nn.Cell):
    """Turns that only the numbers know."""

    def construct(self, x: Tensor, count: Tensor) -> Tensor:
        index = Tensor(0, ms.int32)
        while index < count:
            x = x * 2
            save("out", "turn", x)
            index = index + 1
        return x.sum()


@pytest.mark.parametrize("is_differentiated", [False, True], ids=["forward", "gradient"])
@pytest.mark.some(3)
def test_a_loop_whose_turns_are_computed_saves_each_turn(mode: str, is_differentiated: bool) -> None:
    net = compiled(mode, ComputedLoop())
    run = ms.grad(net) if is_differentiated else net
    for count in (2, 3):
        run(ones(2), Tensor(count, ms.int32))
        step()
    for number, count in enumerate((2, 3)):
        names = [f"turn_float32_{turn}.npy" for turn in range(count)]
        if mode == "ast" and is_differentiated:  # MindSpore (2.10) runs the loop again in the backward
            assert saved(number) == [f"turn_float32_{turn}.npy" for turn in range(2 * count)]
        else:
            assert saved(number) == names
        assert [load(name, number)[0] for name in names] == [2.0**turn for turn in range(1, count + 1)]


@pytest.mark.some(3)
def test_train_one_step_cell(mode: str) -> None:
    net = SixBlocks()
    trainer = nn.TrainOneStepCell(compiled(mode, net), nn.SGD(net.trainable_params(), 0.1))
    trainer.set_train()
    for _ in range(2):
        trainer(ones(3, 4))
        step()
    assert saved(0) == saved(1) == SIX_BLOCKS


class Stepping(ms.Callback):
    def on_train_step_end(self, run_context: Any) -> None:
        step()


@pytest.mark.some(3)
def test_model_train_with_a_callback_that_steps(mode: str) -> None:
    data = ms.dataset.NumpySlicesDataset({"x": np.ones((3, 3, 4), np.float32)}, shuffle=False)
    net = SixBlocks()
    model = ms.Model(compiled(mode, net), optimizer=nn.SGD(net.trainable_params(), 0.1))
    model.train(1, data, callbacks=[Stepping()], dataset_sink_mode=False)
    assert [saved(number) for number in range(4)] == [SIX_BLOCKS, SIX_BLOCKS, SIX_BLOCKS, []]


def test_a_jitted_function_saves(mode: str) -> None:
    def square(x: Tensor) -> Tensor:
        save("out", "x", x)
        x = save_grad("out", "x", x)
        return (x * x).sum()

    run = compiled(mode, square)
    assert np.array_equal(ms.grad(run)(ones(2)).asnumpy(), [2.0, 2.0])
    assert saved() == ["x_float32_0.npy", "x_grad_float32_0.npy"]


def test_a_gradient_that_nobody_asks_for_is_not_saved(mode: str) -> None:
    compiled(mode, TwoSaves())(ones(2))
    assert saved() == ["x_float32_0.npy"]


class SavesPath(nn.Cell):
    def __init__(self, save_dir: Any) -> None:
        super().__init__()
        self.save_dir = save_dir

    def construct(self, x: Tensor) -> Tensor:
        save(self.save_dir, "a/b", x)
        save(self.save_dir, "变 量", x)
        return save_grad(self.save_dir, "g", x) * 2


@pytest.mark.parametrize("save_dir", ["out", OUT], ids=["text", "path"])
def test_folders_are_texts_or_paths_and_names_hold_any_character(mode: str, save_dir: Any) -> None:
    ms.grad(compiled(mode, SavesPath(save_dir)))(ones(2))
    assert saved() == ["a%2Fb_float32_0.npy", "g_grad_float32_0.npy", "变 量_float32_0.npy"]


def test_the_rank_of_a_distributed_run_is_in_the_path(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "4")
    compiled(mode, Save())(ones(1))
    snapshot.wait_for_results()
    assert [path.name for path in (OUT / "step0").iterdir()] == ["rank3"]
    assert current_rank() == 3
    monkeypatch.delenv("RANK_SIZE")
    assert current_rank() is None


def test_a_folder_that_cannot_be_made_is_said_once_and_the_program_goes_on(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    OUT.write_text("")
    run = ms.value_and_grad(compiled(mode, TwoSaves()))
    for _ in range(3):
        value, _ = run(ones(2))
        step()
    assert float(value) == 8.0
    assert len(caplog.records) == 1
    assert "in out could not be written (NotADirectoryError" in caplog.records[0].getMessage()


class Wrong(nn.Cell):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def construct(self, x: Tensor) -> Tensor:
        if self.call == "empty":
            save("out", "", x)
        elif self.call == "folder":
            save(3, "x", x)
        elif self.call == "grad name":
            save_grad("out", "", x)
        else:
            save_grad("out", "x", [x])
        return x


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("empty", r"save\(save_dir, name, data\): the name is a text that is not empty, not ''"),
        ("folder", r"save\(save_dir, name, data\): save_dir is a path, not 3"),
        ("grad name", r"save_grad\(save_dir, name, data\): the name is a text that is not empty, not ''"),
        ("list", r"save_grad\(save_dir, name, data\): data is a mindspore.Tensor"),
    ],
    ids=["empty name", "folder", "empty name of a gradient", "list"],
)
def test_a_wrong_argument_is_an_error_that_says_so(mode: str, call: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        compiled(mode, Wrong(call))(ones(1))
    assert not OUT.exists()


# what only PyNative has


def test_what_is_saved_is_the_value_at_that_time() -> None:
    x = ones(2)
    save(OUT, "x", x)
    x[0] = 5.0
    assert np.array_equal(load("x_float32_0.npy"), [1.0, 1.0])


def test_save_grad_returns_the_very_same_tensor() -> None:
    weight = Parameter(ones(2), name="w")
    same = []

    def run(x: Tensor) -> Tensor:
        derived = x * weight
        same.extend(save_grad(OUT, "t", tensor) is tensor for tensor in (x, weight, derived))
        return derived.sum()

    ms.grad(run)(ones(2))
    assert same == [True, True, True]


def test_a_leaf_that_lives_on_gives_one_gradient_a_call() -> None:
    weight = Parameter(ones(2), name="w")

    def run(x: Tensor, factor: float) -> Tensor:
        return (save_grad(OUT, "w", weight) * save_grad(OUT, "x", x) * factor).sum()

    x = ones(2)
    for factor in (2.0, 3.0):
        ms.grad(run, 0, [weight])(x, factor)
    assert saved() == [f"{name}_grad_float32_{n}.npy" for name in "wx" for n in (0, 1)]
    assert np.array_equal(load("w_grad_float32_1.npy"), [3.0, 3.0])


def test_a_leaf_whose_gradient_has_not_come_by_step_is_not_waited_for() -> None:
    weight = Parameter(ones(2), name="w")

    def run(x: Tensor, is_watched: bool) -> Tensor:
        if is_watched:
            save_grad(OUT, "w", weight)
            return (x * 2).sum()
        return (x * weight).sum()

    ms.grad(run, 0, [weight])(ones(2), True)
    step()
    ms.grad(run, 0, [weight])(ones(2), False)
    assert saved(1) == []


def test_without_a_gradient_to_come_the_tensor_passes_through_with_one_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, constant = ones(2), ones(2)
    for _ in range(2):
        assert save_grad(OUT, "x", x) is x
    ms.grad(lambda y: (y * save_grad(OUT, "constant", constant)).sum())(x)
    assert [record.getMessage() for record in caplog.records] == [
        "save_grad('x'): the tensor needs no gradient here, so none will be saved",
        "save_grad('constant'): the tensor needs no gradient here, so none will be saved",
    ]


def test_data_without_a_tensor_is_said(caplog: pytest.LogCaptureFixture) -> None:
    save(OUT, "x", [3.0, None])
    assert "save('x'): there is no tensor in it, so nothing is saved" in caplog.text


def test_inside_a_window_nothing_of_it_is_recorded() -> None:
    def run(x: Tensor) -> Tensor:
        save(OUT, "x", x)
        y = save_grad(OUT, "y", ops.sin(x))
        return save_grad(OUT, "z", y.sum())

    debugger = PrecisionDebugger(dump_path=DUMP)
    debugger.start()
    ms.grad(run)(ones(2))
    debugger.stop()
    forward = [name for name in dump_of().records if "forward" in name]
    assert forward == ["Functional.sin.0.forward", "Tensor.sum.0.forward"]


# what only a compiled graph has


class NameFromValue(nn.Cell):
    def construct(self, x: Tensor, number: Tensor) -> Tensor:
        save("out", number, x)
        return x


@pytest.mark.parametrize("compiled_mode", COMPILED)
def test_a_name_that_is_computed_is_refused(compiled_mode: str) -> None:
    with running_in(compiled_mode), pytest.raises(UsageError, match="the name is a text"):
        compiled(compiled_mode, NameFromValue())(ones(1), Tensor(1))


class ComputedShape(nn.Cell):
    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        chosen = ops.masked_select(x, mask)
        save("out", "chosen", chosen)
        return (chosen * 2).sum()


@pytest.mark.parametrize("compiled_mode", COMPILED)
def test_a_shape_that_is_computed_is_refused(compiled_mode: str) -> None:
    with running_in(compiled_mode), pytest.raises(UsageError, match="the shape of 'chosen' is known only when"):
        compiled(compiled_mode, ComputedShape())(ones(3), Tensor(np.array([True, False, True])))
