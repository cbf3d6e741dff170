"""A record is one line of JSON, in Python's dialect: what json reads back is what was put in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.model.record import LateField, Sharding, Stats, TensorLeaf, Value
from tensorprobe.store import encode
from tensorprobe.store.encode import encode_entry, encode_number, encode_tree

TEXTS = ("plain", 'quote " and \\ slash', "line\nbreak\ttab", "卷积 é \u2028", "\ud800", "</script>", "")


def make_leaf(**changes: Any) -> TensorLeaf:
    return TensorLeaf("torch.Tensor", "torch.float32", (2, 3), False, Value(Stats(4.0, -1.5, 0.25, 7.0)), **changes)


def test_a_tensor_in_the_words_of_the_format_and_in_their_order() -> None:
    leaf = make_leaf(source="Torch.relu.0.forward", data_name="Torch.add.0.forward.input.0.pt", note="sparse_coo")
    leaf.value.digest = "7d962681"
    assert encode_tree(leaf) == (
        '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], '
        '"Max": 4.0, "Min": -1.5, "Mean": 0.25, "Norm": 7.0, "requires_grad": false, "md5": "7d962681", '
        '"data_name": "Torch.add.0.forward.input.0.pt", "source": "Torch.relu.0.forward", "note": "sparse_coo"}'
    )


def test_what_is_not_there_is_not_written() -> None:
    assert json.loads(encode_tree(TensorLeaf("numpy.ndarray", "float64", (), None, Value(None)))) == {
        "type": "numpy.ndarray",
        "dtype": "float64",
        "shape": [],
    }


def test_a_tensor_that_is_spread_over_ranks_says_how() -> None:
    sharding = Sharding(("Shard(dim=0)",), (2,), ("tp",), (4, 8), (4, 5))
    leaf = TensorLeaf("torch.Tensor", "torch.float32", (8, 8), None, Value(None), sharding=sharding)
    fields = json.loads(encode_tree(leaf))
    assert fields["shape"] == [8, 8]
    assert fields["placements"] == ["Shard(dim=0)"]
    assert fields["mesh"] == {"shape": [2], "names": ["tp"], "ranks": [4, 5]}
    assert fields["local_shape"] == [4, 8]


def test_nan_and_infinity_stand_bare_and_are_counted() -> None:
    leaf = make_leaf()
    leaf.value.stats = Stats(math.inf, -math.inf, math.nan, math.inf, nan_count=3, inf_count=2)
    text = encode_tree(leaf)
    assert '"Max": Infinity, "Min": -Infinity, "Mean": NaN, "Norm": Infinity, "nan_count": 3, "inf_count": 2' in text
    assert json.loads(text)["Max"] == math.inf


def test_missing_statistics_are_null_with_the_reason() -> None:
    leaf = make_leaf()
    leaf.value.stats = Stats(reason="meta tensor")
    read = json.loads(encode_tree(leaf))
    assert [read[word] for word in ("Max", "Min", "Mean", "Norm", "reason")] == [None, None, None, None, "meta tensor"]


def test_the_kind_of_a_checksum_is_its_key() -> None:
    leaf = make_leaf()
    leaf.value.digest, leaf.value.digest_kind = "00ff00ff00ff00ff", "hash"
    assert json.loads(encode_tree(leaf))["hash"] == "00ff00ff00ff00ff"


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_read_back(text: str) -> None:
    leaf = make_leaf(source=text, data_name=text, note=text)
    leaf.value.stats = Stats(reason=text)
    line = encode_entry(text, {text: [leaf, text]})
    assert line.isascii()
    assert len(line.splitlines()) == 1
    read = json.loads(f"{{{line}}}")[text][text]
    assert read[1] == text
    assert {read[0][key] for key in ("source", "data_name", "note", "reason")} == {text}


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats()))
def test_any_number_is_written_as_json_writes_it(number: Any) -> None:
    assert encode_number(number) == json.dumps(number)


def test_integers_beyond_2_to_the_53_keep_their_digits() -> None:
    leaf = make_leaf()
    leaf.value.stats = Stats(2**64 - 1, -(2**63) + 1, True, False)
    read = json.loads(encode_tree(leaf))
    assert (read["Max"], read["Min"], read["Mean"], read["Norm"]) == (2**64 - 1, -(2**63) + 1, True, False)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_any_tree_is_read_back(tree: Any) -> None:
    line = encode_tree(tree)
    assert json.loads(line) == tree
    assert "\n" not in line


def test_tensors_deep_in_a_tree() -> None:
    read = json.loads(encode_tree({"a": [make_leaf(), {"b": make_leaf(note="deep")}, None]}))
    assert read["a"][0]["Norm"] == 7.0
    assert read["a"][1]["b"]["note"] == "deep"
    assert read["a"][2] is None


@pytest.mark.parametrize(
    "stats",
    [
        Stats(1.5, -2.0, 0.25, 3.0),
        Stats(1e308, 1e308, math.inf, 1.4e308),
        Stats(math.inf, 0.0, math.inf, math.inf, inf_count=1),
        Stats(math.nan, math.nan, math.nan, math.nan, nan_count=2),
        Stats(3, -1, 0.5, 4.0),
        Stats(True, False, 0.5, 1.0),
        Stats(reason="empty"),
    ],
    ids=["finite", "overflown mean", "infinite", "nan", "integers", "truths", "none"],
)
def test_numbers_are_written_as_json_writes_them(stats: Stats) -> None:
    leaf = TensorLeaf("torch.Tensor", "torch.float64", (2, 3), False, Value(stats))
    found = json.loads(encode_tree([leaf, 1, None, True, "a\n", math.inf]))
    words = {"Max": stats.max, "Min": stats.min, "Mean": stats.mean, "Norm": stats.norm}
    assert repr({word: found[0][word] for word in words}) == repr(words)
    assert found[1:] == [1, None, True, "a\n", math.inf]


FINITE = st.floats(allow_nan=False, allow_infinity=False)
FOURS = [  # as they come: the other three are finite where the norm is
    st.tuples(FINITE, FINITE, FINITE, FINITE),
    st.tuples(st.integers(), st.integers(), FINITE, FINITE),
    st.tuples(st.booleans(), st.booleans(), FINITE, FINITE),
    st.tuples(*[st.sampled_from([None, math.nan, math.inf, -math.inf])] * 4),
]
COUNTS = st.integers(0, 3)
STATS = st.builds(
    lambda four, *others: Stats(*four, *others),
    st.one_of(FOURS),
    COUNTS,
    COUNTS,
    st.none() | st.text(),
    st.none() | st.lists(FINITE),
)
SIZES = st.lists(st.integers(0, 2**40), max_size=3).map(tuple)
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("source", "data_name", "note", "parameter"), st.text()),
        **dict.fromkeys(("tensor", "storage", "view_of"), st.integers(0)),
        **dict.fromkeys(("starts_graph", "is_conjugated", "is_negated"), st.booleans()),
        "layout": st.tuples(st.integers(0), SIZES),
        "sharding": st.just(Sharding(("Replicate()",), (2,), None, (4,))),
    },
)


class Late(LateField):
    def resolve(self) -> Any:
        return {"late": [1, "two"]}


@pytest.mark.skipif(
    encode._compiled is None, reason="without a compiler there is one text only, and nothing to hold it against"
)
@given(st.none() | STATS, st.none() | st.text(), st.none() | st.booleans(), SIZES, OTHERS)
def test_compiled_code_writes_the_same_text(
    stats: Stats | None, digest: str | None, requires_grad: bool | None, shape: tuple[int, ...], others: dict[str, Any]
) -> None:
    leaf = TensorLeaf("torch.Tensor", "torch.float32", shape, requires_grad, Value(stats), **others)
    leaf.value.digest = digest if digest is None or (digest.isalnum() and digest.isascii()) else "0f"
    tree = {"leaf": [leaf, (1, 2.5), None], "late": Late(), "text": "\x7f"}
    assert encode.encode_tree(tree) == encode._encode_tree(tree)


def test_what_cannot_be_put_into_words_is_refused() -> None:
    for tree in ({1: 2}, [object()], {"a": {1, 2}}):
        with pytest.raises(TypeError):
            encode_tree(tree)
