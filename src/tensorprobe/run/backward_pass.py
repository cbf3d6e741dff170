"""The backward passes of a step: what the engine was asked for.

What a pass leaves in the `.grad` of leaves is what later calls (clipping, an optimizer) are given: the record says
which tensors these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensorprobe.run.leaf import Leaf, is_tensor, read_leaf

PASS = "backward_pass."
"""The passes of a step are called so, and have numbers."""
_MAX_PASSES = 1 << 12
"""Of one step: more are not those of a program."""
_MAX_LEAVES = 1 << 20


@dataclass(frozen=True)
class LeafGradient:
    """The gradient of a leaf, before and after a pass: None where it had none."""

    leaf: Leaf
    before: Leaf | None
    after: Leaf | None
    place: str = ""
    """What its files are called after."""

    @property
    def name(self) -> str:
        """What to call the leaf."""
        return self.leaf.parameter or f"tensor {self.leaf.tensor}"


@dataclass(frozen=True)
class BackwardPass:
    """The engine was asked for gradients."""

    name: str
    position: int
    """How many records there were before it."""
    roots: tuple[Leaf | None, ...]
    gradients: tuple[Leaf | None, ...]
    """Of the roots; none where the dump does not say: ones."""
    inputs: tuple[Leaf | None, ...] = ()
    """With respect to what; nothing stands for all leaves."""
    results: tuple[Leaf | None, ...] = ()
    accumulates: bool = True
    """Into the `.grad` of leaves; otherwise gradients are returned."""
    keeps_graph: bool | None = None
    """None where the dump does not say."""
    creates_graph: bool = False
    is_nested: bool = False
    """It ran inside another one: a replay has its calls in the graph of that one."""
    leaves: tuple[LeafGradient, ...] = ()
    nested: list[BackwardPass] = field(default_factory=list)
    begins_anew: bool = False
    """Its gradients are not added to those of the passes before."""
    reached: tuple[Leaf, ...] = ()
    """The only leaves that gradients went to, where the record shows it."""

    @property
    def all_leaves(self) -> list[LeafGradient]:
        """Those of the passes inside it, too: each as it was before the first of them, and after the last."""
        found: dict[int | None, LeafGradient] = {}
        for one in (leaf for inner in self.nested for leaf in inner.all_leaves):
            first = found.setdefault(one.leaf.tensor, one)
            found[one.leaf.tensor] = replace(one, before=first.before)
        found.update((one.leaf.tensor, one) for one in self.leaves)
        return list(found.values())

    def used_tensors(self) -> Iterator[int]:
        """The numbers of the tensors that it looks at."""
        found = [*self.roots, *self.gradients, *self.inputs]
        for one in self.all_leaves:
            found += [one.leaf, one.before]
        return (leaf.tensor for leaf in found if leaf is not None and leaf.tensor is not None)


def read_passes(run: Mapping[str, Any]) -> list[BackwardPass]:
    """The backward passes of a step, in their order, as its run.json has them."""
    found: list[BackwardPass] = []
    listed = run.get("backward_passes")
    for number, item in enumerate(listed[:_MAX_PASSES] if isinstance(listed, list) else ()):
        one = _read_pass(f"{PASS}{number}", item) if isinstance(item, dict) else None
        if one is not None and one.is_nested and found:
            found[-1].nested.append(one)
        elif one is not None and not one.is_nested:
            found.append(one)
    return found


def _read_pass(name: str, item: Mapping[str, Any]) -> BackwardPass | None:
    position, keeps = item.get("records"), item.get("keeps_graph")
    if not isinstance(position, int):
        return None
    listed = item.get("leaves")
    leaves = [one for one in (listed if isinstance(listed, list) else ())[:_MAX_LEAVES] if isinstance(one, dict)]
    return BackwardPass(
        name=name,
        position=position,
        roots=_leaves(item, "roots"),
        gradients=_leaves(item, "gradients"),
        inputs=_leaves(item, "inputs"),
        results=_leaves(item, "results"),
        accumulates=item.get("accumulates") is not False,
        keeps_graph=keeps if isinstance(keeps, bool) else None,
        creates_graph=item.get("creates_graph") is True,
        is_nested=item.get("is_nested") is True,
        leaves=tuple(
            LeafGradient(leaf, _leaf(one, "before"), _leaf(one, "after"), f"{name}.leaf.{_number(one)}")
            for one in leaves
            if (leaf := _leaf(one, "leaf")) is not None
        ),
    )


def _leaves(item: Mapping[str, Any], key: str) -> tuple[Leaf | None, ...]:
    found = item.get(key)
    return tuple(_leaf({key: one}, key) for one in found[:_MAX_LEAVES]) if isinstance(found, list) else ()


def _number(item: Mapping[str, Any]) -> int:
    number = item.get("number")
    return number if isinstance(number, int) else 0


def _leaf(item: Mapping[str, Any], key: str) -> Leaf | None:
    node = item.get(key)
    if not isinstance(node, dict):
        return None
    # before dumps told all of it, there were only the numbers
    return read_leaf(node if is_tensor(node) else {"type": "torch.Tensor", "dtype": "", "shape": [], **node}, key)
