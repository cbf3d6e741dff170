"""What a call computes on its way: attention its scores and shares, a normalisation its variance.

A call is made once more, alone, on the truth of what went in, and every operator that torch then executes is noted.
Where that is a single one, it is taken apart by torch's own decompositions. Level by level: attention is products, a
sum and a softmax first; the softmax is taken apart only if somebody asks for that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_map_only

from tensorprobe.capture.torch.function import UNDEFINED, base_op
from tensorprobe.replay.allocation import Allocation, DispatchMode
from tensorprobe.replay.invocation import Invoker, Tensors, tensors_by_slot
from tensorprobe.replay.meaning.fused_update import find_update
from tensorprobe.replay.precision import Precision, default_dtype
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue
from tensorprobe.replay.true_step_builder import to_array
from tensorprobe.run.leaf import WRITTEN, Leaf

_OPERATOR = "Ops"
_AXES = ("dim", "dims", "dim0", "dim1")
_CLOSE = 1e-9
"""So near to the results of the call must be what is seen inside it."""


@dataclass(frozen=True)
class _Held:
    """Stands for a tensor among the arguments of an operator: the number of a value."""

    number: int


@dataclass(frozen=True)
class _Part:
    """An operator that was executed inside a call, to be taken apart in its turn."""

    function: Any
    args: Any
    kwargs: Any
    computes: bool = True
    """Or does it only look at the same numbers in another way?"""


class Inside:
    """Takes calls of one step apart. What it has taken apart it knows by name: use one for each step."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program = program
        self._device = device
        self._parts: dict[str, _Part] = {}
        self._closed: set[str] = set()
        """Calls that cannot be taken apart."""

    def open(self, step: TrueStep, name: str) -> TrueStep | None:
        """The step with this call replaced by those that it is made of; None if it cannot be taken apart. A recorded
        call that executes a single operator first gets its name: a product of matrices has many names in programs, and
        few here."""
        call = step.calls[name]
        if name in self._closed or call.is_random or not call.outputs:
            return None
        seen = self._look(step, call)
        if seen is None:
            opened = None
        elif len(seen.computing) > 1:
            opened = seen.step
        elif call.prefix == _OPERATOR:
            opened = self.open(seen.step, seen.computing[0])
        else:
            return _spell(step, call, seen.step.calls[seen.computing[0]])
        if opened is None:
            self._closed.add(name)
        return opened

    def _look(self, step: TrueStep, call: TrueCall) -> _Seen | None:
        watch = _Watch(step, call, Allocation(self._program.limit_bytes))
        try:
            with torch.random.fork_rng(devices=()):
                results = self._run(call, watch)
        except Exception:  # whatever a function of torch says to its arguments: it stays in one piece
            return None
        opened = watch.finish(results)
        computing = [name for name, part in watch.parts.items() if part.computes]
        if opened is None or not computing:
            return None
        self._parts.update(watch.parts)
        return _Seen(opened, computing)

    def _run(self, call: TrueCall, watch: _Watch) -> Tensors:
        part = self._parts.get(call.name)
        if part is None:
            return self._run_recorded(call, watch)
        function = find_update(part.function) or decomposition_table[part.function]  # KeyError: it is simple enough
        held = partial(tree_map_only, _Held, lambda one: watch.tensor(one.number))
        args, kwargs = held(part.args), held(part.kwargs)
        with torch.no_grad(), default_dtype(torch.float64), watch:
            output = function(*args, **kwargs)
        written = _find_written(part.function, _find_given(args, kwargs))
        return {**dict(_find_results(output)), **{f"{WRITTEN}.{slot}": tensor for slot, tensor in written}}

    def _run_recorded(self, call: TrueCall, watch: _Watch) -> Tensors:
        operation = self._operations[call.name]
        recorded = RecordedTensors(self._program.rank, self._device, self._program.kept)
        invoker = Invoker(recorded, Precision("float64"), self._device, self._program.limit_bytes)

        def take(leaf: Leaf) -> torch.Tensor:
            return watch.tensor(call.inputs[leaf.slot])

        args, kwargs = invoker.build_arguments(operation, take)
        try:
            return invoker.invoke(operation, args, kwargs, watch)[1]
        finally:
            invoker.close()

    @cached_property
    def _operations(self) -> Mapping[str, Operation]:
        return {operation.name: operation for operation in self._program.calls()}


@dataclass(frozen=True)
class _Seen:
    """A step with one call taken apart."""

    step: TrueStep
    computing: list[str]
    """The new calls that do not only look at numbers in another way."""


def _spell(step: TrueStep, call: TrueCall, only: TrueCall) -> TrueStep:
    spelt = replace(call, framework=only.framework, prefix=only.prefix, op=only.op, arguments=only.arguments)
    return TrueStep(step.name, {**step.calls, call.name: spelt}, step.values, step.coverage)


class _Watch(DispatchMode):
    """Notes every operator that is executed while one call is made, with what it takes and gives."""

    def __init__(self, step: TrueStep, call: TrueCall, allocation: Allocation) -> None:
        super().__init__()
        self._step, self._call = step, call
        self._allocation = allocation
        self._values = list(step.values)
        self._known: dict[int, tuple[torch.Tensor, int]] = {}
        """The tensors by their addresses, which are kept so that no other one gets the address."""
        self._given: dict[int, torch.Tensor] = {}
        self._writers: dict[int, TrueCall] = {}
        """Who wrote last, by the address of the memory."""
        self._calls: dict[str, TrueCall] = {}
        self.parts: dict[str, _Part] = {}
        self._bytes = 0

    def tensor(self, number: int) -> torch.Tensor:
        """The value of this number, to be computed with."""
        if number not in self._given:
            tensor = torch.from_numpy(np.array(self._step.values[number].array, copy=True))
            self._given[number] = tensor
            self._known[id(tensor)] = tensor, number
        return self._given[number]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = _find_given(args, kwargs)
        inputs = {slot: number for slot, tensor in given.items() if (number := self._find(tensor)) is not None}
        held = partial(tree_map_only, torch.Tensor, self._hold)
        part = _Part(function, held(args), held(kwargs))
        output = function(*args, **kwargs)
        results = dict(_find_results(output))
        is_undefined = base_op(_OPERATOR, str(function)) in UNDEFINED
        is_constant = bool(given) and not inputs
        if not is_undefined and not is_constant:
            results |= {f"{WRITTEN}.{slot}": tensor for slot, tensor in _find_written(function, given)}
            self._note(function, part, inputs, results)
        return output

    def finish(self, results: Tensors) -> TrueStep | None:
        """The step with what was seen in the place of the call; None where the results are not among it."""
        numbers: dict[int, int] = {}
        for slot, number in self._call.outputs.items():
            made = self._find(results[slot]) if slot in results else None
            if made is not None and made >= len(self._step.values) and self._is_same(made, number):
                numbers[made] = number
            elif made is not None and slot.startswith(WRITTEN) and self._is_same(made, number):
                self._note_copy(made, number)  # it is as it was, under another number
            elif self._call.inside is None or number in self._step.users:
                return None
        calls = {name: _rename(call, numbers) for name, call in self._calls.items()}
        makers = {number: name for name, call in calls.items() for number in call.outputs.values()}
        if not makers.keys() >= set(numbers.values()):
            return None  # what it returns was there before, in memory that it only looked at
        values = [
            replace(value, maker=makers[value.number]) if value.number in numbers.values() else value
            for value in self._values
        ]
        self.parts = {name: _rename_part(part, numbers) for name, part in self.parts.items()}
        listed: list[TrueCall] = []
        for call in self._step.calls.values():
            listed.extend(calls.values() if call is self._call else [call])
        placed = {call.name: _place(call, position) for position, call in enumerate(listed)}
        return TrueStep(self._step.name, placed, values, self._step.coverage)

    def _note(self, function: Any, part: _Part, inputs: dict[str, int], results: Tensors) -> None:
        call = self._make_call(function, inputs, dict(self._find_plain(part)))
        for slot, tensor in results.items():
            number = self._number(tensor, call, slot, inputs)
            if number not in inputs.values():
                call.outputs[slot] = number
            if slot.startswith(WRITTEN):
                self._writers[_memory(tensor)] = call
        if call.outputs:
            self._calls[call.name] = call
            self.parts[call.name] = replace(part, computes=not self._only_looks(function, call))

    def _make_call(self, function: Any, inputs: dict[str, int], arguments: dict[str, Any]) -> TrueCall:
        whole, op = self._call, base_op(_OPERATOR, str(function))
        return replace(
            whole,
            name=f"{whole.name}/{len(self._calls)}.{op}",
            framework="pytorch",
            prefix=_OPERATOR,
            op=f"aten.{op}",  # prims have the same names
            inputs=inputs,
            outputs={},
            arguments=arguments,
            arriving={},
            departing={},
            inside=whole.inside or whole.name,
        )

    def _note_copy(self, given: int, made: int) -> None:
        copy = torch.ops.aten.clone.default
        call = self._make_call(copy, {"input.0": given}, {})
        call.outputs["output.0"] = made
        self._calls[call.name] = call
        self.parts[call.name] = _Part(copy, (_Held(given),), {}, computes=False)

    def _only_looks(self, function: Any, call: TrueCall) -> bool:
        made = [self._values[number].array.reshape(-1) for number in call.outputs.values()]
        given = [self._values[number].array.reshape(-1) for number in call.inputs.values()]
        return getattr(function, "is_view", False) or all(any(_is_equal(one, other) for other in given) for one in made)

    def _number(self, tensor: torch.Tensor, call: TrueCall, slot: str, inputs: Mapping[str, int]) -> int:
        """Of a result. A copy of what went in, as it is, is the same value."""
        array = to_array(tensor)
        number = next((one for one in inputs.values() if _is_equal(self._values[one].array, array)), None)
        known = self._known.get(id(tensor))
        if number is None and known is not None and _is_equal(self._values[known[1]].array, array):
            number = known[1]  # returned, and written besides
        if number is None:
            number = self._add(array, call, slot)
        self._known[id(tensor)] = tensor, number
        return number

    def _add(self, array: Array, call: TrueCall, slot: str) -> int:
        self._bytes += array.nbytes
        self._allocation.check_bytes(2 * self._bytes, "inside it there are")
        number = len(self._values)
        self._values.append(TrueValue(number, array, str(array.dtype), call.name, slot))
        return number

    def _find(self, tensor: torch.Tensor) -> int | None:
        """The value that a tensor holds now. It may have been written through another look at its memory."""
        known = self._known.get(id(tensor))
        if known is None or _is_equal(self._values[known[1]].array, array := to_array(tensor)):
            return None if known is None else known[1]
        writer = self._writers.get(_memory(tensor))
        if writer is None:
            return None
        slot = f"{WRITTEN}.{len(writer.outputs)}"
        number = writer.outputs[slot] = self._add(array, writer, slot)
        self._known[id(tensor)] = tensor, number
        return number

    def _hold(self, tensor: torch.Tensor) -> Any:
        number = self._find(tensor)
        return tensor.detach().clone() if number is None else _Held(number)

    def _find_plain(self, part: _Part) -> Iterator[tuple[str, Any]]:
        """The arguments that are no tensors, by their names. Axes are counted from the first one."""
        names = [argument.name for argument in part.function._schema.arguments]
        ndim = next((self._values[one.number].array.ndim for one in part.args if isinstance(one, _Held)), 0)
        for name, value in (*zip(names, part.args, strict=False), *part.kwargs.items()):
            if name in _AXES:
                value = tree_map_only(int, lambda axis: axis % ndim if ndim else axis, value)
            if isinstance(value, (bool, int, float, str)) or _is_numbers(value):
                yield name, value

    def _is_same(self, first: int, second: int) -> bool:
        one, other = self._values[first].array, self._values[second].array
        return one.shape == other.shape and bool(
            np.allclose(one, other, _CLOSE, _CLOSE * np.abs(other[np.isfinite(other)]).max(initial=0.0), equal_nan=True)
        )


def _find_results(output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return tensors_by_slot(list(output) if isinstance(output, tuple) else [output], "output")


def _find_given(args: Any, kwargs: Any) -> Tensors:
    return {**dict(tensors_by_slot(args, "input")), **dict(tensors_by_slot(kwargs, "kwargs"))}


def _find_written(function: Any, given: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """What an operator writes to, by the places of its arguments; of a list every tensor."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            places = f"input.{place}", f"kwargs.{argument.name}"
            yield from (one for one in given.items() if _is_in(one[0], places))


def _is_in(slot: str, places: tuple[str, ...]) -> bool:
    return any(slot == place or slot.startswith(f"{place}.") for place in places)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, (int, float)) for one in value)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _is_equal(first: Array, second: Array) -> bool:
    is_floating = first.dtype.kind in "fc" and second.dtype.kind in "fc"
    return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=is_floating)


def _rename(call: TrueCall, numbers: Mapping[int, int]) -> TrueCall:
    return replace(
        call,
        inputs={slot: numbers.get(number, number) for slot, number in call.inputs.items()},
        outputs={slot: numbers.get(number, number) for slot, number in call.outputs.items()},
    )


def _place(call: TrueCall, position: int) -> TrueCall:
    """The same call where it stands already: most stand before the one that was taken apart."""
    return call if call.position == position else replace(call, position=position)


def _rename_part(part: _Part, numbers: Mapping[int, int]) -> _Part:
    renamed: Callable[[Any], Any] = partial(
        tree_map_only, _Held, lambda one: _Held(numbers.get(one.number, one.number))
    )
    return replace(part, args=renamed(part.args), kwargs=renamed(part.kwargs))
