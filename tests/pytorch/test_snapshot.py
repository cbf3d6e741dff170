"""`save`, `save_grad` and `step` of the face: tensors as .npy files, with the layout of the static-graph interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tensorprobe import UsageError
from tensorprobe.capture.snapshot import Snapshots
from tensorprobe.capture.torch.framework import current_rank
from tensorprobe.capture.torch.snapshot import array_of
from tensorprobe.pytorch import PrecisionDebugger, save, save_grad, snapshot, step
from tests.pytorch.program import DUMP, dump_of, files_in, make_net

OUT = Path("out")


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The step counter belongs to the process: each test gets a new one."""
    monkeypatch.setattr(snapshot, "_snapshots", Snapshots(torch.Tensor, array_of, current_rank))
    yield


def saved(step_number: int = 0) -> list[str]:
    folder = OUT / f"step{step_number}" / "rank0"
    return files_in(folder) if folder.exists() else []


def load(name: str) -> np.ndarray[Any, Any]:
    return np.load(OUT / "step0" / "rank0" / name, allow_pickle=False)


def test_a_tensor_is_saved_under_its_name_dtype_and_count() -> None:
    x = torch.tensor([[1.0, 2.0]])
    save(str(OUT), "x", x)
    save(OUT, "x", x + 1)
    assert saved() == ["x_float32_0.npy", "x_float32_1.npy"]
    assert np.array_equal(load("x_float32_1.npy"), [[2.0, 3.0]])


def test_a_gradient_is_saved_when_it_comes() -> None:
    z = torch.tensor([1.0, 2.0], requires_grad=True) * 2
    z = save_grad(str(OUT), "z", z)
    assert saved() == []
    (z * torch.tensor([3.0, 4.0])).sum().backward()
    assert saved() == ["z_grad_float32_0.npy"]
    assert np.array_equal(load("z_grad_float32_0.npy"), [3.0, 4.0])


def test_nested_data_is_unfolded() -> None:
    x = torch.ones(1)
    save(OUT, "d", {"key": x, "list": [x, (x, None, "text", 3)]})
    expected = ["d.key_float32_0.npy", "d.list.0_float32_0.npy", "d.list.1.0_float32_0.npy"]
    assert saved() == expected


def test_step_moves_on_and_counts_restart() -> None:
    x = torch.ones(1)
    save(OUT, "x", x)
    save(OUT, "x", x)
    step()
    save(OUT, "x", x)
    step()
    assert saved(0) == ["x_float32_0.npy", "x_float32_1.npy"] and saved(1) == ["x_float32_0.npy"]
    assert files_in(OUT) == ["step0", "step1"]


def test_each_folder_has_its_own_counts() -> None:
    save(OUT / "a", "x", torch.ones(1))
    save(OUT / "b", "x", torch.ones(1))
    assert files_in(OUT / "a" / "step0" / "rank0") == files_in(OUT / "b" / "step0" / "rank0") == ["x_float32_0.npy"]


def test_the_rank_of_a_distributed_run_is_in_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    save(OUT, "x", torch.ones(1))
    assert files_in(OUT / "step0") == ["rank3"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([True, False]),
        torch.tensor([2**62, -1]),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor([1.5, float("nan")], dtype=torch.float16),
        torch.tensor([1 + 2j, -3j]),
        torch.tensor(4.25, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([1 + 2j]).conj(),
    ],
    ids=["bool", "int64", "uint8", "float16", "complex64", "scalar", "empty", "transposed", "conjugate"],
)
def test_every_dtype_and_shape_is_saved_exactly(tensor: torch.Tensor) -> None:
    save(OUT, "x", tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    array = load(f"x_{dtype}_0.npy")
    assert array.shape == tuple(tensor.shape) and array.dtype == tensor.resolve_conj().numpy().dtype
    assert array.tobytes() == tensor.resolve_conj().contiguous().numpy().tobytes()


@pytest.mark.parametrize(
    ("dtype", "bits", "size_bytes"),
    [(torch.bfloat16, torch.int16, 2), (torch.float8_e4m3fn, torch.uint8, 1), (torch.complex32, torch.int32, 4)],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (5,)], ids=["scalar", "vector"])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_dtypes_that_numpy_lacks_are_kept_bit_for_bit(
    dtype: torch.dtype, bits: torch.dtype, size_bytes: int, shape: tuple[int, ...]
) -> None:
    tensor = torch.full(shape, 1.75).to(dtype)
    save(OUT, "x", tensor)
    array = load(f"x_{str(dtype).removeprefix('torch.')}_0.npy")
    assert array.dtype == np.dtype(f"V{size_bytes}") and array.shape == shape
    assert array.tobytes() == tensor.view(bits).numpy().tobytes()


def test_a_bfloat16_value_survives_the_round_trip() -> None:
    tensor = torch.tensor([1.0, -2.5, float("inf")], dtype=torch.bfloat16)
    save(OUT, "x", tensor)
    bits = load("x_bfloat16_0.npy").view(np.int16)
    assert torch.equal(torch.from_numpy(bits).view(torch.bfloat16), tensor)


def test_a_sparse_tensor_is_saved_dense() -> None:
    save(OUT, "x", torch.eye(2).to_sparse())
    assert np.array_equal(load("x_float32_0.npy"), np.eye(2))


def test_what_is_saved_is_the_value_at_that_time() -> None:
    x = torch.ones(2)
    save(OUT, "x", x)
    x.add_(1)
    assert np.array_equal(load("x_float32_0.npy"), [1.0, 1.0])


def test_save_grad_returns_the_very_same_tensor() -> None:
    leaf = torch.ones(2, requires_grad=True)
    derived, plain = leaf * 2, torch.ones(2)
    assert save_grad(OUT, "a", leaf) is leaf
    assert save_grad(OUT, "b", derived) is derived
    assert save_grad(OUT, "c", plain) is plain
    assert derived._backward_hooks is None
    derived.sum().backward()
    assert leaf._backward_hooks is None


def test_a_gradient_that_is_only_asked_for_is_saved_too() -> None:
    leaf = torch.ones(2, requires_grad=True)
    derived = save_grad(OUT, "derived", leaf * 2)
    torch.autograd.grad((derived * 3).sum(), derived)
    torch.autograd.grad((save_grad(OUT, "leaf", leaf) * 5).sum(), leaf)
    names = ["derived_grad_float32_0.npy", "leaf_grad_float32_0.npy"]
    assert [load(name).tolist() for name in names] == [[3.0, 3.0], [5.0, 5.0]]


def test_a_leaf_that_lives_on_gives_one_gradient_a_call() -> None:
    weight = nn.Parameter(torch.ones(2))
    for factor in (2.0, 3.0):
        (save_grad(OUT, "w", weight) * factor).sum().backward()
    assert saved() == ["w_grad_float32_0.npy", "w_grad_float32_1.npy"]
    assert np.array_equal(load("w_grad_float32_1.npy"), [3.0, 3.0])


def test_a_leaf_whose_gradient_has_not_come_by_step_is_not_waited_for() -> None:
    weight = nn.Parameter(torch.ones(2))
    save_grad(OUT, "w", weight)
    step()
    (weight * 2).sum().backward()
    assert not OUT.exists()


def test_without_a_gradient_to_come_the_tensor_passes_through_with_one_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            assert save_grad(OUT, "x", x) is x
    save_grad(OUT, "plain", torch.ones(2))
    assert [record.getMessage() for record in caplog.records] == [
        "save_grad('x'): the tensor needs no gradient here, so none will be saved",
        "save_grad('plain'): the tensor needs no gradient here, so none will be saved",
    ]


def test_gradients_are_unchanged_bit_for_bit() -> None:
    def train(is_saved: bool) -> list[torch.Tensor]:
        model, x = make_net()
        hidden = model.conv1(x)
        if is_saved:
            save(OUT, "hidden", hidden)
            hidden = save_grad(OUT, "hidden", hidden)
            save_grad(OUT, "weight", model.fc.weight)
        model.fc(torch.relu(hidden).flatten(1)).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(torch.equal(plain, watched) for plain, watched in zip(train(False), train(True), strict=True))
    assert len(saved()) == 3


def test_inside_a_window_nothing_of_it_is_recorded() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    save(OUT, "x", x)
    y = save_grad(OUT, "y", x.sin())
    y.sum().backward()
    debugger.stop()
    assert [name for name in dump_of().records if "forward" in name] == ["Tensor.sin.0.forward", "Tensor.sum.0.forward"]
    assert dump_of().read("run.json")["coverage"]["excluded"] <= 1  # backward() itself


@pytest.mark.parametrize(("name", "file"), [("a/b", "a%2Fb_float32_0.npy"), ("变 量", "变 量_float32_0.npy")])
def test_names_may_hold_any_character(name: str, file: str) -> None:
    save(OUT, name, torch.ones(1))
    assert saved() == [file]


def test_a_wrong_argument_is_an_error_that_says_so() -> None:
    x = torch.ones(1)
    with pytest.raises(UsageError, match=r"save\(save_dir, name, data\): the name is a text that is not empty, not ''"):
        save(OUT, "", x)
    with pytest.raises(UsageError, match=r"save\(save_dir, name, data\): save_dir is a path, not 3"):
        save(3, "x", x)
    with pytest.raises(UsageError, match=r"save_grad\(save_dir, name, data\): data is a torch.Tensor, not list"):
        save_grad(OUT, "x", [x])


def test_data_without_a_tensor_is_said(caplog: pytest.LogCaptureFixture) -> None:
    save(OUT, "x", [3.0, None])
    assert "save('x'): there is no tensor in it, so nothing is saved" in caplog.text


def test_a_folder_that_cannot_be_made_is_said_once_and_the_program_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    Path("file").write_text("")
    for _ in range(3):
        save("file/out", "x", torch.ones(1))
    save_grad("file/out", "x", torch.ones(1, requires_grad=True) * 2).sum().backward()
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("x in file/out could not be written (NotADirectoryError")
