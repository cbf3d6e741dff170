"""What is written of a tensor: its dtype and shape, its content as a file, and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import COOTensor, Parameter, Tensor, nn, ops
from mindspore.common.initializer import One

from tensorprobe.store.tensor_file import open_tensor
from tests.capture.mindspore.dump import DumpOnDisk
from tests.capture.mindspore.recording import float_tensor, record
from tests.capture.mindspore.test_statistics import ALL_DTYPES, make_tensor

NAMES = {mindspore.bool_: "Bool", mindspore.bfloat16: "BFloat16", mindspore.uint8: "UInt8"}


def save(folder: Path, *variables: Any, **options: Any) -> DumpOnDisk:
    """What a window records of tensors that a cell is given: nothing is done to them."""

    class Sink(nn.Cell):
        def construct(self, *given: Any) -> None:
            return None

    cell = Sink()
    return record(folder, lambda: cell(*variables), cell, **{"level": "L0", "task": "tensor", **options})


def leaves_of(dump: DumpOnDisk) -> list[Any]:
    leaves: list[Any] = dump.records["Cell.Sink.forward.0"]["input_args"]
    return leaves


def path_of(dump: DumpOnDisk, leaf: Any) -> Path:
    return dump.folder / "dump_tensor_data" / leaf["data_name"]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_is_stored_and_read_back_without_loss(dtype: Any, tmp_path: Path) -> None:
    tensor = make_tensor(dtype, (3, 4))
    dump = save(tmp_path, tensor)
    (leaf,) = leaves_of(dump)
    assert (leaf["type"], leaf["dtype"], leaf["shape"]) == ("mindspore.Tensor", str(dtype), [3, 4])
    assert NAMES.get(dtype, leaf["dtype"]) == leaf["dtype"]
    stored = open_tensor(path_of(dump, leaf), leaf["dtype"])
    if dtype == mindspore.bfloat16:
        assert np.array_equal(stored.astype(np.float32), tensor.float().asnumpy())
    else:
        assert stored.dtype == tensor.asnumpy().dtype and np.array_equal(stored, tensor.asnumpy())


def test_numpy_opens_every_file_but_that_bfloat16_is_bits_to_it(tmp_path: Path) -> None:
    dump = save(tmp_path, Tensor([1.0, 2.0], mindspore.bfloat16), Tensor([1.0, 2.0]))
    bits, numbers = (np.load(path_of(dump, leaf), allow_pickle=False) for leaf in leaves_of(dump))
    assert bits.view(np.uint16).tolist() == [0x3F80, 0x4000] and numbers.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(np.zeros((0, 3), np.float32)),
        Tensor(3.5),
        Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).T,
        Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))[:, ::2],
        Tensor(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)),
    ],
    ids=["empty", "scalar", "transposed", "strided", "not finite"],
)
def test_tensors_of_every_kind_are_stored_as_they_read(tensor: Tensor, tmp_path: Path) -> None:
    dump = save(tmp_path, tensor)
    (leaf,) = leaves_of(dump)
    assert leaf["shape"] == list(tensor.shape)
    assert open_tensor(path_of(dump, leaf)).tobytes() == np.ascontiguousarray(tensor.asnumpy()).tobytes()


def test_nan_and_inf_are_counted_in_the_record(tmp_path: Path) -> None:
    (leaf,) = leaves_of(save(tmp_path, Tensor([np.nan, np.inf, 2.0, np.nan])))
    assert (leaf["nan_count"], leaf["inf_count"], leaf["Max"], leaf["Min"]) == (2, 1, np.inf, 2.0)


def test_equal_contents_are_one_file_with_several_names(tmp_path: Path) -> None:
    first, same, other = float_tensor(8), float_tensor(8), float_tensor(8) * 2
    dump = save(tmp_path, first, same, other, first.reshape(2, 4))
    inodes = [path_of(dump, leaf).stat().st_ino for leaf in leaves_of(dump)]
    assert inodes[0] == inodes[1] and len(set(inodes)) == 3  # another shape is another file


def test_numbers_that_are_equal_and_not_the_same_bits_are_two_files(tmp_path: Path) -> None:
    dump = save(tmp_path, Tensor([0.0]), Tensor([-0.0]), Tensor([0.0], mindspore.float16))
    assert len({path_of(dump, leaf).stat().st_ino for leaf in leaves_of(dump)}) == 3


@pytest.mark.parametrize("is_async", [False, True], ids=["follows", "async"])
def test_what_is_written_into_the_memory_afterwards_changes_nothing(is_async: bool, tmp_path: Path) -> None:
    shared = np.array([1.0, 2.0], np.float32)
    tensor, weight = Tensor.from_numpy(shared), Parameter(Tensor([1.0, 2.0]), name="w")
    optimizer = nn.SGD([weight], learning_rate=1.0)

    def work() -> None:
        ops.abs(tensor)
        ops.exp(weight)
        shared[:] = 77.0
        optimizer((Tensor([50.0, 50.0]),))
        ops.abs(tensor)
        ops.exp(weight)

    dump = record(tmp_path, work, task="tensor", async_dump=is_async)
    names = [f"Functional.{call}.forward" for call in ("abs.0", "exp.0", "abs.1", "exp.1")]
    seen = {name: dump.tensor(dump.records[name]["input_args"][0]).tolist() for name in names}
    assert seen["Functional.abs.0.forward"] == seen["Functional.exp.0.forward"] == [1.0, 2.0]
    assert seen["Functional.abs.1.forward"] == [77.0, 77.0] and seen["Functional.exp.1.forward"] == [-49.0, -48.0]
    assert dump.records["Functional.abs.1.forward"]["input_args"][0]["Max"] == 77.0


def test_a_value_names_the_call_that_made_it(tmp_path: Path) -> None:
    x = float_tensor(2)
    dump = record(tmp_path, lambda: ops.abs(ops.exp(x)) + x)
    assert dump.records["Functional.abs.0.forward"]["input_args"][0]["source"] == "Functional.exp.0.forward"
    first, second = dump.records["Tensor.__add__.0.forward"]["input_args"]
    assert first["source"] == "Functional.abs.0.forward" and "source" not in second


def test_a_value_of_another_window_has_no_source(tmp_path: Path) -> None:
    kept: list[Tensor] = []
    record(tmp_path / "first", lambda: kept.append(ops.exp(float_tensor(2))))
    dump = record(tmp_path / "second", lambda: ops.abs(kept[0]))
    assert "source" not in dump.records["Functional.abs.0.forward"]["input_args"][0]


def test_a_tensor_that_takes_the_address_of_another_does_not_take_its_source(tmp_path: Path) -> None:
    def work() -> None:
        for number in range(200):
            ops.exp(Tensor([float(number)]))
            ops.abs(Tensor([float(number)]))

    records = record(tmp_path, work).records
    assert not [name for name, fields in records.items() if "source" in fields["input_args"][0]]


def test_a_parameter_that_is_not_yet_initialised_is_said_to_be_so_and_stays_so(tmp_path: Path) -> None:
    weight = Tensor(shape=(2, 2), dtype=mindspore.float32, init=One())
    (leaf,) = leaves_of(save(tmp_path, weight))
    assert leaf["shape"] == [2, 2] and "data_name" not in leaf
    assert weight.has_init


def test_a_sparse_tensor_does_no_harm(tmp_path: Path) -> None:
    sparse = COOTensor(Tensor([[0, 1]], mindspore.int32), Tensor([2.0]), (2, 2))
    dump = save(tmp_path, sparse)
    assert dump.coverage["failed"] == 0 and len(leaves_of(dump)) == 1


def test_a_subclass_of_tensor_is_a_tensor(tmp_path: Path) -> None:
    class Marked(Tensor):
        pass

    (leaf,) = leaves_of(save(tmp_path, Marked([1.0, 2.0])))
    assert leaf["type"] == "mindspore.Tensor" and leaf["Max"] == 2.0


def test_reading_leaves_the_tensor_as_it_was(tmp_path: Path) -> None:
    x = float_tensor(3)
    before = dict(vars(x)), x.asnumpy().tobytes(), x.data_ptr()
    save(tmp_path, x, summary_mode="md5", task="statistics")
    assert (dict(vars(x)), x.asnumpy().tobytes(), x.data_ptr()) == before
