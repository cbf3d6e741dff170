"""Which weight goes where, by names and shapes alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.migrator.weight_map import map_weights, name_weights
from tensorprobe.migrator.weight_name import common_weight_name
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import WeightRow

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


def test_more_layers_of_one_kind_on_one_side_are_ambiguous() -> None:
    source = [weight(f"a{index}.weight", 3, 3) for index in range(2)]
    target = [weight(f"b{index}.weight", 3, 3) for index in range(3)]
    rows = map_weights(source, target, TO_MINDSPORE)
    assert [row.status for row in rows] == ["ambiguous"] * 5
    assert rows[0].choices == ("b0.weight", "b1.weight", "b2.weight")


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


def test_layers_of_other_names_are_paired_by_what_their_names_say() -> None:
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


def test_a_name_that_shortens_two_is_ambiguous() -> None:
    source = [weight("norm.weight", 4), weight("n.weight", 4)]
    target = [weight("norm1.weight", 4), weight("norm2.weight", 4)]

    rows = map_weights(source, target, TO_MINDSPORE)

    assert [row.status for row in rows] == ["ambiguous"] * 4
    assert rows[0].choices == ("norm1.weight", "norm2.weight")


def pairs_of(rows: list[WeightRow]) -> dict[str, str]:
    return {row.source.name: row.target.name for row in rows if row.source and row.target and row.status == "mapped"}


def test_a_shared_word_does_not_exchange_the_norms_of_a_llama() -> None:
    source = [weight(f"model.layers.0.{name}.weight", 4) for name in ("input_layernorm", "post_attention_layernorm")]
    target = [weight(f"layers.0.{name}.weight", 4) for name in ("attention_norm", "ffn_norm")]

    assert pairs_of(map_weights(source, target, TO_MINDSPORE)) == {
        "model.layers.0.input_layernorm.weight": "layers.0.attention_norm.weight",
        "model.layers.0.post_attention_layernorm.weight": "layers.0.ffn_norm.weight",
    }


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("before_attention_scale", "after_attention_scale"), ("attention_scale", "ffn_scale")),
        (("post_attention", "pre_attention"), ("attention", "mlp")),
        (("one", "two"), ("first_mix", "second_mix")),
    ],
)
def test_words_that_say_only_half_leave_it_ambiguous(names: tuple[str, ...], others: tuple[str, ...]) -> None:
    source = [weight(f"layers.{index}.{name}.weight", 4) for index in range(2) for name in names]
    target = [weight(f"blocks.{index}.{name}.weight", 4) for index in range(2) for name in others]

    rows = map_weights(source, target, TO_MINDSPORE)

    assert {row.status for row in rows} == {"ambiguous"}
    assert rows[0].choices == tuple(f"blocks.0.{name}.weight" for name in sorted(others))


def test_layers_that_are_counted_from_another_number_are_not_paired_by_it() -> None:
    source = [weight(f"conv{index}.weight", 4, 4) for index in (0, 1, 2)]
    target = [weight(f"conv{index}.weight", 4, 4) for index in (1, 2, 3)]

    assert {row.status for row in map_weights(source, target, TO_MINDSPORE)} == {"ambiguous"}
    shaped = (
        [weight("conv1.weight", 4, 3), weight("conv2.weight", 4, 4)],
        [
            weight("conv0.weight", 4, 3),
            weight("conv1.weight", 4, 4),
        ],
    )
    assert pairs_of(map_weights(*shaped, TO_MINDSPORE)) == {
        "conv1.weight": "conv0.weight",
        "conv2.weight": "conv1.weight",
    }


def test_layers_of_a_sequence_are_counted_by_their_kind() -> None:
    source = [weight(f"body.{place}.weight", 4, 4, 3, 3) for place in (0, 3)]
    source += [weight(f"body.{place}.weight", 4) for place in (1, 4)]
    target = [weight(f"conv{place}.weight", 4, 4, 3, 3) for place in (1, 2)]
    target += [weight(f"bn{place}.gamma", 4) for place in (1, 2)]

    assert pairs_of(map_weights(source, target, TO_MINDSPORE)) == {
        "body.0.weight": "conv1.weight",
        "body.1.weight": "bn1.gamma",
        "body.3.weight": "conv2.weight",
        "body.4.weight": "bn2.gamma",
    }


def test_the_second_half_of_a_network_may_be_counted_from_its_end() -> None:
    """`up1` is the deepest level for some, the last one for others; shapes may say which."""
    down, up = (
        [weight(f"down{index}.weight", 4, 4) for index in (1, 2)],
        [weight("up1.weight", 4, 4), weight("up2.weight", 4, 4)],
    )
    encoder = [weight(f"enc{index}.weight", 4, 4) for index in (1, 2)]
    decoder = [weight(f"dec{index}.weight", 4, 4) for index in (1, 2)]

    found = map_weights([*down, *up], [*encoder, *decoder], TO_MINDSPORE)

    assert pairs_of(found) == {"down1.weight": "enc1.weight", "down2.weight": "enc2.weight"}
    assert found[2].choices == ("dec1.weight", "dec2.weight")
    up[0], decoder[1] = weight("up1.weight", 6, 4), weight("dec2.weight", 6, 4)
    assert pairs_of(map_weights([*down, *up], [*encoder, *decoder], TO_MINDSPORE))["up1.weight"] == "dec2.weight"


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        (["a.weight"], ["b.weight"], "shape"),
        (["stem.weight"], ["first.gamma"], "shape"),
        (["model.decoder.lm_head.weight", "x.weight", "y.weight"], ["lm_head.weight"], "alike"),
        (["fc.weight", "x.weight", "y.weight"], ["module.fc.weight", "z.weight", "u.weight"], "vocabulary"),
    ],
)
def test_a_leftover_that_is_the_only_one_or_has_its_name_is_mapped(
    source: list[str], target: list[str], rule: str
) -> None:
    rows = map_weights([weight(name, 4) for name in source], [weight(name, 4) for name in target], TO_MINDSPORE)

    assert [(row.source.name, row.target.name, row.rule) for row in rows if row.source and row.target] == [
        (source[0], target[0], rule)
    ]


def test_a_bias_that_only_one_side_has_does_not_keep_the_weight_from_its_place() -> None:
    rows = map_weights([weight("a.weight", 4, 3), weight("a.bias", 4)], [weight("b.weight", 4, 3)], TO_MINDSPORE)

    assert pairs_of(rows) == {"a.weight": "b.weight"}
    assert [row.source.name for row in rows if row.source and row.status == "unmapped"] == ["a.bias"]


def test_a_square_matrix_is_ambiguous_where_others_are_turned_and_no_class_is_known() -> None:
    source = [weight("fc.weight", 3, 5), weight("mix.weight", 4, 4)]
    target = [weight("fc.weight", 5, 3), weight("mix.weight", 4, 4)]

    rows = map_weights(source, target, TO_MINDSPORE)

    assert [(row.status, row.layout, row.choices) for row in rows] == [
        ("mapped", "transposed", ()),
        ("ambiguous", "", ("mix.weight", "mix.weight.T")),
    ]
    for choice, layout in (("mix.weight", ""), ("mix.weight.T", "transposed")):
        chosen = map_weights(source, target, TO_MINDSPORE, {"mix.weight": choice})
        assert {(row.status, row.layout) for row in chosen if row.rule == "mapping"} == {("mapped", layout)}


PARTS = [*"qkvo012", "layers", "blocks", "attn", "attention", "norm1", "norm2", "ln", "mlp", "up1", "dec2", "qkv"]
PARTS += ["input_layernorm", "post_attention_layernorm", "attention_norm", "ffn_norm", "w1", "w2", "w3"]
NAMES = st.lists(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(".".join), min_size=1, max_size=10, unique=True
)
SHAPES = st.sampled_from([(4,), (4, 4), (12, 4), (4, 12), (8, 4)])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NAMES, NAMES, st.data())
def test_the_order_of_a_file_decides_nothing(names: list[str], others: list[str], data: st.DataObject) -> None:
    source, target = ([weight(f"{name}.weight", *data.draw(SHAPES)) for name in listed] for listed in (names, others))
    rows = map_weights(source, target, ("pytorch", "pytorch"))
    shuffled = map_weights(
        data.draw(st.permutations(source)), data.draw(st.permutations(target)), ("pytorch", "pytorch")
    )

    assert set(shuffled) == set(rows) and len(shuffled) == len(rows)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NAMES, NAMES, st.data())
def test_the_other_direction_gives_the_same_pairs(names: list[str], others: list[str], data: st.DataObject) -> None:
    source, target = ([weight(f"{name}.weight", *data.draw(SHAPES)) for name in listed] for listed in (names, others))
    there = {
        (row.source, row.target)
        for row in map_weights(source, target, ("pytorch", "pytorch"))
        if row.source and row.target
    }
    back = {
        (row.target, row.source)
        for row in map_weights(target, source, ("pytorch", "pytorch"))
        if row.source and row.target
    }

    assert there == back


WORDS = [*"q", "conv", "fc", "norm", "layers", "block", "attn", "mlp", "up", "down", "encoder", "gate", "post", ""]
PATHS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "0", "1", "2"])).map("".join).filter(bool),
        min_size=1,
        max_size=3,
    ).map(".".join),
    min_size=1,
    max_size=10,
    unique=True,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PATHS, st.data())
def test_names_that_mean_nothing_are_never_paired_wrongly(paths: list[str], data: st.DataObject) -> None:
    """Every word has another one in the target, which no table has; numbers and structure are the same."""
    words = dict(zip(WORDS, data.draw(st.permutations([f"z{letter}x" for letter in "abcdefghijklmno"])), strict=False))
    shapes = [data.draw(st.sampled_from([(4,), (4, 4), (8, 4)])) for _ in paths]
    renamed = [re.sub("[a-z]+", lambda found: words[found[0]], path) for path in paths]
    source = [weight(f"{path}.weight", *shape) for path, shape in zip(paths, shapes, strict=True)]
    target = [weight(f"{path}.weight", *shape) for path, shape in zip(renamed, shapes, strict=True)]

    found = pairs_of(map_weights(source, target, ("pytorch", "pytorch")))

    right = {one.name: other.name for one, other in zip(source, target, strict=True)}
    assert {name: right[name] for name in found} == found
