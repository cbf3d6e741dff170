"""Looks on while a step is replayed in float64, and keeps the truth of every value."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.torch.node import is_leaf
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.invocation import Tensors, is_random, is_undefined
from tensorprobe.replay.onlooker import Onlooker, Onlookers
from tensorprobe.replay.own_backward import original_of
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import Array, LeafKey, TrueCall, TrueStep, TrueValue, Update
from tensorprobe.run.backward_pass import BackwardPass, LeafGradient
from tensorprobe.run.leaf import UNASKED, UPDATED, WRITTEN, Leaf, is_tensor

ReplaceLeaf = Callable[[Leaf, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Keeping:
    """What of a step is kept. The gradients of leaves always are."""

    numbers: Set[int] | None = None
    """The values whose content is; None for all of them. A step has the same numbers each time that it is replayed."""
    has_gradients: bool = False
    """Those that calls take and give back, too."""
    last: str | None = None
    """The call after which nothing is wanted, its backward neither."""


KEEP_VALUES = Keeping()


def build_true_step(
    program: Program,
    device: torch.device,
    replace_leaf: ReplaceLeaf | None = None,
    *onlookers: Onlooker,
    keeping: Keeping = KEEP_VALUES,
    chooses_anew: bool = False,
) -> TrueStep:
    """Replay a step in float64. `replace_leaf`: gives the content of a leaf another value. `chooses_anew`: what is
    chosen without rounding is taken, and not what was recorded."""
    builder = TrueStepBuilder(program, keeping)
    limit = math.inf if keeping.last is None else program.position_of(keeping.last)
    everybody = Onlookers(*onlookers, builder)
    replay = Replay(
        program,
        Precision("float64"),
        device,
        everybody,
        limit=limit,
        replace_leaf=replace_leaf,
        chooses_anew=chooses_anew,
    )
    builder.roots = replay.roots
    replay.run()
    step = builder.finish(replay.coverage)
    step.rewritten = tuple(_iter_rewritten(replay))
    return step


class Exchange(Onlooker):
    """Puts other values in the place of the results of calls: what becomes of the loss then?"""

    def __init__(self, values: Mapping[tuple[str, str], Array]) -> None:
        self._values = values
        """By the call and the place of the result."""

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for slot, tensor in tensors.items():
            value = self._values.get((operation.name, slot))
            if value is not None and not _is_spread(tensor):
                tensor.data.copy_(torch.from_numpy(value).to(tensor).reshape(tensor.shape))


def _is_spread(tensor: torch.Tensor) -> bool:
    """Do several of its elements lie in one place? Then it cannot be written to."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


class TrueStepBuilder(Onlooker):
    """Numbers the values as they come."""

    def __init__(self, program: Program, keeping: Keeping) -> None:
        self._program = program
        self._keeping = keeping
        named = [leaf for call in program.calls() for leaf in call.operands if leaf.parameter is not None]
        self._names_parameters = bool(named)
        self._trained = {leaf.storage for leaf in named if leaf.requires_grad} - {None}
        """The memory of parameters."""
        self._values: list[TrueValue] = []
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        passes = program.backward_passes
        left = [one.after for asked in passes for one in asked.all_leaves]
        left += [one for asked in passes for one in asked.results]
        self._given_back = {leaf.tensor for leaf in left if leaf is not None} - {None}
        self._cleared = set(_iter_cleared(program))
        self._leftover = set(_iter_leftover(program))
        self._settled: dict[int, Array | None] = {}
        """The gradient of each leaf after the last pass whose gradient counts."""
        self._leaves = _find_leaves(program)
        self._parameters: dict[Any, str] = {}
        """By the memory that they show: what is written through `.data` is the parameter, too."""
        self._calls: dict[str, TrueCall] = {}
        self._by_backward: dict[str, TrueCall] = {}
        self._functions: dict[str, tuple[TrueCall, dict[str, int]]] = {}
        """Autograd Functions, each with the values that it returns."""
        self._owners: dict[str, TrueValue] = {}
        """Each parameter as it was seen first."""
        self._followed: dict[int, weakref.ref[torch.Tensor]] = {}
        self._last: dict[int, int] = {}
        """The value that each tensor of the program held last."""
        self._added: dict[str, Array | None] = {}
        """What all passes added to the gradients of such leaves, or of those that other calls have used as well."""
        self._unused: dict[int, tuple[Leaf, Array | None]] = {}
        """Leaves that only calls have used which were not executed again, with their gradients."""

    def see_arguments(self, operation: Operation, tensors: Tensors) -> None:
        if operation.is_module:
            return
        leaves = {leaf.slot: leaf for leaf in operation.operands}
        inputs = {
            slot: self._number(tensor, leaves[slot], self._find_maker(leaves[slot]))
            for slot, tensor in tensors.items()
            if slot in leaves
        }
        self._add_call(operation, inputs)
        for slot, number in inputs.items():
            given_back = self._program.gradients_of(operation)[1]
            if slot in given_back and self._values[number].is_leaf and self._is_made_unseen(leaves[slot]):
                self._values[number].is_pinned = True

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        if operation.prefix == "Autograd":  # the calls inside a Function make its results
            self._see_function(operation, tensors)
        else:
            self._see_results(operation, tensors, is_pinned=False)

    def _see_function(self, operation: Operation, results: Tensors) -> None:
        """Its gradients may be its own: then it stands for the calls inside, which are all that computes."""
        given = {leaf.slot: self._last[leaf.tensor] for leaf in operation.operands if leaf.tensor in self._last}
        made = {slot: original_of(tensor) for slot, tensor in results.items()}
        known = {slot: self._known.get(id(tensor)) for slot, tensor in made.items()}
        numbers = {slot: one[2] for slot, one in known.items() if one is not None and one[0]() is made[slot]}
        function = self._make_call(operation, given)
        self._functions[operation.name] = function, numbers
        self._by_backward[operation.backward_name] = function

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        self._see_results(operation, tensors, is_pinned=True)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        call = self._by_backward.get(record)
        if call is None:
            return
        role, _, rest = slot.partition(".")
        place = {"input": f"output.{rest}", "output": f"input.{rest}"}.get(role, slot)
        if self._functions:
            call.gradient_sizes[place] = float(gradient.norm())
        if self._keeping.has_gradients:
            (call.arriving if role == "input" else call.departing)[place] = to_array(gradient)

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        number = self._last.get(leaf.leaf.tensor or -1)
        if (record, leaf.leaf.tensor) in self._cleared and number is not None:
            value = self._values[number]
            owner = self._owners.get(value.parameter or "", value)
            owner.gradient, owner.is_cleared = to_array(gradient), True
        if self._leftover and number is not None:
            owner = self._owners.get(self._values[number].parameter or "", self._values[number])
            if (record, leaf.leaf.tensor) in self._leftover:
                owner.gradient = self._settled.get(owner.number)
            self._settled[owner.number] = owner.gradient

    def see_unused_leaf(self, leaf: LeafGradient, recorded: torch.Tensor | None) -> None:
        name = leaf.name
        known = self._added.get(name, 0.0)
        content = self._added[name] = None if recorded is None or known is None else known + to_array(recorded)
        owner = self._owners.get(leaf.leaf.parameter or "")
        if owner is not None:  # recorded calls have used it, too
            owner.gradient, owner.is_gradient_lost = content, content is None
        elif leaf.leaf.tensor is not None:
            self._unused[leaf.leaf.tensor] = leaf.leaf, content

    def see_state_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        self.see_gradient(record, slot, gradient)

    def finish(self, coverage: Coverage) -> TrueStep:
        for leaf, gradient in self._unused.values():  # and no optimizer has taken it either
            value = TrueValue(
                len(self._values), np.zeros(0), leaf.dtype, None, leaf.slot, leaf.parameter, leaf_key(leaf)
            )
            value.is_trained, value.gradient, value.is_gradient_lost = True, gradient, gradient is None
            self._values.append(value)
        for name in coverage.own_backwards:
            function, made = self._functions[name]
            self._calls[name] = function
            for slot, number in made.items():
                maker = self._calls.get(self._values[number].maker or "")
                places = [place for place, one in maker.outputs.items() if one == number] if maker is not None else []
                if maker is not None and places and slot in function.arriving:
                    maker.arriving[places[0]] = function.arriving[slot]
        step = TrueStep(self._program.rank.name, self._calls, self._values, coverage)
        asked = [one for one in self._program.backward_passes if one.roots]
        step.is_transformed = any(all(root and root.tensor is None for root in one.roots) for one in asked)
        return step

    def _see_results(self, operation: Operation, tensors: Tensors, *, is_pinned: bool) -> None:
        if operation.is_module:
            return
        call = self._calls.get(operation.name) or self._add_call(operation, {})
        for leaf in operation.outputs:
            tensor = tensors.get(leaf.slot)
            if tensor is not None and not leaf.is_undefined:
                if is_pinned or leaf.slot.startswith(WRITTEN):  # which need not give it a new version
                    self._known.pop(id(tensor), None)
                number = self._number(tensor, leaf, operation.name)
                call.outputs[leaf.slot] = number
                value = self._values[number]
                value.is_pinned = value.is_pinned or is_pinned
                value.is_root = value.is_root or self.roots.has(operation, leaf)

    def _add_call(self, operation: Operation, inputs: dict[str, int]) -> TrueCall:
        call = self._make_call(operation, inputs)
        self._calls[operation.name] = self._by_backward[operation.backward_name] = call
        return call

    def _make_call(self, operation: Operation, inputs: dict[str, int]) -> TrueCall:
        return TrueCall(
            operation.name,
            len(self._calls),
            str(self._program.rank.header.get("framework")),
            operation.prefix,
            operation.op,
            operation.call.module_path,
            operation.call.caller,
            inputs,
            arguments=dict(iter_plain(operation)),
            is_random=is_random(operation),
            in_autocast="autocast" in operation.fields,
            is_undefined=is_undefined(operation),
        )

    def _find_maker(self, leaf: Leaf) -> str | None:
        """Of a value that is seen for the first time as an argument: a view that no recorded call made has a source."""
        return leaf.source if leaf.source in self._calls else None

    def _find_parameter(self, leaf: Leaf, maker: str | None) -> str | None:
        if leaf.parameter is not None and leaf.layout is not None:
            self._parameters[leaf.layout] = leaf.parameter
        return leaf.parameter if maker is None else self._parameters.get(leaf.layout, leaf.parameter)

    def _number(self, tensor: torch.Tensor, leaf: Leaf, maker: str | None) -> int:
        tensor = original_of(tensor)
        known = self._known.get(id(tensor))
        version = int(tensor._version)
        is_known = known is not None and known[1] == version and known[0]() is tensor
        number = known[2] if known is not None and is_known else self._add_value(tensor, leaf, maker)
        self._known[id(tensor)] = (weakref.ref(tensor), version, number)
        if tensor.requires_grad and is_leaf(tensor):  # else a view: its base has the gradient
            self._follow(tensor, self._values[number])
        return number

    def _add_value(self, tensor: torch.Tensor, leaf: Leaf, maker: str | None) -> int:
        number = len(self._values)
        if leaf.tensor is not None:
            self._last[leaf.tensor] = number
        is_kept = self._keeping.numbers is None or number in self._keeping.numbers
        content = to_array(tensor if is_kept else tensor.reshape(-1)[:0])
        parameter = self._find_parameter(leaf, maker)
        value = TrueValue(number, content, leaf.dtype, maker, leaf.slot, parameter, leaf_key(leaf))
        # Where parameters have names, these are trained. A gradient of data may be there because a kernel gives it.
        is_view = maker is None and leaf.requires_grad and leaf.storage in self._trained  # such as `weight.T`
        value.is_trained = leaf.requires_grad if not self._names_parameters else parameter is not None or is_view
        value.is_followed = tensor.requires_grad
        value.is_frozen = parameter is not None and not tensor.requires_grad and UNASKED not in leaf.fields
        value.is_gradient = leaf.tensor in self._given_back
        value.updated = _read_update(leaf)
        if leaf.tensor in self._unused and maker is None:
            _, value.gradient = self._unused.pop(leaf.tensor)
            value.is_gradient_lost = value.gradient is None
        self._values.append(value)
        return number

    def _is_made_unseen(self, leaf: Leaf) -> bool:
        """Do gradients go through it to what nobody has recorded, such as the inside of a function transform?"""
        is_told = bool(self._leaves) and leaf.parameter is None
        return is_told and leaf.requires_grad and leaf.storage not in self._leaves  # a view has the memory of a leaf

    def _follow(self, tensor: torch.Tensor, value: TrueValue) -> None:
        """The gradients of a leaf are added up; those of a parameter also where the program has changed it between two
        passes, in the same tensor or in another one."""
        owner = value if value.parameter is None else self._owners.setdefault(value.parameter, value)
        known = self._followed.get(id(tensor))
        if (known is None or known() is not tensor) and owner.is_leaf:
            self._followed[id(tensor)] = weakref.ref(tensor)
            tensor.register_hook(partial(_add_gradient, owner))


def _read_update(leaf: Leaf) -> Update | None:
    found = leaf.fields.get(UPDATED)
    parameter, by = (found.get("parameter"), found.get("by")) if isinstance(found, dict) else (None, None)
    return Update(parameter, by) if isinstance(parameter, str) and isinstance(by, str) else None


def _find_leaves(program: Program) -> Set[int | None]:
    """The memory of the tensors that gradients end at. Nothing is known of them where none of the passes asked for
    those of all."""
    asked = program.backward_passes
    if not any(one.accumulates and not one.inputs for one in asked):
        return set()
    known = {one.leaf.storage for pass_ in asked for one in pass_.all_leaves}
    return known | {one.storage for pass_ in asked for one in (*pass_.inputs, *pass_.results) if one is not None}


def _iter_rewritten(replay: Replay) -> Iterator[str]:
    first = min((one.position for one in replay.passes), default=0)
    for write in replay.workspace.unseen_writes:
        if write.leaf.parameter is not None and replay.program.position_of(write.operation) >= first:
            yield write.leaf.parameter


def _iter_cleared(program: Program) -> Iterator[tuple[str, int | None]]:
    """The passes that begin a gradient anew although nobody has taken what the pass before left, with the leaf: that is
    lost."""
    taken = {leaf.tensor for call in program.calls() for leaf in call.inputs}
    known: dict[int | None, Leaf] = {}
    for asked in program.backward_passes:
        for one in asked.all_leaves if asked.accumulates and not asked.begins_anew else ():
            left = known.get(one.leaf.tensor)
            if left is not None and _is_cleared(one) and left.tensor not in taken:
                yield asked.name, one.leaf.tensor
            if one.after is not None:
                known[one.leaf.tensor] = one.after


def _iter_leftover(program: Program) -> Iterator[tuple[str, int | None]]:
    """The passes that leave a gradient that nobody takes, with the leaf, though an update took an earlier one: it
    came along with those that were wanted, and is cleared later."""
    takers: dict[int | None, list[int]] = {}
    updates: dict[str, int] = {}
    for call in program.calls():
        for leaf in call.inputs:
            takers.setdefault(leaf.tensor, []).append(call.position)
        for leaf in call.outputs:
            if leaf.parameter is not None:
                updates.setdefault(leaf.parameter, call.position)
    given: dict[str, list[tuple[BackwardPass, LeafGradient]]] = {}
    for asked in program.backward_passes:
        for one in asked.all_leaves if asked.accumulates else ():
            if one.leaf.parameter in updates and one.after is not None:
                given.setdefault(one.leaf.parameter, []).append((asked, one))
    for name, passes in given.items():
        kept_until, left = math.inf, list[tuple[int, tuple[str, int | None]]]()
        first_taken = math.inf
        for asked, one in reversed(passes):
            assert one.after is not None
            if any(asked.position <= position < kept_until for position in takers.get(one.after.tensor, ())):
                first_taken = asked.position
            else:
                left.append((asked.position, (asked.name, one.leaf.tensor)))
            kept_until = asked.position if _is_cleared(one) else kept_until
        yield from (key for position, key in left if first_taken < position > updates[name])


def _is_cleared(one: LeafGradient) -> bool:
    """Was there nothing before the pass?"""
    return one.before is None or one.before.fields.get("Norm") == 0


def _add_gradient(value: TrueValue, gradient: torch.Tensor) -> None:
    content = to_array(gradient)
    value.gradient = content if value.gradient is None else value.gradient + content


def leaf_key(leaf: Leaf) -> LeafKey | None:
    if leaf.parameter is not None:
        return leaf.parameter
    return leaf.tensor if leaf.tensor is not None else leaf.data_name


def make_replacement(replacements: Mapping[LeafKey, Array], moved: Collection[LeafKey] = ()) -> ReplaceLeaf:
    """Leaves with these contents instead of their own. Those in `moved` are at another point."""

    def replace_leaf(leaf: Leaf, tensor: torch.Tensor) -> torch.Tensor:
        key = leaf_key(leaf)
        found = replacements.get(key) if key is not None else None
        if found is not None:
            tensor = torch.from_numpy(found).to(tensor).reshape(tensor.shape)
        return _move(tensor) if key in moved and tensor.is_floating_point() else tensor

    return replace_leaf


def _move(tensor: torch.Tensor) -> torch.Tensor:
    """An elementwise function of a parameter that leaves no zeros and ones, so that they hide nothing. It makes each
    number up to 30 % larger or smaller, by its size: so the mean of many stays where it is, and what a wide layer
    gives as large as it was. Zero becomes a little more than zero."""
    factor = 1 + 0.3 * torch.cos(5 * torch.log(tensor.abs() + 1e-4) + 1)
    return tensor * factor + 3e-3 * torch.exp(-((1e3 * tensor) ** 2))


def to_array(tensor: torch.Tensor) -> Array:
    content = tensor.detach().resolve_conj().resolve_neg().cpu()
    if content.is_floating_point():
        content = content.double()
    return np.array(content.numpy(), copy=True)


def iter_plain(operation: Operation) -> Iterator[tuple[str, Any]]:
    """The arguments that are no tensors, by their places."""
    waiting: list[tuple[str, Any]] = [("input", list(operation.arguments)), ("kwargs", dict(operation.keywords))]
    while waiting:
        slot, tree = waiting.pop()
        if isinstance(tree, list):
            waiting.extend((f"{slot}.{index}", item) for index, item in enumerate(tree))
        elif isinstance(tree, Mapping) and not isinstance(tree.get("type"), str):
            waiting.extend((f"{slot}.{key}", item) for key, item in tree.items())
        elif not is_tensor(tree) and tree is not None:
            yield slot, tree.get("value") if isinstance(tree, Mapping) else tree
