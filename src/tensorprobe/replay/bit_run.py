"""Makes the calls of a MindSpore dump again, in MindSpore: one by one, on their recorded inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore
import torch
from mindspore import Tensor, context, ops

from tensorprobe.replay.invocation import NotReplayedError
from tensorprobe.replay.mindspore_bit import BitCheck
from tensorprobe.replay.mindspore_function import invoke, make_tensor, meant_results
from tensorprobe.replay.program import Operation, read_program
from tensorprobe.replay.reason import describe_error
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors, bits_of, is_bit_equal
from tensorprobe.run.leaf import Leaf
from tensorprobe.store.reader import RankDump

Tensors = dict[str, Tensor]


class BitRun:
    """One step of one process."""

    def __init__(self, rank: RankDump) -> None:
        self._program = read_program(rank)
        self._recorded = RecordedTensors(rank, torch.device("cpu"))
        self._found = BitCheck(rank.name)
        self._by_name = {operation.name: operation for operation in self._program.calls()}

    def run(self) -> BitCheck:
        mode = context.get_context("mode")
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        try:
            for operation in self._program.calls():
                if operation.has_ended:
                    self._check_links(operation)
                    self._check_call(operation)
        finally:
            mindspore.set_context(mode=mode)
        return self._found

    def _check_links(self, operation: Operation) -> None:
        for leaf in operation.inputs:
            source = self._by_name.get(leaf.source or "")
            if source is None:
                continue
            self._found.link_count += 1
            try:
                recorded = self._recorded.load(leaf)
                if not any(is_bit_equal(recorded, self._recorded.load(made)) for made in source.outputs):
                    self._found.broken_links.append(f"{operation.name}.{leaf.slot}")
            except MissingContentError:
                self._found.link_count -= 1

    def _check_call(self, operation: Operation) -> None:
        self._found.call_count += 1
        if "generator" in operation.fields:
            self._found.random += 1
            return
        try:
            results = self._invoke(operation, self._read_inputs(operation))
            wrong = [leaf.slot for leaf in meant_results(operation) if not self._is_same(leaf, results[leaf.slot])]
        except Exception as error:  # no file, no kernel, or whatever MindSpore says to its arguments
            self._found.not_run[operation.name] = describe_error(error)
            return
        self._found.different += [f"{operation.name}.{slot}" for slot in wrong]
        self._found.same += not wrong
        self._check_gradients(operation)

    def _check_gradients(self, operation: Operation) -> None:
        arriving, departing = self._program.gradients_of(operation)
        wanted = {slot: leaf for slot, leaf in departing.items() if leaf.is_floating}
        if not arriving or not wanted:
            return
        try:
            found = self._differentiate(operation, arriving, list(wanted))
            wrong = [slot for slot, leaf in wanted.items() if not self._is_same(leaf, found[slot])]
        except Exception as error:
            self._found.gradients_not_run[operation.backward_name] = describe_error(error)
            return
        self._found.gradient_count += len(wanted)
        self._found.different_gradients += [f"{operation.backward_name}.{wanted[slot].slot}" for slot in wrong]

    def _invoke(self, operation: Operation, given: Mapping[str, Tensor]) -> Tensors:
        """What the call returns, by the places of its results."""
        output = invoke(operation, given)
        found = dict(_tensors_by_slot(list(output) if isinstance(output, tuple) else [output], "output"))
        missing = [leaf.slot for leaf in meant_results(operation) if leaf.slot not in found]
        if missing:
            raise NotReplayedError(f"it gave nothing for {missing[0]}")
        return found

    def _differentiate(self, operation: Operation, arriving: Mapping[str, Leaf], wanted: list[str]) -> Tensors:
        """The gradients of some of its inputs, for those of its results that were recorded; zeros for the others."""
        given = self._read_inputs(operation)
        slots = [leaf.slot for leaf in meant_results(operation) if leaf.is_floating]
        followed = [slot for slot in slots if slot in arriving] or slots

        def call(*moved: Tensor) -> Any:
            results = self._invoke(operation, {**given, **dict(zip(wanted, moved, strict=True))})
            found = tuple(results[slot] for slot in followed)
            return found if len(found) > 1 else found[0]

        seeds = tuple(self._make(arriving[slot]) for slot in followed)
        gradient = ops.GradOperation(get_all=True, sens_param=True)(call)
        found = gradient(*(given[slot] for slot in wanted), seeds if len(seeds) > 1 else seeds[0])
        return dict(zip(wanted, found, strict=True))

    def _read_inputs(self, operation: Operation) -> Tensors:
        return {leaf.slot: self._make(leaf) for leaf in operation.inputs}

    def _make(self, leaf: Leaf) -> Tensor:
        return make_tensor(self._recorded.load(leaf))

    def _is_same(self, leaf: Leaf, tensor: Tensor) -> bool:
        recorded = self._recorded.load(leaf)
        if tensor.dtype == mindspore.bfloat16:
            found = torch.from_numpy(tensor.astype(mindspore.float32).asnumpy().copy()).to(torch.bfloat16)
        else:
            found = torch.from_numpy(tensor.asnumpy().copy())
        return found.shape == recorded.shape and bool(torch.equal(bits_of(found), bits_of(recorded)))


def _tensors_by_slot(tree: Any, slot: str) -> list[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        return [(slot, tree)]
    if isinstance(tree, (list, tuple)):
        return [found for index, item in enumerate(tree) for found in _tensors_by_slot(item, f"{slot}.{index}")]
    return []
