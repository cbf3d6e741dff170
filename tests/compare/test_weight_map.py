"""Which weight goes where, by names and shapes alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.compare.weight_map import map_weights, name_weights
from tensorprobe.compare.weight_name import common_weight_name
from tensorprobe.model.weight import Weight

TO_MINDSPORE = ("pytorch", "mindspore")


def weight(name: str, *shape: int, kinds: tuple[str, ...] = (), memory: object = None) -> Weight:
    return Weight(name, shape, "float32", kinds, memory)


KINDS = {
    "Linear": (("weight", (4, 3)), ("bias", (4,))),
    "BatchNorm2d": (("weight", (5,)), ("bias", (5,)), ("running_mean", (5,)), ("running_var", (5,))),
    "BatchNorm3d": (("weight", (5,)), ("bias", (5,)), ("running_mean", (5,)), ("running_var", (5,))),
    "LayerNorm": (("weight", (6,)), ("bias", (6,))),
    "Embedding": (("weight", (9, 2)),),
    "Conv1d": (("weight", (4, 3, 5)), ("bias", (4,))),
    "PReLU": (("weight", (3,)),),
    "LSTM": (("weight_ih_l0", (8, 3)), ("weight_hh_l0", (8, 2)), ("bias_ih_l0", (8,)), ("bias_hh_l0", (8,))),
}
PART = st.from_regex(r"[a-z][a-z0-9]{0,4}|[0-9]{1,2}", fullmatch=True)
LAYERS = st.dictionaries(
    st.lists(PART, min_size=1, max_size=3).map(".".join), st.sampled_from(sorted(KINDS)), min_size=1, max_size=8
)


def network(layers: dict[str, str]) -> list[Weight]:
    """The weights of a network of PyTorch, with their classes."""
    found = []
    for path, kind in layers.items():
        depth = path.count(".") + 1
        kinds = ("Network", *["Block"] * (depth - 1), kind)
        found += [weight(f"{path}.{leaf}", *shape, kinds=kinds) for leaf, shape in KINDS[kind]]
    return found


@given(LAYERS)
def test_names_in_mindspore_lead_back_to_those_of_pytorch(layers: dict[str, str]) -> None:
    source = network(layers)
    for row in name_weights(source, "pytorch"):
        assert row.source is not None and row.target is not None
        assert common_weight_name(in_cell(row.target, row.source), "mindspore") == row.source.name


def in_cell(made: Weight, original: Weight) -> Weight:
    """With the classes that the cells around it have."""
    around = ["Cell"] * made.name.count(".") + [original.kind or ""]
    if original.kind == "BatchNorm3d":
        around[-2:] = ["BatchNorm3d", "BatchNorm2d"]
    return Weight(made.name, made.shape, made.dtype, tuple(around))


@given(LAYERS, st.data())
def test_every_weight_of_the_same_network_finds_its_own_whatever_the_order(
    layers: dict[str, str], data: st.DataObject
) -> None:
    source = network(layers)
    target = [in_cell(row.target, row.source) for row in name_weights(source, "pytorch") if row.target and row.source]
    shuffled = data.draw(st.permutations(target))
    rows = map_weights(source, shuffled, TO_MINDSPORE)
    wanted = {one.name: other.name for one, other in zip(source, target, strict=True)}
    assert {row.source.name: row.target.name for row in rows if row.source and row.target} == wanted
    assert not any(row.is_bad for row in rows)


@given(LAYERS, LAYERS)
def test_every_weight_of_both_sides_has_exactly_one_row(one: dict[str, str], other: dict[str, str]) -> None:
    source, target = network(one), network(other)
    rows = map_weights(source, target, ("pytorch", "pytorch"))
    assert sorted(row.source.name for row in rows if row.source) == sorted(weight.name for weight in source)
    assert sorted(row.target.name for row in rows if row.target) == sorted(weight.name for weight in target)


def test_more_layers_of_one_kind_on_one_side_are_not_paired_by_order() -> None:
    source = [weight(f"a{index}.weight", 3, 3) for index in range(2)]
    target = [weight(f"b{index}.weight", 3, 3) for index in range(3)]
    rows = map_weights(source, target, TO_MINDSPORE)
    assert [row.status for row in rows] == ["unmapped"] * 5


def test_a_wrapper_around_the_network_is_no_part_of_its_names() -> None:
    source = [weight("module.fc.weight", 3, 4), weight("module.fc.bias", 3)]
    target = [weight("network._backbone.fc.weight", 3, 4), weight("network._backbone.fc.bias", 3)]
    assert {row.rule for row in map_weights(source, target, TO_MINDSPORE)} == {"vocabulary"}


def test_a_kernel_of_one_dimension_has_one_more_in_mindspore() -> None:
    source = [weight("c.weight", 4, 3, 5), weight("d.weight", 4, 3, 5)]
    target = [weight("c.weight", 4, 3, 1, 5), weight("d.weight", 4, 3, 5, 1)]
    assert [(row.status, row.layout) for row in map_weights(source, target, TO_MINDSPORE)] == [
        ("mapped", "reshaped"),
        ("shape", ""),
    ]


def test_layers_of_other_names_are_paired_by_what_their_names_share_before_their_order() -> None:
    source = [weight(f"layers.{index}.attn.{part}.weight", 4, 4) for index in range(2) for part in "qkv"]
    target = [weight(f"blocks.{index}.attention.{part}.weight", 4, 4) for index in range(2) for part in "vkq"]
    rows = map_weights(source, target, TO_MINDSPORE)
    assert {row.rule for row in rows} == {"alike"}
    assert all(row.source and row.target and row.source.name[7:8] == row.target.name[7:8] for row in rows)
    assert all(row.source and row.target and row.source.name[-8] == row.target.name[-8] for row in rows)


@pytest.mark.parametrize(
    ("names", "other_names"),
    [
        (("query", "key", "value"), ("k_proj", "q_proj", "v_proj")),
        (("q_proj", "k_proj", "v_proj", "o_proj"), ("wo", "wv", "wk", "wq")),
        (("linear1", "linear2"), ("fc2", "fc1")),
        (("out_proj", "in_proj"), ("input_projection", "output_projection")),
    ],
)
def test_a_name_that_is_shortened_is_still_that_name(names: tuple[str, ...], other_names: tuple[str, ...]) -> None:
    source = [weight(f"layers.{index}.{name}.weight", 4, 4) for index in range(2) for name in names]
    target = [weight(f"layers.{index}.self.{name}.weight", 4, 4) for index in range(2) for name in other_names]

    rows = map_weights(source, target, TO_MINDSPORE)

    assert {row.rule for row in rows} == {"alike"}
    for row in rows:
        assert row.source is not None and row.target is not None
        pair = row.source.name.split(".")[2], row.target.name.split(".")[3]
        place = {"query": "q", "key": "k", "value": "v"}.get(pair[0], pair[0].partition("_")[0].removeprefix("linear"))
        assert row.source.name.split(".")[1] == row.target.name.split(".")[1] and place in pair[1]


def test_a_name_that_shortens_two_is_left_to_the_order() -> None:
    source = [weight("norm.weight", 4), weight("n.weight", 4)]
    target = [weight("norm1.weight", 4), weight("norm2.weight", 4)]

    assert [row.rule for row in map_weights(source, target, TO_MINDSPORE)] == ["order", "order"]
