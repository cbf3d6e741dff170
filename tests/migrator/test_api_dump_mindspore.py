"""api_dump on MindSpore, in the words of the manual."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from tensorprobe.errors import UsageError
from tensorprobe.migrator import api_dump_init, api_dump_start
from tests.capture.mindspore.training import Observed, difference, train
from tests.migrator.api_dump_run import Dumped, forget_session, window
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()

GOLDEN = Path(__file__).parent / "golden"
X = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]], np.float32)


class Block(nn.Cell):
    """A user's cell, which is no record, with layers of the library in it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(3, 3)
        self.act = nn.ReLU()

    def construct(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.act(self.fc(x)) * scale


class OwnDense(nn.Dense):
    """A user's class, although it derives from one of the library."""


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.layers = nn.SequentialCell(nn.Dense(3, 2), nn.ReLU())
        self.own = OwnDense(2, 2)
        self.ones = Parameter(Tensor(np.ones((2, 2), np.float32)), requires_grad=False)
        for parameter in self.trainable_params():  # whole numbers: the same on every machine
            values = (np.arange(parameter.size) % 5 - 1).reshape(parameter.shape)
            parameter.set_data(Tensor(values.astype(np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        x = self.layers(self.block(x, scale=2.0))
        first, second = ops.split(x, 1, axis=1)
        return self.own(ops.cat([first, second], axis=1)) @ self.ones


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    forget_session()
    yield tmp_path / "ts_api_dump"
    forget_session()


def differentiate(net: nn.Cell, x: Tensor) -> Any:
    return mindspore.value_and_grad(lambda value: net(value).sum(), None, net.trainable_params())(x)


def dump(net: nn.Cell, output: Path, *arguments: Any, backward: bool = False, **options: Any) -> Dumped:
    x = Tensor(X)
    api_dump_init(net, output, retain_backward=backward)
    with window(*arguments, **options):
        if backward:
            differentiate(net, x)
        else:
            net(x)
    return Dumped(output, "mindspore")


def test_the_files_are_those_of_the_manual(output: Path) -> None:
    found = dump(Net(), output)
    assert {path.name for path in found.folder.iterdir()} == {
        "mindspore_api_dump",
        "mindspore_api_dump_info.pkl",
        "mindspore_api_dump_stack.json",
        "dump.json",
        "run.json",
    }
    stored = {name.removesuffix(".npy") for name in found.files if "_parameters." not in name}
    assert stored == set(found.slots)
    np.testing.assert_array_equal(np.load(found.path("NN_Dense_0_forward_input.0")), X)
    (first, *_) = found.stacks["NN_Dense_0_forward"]
    assert first.startswith(f"File {__file__}, line ") and first.endswith("\n return self.act(self.fc(x)) * scale")


def test_the_info_file_is_the_golden_one(output: Path) -> None:
    found = dump(Net(), output, backward=True, filter_data=False)
    text = (found.folder / "mindspore_api_dump_info.pkl").read_text()
    assert text == (GOLDEN / "mindspore_api_dump_info.pkl").read_text()


def test_a_layer_says_what_it_calls_and_what_is_made_inside_has_a_file(output: Path) -> None:
    found = dump(Net(), output, filter_data=False)
    product, addition = found.records["NN_Dense_0_forward"]["calls"]
    assert [product["name"], addition["name"]] == ["Primitive.matmul.MatMul", "Primitive.bias_add.BiasAdd"]
    assert product["settings"]["transpose_b"] == {"type": "bool", "value": True}
    assert product["input_args"][0]["data_name"] == "NN_Dense_0_forward_input.0.npy"
    assert product["input_args"][1]["parameter"] == "block.fc.weight"
    inside = product["output"][0]["data_name"]
    assert inside == addition["input_args"][0]["data_name"] == "NN_Dense_0_forward.0_output.0.npy"
    assert inside in found.files
    own = [name for name in found.slots if "forward." in name]
    assert own == []  # the info file is that of the manual


@pytest.mark.parametrize("options", [{"filter_data": True}, {"filter_data": False, "dump_type": "statistics"}])
def test_where_a_replay_would_lack_files_nothing_is_kept_of_what_a_layer_calls(
    output: Path, options: dict[str, Any]
) -> None:
    found = dump(Net(), output, **options)
    assert not any("calls" in record for record in found.records.values())
    assert not any("forward." in name for name in found.files)


def test_a_layer_of_the_library_is_one_call_and_cells_give_the_path(output: Path) -> None:
    found = dump(Net(), output)
    own = [name for name in found.calls if found.records[name]["module_path"] == "own"]
    assert own and not any(name.startswith("NN_") for name in own)
    assert [name for name in found.calls if name not in own] == [
        "NN_Dense_0_forward",
        "NN_ReLU_0_forward",
        "Tensor___mul___0_forward",
        "NN_Dense_1_forward",
        "NN_ReLU_1_forward",
        "Functional_split_0_forward",
        "Functional_cat_0_forward",
        "Tensor___matmul___0_forward",
    ]
    assert found.records["NN_Dense_0_forward"]["module_path"] == "block.fc"
    assert found.records["Tensor___mul___0_forward"]["module_path"] == "block"


def test_layers_that_hold_cells_of_their_own_are_one_call_too(output: Path) -> None:
    class Whole(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(3, 4, activation="relu")
            self.rnn = nn.GRU(4, 2, batch_first=True)

        def construct(self, x: Tensor) -> Tensor:
            return self.rnn(self.fc(x).expand_dims(1))[0]

    found = dump(Whole(), output)
    assert found.calls == ["NN_Dense_0_forward", "Tensor_expand_dims_0_forward", "NN_GRU_0_forward"]
    assert {"NN_GRU_0_forward_output.0", "NN_GRU_0_forward_output.1"} <= set(found.slots)


def test_what_the_parts_of_a_layer_hold_is_recorded_with_it(output: Path) -> None:
    class Norm(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm3d(1)
            self.fc = nn.Dense(3, 3, activation=nn.PReLU())

        def construct(self, x: Tensor) -> Tensor:
            return self.norm(self.fc(x).reshape(1, 1, 1, 2, 3))

    found = dump(Norm(), output)
    assert found.calls == ["NN_Dense_0_forward", "Tensor_reshape_0_forward", "NN_BatchNorm3d_0_forward"]
    assert found.records["NN_Dense_0_forward"]["parameters"].keys() == {"weight", "bias", "w"}
    held = found.records["NN_BatchNorm3d_0_forward"]["parameters"]
    assert held.keys() == {"gamma", "beta", "moving_mean", "moving_variance"}


def test_layers_that_mint_defines_in_itself_are_layers_too(output: Path) -> None:
    class Scored(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.loss = mint.nn.BCEWithLogitsLoss()

        def construct(self, x: Tensor) -> Tensor:
            return self.loss(x, x)

    assert dump(Scored(), output).calls == ["NN_BCEWithLogitsLoss_0_forward"]


def test_functions_and_layers_of_mint_have_their_own_types(output: Path) -> None:
    class Minted(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = mint.nn.Linear(3, 3)

        def construct(self, x: Tensor) -> Tensor:
            return mint.nn.functional.relu(mint.abs(self.fc(x)))

    assert dump(Minted(), output).calls == [
        "NN_Linear_0_forward",
        "Mint_abs_0_forward",
        "MintFunctional_relu_0_forward",
    ]


def test_the_list_of_the_manual(output: Path) -> None:
    scope = ["Functional_split_0_forward", "NN_Dense_1_backward", "Tensor___matmul___0_forward"]
    found = dump(Net(), output, "list", scope, backward=True)
    assert sorted(found.calls) == sorted(scope)


def test_a_range_runs_from_a_backward_to_a_forward_of_the_next_step(output: Path) -> None:
    net, x = Net(), Tensor(X)
    api_dump_init(net, output, retain_backward=True)
    for _ in range(3):
        with window("range", ["NN_ReLU_0_backward", "NN_Dense_2_forward"]):
            differentiate(net, x)
    assert Dumped(output, "mindspore").calls == ["NN_ReLU_0_backward", "NN_Dense_0_backward", "NN_Dense_2_forward"]


def test_counters_go_on_and_each_start_has_its_own_selection(output: Path) -> None:
    net, x = Net(), Tensor(X)
    api_dump_init(net, output)
    found = Dumped(output, "mindspore")
    with window("api_list", ["relu"], dump_type="statistics"):
        net(x)
    assert found.calls == ["NN_ReLU_0_forward", "NN_ReLU_1_forward"] and found.files == []
    with window("list", ["NN_Dense_2"]):
        net(x)
    assert found.calls[2:] == ["NN_Dense_2_forward"]
    assert list(found.records) == list(found.stacks) == found.calls


def test_bfloat16_is_a_file_of_float32(output: Path) -> None:
    class Cast(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x.astype(mindspore.bfloat16)

    found = dump(Cast(), output)
    array = np.load(found.path("Tensor_astype_0_forward_output"))
    np.testing.assert_array_equal(array, X)
    assert array.dtype == np.float32 and found.info[-1][3] == "BFloat16"


def test_whole_numbers_and_single_numbers_are_filtered(output: Path) -> None:
    class Mixed(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return ops.argmax(x, dim=1).sum()

    filtered = dump(Mixed(), output / "filtered")
    assert filtered.slots == ["Functional_argmax_0_forward_input.0"]
    whole = dump(Mixed(), output / "whole", filter_data=False)
    assert ["Functional_argmax_0_forward_kwargs.dim", 1, [], "<class 'int'>", [], [1, 1, 1]] in whole.info
    assert set(whole.slots) == {name.removesuffix(".npy") for name in whole.files}


@cache
def plain(model: str) -> Observed:
    return train(model)


@pytest.mark.parametrize("model", ["transformer", "cnn"])
def test_training_is_bit_identical_while_it_is_recorded(model: str, output: Path) -> None:
    networks: list[Any] = []

    def around(net: nn.Cell) -> Any:
        if not networks:
            networks.append(net)
            api_dump_init(net, output, retain_backward=True)
        return window()

    assert difference(plain(model), train(model, around)) == []
    calls = Dumped(output, "mindspore").calls
    assert any(call.startswith("NN_") and call.endswith("_backward") for call in calls)
    assert not any("Adam" in call or "assign" in call for call in calls)  # the optimizer's are not the network's


def test_what_a_training_cell_calls_around_the_network_is_none_of_it(output: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), nn.Identity())
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    api_dump_init(net, output, retain_backward=True)
    with window():
        step(Tensor(X), Tensor(X))
    calls = [name for name in Dumped(output, "mindspore").calls if name.endswith("_forward")]
    assert calls == ["NN_Dense_0_forward", "NN_Identity_0_forward", "NN_MSELoss_0_forward"]


def test_nothing_stays_on_the_net_or_on_mindspore(output: Path) -> None:
    net = Net()

    def look() -> list[Any]:
        cells = [(id(cell), sorted(vars(cell))) for _, cell in net.cells_and_names()]
        hooks = [parameter.hooks() for parameter in net.get_parameters()]
        return [cells, hooks, nn.Cell.__call__, Tensor.__matmul__, ops.split, mint.abs]

    before = look()
    dump(net, output, backward=True)
    assert look() == before


def test_a_cell_class_or_a_wrong_mode_is_refused(output: Path) -> None:
    with pytest.raises(UsageError, match=r"net is a torch.nn.Module or a mindspore.nn.Cell, not type"):
        api_dump_init(Net)
    api_dump_init(Net(), output)
    with pytest.raises(UsageError, match="mode 'range' takes two names"):
        api_dump_start("range", ["NN_Dense_0"])
