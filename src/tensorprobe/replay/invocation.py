"""One recorded call, made again: its function, its arguments, its surroundings, and its results under the names that
they were recorded by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.torch.dropout import RNNS, set_dropout_inert
from tensorprobe.capture.torch.function import DRAWS, UNDEFINED, base_op, find_function
from tensorprobe.model.tree import map_tree
from tensorprobe.replay.allocation import Allocation
from tensorprobe.replay.argument import UnknownArgumentError, build_arguments
from tensorprobe.replay.meaning.distributed import copies_only
from tensorprobe.replay.meaning.draw import find_draw
from tensorprobe.replay.meaning.fit import fit_meaning
from tensorprobe.replay.meaning.mindspore.call import (
    find_mask_by_gradient,
    find_mindspore_function,
    is_mindspore_random,
)
from tensorprobe.replay.meaning.registry import KernelMeaning, find_kernel_meaning
from tensorprobe.replay.meaning.scaler import find_scaler
from tensorprobe.replay.meaning.torch import Context, find_meaning
from tensorprobe.replay.object import make_object
from tensorprobe.replay.precision import Precision, default_dtype, torch_dtype
from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.workspace import lay_out
from tensorprobe.run.leaf import WRITTEN, Leaf, iter_leaves

_ATOMS = (torch.Tensor, torch.Size)
_NOTHING = nullcontext()

Tensors = Mapping[str, torch.Tensor]
"""By the names of their places: `input.0`, `kwargs.weight`, `output.1`."""


class NotReplayedError(Exception):
    """A call cannot be made again."""


class Invoker:
    """Makes recorded calls in one precision on one device."""

    def __init__(
        self,
        recorded: RecordedTensors,
        precision: Precision,
        device: torch.device,
        limit_bytes: int = 1 << 30,
        checked: set[Any] | None = None,
    ) -> None:
        """`checked`: see `Allocation`."""
        self.recorded = recorded
        self.allocation = Allocation(limit_bytes, checked)
        self.precision = precision
        self.device = device
        self._drops = not recorded.has_no_dropout
        self._region: Any = None
        """The region of autocast that the last call was made in."""
        self.note_choice: Callable[[Operation, torch.Tensor], None] | None = None
        """Told of a choice (topk, sort) how far what was chosen lies from what would be chosen now."""

    def build_arguments(
        self, operation: Operation, make_tensor: Callable[[Leaf], torch.Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        """What the call was given, with tensors as `make_tensor` makes them."""

        def make(leaf: Leaf) -> torch.Tensor:
            if not str(leaf.fields["type"]).endswith("Tensor"):
                raise UnknownArgumentError(f"an argument of type {leaf.fields['type'][:60]}")
            return make_tensor(leaf)

        tuples = operation.tuples
        args = build_arguments(list(operation.arguments), "input", tuples, make, self._make_object)
        kwargs = build_arguments(dict(operation.keywords), "kwargs", tuples, make, self._make_object)
        kwargs |= build_arguments(operation.settings, "settings", tuples, make, self._make_object)
        return self._place(operation, args, kwargs)

    def _place(self, operation: Operation, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Everything on the device of the replay, also where a text or a number says another one."""
        if kwargs.get("device") is not None:
            kwargs["device"] = self.device
        kwargs.pop("pin_memory", None)
        if operation.op == "to" and len(args) > 1 and isinstance(args[1], (str, int)):
            args[1] = self.device
        return args, kwargs

    def invoke(
        self,
        operation: Operation,
        args: list[Any],
        kwargs: dict[str, Any],
        around: AbstractContextManager[Any] = _NOTHING,
    ) -> tuple[Any, Tensors]:
        """Call it: what it returned, and the tensors in that. NotReplayedError where these are not what was recorded;
        whatever torch says to its arguments. `around`: is entered for the call itself."""
        function = self._find(operation)
        if self.find_kernel(operation) is not None:
            self.allocation.check_kernel(operation, function, args, kwargs)
        elif operation.framework != "mindspore" and not copies_only(operation.prefix, operation.op):
            self.allocation.check(operation, find_function(operation.prefix, operation.op), args, kwargs)
        with self._surroundings(operation), around:
            output = function(*args, **kwargs)
        if output is None and operation.writes_in_place and args:
            output = args[0]
        found = dict(tensors_by_slot(list(output) if isinstance(output, tuple) else [output], "output"))
        given = (*tensors_by_slot(args, f"{WRITTEN}.input"), *tensors_by_slot(kwargs, f"{WRITTEN}.kwargs"))
        found.update(given if WRITTEN in operation.fields else ())
        for leaf in operation.outputs:
            tensor = found.get(leaf.slot)
            if tensor is None or tuple(tensor.shape) != leaf.shape:
                shape = "nothing" if tensor is None else f"a tensor of {list(tensor.shape)}"
                raise NotReplayedError(f"it gave {shape} where {list(leaf.shape)} was recorded ({leaf.slot})")
        return output, found

    def find_kernel(self, operation: Operation) -> KernelMeaning | None:
        """What somebody has said that the call computes; the bits of a kernel are nobody's to say."""
        return find_kernel_meaning(operation.prefix, operation.op) if self.precision.is_wide else None

    def _find(self, operation: Operation) -> Callable[..., Any]:
        if operation.framework == "mindspore":
            return find_mindspore_function(operation, self._make_context(operation))
        kernel = self.find_kernel(operation)
        if kernel is not None:
            return fit_meaning(kernel, operation, lambda leaf: self.precision.convert(self.recorded.load(leaf)).clone())
        if not self._drops and operation.op in RNNS:
            return lambda *args, **kwargs: getattr(torch, operation.op)(*args, **kwargs)  # the one that drops nothing
        is_wide = self.precision.is_wide
        meaning = find_meaning(operation.prefix, operation.op, is_wide)
        if meaning is None and is_wide and self._drops:
            meaning = find_draw(operation.prefix, operation.op)
        if meaning is None and is_wide:
            meaning = find_scaler(operation.prefix, operation.op)
        if meaning is None:
            function, draw = find_function(operation.prefix, operation.op), self._make_draw(operation)
            return (lambda *args, **kwargs: draw(partial(function, *args, **kwargs))) if draw is not None else function
        context = self._make_context(operation)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return meaning(context, *args, **kwargs)
            except LookupError:  # nothing is special about this one
                return find_function(operation.prefix, operation.op)(*args, **kwargs)

        return call

    def _make_context(self, operation: Operation) -> Context:
        inputs, outputs = list(operation.inputs), list(operation.outputs)
        return Context(
            self.precision,
            lambda number: self.recorded.load(inputs[number]),
            lambda number: self._load_result(outputs[number]),
            lambda: lay_out(torch.ones(inputs[0].shape, dtype=torch_dtype(inputs[0].dtype)), inputs[0]),
            lambda: self._load_mask(operation),
            partial(self.note_choice, operation) if self.note_choice is not None else None,
            self._make_draw(operation),
            self._drops,
            self.recorded.chooses_anew,
        )

    def _load_result(self, leaf: Leaf) -> torch.Tensor:
        if self.recorded.is_lent and leaf.is_undefined:
            return torch.zeros(leaf.shape, dtype=torch_dtype(leaf.dtype))
        return self.recorded.load(leaf)

    def _make_draw(self, operation: Operation) -> Callable[[Callable[[], Any]], Any] | None:
        state = self._load_draw(operation, "generator_state")
        if state is None:
            return None

        def draw(function: Callable[[], Any]) -> Any:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(state.cpu())
                return function()

        return draw

    def _load_mask(self, operation: Operation) -> torch.Tensor | None:
        if operation.framework == "mindspore":
            return find_mask_by_gradient(operation, self.recorded)
        return self._load_draw(operation, "mask")

    def _load_draw(self, operation: Operation, role: str) -> torch.Tensor | None:
        leaf = next(iter_leaves(operation.fields.get(role), role), None)
        try:
            return self.recorded.load(leaf) if leaf is not None else None
        except MissingContentError:
            return None

    def _make_object(self, kind: str, value: Any) -> Any:
        return make_object(kind, value, self.precision, self.device)

    @contextmanager
    def _surroundings(self, operation: Operation) -> Iterator[None]:
        """Gradients are followed inside an autograd Function too: it is its derivative that is asked for."""
        is_followed = operation.fields.get("grad_enabled") is not False or is_followed_anyway(operation)
        casts = operation.fields.get("autocast") if not self.precision.is_wide else None
        is_kept = operation.fields.get("autocast_cache") is not False
        with ExitStack() as stack:
            stack.enter_context(default_dtype(self._find_default(operation)))
            if not self._drops:
                stack.callback(set_dropout_inert(True))
            stack.enter_context(torch.set_grad_enabled(is_followed))
            for device, dtype in casts.items() if isinstance(casts, dict) else ():
                if device == self.device.type and isinstance(dtype, str):
                    self._enter_region(operation.fields.get("autocast_region"))
                    stack.enter_context(torch.autocast(device, torch_dtype(dtype), cache_enabled=is_kept))
            yield

    def _find_default(self, operation: Operation) -> torch.dtype:
        """The dtype of what is made without one."""
        if self.precision.is_wide:
            return torch.float64
        found = operation.fields.get("default_dtype")
        dtype = torch_dtype(found) if isinstance(found, str) else torch.float32
        return dtype if dtype.is_floating_point else torch.float32

    def _enter_region(self, region: Any) -> None:
        """Autocast keeps what it has cast until its region ends."""
        if region is not None and region != self._region:
            self.close()
            torch.autocast_increment_nesting()
            self._region = region

    def close(self) -> None:
        """Leave the region of autocast that the last call was made in."""
        if self._region is not None:
            self._region = None
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()


def is_followed_anyway(operation: Operation) -> bool:
    """Are gradients followed although the program had them off? It is the derivative of an autograd Function that is
    asked for, and checkpointing of the older kind follows them only when it repeats its calls."""
    return operation.fields.get("grad_enabled") is False and (operation.inside is not None or operation.has_backward)


def is_random(operation: Operation) -> bool:
    """Can its result not be computed from its arguments?"""
    if operation.framework == "mindspore":
        return is_mindspore_random(operation)
    return base_op(operation.prefix, operation.op) in DRAWS


def is_undefined(operation: Operation) -> bool:
    """Does it return memory as it is?"""
    return base_op(operation.prefix, operation.op) in UNDEFINED


def tensors_by_slot(tree: Any, root: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of arguments or results, under the names of their places."""
    found: list[tuple[str, Any]] = []
    map_tree(tree, root, lambda value, path: found.append((path, value)), _ATOMS)
    return ((path, value) for path, value in found if isinstance(value, torch.Tensor))
