"""The tensors of a replay that stand for what was recorded: what calls made, or what is read from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.replay.argument import UnknownArgumentError, build_arguments
from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import MissingContentError
from tensorprobe.replay.spread import part_leaf
from tensorprobe.replay.workspace import Workspace, lay_out
from tensorprobe.run.leaf import STATE_ROLES, Leaf

if TYPE_CHECKING:
    from tensorprobe.replay.engine import Replay
    from tensorprobe.replay.gradient_sum import BrokenSum

Given = tuple[list[Any], dict[str, Any]]
"""The arguments of a call."""
ReplaceLeaf = Callable[[Leaf, torch.Tensor], torch.Tensor]
"""Gives a leaf another content."""


class Values:
    """What the calls of one rank are given, and what was recorded of it."""

    def __init__(self, replay: Replay, replace_leaf: ReplaceLeaf | None = None) -> None:
        self._replay = replay
        self._replace_leaf = replace_leaf
        self._pinned: dict[tuple[str | None, str | int | None], Leaf] = {}
        kept = (number for one in replay.passes for number in one.used_tensors())
        self.workspace = Workspace(replay.recorded, self._read_leaf, kept)
        self.workspace.note_leaf = self._note_leaf

    def pin_gradients(self, sums: Iterable[BrokenSum]) -> None:
        """Where something changed a gradient on its way, go on with the one that was recorded."""
        for one in sums:
            place = one.tensor.slot if one.maker is not None else one.tensor.tensor
            self._pinned[one.maker, place] = one.gradient

    def take(self, leaf: Leaf, operation: Operation) -> torch.Tensor:
        """The tensor that a call is given at this place."""
        part = self._replay.spread.find_part(leaf) if self.workspace.find(leaf) is None else None
        if part is not None:
            self.workspace.add(leaf, part, None)
        return self.workspace.take(leaf, operation.name)

    def read_part(self, leaf: Leaf) -> torch.Tensor:
        """This rank's part of a distributed tensor: what stands for its memory, or from its file."""
        found = self.workspace.find(part_leaf(leaf))
        if found is None:
            return self._read_leaf(leaf)
        if leaf.requires_grad and not found.requires_grad:
            found = found.detach().requires_grad_()
            self._replay.gradients.note_leaf(leaf, found)
        return found

    def read_recorded(self, leaf: Leaf) -> torch.Tensor:
        """What was recorded, as a tensor of the replay. MissingContentError where the dump has not got it."""
        return lay_out(self._replay.precision.convert(self._replay.recorded.load(leaf)), leaf)

    def find_arguments(self, operation: Operation) -> Given:
        """The tensors that a call, or a module, is given, in their places."""
        return self.find_values(list(operation.arguments)), self.find_values(dict(operation.keywords))

    def take_arguments(self, operation: Operation) -> Given:
        """The same for a layer, which may be the first that is given the data."""
        take = partial(self._take_if_there, operation)
        return self.find_values(list(operation.arguments), take), self.find_values(dict(operation.keywords), take)

    def find_values(self, tree: Any, find: Callable[[Leaf], torch.Tensor | None] | None = None) -> Any:
        """A recorded tree with the tensors that stand for what is in it, and None for everything else."""
        try:
            return build_arguments(tree, "", frozenset(), find or self._find, lambda kind, value: None)
        except (UnknownArgumentError, RuntimeError):  # a shortened text: no tensor is missed by leaving out all
            return type(tree)()

    def _find(self, leaf: Leaf) -> torch.Tensor | None:
        if leaf.sharding is not None:
            return self._replay.spread.find(leaf)
        found = self.workspace.find_followed(leaf)
        if found is None and leaf.requires_grad and leaf.source is None:  # a leaf that the calls inside are given
            try:
                return self.workspace.take(leaf, "a module")
            except MissingContentError:
                return None
        return found

    def find_state(self, operation: Operation) -> dict[str, Any]:
        """The parameters and the buffers that a module call or a layer finds, by their roles."""
        take = partial(self._take_if_there, operation)
        return {role: self.find_values(operation.state(role), take) for role in STATE_ROLES}

    def _take_if_there(self, operation: Operation, leaf: Leaf) -> torch.Tensor | None:
        """What a module or a layer looks at before the calls inside it do."""
        if leaf.sharding is not None:
            return self._replay.spread.find(leaf)
        try:
            return self.workspace.take(leaf, operation.name)
        except MissingContentError:
            return None

    def _read_leaf(self, leaf: Leaf) -> torch.Tensor:
        content = self._replay.precision.convert(self._replay.recorded.load(leaf))
        if self._replace_leaf is not None:
            content = self._replace_leaf(leaf, content)
        tensor = lay_out(content, leaf)
        if leaf.is_floating and leaf.requires_grad:
            self._note_leaf(leaf, tensor.requires_grad_())
        return tensor

    def _note_leaf(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        self._replay.gradients.note_leaf(leaf, tensor)
        self.pin_gradient(tensor, None, leaf.tensor)

    def pin_gradient(self, tensor: torch.Tensor, maker: str | None, place: str | int | None) -> None:
        leaf = self._pinned.get((maker, place))
        if leaf is not None and tensor.requires_grad:
            content = self._replay.precision.convert(self._replay.recorded.load(leaf))
            tensor.register_hook(lambda _: content)
