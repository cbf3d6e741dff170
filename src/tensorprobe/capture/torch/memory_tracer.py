"""Follows undefined memory through the calls: what is undefined on the way in is undefined on the way out, until
something defined is written into it.

A call that only writes to an argument does not read it. Views need nothing: they show the same bytes. Where indices say
which elements a call moves or writes, the same call is made once more, with flags in the place of the elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorprobe.capture.torch.content import tensors_in
from tensorprobe.capture.torch.hiding import isolated
from tensorprobe.capture.torch.memory_effect import MemoryEffect
from tensorprobe.capture.torch.undefined_memory import UndefinedMemory, memory_of, storage_address

_BASIC_INDICES = (int, slice, type(None), type(Ellipsis))


@dataclass(slots=True)
class Given:
    """What a call is given of undefined memory, and what it will write to."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    read: list[torch.Tensor] = field(default_factory=list)
    """What it reads and is undefined: all that it computes is, too."""
    touched: list[torch.Tensor] = field(default_factory=list)
    written: list[torch.Tensor] = field(default_factory=list)
    sizes: list[tuple[Any, int]] = field(default_factory=list)
    """The storages that may grow, and how large they were."""


class MemoryTracer:
    """What calls do to undefined memory."""

    def __init__(self, memory: UndefinedMemory) -> None:
        self.memory = memory

    def is_concerned(self, effect: MemoryEffect) -> bool:
        """Is a call of any interest? Where nothing is undefined, only one that makes undefined memory."""
        if self.memory.storages and not effect.is_idle:
            return True
        return effect.makes_undefined or effect.grows or effect.undefined_but_for is not None

    def begin(self, effect: MemoryEffect, args: Sequence[Any], kwargs: dict[str, Any]) -> Given | None:
        """Before a call."""
        with isolated():
            if effect.hands_out:
                for tensor in tensors_in(args):
                    self.memory.give_up(tensor)
                return None
            if effect.grows:
                contents = [memory_of(tensor) for tensor in first_tensors(args, kwargs)]
                storages = [content.untyped_storage() for content in contents if content is not None]
                return Given(args, kwargs, sizes=[(storage, storage.nbytes()) for storage in storages])
            touched = [tensor for tensor in tensors_in((args, kwargs)) if self.memory.has(tensor)]
            if not touched:
                return None
            given = Given(args, kwargs, touched=touched, written=list(find_written(effect, args, kwargs)))
            for tensor in find_read(effect, args, kwargs):
                if not effect.is_view and not (effect.is_index and is_plain_index(args)):
                    self.memory.look_again(tensor)  # waits for a device
                if self.memory.has(tensor):
                    given.read.append(tensor)
            return given

    def end(self, effect: MemoryEffect, given: Given | None, function: Any, output: Any) -> None:
        """After a call that returned `output`."""
        with isolated():
            if effect.makes_undefined:
                for tensor in tensors_in(output):
                    self.memory.mark(tensor)
            elif effect.undefined_but_for is not None:
                self._note_partial_result(effect.undefined_but_for, given, output)
            elif given is not None and given.sizes:
                for storage, size_bytes in given.sizes:
                    self.memory.mark_grown(storage, size_bytes)
            elif given is not None:
                self._end(effect, given, function, output)

            if effect.runs_unseen:
                self._doubt_all(given, output)

    def _note_partial_result(self, places: tuple[int, int], given: Given | None, output: Any) -> None:
        undefined, defined = (output[place] for place in places)
        address = storage_address(undefined)
        is_from_undefined = any(storage_address(tensor) != address for tensor in (given.read if given else ()))
        self.memory.mark(undefined)
        if not is_from_undefined:
            self.memory.define(defined)

    def _doubt_all(self, given: Given | None, output: Any) -> None:
        """Whatever ran inside may have written anywhere: only what it returns is undefined, if what it read was."""
        is_undefined = given is not None and any(self.memory.has(tensor) for tensor in given.read)
        self.memory.forget()
        for tensor in tensors_in(output) if is_undefined else ():
            self.memory.mark(tensor)

    def _end(self, effect: MemoryEffect, given: Given, function: Any, output: Any) -> None:
        if effect.is_opaque and not effect.declared:
            self._doubt(given, output)
        if effect.value_at is not None and (given.read or not effect.overwrites):
            self._write_at_index(effect, given, function)
        elif given.written and is_overwritten(effect, given.kwargs):
            self._overwrite(given)
        elif given.written:
            self._change(effect, given)
        if given.read and not effect.has_calls_inside:
            self._mark_results(effect, given, function, output)

    def _doubt(self, given: Given, output: Any) -> None:
        """A custom operator that does not say what it writes to: whoever returns nothing must have written."""
        for tensor in given.touched:
            if output is None:
                self.memory.give_up(tensor)
            else:
                self.memory.look_again(tensor)
        given.read = [tensor for tensor in given.read if self.memory.has(tensor)]

    def _overwrite(self, given: Given) -> None:
        for tensor in given.written:
            if given.read:
                self.memory.mark(tensor)
            else:
                self.memory.define(tensor)

    def _change(self, effect: MemoryEffect, given: Given) -> None:
        """Element by element: what was undefined still is, and all of it is if another argument is."""
        own = {id(tensor) for tensor in given.written}
        is_mixed = any(effect.mixes or id(tensor) not in own for tensor in given.read)
        for tensor in given.written:
            if is_mixed:
                self.memory.mark(tensor)
            else:
                self.memory.note_change(tensor)

    def _write_at_index(self, effect: MemoryEffect, given: Given, function: Any) -> None:
        (target,) = given.written
        content = memory_of(target)
        if content is not None and content is target and is_basic_assignment(given.args, function):
            given.written = [content.detach()[given.args[1]]]  # a view
            self._overwrite(given)
        elif not self._write_flags(effect, given, function):
            self._overwrite(given)

    def _write_flags(self, effect: MemoryEffect, given: Given, function: Any) -> bool:
        """Write flags to the places that the call wrote to; False if that cannot be done."""
        assert effect.value_at is not None
        place, name = effect.value_at
        target = given.args[0] if given.args else None
        flags = self.memory.flags_of(target) if target is not None and memory_of(target) is target else None
        if flags is None:
            return False
        try:
            args = [flags[0], *given.args[1:]]
            if place < len(args):
                args[place] = self._flags_instead(args[place])
            names = (name, "value")
            kwargs = {key: self._flags_instead(value) if key in names else value for key, value in given.kwargs.items()}
            with torch.no_grad():
                function(*args, **kwargs)
        except Exception:  # not a form of the call that flags can take part in
            return False
        self.memory.set_flags(target, flags[1])
        return True

    def _mark_results(self, effect: MemoryEffect, given: Given, function: Any, output: Any) -> None:
        """What is new, not a view of an argument."""
        shared = {storage_address(tensor) for tensor in tensors_in((given.args, given.kwargs))}
        results = [tensor for tensor in tensors_in(output) if storage_address(tensor) not in shared]
        if len(results) == 1 and effect.moves and self._move(given, function, results[0]):
            return
        for tensor in results:
            self.memory.mark(tensor)

    def _move(self, given: Given, function: Any, result: torch.Tensor) -> bool:
        """Only some elements of the result may be undefined."""
        try:
            with torch.no_grad():
                first = self._flags_instead(given.args[0])
                moved = function(first, *given.args[1:], **given.kwargs)
                flags = self.memory.flags_of(result)
                if flags is None or moved.shape != result.shape:
                    return False
                flags[0].copy_(moved.bool())
        except Exception:  # not a form of the call that flags can take part in
            return False
        self.memory.set_flags(result, flags[1])
        return True

    def _flags_instead(self, value: Any) -> Any:
        """The same with flags for elements: are they undefined?"""
        if isinstance(value, (list, tuple)):
            return [self._flags_instead(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return False
        flags = self.memory.flags_of(value)
        if flags is None:
            raise ValueError("too many elements")
        return flags[0]


def find_written(effect: MemoryEffect, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call writes to, as far as its name, its schema and how it is called tell."""
    if kwargs.get("out") is not None:
        yield from tensors_in(kwargs["out"])
    elif effect.declared:
        for place, name in effect.declared:
            yield from tensors_in(kwargs.get(name, args[place] if place < len(args) else None))
    elif effect.writes_first:
        yield from first_tensors(args, kwargs)


def find_read(effect: MemoryEffect, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors whose elements a call reads."""
    if effect.is_idle:
        return
    if effect.reads_first_only:
        yield from first_tensors(args, kwargs)
    elif kwargs.get("out") is not None:
        rest = {name: value for name, value in kwargs.items() if name != "out"}
        yield from tensors_in(without_first(args, rest) if is_first_ignored(effect, kwargs) else (args, rest))
    elif effect.declared:
        places, names = ({item[index] for item in effect.declared} for index in (0, 1))
        yield from tensors_in([value for place, value in enumerate(args) if place not in places])
        yield from tensors_in({name: value for name, value in kwargs.items() if name not in names})
    elif (effect.writes_first and (effect.overwrites or effect.value_at is not None)) or is_first_ignored(
        effect, kwargs
    ):
        yield from tensors_in(without_first(args, kwargs))
    else:
        yield from tensors_in((args, kwargs))


def is_overwritten(effect: MemoryEffect, kwargs: dict[str, Any]) -> bool:
    """Does it not read what it writes to?"""
    is_told = effect.overwrites or bool(effect.declared) or kwargs.get("out") is not None
    return is_told or is_first_ignored(effect, kwargs)


def is_first_ignored(effect: MemoryEffect, kwargs: dict[str, Any]) -> bool:
    """`baddbmm(input, a, b, beta=0)` is the product alone, whatever is in `input`."""
    return effect.reads_first_by_beta and kwargs.get("beta", 1) == 0


def without_first(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments but for the first, however it is given."""
    return args[1:], kwargs if args else dict(list(kwargs.items())[1:])


def first_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors of the first argument, however it is given."""
    return tensors_in(args[0] if args else next(iter(kwargs.values()), None))


def is_basic_assignment(args: Sequence[Any], function: Any) -> bool:
    """`x[index] = value` with an index that selects a view?"""
    if len(args) != 3 or getattr(function, "__name__", "") != "__setitem__":
        return False
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    return all(isinstance(part, _BASIC_INDICES) and not isinstance(part, bool) for part in parts)


def is_plain_index(args: Sequence[Any]) -> bool:
    """Does `x[i]` give a view of x?"""
    index = args[1] if len(args) == 2 else [args]
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)
