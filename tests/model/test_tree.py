"""Any nesting of arguments becomes lists, dicts and leaves, with the dotted path of each leaf."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.model.tree import map_tree

Pair = namedtuple("Pair", ["left", "right"])

leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
keys = st.text(alphabet="abcdef", min_size=1, max_size=3)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


@dataclass
class Outputs:
    logits: Any
    extra: Any = None


def paths(tree: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    map_tree(tree, "x", lambda value, path: found.__setitem__(path, value))
    return found


def test_paths_are_keys_and_indexes_from_zero() -> None:
    assert paths({"key1": "a", "key2": ["b", ("c", "d")]}) == {
        "x.key1": "a",
        "x.key2.0": "b",
        "x.key2.1.0": "c",
        "x.key2.1.1": "d",
    }


def test_named_fields_are_keys() -> None:
    assert paths(Pair(1, Outputs(2))) == {"x.left": 1, "x.right.logits": 2, "x.right.extra": None}
    assert paths(OrderedDict(a=1)) == {"x.a": 1}


def test_a_class_is_a_leaf_even_if_it_is_a_dataclass() -> None:
    assert paths(Outputs) == {"x": Outputs}


def test_atoms_are_leaves_although_they_look_like_containers() -> None:
    assert map_tree((Pair(1, 2), 3), "x", lambda value, _: value, (Pair,)) == [Pair(1, 2), 3]


def test_a_structure_that_contains_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    loop.append(loop)
    assert paths(loop) == {"x.0": 1, "x.1": loop, "x.2": loop}


def test_a_structure_may_be_nested_deeply() -> None:
    tree: Any = "end"
    for _ in range(100):
        tree = [tree]
    assert paths(tree) == {"x" + 100 * ".0": "end"}


def test_the_same_list_twice_is_no_loop() -> None:
    part = [1]
    assert paths([part, part]) == {"x.0.0": 1, "x.1.0": 1}


def test_keys_that_read_alike_are_told_apart() -> None:
    assert paths({1: "a", "1": "b"}) == {"x.1": "a", "x.1 (str)": "b"}


@given(trees)
def test_plain_trees_come_back_unchanged(tree: Any) -> None:
    assert map_tree(tree, "x", lambda value, _: value) == tree


@given(trees)
def test_every_leaf_has_a_path_of_its_own(tree: Any) -> None:
    count: list[str] = []
    map_tree(tree, "x", lambda _, path: count.append(path))
    assert len(count) == len(set(count))
