"""`convert_weight` on real networks: what goes in comes back bit for bit, and both frameworks compute the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn

from tensorprobe import DumpError, UsageError
from tensorprobe.migrator import convert_weight
from tests.length import PATIENCE_SECONDS
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()
RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class TorchMlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.PReLU(9), torch.nn.LayerNorm(9))
        self.head = torch.nn.Linear(9, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


class CellMlp(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(6, 9), nn.PReLU(9), nn.LayerNorm((9,), epsilon=1e-5))
        self.head = nn.Dense(9, 4)

    def construct(self, x: Any) -> Any:
        return self.head(self.body(x))


class TorchCnn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.bn = torch.nn.BatchNorm2d(6)
        self.up = torch.nn.ConvTranspose2d(6, 5, 3)
        self.line = torch.nn.Conv1d(5, 4, 3)

    def forward(self, x: Any) -> Any:
        return self.line(self.up(self.bn(self.conv(x))).mean(3))


class CellCnn(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn = nn.BatchNorm2d(6)
        self.up = nn.Conv2dTranspose(6, 5, 3, pad_mode="valid", has_bias=True)
        self.line = nn.Conv1d(5, 4, 3, pad_mode="valid", has_bias=True)

    def construct(self, x: Any) -> Any:
        return self.line(self.up(self.bn(self.conv(x))).mean(3))


class TorchLstm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(11, 6)
        self.rnn = torch.nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(10, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.gru(self.rnn(self.emb(x))[0])[0]


class CellLstm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 4, batch_first=True)

    def construct(self, x: Any) -> Any:
        return self.gru(self.rnn(self.emb(x))[0])[0]


class TorchEncoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Any) -> Any:
        return self.encoder(x)


class CellEncoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2)

    def construct(self, x: Any) -> Any:
        return self.encoder(x)


NETWORKS = {
    "mlp": (TorchMlp, CellMlp, normal(5, 6)),
    "cnn": (TorchCnn, CellCnn, normal(2, 3, 8, 8)),
    "lstm": (TorchLstm, CellLstm, RNG.integers(0, 11, (2, 7))),
    "encoder": (TorchEncoder, CellEncoder, normal(4, 2, 8)),
}


def make(kind: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(1)
    module = kind().eval()
    for name, buffer in module.named_buffers():
        if name.endswith(("mean", "var")):
            buffer.uniform_(0.5, 1.5)
    return module


@pytest.mark.parametrize("name", NETWORKS)
def test_both_frameworks_compute_the_same_after_a_conversion(name: str) -> None:
    kind, cell_kind, x = NETWORKS[name]
    module, cell = make(kind), cell_kind().set_train(False)

    result = convert_weight(module, cell, load=True)

    assert result, result.report
    np.testing.assert_allclose(
        cell(ms.Tensor(x)).asnumpy(), module(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", ["model", "dictionary", "file"])
def test_there_and_back_nothing_has_changed(name: str, form: str, tmp_path: Path) -> None:
    kind, cell_kind, _ = NETWORKS[name]
    module, cell = make(kind), cell_kind()
    source: Any = module.state_dict() if form == "dictionary" else module
    if form == "file":
        torch.save(module.state_dict(), tmp_path / "a.pt")
        there = convert_weight(tmp_path / "a.pt", cell, output=tmp_path / "b.ckpt")
        source = tmp_path / "b.ckpt"
    else:
        there = convert_weight(source, cell)
        source = there.parameters

    back = convert_weight(source, make(kind))

    assert there and back, (there.report, back.report)
    wanted = {key: value for key, value in module.state_dict().items() if "num_batches" not in key}
    assert back.state_dict.keys() == wanted.keys()
    assert all(torch.equal(back.state_dict[key], value) for key, value in wanted.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_without_a_target_the_classes_of_the_layers_say_the_names(name: str) -> None:
    kind, cell_kind, _ = NETWORKS[name]
    cell = cell_kind()

    result = convert_weight(make(kind))

    assert result
    assert {key: value.shape for key, value in result.parameters.items()} == {
        parameter.name: parameter.shape for parameter in cell.get_parameters()
    }
    assert ms.load_param_into_net(cell, result.parameters) == ([], [])
    back = convert_weight(cell)
    assert {key: tuple(value.shape) for key, value in back.state_dict.items()} == {
        key: tuple(value.shape) for key, value in make(kind).state_dict().items() if "num_batches" not in key
    }


def test_of_a_bare_dictionary_what_had_to_be_assumed_is_said() -> None:
    result = convert_weight(make(TorchLstm).state_dict() | make(TorchMlp).state_dict() | make(TorchCnn).state_dict())

    notes = {row.target.name: row.note for row in result.rows if row.target is not None}
    assert notes["bn.gamma"] == notes["body.2.gamma"] == notes["head.weight"] == ""
    assert notes["emb.embedding_table"].startswith("uncertain")
    assert notes["body.1.weight"].startswith("uncertain: one dimension and no bias")
    assert notes["line.weight"].startswith("uncertain: three dimensions")
    assert "uncertain: three dimensions" in str(result.report)
    assert "; 3 uncertain" in result.report.summary


def test_batches_are_not_counted_in_mindspore_and_that_is_said() -> None:
    cell = CellCnn()
    there = convert_weight(make(TorchCnn), cell)
    back = convert_weight(cell, make(TorchCnn))

    assert [(row.source.name, row.status) for row in there.report.having("dropped")] == [
        ("bn.num_batches_tracked", "dropped")
    ]
    assert [(row.target.name, row.note) for row in back.report.having("kept")] == [
        ("bn.num_batches_tracked", "mindspore.nn does not count batches")
    ]


class Renamed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(6, 9), nn.PReLU(9), nn.LayerNorm((9,), epsilon=1e-5))
        self.classifier = nn.Dense(9, 4)

    def construct(self, x: Any) -> Any:
        return self.classifier(self.layers(x))


def test_layers_of_other_names_are_paired_by_what_they_hold_and_that_is_said() -> None:
    module, cell, x = make(TorchMlp), Renamed(), normal(5, 6)

    result = convert_weight(module, cell, load=True)

    assert result and {row.rule for row in result.rows} == {"shape"}
    assert "paired although their names differ: look at them" in str(result.report)
    np.testing.assert_allclose(
        cell(ms.Tensor(x)).asnumpy(), module(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_what_does_not_map_is_listed_on_both_sides_with_its_nearest() -> None:
    module = torch.nn.ModuleDict({"one": torch.nn.Linear(3, 4), "two": torch.nn.Linear(3, 4)})
    cell = nn.CellDict({"one": nn.Dense(3, 4), "second": nn.Dense(5, 4)})

    result = convert_weight(module, cell)

    assert not result
    lost = {(row.source or row.target).name: row.note for row in result.report.having("unmapped")}
    assert set(lost) == {"two.weight", "two.bias", "second.weight", "second.bias"}
    assert lost["two.bias"] == "nearest of its shape: second.bias"
    assert "2 of the source go nowhere; 2 of the target get nothing" in str(result.report)


def test_a_name_that_fits_with_a_shape_that_does_not_is_a_row_of_its_own() -> None:
    result = convert_weight(torch.nn.ModuleDict({"a": torch.nn.Linear(3, 4)}), nn.CellDict({"a": nn.Dense(5, 4)}))

    assert [(row.target.name, row.note) for row in result.report.having("shape")] == [
        ("a.weight", "[4, 3] does not fit into [4, 5]")
    ]
    assert list(result.arrays) == ["a.bias"]


def test_a_matrix_is_turned_only_if_that_makes_it_fit_and_a_square_one_only_if_the_caller_says_so() -> None:
    source = {"a.weight": torch.randn(3, 5), "b.weight": torch.randn(4, 4)}
    cell = nn.CellDict({"a": nn.Dense(3, 5, has_bias=False), "b": nn.Dense(4, 4, has_bias=False)})

    unclear = convert_weight(source, cell)
    as_it_is = convert_weight(source, cell, mapping={"b.weight": "b.weight"})
    turned = convert_weight(source, cell, mapping={"b.weight": "b.weight.T"})

    assert not unclear and list(unclear.arrays) == ["a.weight"] and as_it_is and turned
    np.testing.assert_array_equal(unclear.arrays["a.weight"], source["a.weight"].numpy().T)
    np.testing.assert_array_equal(as_it_is.arrays["b.weight"], source["b.weight"].numpy())
    np.testing.assert_array_equal(turned.arrays["b.weight"], source["b.weight"].numpy().T)


def test_a_square_matrix_stays_as_it_is_where_no_other_is_turned() -> None:
    source = {"a.weight": torch.randn(5, 3), "b.weight": torch.randn(4, 4)}
    cell = nn.CellDict({"a": nn.Dense(3, 5, has_bias=False), "b": nn.Dense(4, 4, has_bias=False)})

    result = convert_weight(source, cell)

    assert result
    np.testing.assert_array_equal(result.arrays["b.weight"], source["b.weight"].numpy())


class TiedCell(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 3)
        self.head = nn.Dense(3, 7, has_bias=False)
        self.head.weight = self.emb.embedding_table

    def construct(self, x: Any) -> Any:
        return self.head(self.emb(x))


def test_tied_weights_are_one_weight() -> None:
    module = torch.nn.ModuleDict({"emb": torch.nn.Embedding(7, 3), "head": torch.nn.Linear(3, 7, bias=False)})
    module["head"].weight = module["emb"].weight
    cell = TiedCell()

    there = convert_weight(module, cell, load=True)
    back = convert_weight(cell, module)

    assert there and [row.note for row in there.report.having("dropped")] == ["shares its memory with emb.weight"]
    assert back and back.state_dict.keys() == {"emb.weight", "head.weight"}
    assert all(torch.equal(value, module["emb"].weight) for value in back.state_dict.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept_in_both_directions(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {"a.weight": torch.randn(3, 4).to(dtype)}
    torch.save(state, tmp_path / "a.pt")

    for source in (state, tmp_path / "a.pt"):
        there = convert_weight(source)
        assert str(there.parameters["a.weight"].dtype).lower() == str(dtype).removeprefix("torch.")
        assert torch.equal(convert_weight(there.parameters).state_dict["a.weight"], state["a.weight"])


@pytest.mark.parametrize(
    ("module", "cell"),
    [
        (torch.nn.BatchNorm2d(3), nn.BatchNorm2d(3)),
        (torch.nn.PReLU(3), nn.PReLU(3)),
        (torch.nn.Linear(2, 3), nn.Dense(2, 3)),
        (torch.nn.Embedding(4, 3), nn.Embedding(4, 3)),
    ],
)
def test_a_layer_on_its_own_is_a_network_too(module: torch.nn.Module, cell: nn.Cell) -> None:
    result = convert_weight(module, cell, load=True)
    assert result, result.report
    assert convert_weight(cell, module)


def test_a_model_as_a_whole_in_a_file_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "whole.pt")
    with pytest.raises(DumpError, match=r"holds a pickle, not a tensor; write its state_dict"):
        convert_weight(tmp_path / "whole.pt")


def test_a_file_is_converted_where_neither_framework_is_loaded(tmp_path: Path) -> None:
    torch.save(make(TorchCnn).state_dict(), tmp_path / "a.pt")
    program = (
        "import sys\nfrom tensorprobe.migrator import convert_weight\n"
        f"result = convert_weight({str(tmp_path / 'a.pt')!r})\n"
        "print(result.arrays['bn.moving_mean'].shape, 'torch' in sys.modules, 'mindspore' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ended.stdout.split("\n")[0] == "(6,) False False"


def test_a_folder_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        convert_weight({"a": torch.zeros(2)}, {"a": torch.ones(2)}, output="/proc/a.pt")
    result = convert_weight({"a.weight": torch.zeros(2, 2)}, output=tmp_path / "a.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]
    assert repr(result) == "<weights for mindspore: 1 weight mapped (1 by same name)>"


def test_a_mapping_of_the_caller_comes_first() -> None:
    module = torch.nn.ModuleDict({"q": torch.nn.Linear(3, 3, bias=False), "k": torch.nn.Linear(3, 3, bias=False)})
    cell = nn.CellDict({"k": nn.Dense(3, 3, has_bias=False), "x": nn.Dense(3, 3, has_bias=False)})

    result = convert_weight(module, cell, mapping={"q.weight": "k.weight", "k.weight": "x.weight"})

    assert result and {(row.source.name, row.target.name) for row in result.rows} == {
        ("q.weight", "k.weight"),
        ("k.weight", "x.weight"),
    }
    with pytest.raises(UsageError, match=r"mapping speaks of 'w.weight', which the source does not have"):
        convert_weight(module, cell, mapping={"w.weight": "k.weight"})


def test_a_model_of_transformers_maps_onto_itself(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    torch.save({"epoch": 3, "state_dict": model.state_dict(), "rates": [0.1, 0.2]}, tmp_path / "gpt.pt")

    result = convert_weight(tmp_path / "gpt.pt", model)

    assert result and {row.rule for row in result.rows} == {"same name"}
    assert all(torch.equal(result.state_dict[key], value) for key, value in model.state_dict().items())


def test_a_layer_of_transformers_that_lies_the_other_way_round_is_turned() -> None:
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    module = torch.nn.ModuleDict({"c_fc": pytorch_utils.Conv1D(4, 4)})
    cell = nn.CellDict({"c_fc": nn.Dense(4, 4)})

    result = convert_weight(module, cell)

    assert [row.layout for row in result.rows] == ["transposed", ""]


def test_a_file_of_safetensors_is_read_without_its_library(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a.weight": normal(4, 3), "a.bias": normal(4)})

    result = convert_weight(tmp_path / "a.safetensors", nn.CellDict({"a": nn.Dense(3, 4)}))

    assert result and result.arrays["a.weight"].shape == (4, 3)


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import json

    header, data = {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3,), {}, "source is a int; it must be a torch.nn.Module"),
        (("nowhere.pt",), {}, "nowhere.pt is missing"),
        (("nowhere.ckpt",), {}, "nowhere.ckpt is no file"),
        (("x.txt",), {}, "x.txt is none of .pt, .pth, .bin, .safetensors, .ckpt"),
        (({},), {}, "source is a dict"),
        (({"a": torch.zeros(2)},), {"load": True}, "needs a target"),
        (({"a": torch.zeros(2)},), {"to": "keras"}, "to='keras' is none of 'pytorch', 'mindspore'"),
        (({"a": torch.zeros(2)},), {"output": "a.pt"}, "a.pt must end in .ckpt"),
        (({"a": torch.zeros(2)},), {"output": "/nowhere/a.ckpt"}, "the folder /nowhere does not exist"),
        (({"a": torch.zeros(2)}, {"a": torch.zeros(2)}), {"load": True}, "the target is a dict"),
    ],
)
def test_what_cannot_work_is_said_with_what_to_do(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(Exception, match=message) as raised:
        convert_weight(*arguments, **options)
    assert type(raised.value).__module__ == "tensorprobe.errors"


def test_the_weights_of_one_framework_are_not_given_as_those_of_the_other() -> None:
    result = convert_weight({"a.weight": torch.zeros(2, 3)})
    with pytest.raises(UsageError, match=r"names of mindspore; .arrays has them without a framework"):
        _ = result.state_dict
