"""Which tensor of a program is which, where its record has no numbers for them: MindSpore's.

An input is the result that its `source` made, if it has the same bits; else an earlier result of the same bits, because
`source` is lost where MindSpore wraps a tensor again. A parameter is known by its name: many of them are zeros. What is
only close to another value is another value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorprobe.model.undefined import UNDEFINED_MEMORY
from tensorprobe.replay.linked_pass import Key, find_passes
from tensorprobe.replay.meaning.mindspore import OWN_RESULTS
from tensorprobe.replay.meaning.mindspore.call import GIVEN_BACK
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors, bits_of
from tensorprobe.run.leaf import LENT, STATE_ROLES, UPDATED, Leaf, change_leaves, is_tensor, iter_leaves
from tensorprobe.word.vocabulary import common_op

WRITTEN_COUNT = "written_count"
"""The field that says how many of the last results of a call are what it wrote into its arguments."""
_ASSIGNING = ("assign", "assign_value", "assign_add", "assign_sub", "Assign", "AssignAdd", "AssignSub")
_IN_PLACE = (
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"),
    *_ASSIGNING,
)
_DROPOUTS = ("dropout", "Dropout")
_PASSING_ON = frozenset(
    {
        *("to", "type_as", "float", "half", "double", "bfloat16", "contiguous", "dropout", "identity"),
    }
)
"""What may have nothing to do. MindSpore then gives back the tensor itself, in another wrapper: its gradient is that of
all that use either. A `reshape` that changes nothing makes another tensor."""
_STATISTICS = {"BatchNorm": (3, 4), "batch_norm": (1, 2)}
"""Calls that write into arguments besides what they return: into which."""


def link_program(program: Program) -> None:
    """Give every tensor of a program its number, and find where its gradients begin."""
    linker = _Linker(program)
    for operation in program.operations:
        linker.link(operation)
    program.unclear = frozenset(linker.unclear)
    program.passes = find_passes(program, linker)


@dataclass(slots=True)
class _Parameter:
    """One of the model's, as it was seen last."""

    number: int
    key: Key | None
    first: int
    """The number that it had at first."""
    writer: str | None = None
    """A call that has been given it since, and may have written to it."""


@dataclass(slots=True)
class _Result:
    number: int
    key: Key | None
    leaf: Leaf


@dataclass(eq=False)
class _Linker:
    program: Program
    unclear: set[int] = field(default_factory=set)
    """Results of which several have the same bits, where that had to decide."""

    def __post_init__(self) -> None:
        self.recorded = RecordedTensors(self.program.rank, torch.device("cpu"), self.program.kept)
        self._count = 0
        self._keys: dict[Any, Key] = {}
        self._is_plain: dict[Key, bool] = {}
        self._results: dict[str, list[_Result]] = {}
        self._by_content: dict[Key, list[int]] = {}
        self.leaves: dict[Key, int] = {}
        """What no call was seen to make, and is no parameter."""
        self._parameters: dict[str, _Parameter] = {}
        self._arriving: dict[int, Leaf] = {}
        """The gradients that come to results, by their numbers."""
        self._about: dict[int, dict[str, Any]] = {}
        """What is known of parameters, by the numbers of their tensors: a kernel does not know their names."""
        self._names = self._find_names()
        self._looks = _find_looks(self.program)

    def link(self, operation: Operation, layer: Operation | None = None) -> None:
        """Number what goes into a call, what is inside of it, and what comes out. `layer`: whose only call it is, so
        that the gradients of the layer are its own."""
        fields = dict(operation.fields)
        arriving, departing = self.program.gradients_of(layer or operation)
        given: dict[str, tuple[Leaf, int | None]] = {}

        def describe_input(leaf: Leaf) -> dict[str, Any]:
            """A kernel does not see of each tensor that it has a gradient."""
            found = self._describe_input(leaf)
            given[leaf.slot] = leaf, found.get("tensor")
            return {**found, "requires_grad": True} if leaf.slot in departing else found

        for name, slot in (("input_args", "input"), ("input_kwargs", "kwargs")):
            fields[name] = change_leaves(fields.get(name), slot, describe_input)
        if operation.is_module or operation.is_layer:
            operation.describe(fields)
            link_inside = self._link_module if operation.is_module else self._link_layer
            link_inside(operation, fields)
            return
        written = self._find_written(operation)
        fields["output"] = [*operation.results, *written]
        fields[WRITTEN_COUNT] = len(written)
        made: list[_Result] = []
        own = {f"output.{place}" for place in OWN_RESULTS.get(_class_name(operation), ())}
        variable = _find_assigned(operation)

        def describe_result(leaf: Leaf) -> dict[str, Any]:
            """What a kernel keeps for its own backward means nothing to anybody else."""
            note = {"note": UNDEFINED_MEMORY} if leaf.slot in own else {}
            note |= {"parameter": variable} if variable is not None and leaf.slot == "output.0" else {}
            gradient = arriving.get(leaf.slot)
            number = self._find_passed_on(operation, given.get("input.0"), leaf, gradient)
            if number is not None:
                made.append(_Result(number, self.key(leaf), leaf))
                return {"tensor": number}
            number = self._number_result(leaf, made, note.get("parameter"))
            if gradient is not None:
                self._arriving[number] = gradient
            return {"tensor": number, **note}

        fields["output"] = change_leaves(fields["output"], "output", describe_result)
        self._results[operation.name] = made
        numbers = {number for _, number in given.values()}
        for result in made:
            if result.key is not None and result.leaf.slot not in own and result.number not in numbers:
                self._by_content.setdefault(result.key, []).append(result.number)
        if _class_name(operation) in _DROPOUTS and "output.0" in arriving and "input.0" in departing:
            fields[GIVEN_BACK] = [arriving["output.0"].fields, departing["input.0"].fields]
        operation.describe(fields)
        self._note_writer(operation)

    def _link_module(self, operation: Operation, fields: dict[str, Any]) -> None:
        for child in operation.children:
            self.link(child)
        fields["output"] = change_leaves(fields.get("output"), "output", self._describe_input)

    def _link_layer(self, operation: Operation, fields: dict[str, Any]) -> None:
        """The calls inside it make its results, or it passes on what it was given: a dropout that is switched off."""
        for role in STATE_ROLES:
            fields[role] = change_leaves(fields.get(role), role, self._describe_input)
        inside = self._results.setdefault(operation.name, [])
        for child in operation.children:
            self.link(child, operation if len(operation.children) == 1 else None)
            inside += self._results[child.name]
        known = {self.key(leaf): leaf.tensor for leaf in operation.inputs}
        known |= {result.key: result.number for result in inside}

        def describe_result(leaf: Leaf) -> dict[str, Any]:
            key = self.key(leaf)
            found = known.get(key) if key is not None else None
            if found is None:  # nobody saw how it was made
                found = self._number_result(leaf, inside)
                if key is not None:
                    self._by_content.setdefault(key, []).append(found)
            return {"tensor": found}

        fields["output"] = change_leaves(fields.get("output"), "output", describe_result)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _describe_input(self, leaf: Leaf) -> dict[str, Any]:
        number = self._number_input(leaf)
        if number is None:
            return {}
        return {"tensor": number, **self._about.get(number, {})}

    def _number_input(self, leaf: Leaf) -> int | None:
        key = self.key(leaf)
        name = leaf.parameter
        if name is None:
            number = self._find_result(leaf, key)
            if number is not None or key is None:
                return number
            name = self._names.get(key)
            known = self._parameters.get(name) if name is not None else None
            if known is not None and known.key != key:  # a copy of what the parameter was at first
                return known.first
        if name is not None:
            return self._number_parameter(name, key)
        assert key is not None
        if key not in self.leaves:
            self.leaves[key] = self._next()
        return self.leaves[key]

    def _find_result(self, leaf: Leaf, key: Key | None) -> int | None:
        made = self._results.get(leaf.source or "", [])
        if key is None:
            alike = [result for result in made if (result.leaf.shape, result.leaf.dtype) == (leaf.shape, leaf.dtype)]
            return alike[0].number if len(alike) == 1 else None
        same = [result.number for result in made if result.key == key] or self._by_content.get(key, [])
        if leaf.source is None and len(same) > 1 and self.says_nothing(leaf, key):
            return None
        if len(same) > 1:
            self.unclear.update(same)
        return same[-1] if same else None

    def _number_parameter(self, name: str, key: Key | None) -> int:
        known = self._parameters.get(name)
        if known is None:
            number = self._next()
            known = self._parameters[name] = _Parameter(number, key, number)
            self._about[known.number] = {"parameter": name}
        elif key is not None and known.key is not None and known.key != key and known.writer is not None:
            known.number = self._next()
            self._about[known.number] = {"parameter": None, UPDATED: {"parameter": name, "by": known.writer}}
            known.writer = None
        known.key = key
        return known.number

    # -- results -------------------------------------------------------------------------------------------------------

    def _number_result(self, leaf: Leaf, made: list[_Result], variable: str | None = None) -> int:
        """`variable`: the parameter that it is from now on."""
        result = _Result(self._next(), self.key(leaf), leaf)
        made.append(result)
        name = leaf.parameter or variable
        if name is not None:
            known = self._parameters.get(name)
            first = result.number if known is None else known.first
            self._parameters[name] = _Parameter(result.number, result.key, first)
        return result.number

    def _find_passed_on(
        self, operation: Operation, given: tuple[Leaf, int | None] | None, result: Leaf, gradient: Leaf | None
    ) -> int | None:
        """The number of what a call was given, and gives back as it was. A dropout of nothing makes another tensor,
        with a gradient of its own."""
        if given is None or result.slot != "output.0" or not may_pass_on(operation):
            return None
        taken, number = given
        known = self._arriving.get(number) if number is not None else None
        has_one_gradient = known is None or gradient is None or self.key(known) == self.key(gradient)
        key = self.key(taken)
        return number if has_one_gradient and key is not None and key == self.key(result) else None

    def _find_written(self, operation: Operation) -> list[Any]:
        """Of a call that writes into its arguments, these as they are seen next: further results of it."""
        if not is_gathering(operation) or len(operation.arguments) <= max(_STATISTICS[_class_name(operation)]):
            return []
        given = [operation.arguments[place] for place in _STATISTICS[_class_name(operation)]]
        found = []
        for node in given:
            name = node.get("parameter") if is_tensor(node) else None
            looks = self._looks.get(name, []) if name is not None else []
            following = next((look for position, look in looks if position > operation.position), None)
            if following is None:
                return []
            found.append(following)
        return found

    def _note_writer(self, operation: Operation) -> None:
        op, is_optimizer = operation.op.rpartition(".")[2], operation.fields.get("caller") == "optimizer"
        if is_optimizer and operation.prefix == "Jit":  # which holds the parameters itself
            for known in self._parameters.values():
                known.writer = operation.name
        is_writing = is_optimizer or op in _IN_PLACE or (op.endswith("_") and not op.endswith("__"))
        if not is_writing and not is_gathering(operation):
            return
        made = {leaf.parameter for leaf in operation.outputs}
        for leaf in operation.inputs:
            if leaf.parameter in self._parameters and leaf.parameter not in made:
                self._parameters[leaf.parameter].writer = operation.name

    # -- content -------------------------------------------------------------------------------------------------------

    def key(self, leaf: Leaf) -> Key | None:
        file_id = self.recorded.file_id(leaf)
        if file_id is None or LENT in leaf.fields:
            return _statistics_key(leaf)
        known = self._keys.get((file_id, leaf.dtype, leaf.shape))
        if known is None:
            try:
                content = bits_of(self.recorded.load(leaf)).numpy()
            except MissingContentError:
                return None
            known = leaf.dtype, leaf.shape, hashlib.blake2b(content.tobytes(), digest_size=16).digest()
            self._keys[file_id, leaf.dtype, leaf.shape] = known
        return known

    def says_nothing(self, leaf: Leaf, key: Key) -> bool:
        """Zeros, ones, one whole number everywhere: equal to others by chance."""
        if key not in self._is_plain and (leaf.data_name is None or LENT in leaf.fields):
            number = leaf.fields.get("Max")
            self._is_plain[key] = number == leaf.fields.get("Min") and number == int(number or 0)
        elif key not in self._is_plain:
            content = self.recorded.load(leaf).reshape(-1)
            first = content[:1]
            is_constant = bool((content == first).all()) if content.numel() else True
            self._is_plain[key] = is_constant and bool((first == first.to(torch.int64)).all())
        return self._is_plain[key]

    def _find_names(self) -> dict[Key, str]:
        """The parameters by their content at first sight: a kernel sees them as other objects, without a name."""
        found: dict[Key, str] = {}
        ambiguous: set[Key] = set()
        seen: set[str] = set()
        for operation in self.program.walk():
            for leaf in (*operation.inputs, *iter_leaves(operation.fields.get("parameters"), "parameters")):
                if leaf.parameter is None or leaf.parameter in seen:
                    continue
                seen.add(leaf.parameter)
                key = self.key(leaf)
                if key is not None and found.setdefault(key, leaf.parameter) != leaf.parameter:
                    ambiguous.add(key)
        return {key: name for key, name in found.items() if key not in ambiguous}

    def _next(self) -> int:
        self._count += 1
        return self._count


def _statistics_key(leaf: Leaf) -> Key | None:
    """Of a tensor without a file of its own: two with the same statistics and the same sketch are taken for one."""
    if leaf.fields.get("Sketch") is None:
        return None
    numbers = [leaf.fields.get(name) for name in ("Max", "Min", "Mean", "Norm", "Sketch", "nan_count", "inf_count")]
    return leaf.dtype, leaf.shape, repr(numbers).encode()


def is_gathering(operation: Operation) -> bool:
    """Is it a BatchNorm that gathers statistics?"""
    if _class_name(operation) not in _STATISTICS:
        return False
    given = operation.settings.get("is_training", operation.keywords.get("training"))
    if given is None and len(operation.arguments) > 5:
        given = operation.arguments[5]
    return given is True or (isinstance(given, dict) and given.get("value") is True)


def may_pass_on(operation: Operation) -> bool:
    """May it be one that has nothing to do?"""
    return common_op(operation.framework, "api", operation.prefix, operation.op) in _PASSING_ON


def _find_assigned(operation: Operation) -> str | None:
    """The parameter that a call gives other numbers."""
    first = next(iter(operation.inputs), None) if _class_name(operation) in _ASSIGNING else None
    return None if first is None else first.parameter


def _class_name(operation: Operation) -> str:
    return operation.op.rpartition(".")[2]


def _find_looks(program: Program) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
    """When each parameter was given to a call, and how it was then."""
    found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for operation in program.walk():
        for leaf in () if operation.is_module or operation.children else operation.inputs:
            if leaf.parameter is not None:
                found.setdefault(leaf.parameter, []).append((operation.position, leaf.fields))
    return found
