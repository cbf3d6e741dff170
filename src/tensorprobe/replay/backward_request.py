"""The backward passes of a program, asked of a replay: of one rank, or of several at once.

What a pass leaves in the `.grad` of leaves is what later calls (clipping, an optimizer) are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tensorprobe.replay.board import Standing
from tensorprobe.replay.recorded import MissingContentError
from tensorprobe.replay.workspace import Workspace
from tensorprobe.run.backward_pass import BackwardPass, LeafGradient
from tensorprobe.run.leaf import Leaf


@dataclass
class BackwardRequest(Standing):
    """A rank stands at a backward pass."""

    asked: BackwardPass
    retains: bool
    """Another pass may go through the same graph."""
    note_failure: Callable[[str, Exception], None]
    roots: list[torch.Tensor] = field(default_factory=list)
    seeds: list[torch.Tensor] = field(default_factory=list)
    inputs: list[torch.Tensor | None] = field(default_factory=list)
    """With respect to what; empty for all leaves."""
    results: list[torch.Tensor | None] = field(default_factory=list)
    """Where gradients are not added to `.grad`: they themselves, one for each input."""
    is_done: bool = False
    place: str = "a backward pass"

    @property
    def is_open(self) -> bool:
        return self.is_done


def run_passes(requests: Sequence[BackwardRequest]) -> None:
    """The backward passes of several ranks at once. What all of them have in common is gone through once."""
    for accumulates in (True, False):
        chosen = [item for item in requests if item.asked.accumulates == accumulates and item.roots]
        try:
            if chosen:
                _run_alike(chosen, accumulates)
        except Exception as error:  # a value that it needs was written to: the dump is not what was executed
            for item in chosen:
                item.note_failure(item.asked.name, error)
    for item in requests:
        item.is_done = True


def _run_alike(requests: Sequence[BackwardRequest], accumulates: bool) -> None:
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    known: set[int] = set()
    for item in requests:
        given += [pair for pair in zip(item.roots, item.seeds, strict=True) if id(pair[0]) not in known]
        known.update(map(id, item.roots))
    roots = [root for root, _ in given]
    seeds = [None if _is_implied(*pair) else pair[1] for pair in given]
    inputs = {id(tensor): tensor for item in requests for tensor in item.inputs if tensor is not None}
    retains = any(item.retains for item in requests)
    creates = any(item.asked.creates_graph for item in requests)
    if not inputs and any(item.asked.inputs for item in requests):
        return  # none of what it asks for needs gradients
    if accumulates:
        torch.autograd.backward(roots, seeds, retains, creates, inputs=list(inputs.values()) or None)
    else:
        found = torch.autograd.grad(roots, list(inputs.values()), seeds, retains, creates, allow_unused=True)
        by_input = dict(zip(inputs, found, strict=True))
        for item in requests:
            item.results = [by_input.get(id(tensor)) for tensor in item.inputs]


def _is_implied(root: torch.Tensor, seed: torch.Tensor) -> bool:
    """Would torch 2.13 begin with this gradient by itself? To check one that it is given it loads its symbolic shapes,
    which takes as long as a small step."""
    is_number = root.numel() == 1 and root.is_floating_point() and not seed.requires_grad
    return is_number and (seed.shape, seed.dtype) == (root.shape, root.dtype) and float(seed) == 1


class BackwardPasses:
    """The passes of one rank that are still to come."""

    def __init__(
        self,
        passes: list[BackwardPass],
        workspace: Workspace,
        note_failure: Callable[[str, Exception], None],
        is_known: Callable[[Leaf, int], bool],
        load: Callable[[Leaf], torch.Tensor],
    ) -> None:
        """`is_known`: have recorded calls alone taken it before so many records? `load`: what was recorded
        of a tensor."""
        self._passes, self._is_known, self._load = passes, is_known, load
        self._workspace = workspace
        self._note_failure = note_failure
        self._left: dict[int | None, torch.Tensor] = {}
        self._left_before: dict[int | None, torch.Tensor] = {}
        """What the last pass, and the one before it, left in gradients that recorded calls alone do not make."""

    def next(self, position: float, *, is_joint: bool) -> BackwardRequest | None:
        """The next one that came before the record at `position`. `is_joint`: other ranks may go through its graph."""
        if not self._passes or self._passes[0].position > position:
            return None
        one = self._passes.pop(0)
        is_told = one.keeps_graph is not None and not is_joint
        retains = bool(one.keeps_graph or one.nested) if is_told else bool(self._passes)
        request = BackwardRequest(one, retains, self._note_failure)
        try:
            self._prepare(one, request)
        except Exception as error:  # a gradient that is not there, or does not fit its tensor
            request.roots.clear()
            self._note_failure(one.name, error)
        return request

    def _prepare(self, one: BackwardPass, request: BackwardRequest) -> None:
        if one.begins_anew:
            self._workspace.forget_gradients()
        for number, leaf in enumerate(one.roots):
            root = self._find(leaf)
            if root is not None and root.requires_grad:
                request.roots.append(root)
                request.seeds.append(self._find_seed(one, number, root))
        for wanted in one.inputs or one.reached:
            tensor = self._find(wanted)
            request.inputs.append(tensor if tensor is not None and tensor.requires_grad else None)
        for gradient in one.all_leaves if request.roots else ():
            if self._is_known(gradient.leaf, one.position):
                self._put_gradient(gradient)

    def take_results(self, request: BackwardRequest) -> list[tuple[LeafGradient, torch.Tensor]]:
        """A pass is over: what it gave stands for what the program got. Returns what is in `.grad` now."""
        one = request.asked
        for leaf, tensor in zip(one.results, request.results, strict=False):
            if leaf is not None and tensor is not None:
                self._workspace.add(leaf, tensor, one.name)
        found = []
        for gradient in one.all_leaves if request.roots else ():
            tensor = self._find(gradient.leaf)
            left = _read_gradient(tensor) if tensor is not None else None
            if gradient.after is not None and left is not None and self._is_known(gradient.leaf, one.position):
                self._workspace.add(gradient.after, left, one.name)
                found.append((gradient, left))
        self._workspace.release(one.used_tensors())
        return found

    def find_unused(self, request: BackwardRequest) -> Iterator[tuple[LeafGradient, torch.Tensor | None]]:
        """The leaves that got a gradient in the program and not, or not all of it, from recorded calls: something that
        is one call here has used them, such as a compiled module. With what the pass added to the gradient, as it was
        recorded; None without its content."""
        self._left_before, self._left = self._left, {}
        for gradient in request.asked.all_leaves if request.roots else ():
            if gradient.after is not None and not self._is_known(gradient.leaf, request.asked.position):
                try:
                    yield gradient, self._load_added(gradient)
                except MissingContentError:
                    yield gradient, None

    def _load_added(self, gradient: LeafGradient) -> torch.Tensor:
        assert gradient.after is not None
        after = self._left[gradient.after.tensor] = self._load(gradient.after)
        if gradient.before is None:
            return after
        if gradient.before.data_name is None and gradient.before.tensor in self._left_before:
            return after.double() - self._left_before[gradient.before.tensor]
        return after.double() - self._load(gradient.before)

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
        if tensor is None:
            return
        gradient = self._workspace.take(one.before, "a backward pass") if one.before is not None else None
        if not tensor.is_leaf:
            _put_into_shown(tensor, gradient)
        elif tensor.grad is not gradient:
            tensor.grad = gradient


def _find_shown(view: torch.Tensor) -> torch.Tensor | None:
    """The leaf that a tensor shows. A parameter of which the program takes `weight.T` alone is a view here, and what it
    takes is the leaf."""
    node = view.grad_fn
    while node is not None and not hasattr(node, "variable"):
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    if leaf is None or leaf.dtype != view.dtype:
        return None
    return leaf if leaf.untyped_storage().data_ptr() == view.untyped_storage().data_ptr() else None


def _read_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """What passes have left for it."""
    if tensor.is_leaf or tensor.retains_grad:
        return tensor.grad
    shown = _find_shown(tensor)
    return None if shown is None or shown.grad is None else _lay_out(shown.grad, shown, tensor)


def _put_into_shown(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    shown = _find_shown(tensor)
    if shown is not None:
        shown.grad = None if gradient is None else _lay_out(gradient, tensor, shown).clone()


def _lay_out(content: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of two tensors of one memory: what is the content of one, in the places that the other shows."""
    room = content.new_zeros(own.untyped_storage().nbytes() // own.element_size())
    room.as_strided(own.shape, own.stride(), own.storage_offset()).copy_(content)
    return room.as_strided(other.shape, other.stride(), other.storage_offset())
