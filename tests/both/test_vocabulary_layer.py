"""Every class of the vocabulary: with the same arguments and parameters it computes the same in both frameworks."""

from __future__ import annotations

import inspect
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import mint, nn

from tensorprobe.word.signature import MISSING, read_signature, signatures
from tensorprobe.word.vocabulary import common_slot, vocabulary
from tests.both.vocabulary_layer import LAYERS
from tests.both.vocabulary_run import NO_KERNEL, arrays

CELLS: dict[str, str] = vocabulary()["mindspore"]["cells"]
NOT_ON_CPU: dict[str, list[str]] = json.loads(Path(__file__).with_name("not_on_cpu.json").read_text())
OWNERS = {"nn": nn, "mint.nn": mint.nn}
MADE_OTHERWISE = {
    "nn.EmbeddingLookup": "runs on the host, on Ascend only",
    "nn.LRN": "the size of its window is half, and alpha is not divided by it",
    "nn.SoftmaxCrossEntropyWithLogits": "takes one-hot labels",
    "nn.SyncBatchNorm": "needs a group of processes",
    "mint.nn.SyncBatchNorm": "needs a group of processes",
    "nn.Unfold": "another one: patches as channels of an image",
}


def cells() -> list[tuple[str, str]]:
    """The layers of MindSpore whose class PyTorch has."""
    found = []
    for prefix, owner in OWNERS.items():
        for name in dir(owner):
            kind = getattr(owner, name)
            is_layer = isinstance(kind, type) and issubclass(kind, nn.Cell) and CELLS.get(name, name) in LAYERS
            if is_layer and f"{prefix}.{name}" not in MADE_OTHERWISE:
                found.append((prefix, name))
    return found


def own_arguments(prefix: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = signatures()["mindspore"][prefix].get(name)
    if text is None:
        return arguments
    signature = read_signature(text)
    found: dict[str, Any] = {}
    for key, value in arguments.items():
        argument = next((one for one in reversed(signature.arguments) if one.name == key), None)
        if argument is None:
            found[key] = value
        else:
            found[argument.own_name] = own_value(prefix, argument, value)
    if any(one.own_name == "pad_mode" for one in signature.arguments) and arguments.get("padding"):
        found["pad_mode"] = "pad"
    return found


def own_value(prefix: str, argument: Any, value: Any) -> Any:
    if argument.is_complement:
        return 1 - value
    spellings = vocabulary()["mindspore"]["values"].get(argument.name, ()) if prefix == "nn" else ()
    return next((own for own, common in spellings if common == value and type(own) is type(argument.default)), value)


@pytest.mark.parametrize(("prefix", "name"), cells())
def test_a_layer_computes_what_that_of_pytorch_computes(prefix: str, name: str) -> None:
    arguments, inputs = LAYERS[CELLS.get(name, name)]
    module = getattr(torch.nn, CELLS.get(name, name))(**arguments).eval()
    fill(module)
    wanted = arrays(module(*(convert(x, torch_tensor) for x in inputs)))
    with may_fail(is_expected=name in NOT_ON_CPU[prefix]):
        cell = getattr(OWNERS[prefix], name)(**own_arguments(prefix, name, arguments)).set_train(False)
        copy_parameters(module, Holder(cell), name)
        found = arrays(cell(*(convert(x, ms.Tensor) for x in inputs)))
    if name in NOT_ON_CPU[prefix]:
        return
    assert [x.shape for x in found[: len(wanted)]] == [x.shape for x in wanted]
    for one, other in zip(found, wanted, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def may_fail(is_expected: bool) -> AbstractContextManager[Any]:
    kinds = (RuntimeError, ValueError, TypeError, NotImplementedError)
    return pytest.raises(kinds, match=NO_KERNEL) if is_expected else nullcontext()


def fill(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            drawn = torch.rand(value.shape, generator=generator) * 0.5 + 0.1
            value.copy_(drawn if "var" in name else drawn - 0.3)


class Holder(nn.Cell):
    """Parameters get their names from the cell around theirs."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.held = cell


def copy_parameters(module: torch.nn.Module, holder: Holder, kind: str) -> None:
    """By their common names: every parameter of the cell is one of the module."""
    values = dict(module.state_dict())
    words = vocabulary()["mindspore"]
    for path, parameter in holder.parameters_and_names():
        parts = path.split(".")[1:]
        parts = [words["children"].get(kind, {}).get(part, part) for part in parts[:-1]] + parts[-1:]
        last = words["parameters_of"].get(kind, {}).get(parts[-1], parts[-1])
        common = common_slot("mindspore", f"parameters.{last}").partition(".")[2]
        name = ".".join(filter(None, (*parts[:-1], common)))
        if name not in values and kind.startswith("InstanceNorm"):
            continue  # statistics that MindSpore keeps and PyTorch does not
        value = values.pop(name).numpy()
        assert value.size == parameter.size
        parameter.set_data(ms.Tensor(value.reshape(parameter.shape)))
    assert all("num_batches_tracked" in name for name in values)


def convert(value: Any, make: Any) -> Any:
    return tuple(make(item) for item in value) if isinstance(value, tuple) else make(value)


def torch_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array)


@pytest.mark.parametrize("kind", sorted(vocabulary()["mindspore"]["parameters_in"]))
def test_a_layer_has_these_parameters_that_pytorch_calls_otherwise(kind: str) -> None:
    arguments = {"num_features": 3} if kind == "SyncBatchNorm" else LAYERS[kind][0]
    if kind == "SyncBatchNorm":
        assert issubclass(nn.SyncBatchNorm, nn.BatchNorm2d.__mro__[1])
        return
    holder = Holder(getattr(nn, kind)(**own_arguments("nn", kind, arguments)))
    theirs = {name for name, _ in getattr(torch.nn, kind)(**arguments).state_dict().items()}
    found = {path.rpartition(".")[2] for path, _ in holder.parameters_and_names()}
    assert found - theirs == set(vocabulary()["mindspore"]["parameters_in"][kind])


@pytest.mark.parametrize("kind", sorted(vocabulary()["mindspore"]["children"]))
def test_a_cell_has_these_children(kind: str) -> None:
    arguments = {"num_features": 3} if kind == "BatchNorm3d" else {"d_model": 4, "nhead": 2, "dim_feedforward": 8}
    cell, module = getattr(nn, kind)(**arguments), getattr(torch.nn, kind)(**arguments)
    for own, common in vocabulary()["mindspore"]["children"][kind].items():
        assert hasattr(cell, own)
        assert not common or hasattr(module, common)


def test_every_class_of_the_vocabulary_is_run_or_has_a_reason_why_not() -> None:
    named = {
        *(f"nn.{name}" for name in CELLS if CELLS[name] not in ("ModuleDict", "ModuleList", "Sequential")),
        *(f"{prefix}.{name}" for prefix in OWNERS for name in signatures()["mindspore"][prefix]),
    }
    assert not named - {f"{prefix}.{name}" for prefix, name in cells()} - set(MADE_OTHERWISE)
    assert all(hasattr(nn, name) and hasattr(torch.nn, common) for name, common in CELLS.items())


@pytest.mark.parametrize(
    ("prefix", "name"), [(prefix, name) for prefix in OWNERS for name in signatures()["mindspore"][prefix]]
)
def test_what_a_layer_is_made_with_has_these_names_and_defaults(prefix: str, name: str) -> None:
    real = inspect.signature(getattr(OWNERS[prefix], name).__init__).parameters
    theirs = inspect.signature(getattr(torch.nn, CELLS.get(name, name)).__init__).parameters
    listed = vocabulary()["mindspore"]["defaults"].get(prefix, {}).get(name, {})
    for place, argument in enumerate(read_signature(signatures()["mindspore"][prefix][name]).arguments, 1):
        found = real[argument.own_name]
        assert list(real).index(argument.own_name) == place or place > 6, f"{argument.own_name} is not number {place}"
        default = MISSING if found.default is found.empty else found.default
        assert argument.default is default or str(argument.default) in (str(default), str(default).lower()), argument
        if argument.is_extra:
            assert argument.name not in theirs
            continue
        their_default = theirs[argument.name].default
        if argument.default is not MISSING and their_default is not inspect.Parameter.empty:
            own = common_default(prefix, argument)
            is_listed = argument.name in listed
            assert (own != their_default) == is_listed or argument.name == "dtype" or name == "Dropout", argument
            if is_listed:
                assert (listed[argument.name]["mindspore"], listed[argument.name]["pytorch"]) == (own, their_default)


def common_default(prefix: str, argument: Any) -> Any:
    if argument.is_complement:
        return round(1 - argument.default, 12)
    spellings = vocabulary()["mindspore"]["values"].get(argument.name, ())
    return next((common for own, common in spellings if own is argument.default), argument.default)
