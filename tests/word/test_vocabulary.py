"""What MindSpore and PyTorch call differently and is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.run.call import Call
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a
from tensorprobe.word.spelling import canonical_op
from tensorprobe.word.vocabulary import common_op, common_slot, is_made_with, vocabulary


def call(name: str, framework: str = "mindspore") -> Call:
    prefix, _, op = name.partition(".")
    return Call(name, 0, "api", prefix, op, 0, "forward", "", None, None, (), framework=framework)


def module(name: str, framework: str = "mindspore") -> Call:
    prefix = "Cell" if framework == "mindspore" else "Module"
    return Call(name, 0, "module", prefix, name, 0, "forward", "fc", None, None, (), framework=framework)


@pytest.mark.parametrize(
    ("torch_name", "names"),
    [
        (
            "Torch.matmul",
            ("Functional.matmul", "Mint.matmul", "Tensor.matmul", "Tensor.__matmul__", "Primitive.product.MatMul"),
        ),
        ("Torch.matmul", ("Primitive.product.MatMulExt",)),
        ("Torch.bmm", ("Functional.bmm", "Mint.bmm", "Primitive.product.BatchMatMul", "Primitive.p.BatchMatMulExt")),
        ("Functional.relu", ("Functional.relu", "MintFunctional.relu", "Primitive.relu.ReLU", "Tensor.relu")),
        ("Functional.linear", ("Functional.dense", "MintFunctional.linear", "Primitive.matmul.Dense")),
        ("Tensor.__add__", ("Tensor.__add__", "Functional.add", "Mint.add", "Primitive.add.Add", "Primitive.a.AddExt")),
        ("Torch.add", ("Functional.bias_add", "Primitive.bias_add.BiasAdd", "Functional.tensor_add")),
        ("Torch.div", ("Functional.div", "Primitive.div.RealDiv", "Tensor.__truediv__", "Tensor.__itruediv__")),
        ("Torch.eq", ("Functional.equal", "Tensor.equal", "Tensor.__eq__", "Mint.eq", "Primitive.same.Equal")),
        ("Torch.cat", ("Functional.cat", "Functional.concat", "Mint.cat", "Primitive.join.Concat")),
        ("Tensor.permute", ("Functional.transpose", "Tensor.transpose", "Mint.permute", "Primitive.t.Transpose")),
        ("Torch.transpose", ("Mint.transpose", "Functional.swapaxes", "Primitive.t.TransposeExtView")),
        ("Torch.index_select", ("Functional.gather", "Primitive.gather.Gather", "Mint.index_select")),
        ("Torch.gather", ("Functional.gather_elements", "Functional.gather_d", "Mint.gather", "Primitive.g.GatherD")),
        ("Torch.unsqueeze", ("Functional.expand_dims", "Mint.unsqueeze", "Primitive.e.ExpandDims")),
        (
            "Torch.sum",
            ("Functional.sum", "Functional.reduce_sum", "Mint.sum", "Primitive.s.ReduceSum", "Primitive.s.SumExt"),
        ),
        ("Torch.mean", ("Mint.mean", "Primitive.m.ReduceMean", "Primitive.m.MeanExt", "Tensor.mean")),
        ("Functional.softmax", ("Functional.softmax", "MintFunctional.softmax", "Primitive.softmax.Softmax")),
        ("Functional.layer_norm", ("Functional.layer_norm", "MintFunctional.layer_norm", "Primitive.n.LayerNormExt")),
        (
            "Functional.conv2d",
            ("Functional.conv2d", "MintFunctional.conv2d", "Primitive.conv.Conv2D", "Primitive.c.Conv2DExt"),
        ),
        ("Functional.gelu", ("Functional.gelu", "Primitive.gelu.GeLU", "Primitive.gelu.Gelu", "Primitive.g.GeluExt")),
        ("Functional.cross_entropy", ("Functional.cross_entropy", "Primitive.loss.SoftmaxCrossEntropyWithLogits")),
        ("Tensor.detach", ("Functional.stop_gradient", "Primitive.stop.StopGradient", "Tensor.detach")),
        ("Tensor.to", ("Functional.cast", "Tensor.astype", "Tensor.to", "Primitive.cast.Cast")),
        ("Tensor.copy_", ("Functional.assign", "Tensor.copy_", "Primitive.a.Assign", "Tensor.assign_value")),
        ("Tensor.clone", ("Tensor.copy", "Mint.clone", "Tensor.clone")),
        ("Tensor.mul_", ("Primitive.m.InplaceMul", "Tensor.mul_", "Tensor.__imul__", "Tensor.__mul__")),
        ("Torch.where", ("Functional.where", "Functional.select", "Mint.where", "Primitive.s.Select")),
        ("Distributed.all_reduce", ("Distributed.AllReduce", "Distributed.all_reduce")),
        ("Torch.topk", ("Functional.topk", "Primitive.t.TopK", "Mint.topk", "Functional.top_k")),
        ("Torch.isnan", ("Functional.isnan", "Primitive.i.IsNan", "Mint.isnan")),
    ],
)
def test_an_operation_of_mindspore_is_known_by_the_word_of_pytorch(torch_name: str, names: tuple[str, ...]) -> None:
    wanted = canonical_op(call(torch_name, "pytorch"))

    assert {name: canonical_op(call(name)) for name in names} == dict.fromkeys(names, wanted)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Tensor.copy", "Tensor.copy_"),  # a new tensor; and a write into an old one
        ("Functional.gather", "Mint.gather"),
        ("Functional.select", "Mint.select"),
        ("Functional.equal", "Mint.equal"),  # by element; and one answer
        ("Tensor.__sub__", "Tensor.__rsub__"),
        ("Primitive.relu.ReLU", "Primitive.relu.ReLU6"),
    ],
)
def test_one_word_that_means_two_things_stays_two_operations(one: str, other: str) -> None:
    assert canonical_op(call(one)) != canonical_op(call(other))


def test_the_words_of_pytorch_and_of_msadapter_stay_as_they_are() -> None:
    for framework in ("pytorch", "mindtorch", ""):
        assert common_op(framework, "api", "Torch", "gather") == "gather"
        assert common_op(framework, "module", "Module", "Dense") == "Dense"


def test_only_a_primitive_may_have_been_made_with_what_it_is_not_called_with() -> None:
    assert is_made_with(call("Primitive.softmax.Softmax"), "kwargs.dim")
    for other in (call("Mint.softmax"), call("Functional.softmax"), call("Torch.softmax", "pytorch")):
        assert not is_made_with(other, "kwargs.unheard_of")


def test_a_jitted_function_keeps_the_name_that_the_user_gave_it() -> None:
    assert common_op("mindspore", "api", "Jit", "dense") == "dense"


def test_cells_are_known_by_the_class_of_pytorch() -> None:
    pairs = {"Dense": "Linear", "SequentialCell": "Sequential", "Conv2dTranspose": "ConvTranspose2d", "LSTM": "LSTM"}
    for cell, torch_class in pairs.items():
        assert canonical_op(module(cell)) == canonical_op(module(torch_class, "pytorch"))


@pytest.mark.parametrize(
    ("slot", "common"),
    [
        ("parameters.gamma", "parameters.weight"),
        ("parameters.beta", "parameters.bias"),
        ("parameters.embedding_table", "parameters.weight"),
        ("parameters.moving_mean", "buffers.running_mean"),
        ("parameters.weight", "parameters.weight"),
        ("gamma", "weight"),
        ("input.0", "input.0"),
        ("kwargs.gamma", "kwargs.gamma"),
    ],
)
def test_parameters_have_the_names_of_pytorch(slot: str, common: str) -> None:
    assert common_slot("mindspore", slot) == common
    assert common_slot("pytorch", slot) == slot


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Primitive.dropout.Dropout", "random"),
        ("Functional.dropout", "random"),
        ("Functional.standard_normal", "random"),
        ("Primitive.r.UniformReal", "random"),
        ("Primitive.r.StandardNormal", "random"),
        ("Functional.uniform", "random"),
        ("Primitive.p.MatMul", "contraction"),
        ("Functional.dense", "contraction"),
        ("Primitive.c.Conv2D", "contraction"),
        ("Primitive.s.Softmax", "exponential"),
        ("Primitive.s.ReduceSum", "sum"),
        ("Primitive.s.ReduceMean", "mean"),
        ("Tensor.__sub__", "addition"),
        ("Functional.addn", "addition"),
        ("Functional.flash_attention_score", "composite"),
        ("Primitive.lstm.LSTM", "composite"),
        ("Primitive.f.FloorDiv", "steps"),
        ("Functional.rint", "steps"),
    ],
)
def test_what_is_known_of_operations_is_known_of_those_of_mindspore(name: str, kind: str) -> None:
    assert is_a(word_of(call(name)), kind)


def test_the_words_are_data_that_lead_to_one_word_in_one_step() -> None:
    words = vocabulary()
    mindspore = words["mindspore"]
    assert not set(words["words"]) & set(words["words"].values())
    common = set(mindspore["functions"].values()) | set(mindspore["primitives"].values())
    assert not common & set(mindspore["functions"])


def test_the_documentation_lists_every_default_that_differs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vocabulary.md").read_text()
    written = {"Functional": "ops", "Tensor": "Tensor", "nn": "nn"}
    for prefix, functions in vocabulary()["mindspore"]["defaults"].items():
        for name, defaults in functions.items():
            rows = [row for row in page.splitlines() if f"`{written[prefix]}.{name}`" in row]
            for argument, values in defaults.items():
                ending = f"| `{argument}` | `{values['pytorch']!r}` | `{values['mindspore']!r}` |"
                assert any(ending in row for row in rows), f"{prefix}.{name}: {argument}"
