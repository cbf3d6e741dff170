"""Arguments by one name, wherever they stand and whatever they are called; and what only is spelt otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.compare.match.alignment import SlotPair
from tensorprobe.compare.match.argument import compare_lone, compare_said
from tensorprobe.compare.match.slot_pair import pair_slots
from tensorprobe.compare.result import ValuePair
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, iter_record_slots
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.signature import MISSING, read_signature, signatures
from tensorprobe.word.vocabulary import common_argument, common_value, default_value, differing_defaults, vocabulary


def call(name: str, direction: str = "forward", framework: str = "", **fields: Any) -> Call:
    """`Functional.softmax`; MindSpore's where its prefix is one of MindSpore only, or `framework` says so."""
    prefix, _, op = name.partition(".")
    framework = framework or ("mindspore" if prefix in ("Mint", "MintFunctional", "Primitive") else "pytorch")
    slots = tuple(iter_record_slots(fields))
    return Call(name, 0, "api", prefix, op, 0, direction, "", None, None, slots, framework=framework)


def ms(name: str, direction: str = "forward", **fields: Any) -> Call:
    return call(name, direction, "mindspore", **fields)


def tensor(*shape: int) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), "Max": 1.0, "Min": 0.0}


def plain(value: Any, kind: str | None = None) -> dict[str, Any]:
    return {"type": kind or type(value).__name__, "value": value}


def names(pairs: list[SlotPair]) -> list[tuple[str | None, str | None]]:
    return [(one and one.slot, other and other.slot) for one, other in pairs]


def compared(reference: Call, candidate: Call) -> list[ValuePair]:
    """All plain arguments."""
    values = []
    for one, other in pair_slots(reference, candidate):
        if one is None or other is None:
            values.append(compare_lone(one, other, (reference, candidate)))
        elif isinstance(one, PlainSlot) and isinstance(other, PlainSlot):
            values.append(compare_said(one, other, (reference, candidate)))
    return values


@pytest.mark.parametrize(
    ("spoken", "slot", "common"),
    [
        (call("Functional.softmax"), "input.1", "kwargs.dim"),
        (call("Functional.softmax"), "kwargs.axis", "kwargs.dim"),
        (ms("Functional.softmax"), "kwargs.axis", "kwargs.dim"),
        (ms("Functional.gather"), "input.1", "kwargs.index"),
        (ms("Functional.gather"), "input.2", "kwargs.dim"),
        (call("Torch.index_select"), "input.1", "kwargs.dim"),
        (call("Primitive.gather.Gather"), "input.1", "kwargs.index"),
        (call("Primitive.bn_infer.BatchNorm"), "input.1", "kwargs.weight"),
        (call("Functional.batch_norm"), "input.1", "kwargs.running_mean"),
        (ms("Tensor.transpose"), "input.3", "kwargs.dims.2"),
        (ms("Functional.transpose"), "input.1.2", "kwargs.dims.2"),
        (call("Tensor.permute"), "input.3", "kwargs.dims.2"),
        (ms("Functional.std"), "kwargs.ddof", "kwargs.correction"),
        (call("Torch.std"), "kwargs.unbiased", "kwargs.correction"),
        (ms("Functional.conv2d"), "input.4", "kwargs.pad_mode"),
        (ms("Functional.conv2d"), "input.5", "kwargs.padding"),
        (call("Mint.sum"), "input.1", "kwargs.dim"),
        (ms("Tensor.mean"), "kwargs.axis.0", "kwargs.dim.0"),
        (call("Primitive.ln.LayerNorm"), "output.0", "output.0"),
        (call("Primitive.ln.LayerNorm"), "output.1", "output.aside.1"),
        (call("Primitive.m.ArgMaxWithValue"), "output.0", "output.1"),
        (call("Torch.unheard_of"), "input.1", "input.1"),
        (call("Functional.linear"), "input.x", "input.x"),
    ],
)
def test_an_argument_has_one_name_wherever_it_stands(spoken: Call, slot: str, common: str) -> None:
    assert common_argument(spoken, slot) == common


def test_gradients_of_arguments_have_the_names_of_the_arguments() -> None:
    backward = call("Primitive.ln.LayerNorm", "backward")
    assert common_argument(backward, "output.2") == "kwargs.bias"
    assert common_argument(backward, "input.0") == "input.0"
    assert common_argument(backward, "input.1") == "input.aside.1"


def test_each_input_of_one_call_stands_against_the_same_input_of_the_other() -> None:
    reference = call("Torch.index_select", input_args=[tensor(5, 8), plain(0), tensor(3)])
    candidate = call("Primitive.g.Gather", input_args=[tensor(5, 8), tensor(3), plain(0)])
    assert names(pair_slots(reference, candidate)) == [
        ("input.0", "input.0"),
        ("input.1", "input.2"),
        ("input.2", "input.1"),
    ]


def test_inputs_of_equal_shape_are_told_apart_by_their_names() -> None:
    weights = [tensor(4) for _ in range(4)]
    reference = call("Functional.batch_norm", input_args=[tensor(2, 4), *weights], output=[tensor(2, 4)])
    candidate = call("Primitive.b.BatchNorm", input_args=[tensor(2, 4), *weights], output=[tensor(2, 4), tensor(4)])
    found = dict(names(pair_slots(reference, candidate)))
    assert [found[f"input.{index}"] for index in range(5)] == ["input.0", "input.3", "input.4", "input.1", "input.2"]
    assert found["output.0"] == "output.0" and found[None] == "output.1"


def test_gradients_too() -> None:
    grads = [tensor(2, 4), tensor(4), tensor(4)]
    reference = call(
        "Functional.batch_norm", "backward", input=[tensor(2, 4)], output=[grads[0], None, None, *grads[1:]]
    )
    candidate = call("Primitive.b.BatchNorm", "backward", input=[tensor(2, 4)], output=[*grads, None, None])
    found = dict(names(pair_slots(reference, candidate)))
    assert [found[f"output.{index}"] for index in (0, 3, 4)] == ["output.0", "output.1", "output.2"]


def test_what_is_only_spelt_otherwise_is_equal() -> None:
    reference = call(
        "Torch.mean", input_args=[tensor(2, 3, 4)], input_kwargs={"dim": plain(-1), "keepdim": plain(True)}
    )
    candidate = ms("Functional.mean", input_args=[tensor(2, 3, 4), plain(2), plain(True)])
    assert [value.status for value in compared(reference, candidate)] == ["equal", "equal"]


def test_one_number_stands_for_all_of_a_sequence() -> None:
    conv = [tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), None]
    reference = call("Functional.conv2d", input_args=[*conv, [plain(2), plain(2)], [plain(0), plain(0)]])
    candidate = ms("Functional.conv2d", input_args=conv, input_kwargs={"stride": plain(2), "pad_mode": plain("valid")})
    assert {value.status for value in compared(reference, candidate)} == {"equal"}
    other = ms("Functional.conv2d", input_args=conv, input_kwargs={"stride": plain(1), "pad_mode": plain("valid")})
    assert [value.status for value in compared(reference, other)].count("different") == 2


def test_a_shape_as_a_whole_stands_against_its_sizes() -> None:
    reference = call("Tensor.view", input_args=[tensor(6), plain([2, 3], "torch.Size")])
    candidate = ms("Tensor.view", input_args=[tensor(6), plain(2), plain(3)])
    assert [value.status for value in compared(reference, candidate)] == ["equal", "equal"]
    other = ms("Tensor.view", input_args=[tensor(6), plain(3), plain(2)])
    assert [value.status for value in compared(reference, other)] == ["different", "different"]


def test_dtypes_are_compared_by_what_they_are() -> None:
    reference = call("Tensor.to", input_args=[tensor(2), plain("torch.float16", "torch.dtype")])
    candidate = ms("Functional.cast", input_args=[tensor(2), plain("Float16", "mindspore.dtype")])
    assert [value.status for value in compared(reference, candidate)] == ["equal"]
    other = ms("Functional.cast", input_args=[tensor(2), plain("Float32", "mindspore.dtype")])
    assert [value.status for value in compared(reference, other)] == ["different"]


def test_an_argument_that_is_the_default_of_the_other_framework_is_equal() -> None:
    reference = call("Functional.leaky_relu", input_args=[tensor(2), plain(0.2)])
    assert [(value.status, value.reason) for value in compared(reference, ms("Functional.leaky_relu"))][-1] == (
        "equal",
        "the default",
    )
    other = call("Functional.leaky_relu", input_args=[tensor(2), plain(0.01)])
    assert compared(other, ms("Functional.leaky_relu"))[-1].reason == (
        "only in the reference, where the other's default is 0.2"
    )


def test_what_a_primitive_was_made_with_is_not_seen_and_is_no_mismatch() -> None:
    reference = call("Functional.softmax", input_args=[tensor(2, 3), plain(-1)], input_kwargs={"_stacklevel": plain(5)})
    values = compared(reference, call("Primitive.s.Softmax", input_args=[tensor(2, 3)]))
    assert [(value.status, value.reason) for value in values] == [
        ("not comparable", "not seen: the primitive was made with it"),
        ("equal", "changes nothing"),
    ]


def test_what_is_kept_is_one_minus_what_is_dropped() -> None:
    attention = ms("Functional.flash_attention_score")
    assert common_value(attention, "kwargs.keep_prob", 0.9) == 0.1
    assert default_value(attention, "dropout_p") == 0.0
    assert common_value(call("Functional.dropout"), "kwargs.p", 0.9) == 0.9


def test_differing_defaults_are_known() -> None:
    layer_norm = Call("x", 0, "module", "Cell", "LayerNorm", 0, "forward", "n", None, None, (), framework="mindspore")
    assert differing_defaults(layer_norm) == {"eps": {"pytorch": 1e-05, "mindspore": 1e-07}}
    assert differing_defaults(ms("Functional.std"))["correction"]["mindspore"] == 0
    assert differing_defaults(call("Torch.std")) == {}


@pytest.mark.parametrize("text", sorted({*signatures()["pytorch"].values()}))
def test_every_signature_can_be_read(text: str) -> None:
    arguments = read_signature(text).arguments
    assert arguments and all(argument.name.isidentifier() for argument in arguments)


def test_every_signature_of_mindspore_speaks_of_arguments_that_pytorch_has() -> None:
    """Or says, with a +, that it has not."""
    for prefix, group in signatures()["mindspore"].items():
        for op, text in group.items():
            theirs = signatures()["pytorch"].get(words_of(prefix, op))
            if theirs is None:
                continue
            known = {argument.name for argument in read_signature(theirs).arguments}
            own = {argument.name for argument in read_signature(text).arguments if not argument.is_extra}
            extra = {argument.name for argument in read_signature(text).arguments if argument.is_extra}
            assert own <= known, f"{prefix}.{op}"
            assert not extra & known, f"{prefix}.{op}"


def words_of(prefix: str, op: str) -> str:
    return word_of(call(f"{prefix}.{op}", framework="mindspore")) if prefix not in ("nn", "mint.nn") else op


WITHOUT_MEANING = {
    ("Functional", "affine_grid", "align_corners"): "PyTorch's None is False, with a warning",
    ("Functional", "topk", "dim"): "MindSpore's None is the last",
    ("Functional", "norm", "p"): "None and 'fro' are the same norm",
    ("Tensor", "norm", "p"): "None and 'fro' are the same norm",
    ("Tensor", "astype", "copy"): "the values are the same",
    ("Tensor", "searchsorted", "side"): "None is left",
    ("Mint", "meshgrid", "indexing"): "None is ij",
    ("Functional", "logspace", "dtype"): "PyTorch's None is float32",
    ("Functional", "randperm", "dtype"): "PyTorch's None is int64",
}
"""Defaults that are spelt otherwise and mean the same."""


def test_every_default_that_differs_is_listed_and_no_other() -> None:
    listed = vocabulary()["mindspore"]["defaults"]
    for prefix in ("Functional", "Mint", "MintFunctional", "Tensor"):
        for op, text in signatures()["mindspore"][prefix].items():
            found = {
                argument.name
                for argument in read_signature(text).arguments
                if is_other_default(prefix, op, argument.name) and (prefix, op, argument.name) not in WITHOUT_MEANING
            }
            assert found == set(listed.get(prefix, {}).get(op, {})), f"{prefix}.{op}"


def is_other_default(prefix: str, op: str, argument: str) -> bool:
    own = default_value(ms(f"{prefix}.{op}"), argument)
    theirs = default_value(call(f"Torch.{words_of(prefix, op)}"), argument)
    return MISSING not in (own, theirs) and own != theirs


ARGUMENT = st.builds(
    lambda star, name, own, default: f"{star}{name}{own}{default}",
    st.sampled_from(["", "+"]),
    st.from_regex(r"[a-z][a-z_0-9]{0,6}", fullmatch=True),
    st.sampled_from(["", ":axis", ":1-keep"]),
    st.sampled_from(["", "=None", "=(1, -2)", "='a'", "=1e-05", "=True"]),
)


@given(st.lists(ARGUMENT, min_size=1, max_size=6, unique=True))
def test_the_notation_of_signatures_is_read_argument_by_argument(items: list[str]) -> None:
    arguments = read_signature(", ".join(items)).arguments
    assert len(arguments) == len(items)
    for argument, item in zip(arguments, items, strict=True):
        assert argument.is_extra == item.startswith("+") and argument.is_complement == (":1-" in item)
        assert (argument.default is MISSING) == ("=" not in item)
