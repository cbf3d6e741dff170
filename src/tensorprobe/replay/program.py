"""A recorded step as a program: its forward calls in the order in which they ran, nested in the modules that made them.

Records stand in the order in which calls ended, so that a module follows what it contains. Here a module call stands
around its calls. What only repeats or undoes a call (recomputation, backward) is no part of the program; it is held
against what the program gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tensorprobe.model.name import BACKWARD, FORWARD, LAYER_PREFIX
from tensorprobe.replay.kept_tensor import KeptTensors
from tensorprobe.run.backward_pass import BackwardPass, read_passes
from tensorprobe.run.call import Call
from tensorprobe.run.leaf import STATE_ROLES, WRITTEN, Leaf, backward_leaves, iter_leaves, iter_named_leaves
from tensorprobe.run.step import Run, part_fields, read_calls
from tensorprobe.store.reader import RankDump

_INDEXING = ("__getitem__", "__setitem__")
_INPLACE = {
    **dict.fromkeys(("relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid"), 1),
    **dict.fromkeys(("elu", "celu", "leaky_relu"), 2),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "hardtanh", "threshold"), 3),
    "rrelu": 4,
}
"""Where functions take `inplace`, when it is not given by its name."""
_MAX_DEPTH = 100


@dataclass(eq=False)
class Operation:
    """One forward call: of an API, or of a module with what it contains."""

    call: Call
    fields: Mapping[str, Any]
    """Of its record: all that it takes to make the call again."""
    children: list[Operation] = field(default_factory=list)
    has_backward: bool = False
    """Did gradients come back to it?"""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def describe(self, fields: Mapping[str, Any]) -> None:
        """Say more of it than its record does."""
        self.fields = fields
        for name in ("inputs", "outputs"):
            self.__dict__.pop(name, None)  # they are read again

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def position(self) -> int:
        """How many records there were when it ended."""
        return self.call.position

    @property
    def framework(self) -> str:
        """Whose function was called."""
        return self.call.framework or "pytorch"

    @property
    def is_module(self) -> bool:
        return self.call.kind == "module"

    @property
    def prefix(self) -> str:
        return self.call.prefix

    @property
    def op(self) -> str:
        """What was called."""
        return self.call.op

    @property
    def arguments(self) -> Sequence[Any]:
        given = self.fields.get("input_args")
        return given if isinstance(given, list) else ()

    @property
    def keywords(self) -> Mapping[str, Any]:
        given = self.fields.get("input_kwargs")
        return given if isinstance(given, dict) else {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the object that was called had been made with."""
        given = self.fields.get("settings")
        return given if isinstance(given, dict) else {}

    @property
    def results(self) -> Sequence[Any]:
        found = self.fields.get("output")
        return found if isinstance(found, list) else ()

    def state(self, role: str) -> Mapping[str, Any]:
        """The parameters or the buffers that a module call or a layer finds."""
        found = self.fields.get(role)
        return found if isinstance(found, dict) else {}

    @property
    def state_leaves(self) -> Iterator[Leaf]:
        for role in STATE_ROLES:
            yield from iter_leaves(self.state(role), role)

    @property
    def tuples(self) -> frozenset[str]:
        """The places of arguments that were tuples; all others that hold several are lists."""
        found = self.fields.get("tuples")
        if isinstance(found, list):
            return frozenset(text for text in found if isinstance(text, str))
        is_told = any(leaf.tensor is not None for leaf in self.inputs)
        # what was recorded before this was told: several indices are a tuple
        return frozenset({"input.1"}) if self.op in _INDEXING and not is_told else frozenset()

    @cached_property
    def inputs(self) -> tuple[Leaf, ...]:
        """The tensors it was given."""
        return (*iter_leaves(self.arguments, "input"), *iter_leaves(self.keywords, "kwargs"))

    @property
    def operands(self) -> Iterator[Leaf]:
        """What its results are computed from: what it was given, and of a layer the parameters and buffers that the
        calls inside it take on the way there."""
        yield from self.inputs
        if self.is_layer:
            taken = self._find_taken()
            yield from (leaf for leaf in self.state_leaves if leaf.tensor in taken or not self.children)

    def _find_taken(self) -> set[int]:
        """The tensors that the calls inside it make its results of."""
        found = {leaf.tensor for leaf in self.outputs}
        for part in reversed(self.children):
            if any(leaf.tensor in found for leaf in part.outputs):
                found.update(leaf.tensor for leaf in part.inputs)
        return {number for number in found if number is not None}

    @cached_property
    def outputs(self) -> tuple[Leaf, ...]:
        """The tensors it returned, then those it wrote to without returning them, as they were afterwards."""
        written = self.fields.get("written")
        leaves = iter_leaves(written if isinstance(written, dict) else None, WRITTEN)
        return (*iter_leaves(self.results, "output"), *leaves)

    @property
    def is_function(self) -> bool:
        """An autograd Function of the program, with the calls that it made."""
        return self.prefix == "Autograd"

    @property
    def is_layer(self) -> bool:
        """A layer of torch's library that is one record, with the calls that it made: so api_dump has it."""
        return self.prefix == LAYER_PREFIX

    @property
    def is_made_of_calls(self) -> bool:
        """Is it what the calls inside of it compute?"""
        return self.is_function or self.is_layer

    @property
    def is_part(self) -> bool:
        """Is it a call of a layer, of which nothing was recorded but what it was?"""
        return self.fields.get("is_part") is True

    @property
    def inside(self) -> str | None:
        """The autograd Function that made the call."""
        found = self.fields.get("inside")
        return found if isinstance(found, str) else None

    @property
    def has_ended(self) -> bool:
        return "failed" not in self.fields and "output" in self.fields

    @property
    def writes_in_place(self) -> bool:
        """Does it write into one of its arguments?"""
        told = self.fields.get("collective")
        if isinstance(told, dict):
            return bool(told.get("writes"))
        if self.is_layer:
            return any(part.writes_in_place for part in self.children)
        if self.is_function and self.children:
            given = {leaf.storage for leaf in self.inputs} - {None}
            parts = (part for part in self.children if part.writes_in_place)
            return any(leaf.storage in given for part in parts for leaf in part.outputs)
        op = self.op.rsplit(".", 1)[-1]
        if op.startswith("__"):
            return op == "__setitem__" or (op.startswith("__i") and op not in ("__invert__", "__index__", "__int__"))
        if op.endswith("_") or "out" in self.keywords:
            return True
        place = _INPLACE.get(op, len(self.arguments))
        return is_true(self.arguments[place] if place < len(self.arguments) else self.keywords.get("inplace"))

    @property
    def backward_name(self) -> str:
        return self.call.in_direction(BACKWARD)


@dataclass(eq=False)
class Program:
    """The calls of one step of one process."""

    run: Run
    operations: list[Operation]
    """The outermost, in their order."""
    gradients: dict[str, Mapping[str, Any]]
    """The backward records, and those of the gradients of parameters, by their names."""
    limit_bytes: int = 1 << 30
    """So much memory may a replay take."""

    passes: list[BackwardPass] | None = None
    """Where gradients were asked for, if that is known from elsewhere than run.json."""
    unclear: frozenset[int] = frozenset()
    """Tensors of which it is not certain who uses them."""
    unrecorded: Set[str] = frozenset()
    """Calls that gave gradients back without a record of it."""
    kept: KeptTensors = field(default_factory=KeptTensors)
    """What its replays know of its files."""
    checked: set[Any] = field(default_factory=set)
    """The calls, and shapes, of which it is known that they take no more memory than they may."""
    _gradient_leaves: dict[str, dict[str, Leaf]] = field(default_factory=dict)
    _backward_leaves: dict[str, tuple[Mapping[str, Leaf], Mapping[str, Leaf]]] = field(default_factory=dict)

    @property
    def rank(self) -> RankDump:
        return self.run.rank

    @property
    def backward_passes(self) -> list[BackwardPass]:
        """Where gradients were asked for, in the order in which they were."""
        return list(self.passes) if self.passes is not None else read_passes(self.rank.run)

    @property
    def is_mindspore(self) -> bool:
        return self.run.framework == "mindspore"

    def gradient_leaves(self, record: str) -> dict[str, Leaf]:
        """The tensors of a backward record, or of one of the gradients of parameters, by their places."""
        found = self._gradient_leaves.get(record)
        if found is None:
            named = iter_named_leaves(self.gradients.get(record, {}))
            found = self._gradient_leaves[record] = dict(named)
        return found

    def gradients_of(self, operation: Operation) -> tuple[Mapping[str, Leaf], Mapping[str, Leaf]]:
        """What was recorded of the gradients of a call's results, and of those of its arguments, by their places."""
        record = operation.backward_name
        if record not in self._backward_leaves:  # each argument is asked for it, in each replay
            self._backward_leaves[record] = backward_leaves(self.gradients.get(record, {}))
        return self._backward_leaves[record]

    def position_of(self, record: str) -> int:
        """How many records there were before one of this name; 0 if there is none."""
        call = self.run.by_name.get(record)
        return 0 if call is None else call.position

    def gradient_position(self, record: str) -> int:
        """How many records there were before a gradient's; -1 if there is none."""
        return self.run.by_name[record].position if record in self.gradients else -1

    def gradient_leaf(self, record: str, slot: str) -> Leaf | None:
        """What was recorded of a gradient: of a backward record, or one of the gradients of parameters."""
        return self.gradient_leaves(record).get(slot)

    def walk(self) -> Iterator[Operation]:
        """All calls, each before what it contains."""
        waiting = list(reversed(self.operations))
        while waiting:
            operation = waiting.pop()
            yield operation
            waiting.extend(reversed(operation.children))

    def endings(self) -> Iterator[Operation]:
        """All calls in the order in which they ended: a module after what it contains."""
        return iter(sorted(self.walk(), key=lambda operation: operation.position))

    def calls(self) -> Iterator[Operation]:
        """Those of APIs, in the order in which they ran; without those that layers are made of."""
        return (operation for operation in self.walk() if not operation.is_module and not operation.is_part)


def read_program(rank: RankDump) -> Program:
    """The program of one step of one process."""
    operations: dict[str, Operation] = {}
    gradients: dict[str, Mapping[str, Any]] = {}
    calls: list[Call] = []
    for call, record in read_calls(rank):
        calls.append(call)
        if call.kind in ("api", "module") and call.is_named and call.direction == FORWARD:
            operations[call.name] = Operation(call, record.fields)
        elif call.direction == BACKWARD:
            gradients[call.name] = record.fields
    for operation in operations.values():
        operation.has_backward = operation.backward_name in gradients
        operation.children.extend(_read_parts(operation))
    program = Program(Run(rank, calls), _nest(operations), gradients)
    if program.is_mindspore:
        from tensorprobe.replay.link import link_program  # needs torch, and what is above

        link_program(program)
    return program


def _read_parts(layer: Operation) -> Iterator[Operation]:
    """The calls that a layer made. What they share with it has the files of its own record."""
    taken = (*layer.inputs, *layer.state_leaves)
    given = {leaf.tensor: leaf.data_name for leaf in taken if leaf.tensor is not None}
    made = {leaf.tensor: leaf.data_name for leaf in layer.outputs if leaf.tensor is not None}
    for call, fields in zip(layer.call.parts, part_fields(layer.fields), strict=False):  # no other call has parts
        part = {**fields, "is_part": True}
        for role, files in (("input_args", given), ("input_kwargs", given), ("output", made)):
            part[role] = _name_files(part.get(role), files)
        yield Operation(call, part)


def _name_files(tree: Any, files: Mapping[int, str | None], depth: int = 0) -> Any:
    """The same leaves with the files that hold them."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(tree, list):
        return [_name_files(item, files, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if not isinstance(tree.get("type"), str):
        return {key: _name_files(item, files, depth + 1) for key, item in tree.items()}
    number = tree.get("tensor")
    known = files.get(number) if isinstance(number, int) else None
    return tree if known is None else {**tree, "data_name": known}


def _nest(operations: dict[str, Operation]) -> list[Operation]:
    """Put each call into the autograd Function or the module call that contains it. What is read may come from anyone:
    what leads in a circle, or deeper than any program, stays outside."""
    owners = {name: _find_owner(operation, operations) for name, operation in operations.items()}
    depths: dict[str, int] = {}
    outermost = []
    for name, operation in operations.items():
        owner = owners[name]
        if owner is None or _find_depth(name, operations, owners, depths) > _MAX_DEPTH:
            outermost.append(operation)
        else:
            operations[owner].children.append(operation)
    return outermost


def _find_owner(operation: Operation, operations: Mapping[str, Operation]) -> str | None:
    function = operations.get(operation.inside or "")
    if function is not None and function.is_function and function.position > operation.position:
        return function.name
    parent = operations.get(operation.call.parent or "")
    return parent.name if parent is not None and parent.is_module else None


def _find_depth(
    name: str, operations: Mapping[str, Operation], parents: Mapping[str, str | None], depths: dict[str, int]
) -> int:
    """How many module calls are around a call; too many for one in a circle. Each is looked at once."""
    way: list[str] = []
    above: str | None = name
    while above is not None and above in operations and above not in depths:
        depths[above] = _MAX_DEPTH + 1  # until it is known: whoever comes back here is in a circle
        way.append(above)
        above = parents.get(above)
    depth = depths.get(above, -1) if above is not None else -1
    for below in reversed(way):
        depth = min(depth + 1, _MAX_DEPTH + 1)
        depths[below] = depth
    return depths[name]


def is_true(leaf: Any) -> bool:
    """Is this the argument True?"""
    return leaf is True or (isinstance(leaf, dict) and leaf.get("value") is True)
