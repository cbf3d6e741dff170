"""api_dump on PyTorch, in the words of the manual."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tensorprobe.errors import ConfigError, UsageError
from tensorprobe.migrator import api_dump_init, api_dump_start, api_dump_stop
from tests.capture.torch.models import MODELS
from tests.capture.torch.training import Observed, difference, train
from tests.cli.command import run_here
from tests.migrator.api_dump_run import Dumped, forget_session, window

GOLDEN = Path(__file__).parent / "golden"


class Block(nn.Module):
    """A user's module, which is no record, with a layer of the library in it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.act(self.fc(x)) * scale


class OwnLinear(nn.Linear):
    """A user's class, although it derives from one of the library."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.layers = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        self.own = OwnLinear(2, 2)
        with torch.no_grad():  # whole numbers: the same on every machine
            for parameter in self.parameters():
                parameter.copy_((torch.arange(parameter.numel()) % 5 - 1).reshape(parameter.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.block(x, scale=2.0))
        first, second = torch.split(x, 1, dim=1)
        return self.own(torch.cat([first, second], dim=1)).matmul(torch.ones(2, 2))


X = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]])


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    forget_session()
    yield tmp_path / "ts_api_dump"
    forget_session()


def dump(net: nn.Module, output: Path, *arguments: Any, backward: bool = False, **options: Any) -> Dumped:
    api_dump_init(net, output, retain_backward=backward)
    with window(*arguments, **options):
        result = net(X)
        if backward:
            result.sum().backward()
    return Dumped(output, "torch")


def test_the_files_are_those_of_the_manual(output: Path) -> None:
    net = Net()
    api_dump_init(net)
    api_dump_start()
    net(X)
    api_dump_stop()
    names = {path.name for path in (output / "rank0").iterdir()}
    assert names == {"torch_api_dump", "torch_api_dump_info.pkl", "torch_api_dump_stack.json", "dump.json", "run.json"}
    found = Dumped(output, "torch")
    stored = {name.removesuffix(".npy") for name in found.files if "_parameters." not in name}
    assert stored == set(found.slots)
    (first, *_) = found.stacks["NN_Linear_0_forward"]
    assert first.startswith(f"File {__file__}, line ") and first.endswith("\n return self.act(self.fc(x)) * scale")


def test_the_info_file_is_the_golden_one(output: Path) -> None:
    found = dump(Net(), output, backward=True, filter_data=False)
    text = (found.folder / "torch_api_dump_info.pkl").read_text()
    assert text == (GOLDEN / "torch_api_dump_info.pkl").read_text()


def test_a_layer_of_the_library_is_one_call_and_nothing_is_recorded_inside(output: Path) -> None:
    found = dump(Net(), output)
    assert found.calls == [
        "NN_Linear_0_forward",
        "NN_ReLU_0_forward",
        "Tensor_mul_0_forward",
        "NN_Linear_1_forward",
        "NN_ReLU_1_forward",
        "Torch_split_0_forward",
        "Torch_cat_0_forward",
        "Functional_linear_0_forward",
        "Torch_ones_0_forward",
        "Tensor_matmul_0_forward",
    ]


def test_modules_that_are_no_records_give_the_path(output: Path) -> None:
    paths = {name: fields.get("module_path") for name, fields in dump(Net(), output).records.items()}
    assert paths["NN_Linear_0_forward"] == "block.fc"
    assert paths["Tensor_mul_0_forward"] == "block"
    assert paths["NN_Linear_1_forward"] == "layers.0"
    assert paths["Functional_linear_0_forward"] == "own"
    assert paths["Tensor_matmul_0_forward"] == ""


def test_a_loss_beside_the_net_is_a_layer_too(output: Path) -> None:
    net, loss = Net(), nn.MSELoss()
    api_dump_init(net, output)
    with window():
        loss(net(X), torch.ones(2, 2))
    assert Dumped(output, "torch").calls[-1] == "NN_MSELoss_0_forward"


def test_a_second_init_replaces_what_the_first_has_recorded_as_soon_as_its_window_ends(output: Path) -> None:
    dump(Net(), output)
    first = json.loads((output / "rank0" / "run.json").read_text())["run_id"]
    layer = nn.Linear(3, 2)
    api_dump_init(layer, output)
    api_dump_start()
    assert (output / f"replaced_{first}" / "rank0" / "torch_api_dump_info.pkl").exists()
    layer(X)
    api_dump_stop()
    assert json.loads((output / "rank0" / "run.json").read_text())["run_id"] == f"{first}.2"
    assert sorted(path.name for path in output.iterdir() if path.suffix != ".lock") == ["rank0"]
    files = [path.name for path in (output / "rank0" / "torch_api_dump").iterdir()]
    assert files and all(name.startswith("NN_Linear_0_forward") for name in files)


def test_counters_go_on_over_windows_and_the_files_are_whole_after_each(output: Path) -> None:
    net = Net()
    api_dump_init(net, output)
    found = Dumped(output, "torch")
    for step in range(3):
        with window():
            net(X)
        net(X)  # between windows nothing is seen
        assert f"NN_Linear_{2 * step + 1}_forward" in found.calls
        assert list(found.stacks) == list(found.records) and len(found.records) == 10 * (step + 1)


def test_each_start_has_a_selection_of_its_own(output: Path) -> None:
    net = Net()
    api_dump_init(net, output)
    found = Dumped(output, "torch")
    with window("list", ["NN_Linear_0"], dump_type="statistics"):
        net(X)
    assert found.calls == ["NN_Linear_0_forward"] and found.files == []
    with window("api_list", ["relu"], filter_data=False):
        net(X)
    assert found.calls[1:] == ["NN_ReLU_2_forward", "NN_ReLU_3_forward"]
    assert found.files == [f"NN_ReLU_{n}_forward_{role}.npy" for n in (2, 3) for role in ("input.0", "output")]
    api_dump_start("list", ["Torch_split_2"])
    net(X)
    api_dump_start("list", ["Torch_cat_3"])  # without a stop in between
    net(X)
    api_dump_stop()
    assert found.calls[3:] == ["Torch_split_2_forward", "Torch_cat_3_forward"]


def test_a_list_takes_the_directions_that_it_names(output: Path) -> None:
    scope = ["NN_Linear_0", "NN_ReLU_1_forward", "Tensor_matmul_0_backward"]
    found = dump(Net(), output, "list", scope, backward=True)
    assert found.calls == [
        "NN_Linear_0_forward",
        "NN_ReLU_1_forward",
        "Tensor_matmul_0_backward",
        "NN_Linear_0_backward",
    ]


def test_a_range_may_run_from_a_backward_to_a_forward_of_a_later_window(output: Path) -> None:
    net = Net()
    api_dump_init(net, output, retain_backward=True)
    for _ in range(3):
        with window("range", ["NN_ReLU_0_backward", "NN_Linear_2_forward"]):
            net(X).sum().backward()
    assert Dumped(output, "torch").calls == ["NN_ReLU_0_backward", "NN_Linear_0_backward", "NN_Linear_2_forward"]


def test_a_range_of_calls_brings_their_backward(output: Path) -> None:
    found = dump(Net(), output, "range", ["NN_Linear_1", "Torch_split_0"], backward=True)
    forward = ["NN_Linear_1_forward", "NN_ReLU_1_forward", "Torch_split_0_forward"]
    assert found.calls == [*forward, "Torch_split_0_backward", "NN_ReLU_1_backward", "NN_Linear_1_backward"]


def test_an_operator_is_found_under_its_name_in_the_manual(output: Path) -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.T) @ x + x

    found = dump(Product(), output, "list", ["Tensor___matmul___1_forward", "Tensor___add___0"])
    assert found.calls == ["Tensor_matmul_1_forward", "Tensor_add_0_forward"]


def test_words_find_layers_and_functions(output: Path) -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(self.norm(x), (3,)).relu().softmax(-1)

    found = dump(Norms(), output, "api_list", ["layernorm", "SoftMax"])
    assert found.calls == ["NN_LayerNorm_0_forward", "Functional_layer_norm_0_forward", "Tensor_softmax_0_forward"]


def test_statistics_come_without_files(output: Path) -> None:
    found = dump(Net(), output, dump_type="statistics")
    assert found.files == [] and len(found.info) > 10
    whole = dump(Net(), output / "whole")
    assert found.info == whole.info


def test_the_filter_keeps_single_numbers_and_whole_numbers_out_of_files_and_lines(output: Path) -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.add(x, 1, alpha=2).argmax().float()

    filtered = dump(Mixed(), output / "filtered")
    assert filtered.slots == [
        "Torch_add_0_forward_input.0",
        "Torch_add_0_forward_output",
        "Tensor_argmax_0_forward_input.0",
    ]
    assert len(filtered.files) == 3
    whole = dump(Mixed(), output / "whole", filter_data=False)
    assert whole.info[1] == ["Torch_add_0_forward_input.1", 1, [], "<class 'int'>", [], [1, 1, 1]]
    assert whole.info[2][0] == "Torch_add_0_forward_kwargs.alpha"
    assert np.load(whole.path("Torch_add_0_forward_input.1")) == 1
    assert np.load(whole.path("Tensor_argmax_0_forward_output")) == 5
    assert set(whole.slots) == {name.removesuffix(".npy") for name in whole.files}
    assert filtered.records.keys() == whole.records.keys()  # dump.json has all of it


def test_files_hold_the_values_and_gradients_those_of_autograd(output: Path) -> None:
    net = Net()
    kept: dict[str, torch.Tensor] = {}

    def keep_gradient(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: kept.update(gradient=gradient.clone()))

    net.layers[0].register_forward_hook(keep_gradient)
    found = dump(net, output, backward=True)
    np.testing.assert_array_equal(np.load(found.path("NN_Linear_0_forward_input.0")), X.numpy())
    np.testing.assert_array_equal(np.load(found.path("NN_Linear_1_backward_input")), kept["gradient"].numpy())
    with torch.no_grad():
        before = net.block.fc(X)
    np.testing.assert_array_equal(np.load(found.path("NN_ReLU_0_forward_input.0")), before)  # it works in place
    np.testing.assert_array_equal(np.load(found.path("NN_ReLU_0_forward_output")), before.clamp(min=0))
    expected = np.load(found.path("NN_ReLU_0_backward_input")) * (before > 0).numpy()
    np.testing.assert_array_equal(np.load(found.path("NN_ReLU_0_backward_output.0")), expected)


def test_without_retain_backward_there_is_none(output: Path) -> None:
    net = Net()
    api_dump_init(net, output)
    with window():
        net(X).sum().backward()
    assert not any("_backward" in name for name in Dumped(output, "torch").records)


def test_a_backward_after_stop_still_belongs_to_its_window(output: Path) -> None:
    net = Net()
    api_dump_init(net, output, retain_backward=True)
    with window():
        result = net(X)
    result.sum().backward()
    assert "NN_Linear_0_backward" in Dumped(output, "torch").calls


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_what_numpy_does_not_know_is_a_file_of_float32(output: Path, dtype: torch.dtype) -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(dtype)

    found = dump(Cast(), output)
    array = np.load(found.path("Tensor_to_0_forward_output"))
    assert array.dtype == (np.float16 if dtype is torch.float16 else np.float32)
    np.testing.assert_array_equal(array, X.numpy())
    assert found.info[-1][3] == str(dtype)


def test_what_the_optimizer_calls_is_none_of_the_network(output: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    api_dump_init(net, output, retain_backward=True)
    with window():
        net(X).sum().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    forward = [name for name in Dumped(output, "torch").records if name.endswith("_forward")]
    assert forward[-1] == "Tensor_sum_0_forward"


def test_a_recomputed_layer_keeps_its_number(output: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Sequential(nn.Linear(3, 3), nn.GELU()), nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.inner, x, use_reentrant=False))

    calls = dump(Checkpointed(), output, backward=True).calls
    assert [call for call in calls if call.startswith("NN_Linear")] == [
        "NN_Linear_0_forward",
        "NN_Linear_1_forward",
        "NN_Linear_1_backward",
        "NN_Linear_0_recompute",
        "NN_Linear_0_backward",
    ]


@cache
def plain(model: str) -> Observed:
    return train(model)


@pytest.mark.parametrize("model", ["gpt", "cnn", "lstm"])
def test_training_is_bit_identical_while_it_is_recorded(model: str, output: Path) -> None:
    networks: list[Any] = []

    def around(net: nn.Module) -> Any:
        if not networks:
            networks.append(net)
            api_dump_init(net, output, retain_backward=True)
        return window()

    assert model in MODELS
    assert difference(plain(model), train(model, around)) == []
    found = Dumped(output, "torch")
    assert any(call.startswith("NN_") and call.endswith("_backward") for call in found.calls)


def test_nothing_stays_on_the_net_or_on_torch(output: Path) -> None:
    net = Net()

    def look() -> list[Any]:
        modules = [(id(module), {k: repr(v) for k, v in vars(module).items()}) for module in net.modules()]
        return [modules, nn.Module.__call__, torch.autograd.Function.apply, torch.Tensor.add, torch.split]

    before = look()
    dump(net, output)
    assert look() == before
    assert torch._C._len_torch_function_stack() == 0


def test_a_second_init_begins_anew(output: Path) -> None:
    first = dump(Net(), output / "first")
    second = dump(Net(), output / "second")
    assert first.info == second.info
    again = dump(Net(), output / "second", "list", ["NN_Linear_0"])
    assert again.calls == ["NN_Linear_0_forward"]
    assert {name.partition("_forward")[0] for name in again.files} == {"NN_Linear_0"}


def test_calls_at_the_wrong_time_and_wrong_nets_are_refused(output: Path) -> None:
    for function in (api_dump_start, api_dump_stop):
        with pytest.raises(UsageError, match=r"was called before api_dump_init\(net\)"):
            function()
    for wrong in (None, 3, "net", [Net()], np.ones(3)):
        with pytest.raises(UsageError, match=r"net is a torch.nn.Module or a mindspore.nn.Cell, not "):
            api_dump_init(wrong)
    with pytest.raises(UsageError, match="not one of True, False"):
        api_dump_init(Net(), output, retain_backward="yes")  # type: ignore[arg-type]
    api_dump_init(Net(), output)
    with pytest.raises(UsageError, match="mode 'some' is not one of"):
        api_dump_start("some")
    api_dump_stop()  # without a start there is nothing to stop
    assert not output.exists()


def test_gradients_that_will_never_come_are_said(output: Path, caplog: pytest.LogCaptureFixture) -> None:
    dump(Net(), output, "list", ["NN_Linear_0_backward"])
    assert "NN_Linear_0_backward in scope will never come" in caplog.text


def test_an_error_of_the_program_goes_on_and_loses_nothing(output: Path) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.sin())

    api_dump_init(Failing(), output)
    net = Failing()
    api_dump_init(net, output)
    with window():
        with pytest.raises(RuntimeError, match="shapes"):
            net(X)
        net(X[:, :2])
    found = Dumped(output, "torch")
    assert "shapes" in found.records["NN_Linear_0_forward"]["failed"]
    assert found.calls[-1] == "NN_Linear_1_forward"


def test_what_cannot_be_written_does_not_reach_the_program(output: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    api_dump_init(net, output)
    with window():
        shutil.rmtree(output)
        output.write_text("a file in the place of the folder")
        result = net(X)
    assert torch.equal(result, net(X))
    assert "could not be written" in caplog.text or "not recorded" in caplog.text


DiskUsage = namedtuple("DiskUsage", "total used free")


def fill_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, room_bytes: int) -> None:
    """A disk with 10 MB free beyond which the files in `folder` may have `room_bytes`."""

    def look(_: Any) -> DiskUsage:
        used = sum(path.stat().st_size for path in folder.rglob("*.npy"))
        return DiskUsage(10**12, 10**12 - 10**7, 10**7 + room_bytes - used)

    monkeypatch.setattr(shutil, "disk_usage", look)


def test_recording_stops_before_the_disk_is_full_and_the_program_goes_on(
    output: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill_disk(monkeypatch, output, 1000)
    net = Net()
    api_dump_init(net, output, retain_backward=True, min_free="10MB")
    for _ in range(3):
        with window():
            net(X).sum().backward()
    (text,) = [text for text in caplog.messages if "recording stops" in text]
    assert text.startswith("recording stops, and the program goes on: ")
    assert f'are free in {output}, and "min_free" keeps 10 MB. What was recorded until now can be read' in text
    assert text.endswith(
        f"{output}; all later calls and windows are left out. To record more, free space, choose fewer calls, or "
        "change that limit"
    )
    run = json.loads((output / "rank0" / "run.json").read_text())
    assert run["complete"] is False and run["ended"].startswith("its limit of disk space (")
    left_out = run["coverage"]["unseen"]["call after the limit of disk space was reached"]
    dumped = Dumped(output, "torch")
    assert dumped.calls and not any("backward" in call or "_1_" in call for call in dumped.calls)
    assert run["coverage"]["seen"] == len(dumped.calls) + left_out, "of the first window; later ones are not opened"
    files = [path.stat().st_size for path in output.rglob("*.npy")]
    assert files and sum(files) <= 1000 + 128, "the header of the last one"


def test_what_was_recorded_before_the_disk_was_nearly_full_can_be_shown(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_disk(monkeypatch, output, 1000)
    dump(Net(), output)
    forget_session()
    shown = run_here(capsys, "show", output)
    assert shown.returncode == 0
    printed = " ".join(shown.stdout.split())
    assert "NN_Linear_0" in printed
    assert "call after the limit of disk space was reached" in printed and "incomplete" in printed


def test_with_min_free_0_the_disk_is_not_looked_at(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, output, -(10**7))
    api_dump_init(Net(), output, min_free=0)
    with window():
        Net()(X)
    assert json.loads((output / "rank0" / "run.json").read_text())["complete"] is True


def test_a_min_free_that_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_free 'much' is not a size .*; write a number of bytes, or a text like"):
        api_dump_init(Net(), min_free="much")
