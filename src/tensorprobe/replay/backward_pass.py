"""The backward passes of a step: what the engine was asked for, and the same asked of a replay.

What a pass leaves in the `.grad` of leaves is what later calls (clipping, an optimizer) are given: the record says
which tensors these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tensorprobe.replay.argument import Leaf, is_tensor, read_leaf
from tensorprobe.replay.program import Program
from tensorprobe.replay.recorded import MissingContentError
from tensorprobe.replay.workspace import Workspace

_MAX_LEAVES = 1 << 20


@dataclass(frozen=True)
class LeafGradient:
    """The gradient of a leaf, before and after a pass: None where it had none."""

    leaf: Leaf
    before: Leaf | None
    after: Leaf | None

    @property
    def name(self) -> str:
        """What to call the leaf."""
        return self.leaf.parameter or f"tensor {self.leaf.tensor}"


@dataclass(frozen=True)
class BackwardPass:
    """The engine was asked for gradients."""

    name: str
    position: int
    """How many calls had ended before it."""
    roots: tuple[Leaf | None, ...]
    gradients: tuple[Leaf | None, ...]
    """Of the roots; none where the dump does not say: ones."""
    inputs: tuple[Leaf | None, ...]
    """With respect to what; nothing stands for all leaves."""
    results: tuple[Leaf | None, ...]
    accumulates: bool
    """Into the `.grad` of leaves; otherwise gradients are returned."""
    keeps_graph: bool | None
    """None where the dump does not say."""
    creates_graph: bool
    is_nested: bool
    """It ran inside another one: a replay has its calls in the graph of that one."""
    leaves: tuple[LeafGradient, ...]
    nested: list[BackwardPass] = field(default_factory=list)

    @property
    def all_leaves(self) -> list[LeafGradient]:
        """Those of the passes inside it, too: each as it was before the first of them, and after the last."""
        found: dict[int | None, LeafGradient] = {}
        for one in (leaf for inner in self.nested for leaf in inner.all_leaves):
            first = found.setdefault(one.leaf.tensor, one)
            found[one.leaf.tensor] = LeafGradient(one.leaf, first.before, one.after)
        found.update((one.leaf.tensor, one) for one in self.leaves)
        return list(found.values())

    def used_tensors(self) -> Iterator[int]:
        """The numbers of the tensors that it looks at."""
        found = [*self.roots, *self.gradients, *self.inputs]
        for one in self.all_leaves:
            found += [one.leaf, one.before]
        return (leaf.tensor for leaf in found if leaf is not None and leaf.tensor is not None)


def read_passes(program: Program) -> list[BackwardPass]:
    """The backward passes of a step, in their order, as run.json has them."""
    found: list[BackwardPass] = []
    listed = program.rank.run.get("backward_passes")
    for number, item in enumerate(listed if isinstance(listed, list) else ()):
        one = _read_pass(f"backward_pass.{number}", item) if isinstance(item, dict) else None
        if one is not None and one.is_nested and found:
            found[-1].nested.append(one)
        elif one is not None and not one.is_nested:
            found.append(one)
    return found


def _read_pass(name: str, item: Mapping[str, Any]) -> BackwardPass | None:
    position, keeps = item.get("calls"), item.get("keeps_graph")
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
            LeafGradient(leaf, _leaf(one, "before"), _leaf(one, "after"))
            for one in leaves
            if (leaf := _leaf(one, "leaf")) is not None
        ),
    )


def _leaves(item: Mapping[str, Any], key: str) -> tuple[Leaf | None, ...]:
    found = item.get(key)
    return tuple(_leaf({key: one}, key) for one in found[:_MAX_LEAVES]) if isinstance(found, list) else ()


def _leaf(item: Mapping[str, Any], key: str) -> Leaf | None:
    node = item.get(key)
    if not isinstance(node, dict):
        return None
    # before dumps told all of it, there were only the numbers
    return read_leaf(node if is_tensor(node) else {"type": "torch.Tensor", "dtype": "", "shape": [], **node}, key)


class PassListener(Protocol):
    """Is told what comes of passes."""

    def note_failed_pass(self, name: str, error: Exception) -> None:
        """It could not be run."""

    def see_leaf_gradient(self, name: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        """It is over, and this is in `.grad`."""


class PassRunner:
    """Runs passes on the graph of a replay."""

    def __init__(self, passes: list[BackwardPass], workspace: Workspace, listener: PassListener) -> None:
        self._passes = passes
        self._workspace = workspace
        self._listener = listener

    def run_until(self, position: float) -> None:
        """Run the backward passes that came before the call at `position` had ended."""
        while self._passes and self._passes[0].position <= position:
            one = self._passes.pop(0)
            try:
                self._run(one)
            except Exception as error:  # whatever autograd says
                self._listener.note_failed_pass(one.name, error)
            self._workspace.release(one.used_tensors())

    def _run(self, one: BackwardPass) -> None:
        tensors = [self._find(leaf) for leaf in one.roots]
        roots = {number: tensor for number, tensor in enumerate(tensors) if tensor is not None and tensor.requires_grad}
        if not roots:
            return
        seeds = [self._find_seed(one, number, root) for number, root in roots.items()]
        keeps_graph = bool(self._passes) if one.keeps_graph is None else one.keeps_graph or bool(one.nested)
        for leaf in one.all_leaves:
            self._put_gradient(leaf)
        inputs = [self._find(leaf) for leaf in one.inputs]
        given = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
        if one.accumulates:
            torch.autograd.backward(
                list(roots.values()), seeds, keeps_graph, one.creates_graph, inputs=given if one.inputs else None
            )
        elif given:
            found = torch.autograd.grad(
                list(roots.values()), given, seeds, keeps_graph, one.creates_graph, allow_unused=True
            )
            self._add_results(one, dict(zip(map(id, given), found, strict=True)), inputs)
        for leaf in one.all_leaves:
            self._take_gradient(leaf, one.name)

    def _find(self, leaf: Leaf | None) -> torch.Tensor | None:
        return self._workspace.find_followed(leaf) if leaf is not None else None

    def _find_seed(self, one: BackwardPass, number: int, root: torch.Tensor) -> torch.Tensor:
        leaf = one.gradients[number] if number < len(one.gradients) else None
        if leaf is not None:
            try:
                return self._workspace.take(leaf, one.name).to(root.dtype)
            except MissingContentError:
                pass  # a dump without tensors of its own for it
        return torch.ones_like(root)

    def _put_gradient(self, one: LeafGradient) -> None:
        """What the program had in `.grad` before the pass: it may have been cleared or replaced by the program."""
        tensor = self._find(one.leaf)
        if tensor is None or not tensor.is_leaf:
            return
        gradient = self._workspace.take(one.before, "a backward pass") if one.before is not None else None
        if tensor.grad is not gradient:
            tensor.grad = gradient

    def _take_gradient(self, one: LeafGradient, name: str) -> None:
        tensor = self._find(one.leaf)
        if tensor is not None and tensor.grad is not None and one.after is not None:
            self._workspace.add(one.after, tensor.grad, name)
            self._listener.see_leaf_gradient(name, one, tensor.grad)

    def _add_results(
        self, one: BackwardPass, found: Mapping[int, torch.Tensor | None], inputs: list[torch.Tensor | None]
    ) -> None:
        for leaf, tensor in zip(one.results, inputs, strict=False):
            gradient = found.get(id(tensor)) if tensor is not None else None
            if leaf is not None and gradient is not None:
                self._workspace.add(leaf, gradient, one.name)
