"""One run against what it means: where does it lose its digits, and what in it is wrong?

The step is replayed in float64, which gives the truth of every value, and each call is replayed alone on its recorded
inputs, which gives its own error. Rounding is information; a kernel that does not compute what its call means, a
gradient that is not the derivative, a number that became infinite and a value that somebody wrote unseen are findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tensorprobe.replay.alone import LoneCall, LoneFunction
from tensorprobe.replay.argument import Leaf, iter_leaves
from tensorprobe.replay.backward_pass import LeafGradient
from tensorprobe.replay.engine import Onlooker, Replay, describe_error
from tensorprobe.replay.error import measure
from tensorprobe.replay.gradient import backward_leaves
from tensorprobe.replay.gradient_sum import find_broken_sums
from tensorprobe.replay.invocation import Invoker, Tensors, is_random, is_undefined
from tensorprobe.replay.judge import Unit, allow_units, judge
from tensorprobe.replay.precision import Precision, torch_dtype
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.result import CallTruth, Finding, Truth
from tensorprobe.store.frame import describe_frame


def find_truth(program: Program, device: torch.device, advance: Callable[[], None] = lambda: None) -> Truth:
    """Replay a step in float64 and hold everything that was recorded against it."""
    judge_ = TruthJudge(program, device)
    replay = Replay(program, Precision("float64"), device, judge_, advance)
    sums = find_broken_sums(program, judge_.recorded)
    replay.pin_gradients(sums)
    roots = (root for one in replay.passes for root in one.roots if root is not None)
    judge_.roots = frozenset(root.tensor for root in roots if root.tensor is not None)
    judge_.has_second_derivatives = any(one.creates_graph for one in replay.passes)
    replay.run()
    findings = judge_.findings
    writes = replay.workspace.unseen_writes if program.rank.header.get("level") != "api_dump" else []
    findings += [
        Finding("write", write.operation, write.leaf.slot, other=write.before.slot)
        for write in writes  # api_dump leaves out what an optimizer calls
    ]
    findings += [
        Finding("sum", one.record, one.gradient.slot, one.judgement, other=", ".join(one.users)) for one in sums
    ]
    return Truth(
        name=program.rank.name,
        coverage=replay.coverage,
        rows=list(judge_.rows.values()),
        findings=findings,
        losses=judge_.losses,
        not_judged=judge_.not_judged,
        locations=dict(_find_locations(program, findings)),
    )


def _find_locations(program: Program, findings: list[Finding]) -> Iterator[tuple[str, str]]:
    """The line of each finding: that of its forward call."""
    for finding in findings:
        frames = program.rank.stack(finding.record) or program.rank.stack(
            finding.record.replace(".backward", ".forward")
        )
        if frames:
            yield finding.record, describe_frame(frames[0])


class TruthJudge(Onlooker):
    """Holds what was recorded against what the replay gives, value by value."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program = program
        self.recorded = RecordedTensors(program.rank, device)
        self._invoker = Invoker(self.recorded, Precision("float64"), device)
        self.rows: dict[tuple[str, str], CallTruth] = {}
        self.findings: list[Finding] = []
        self.losses: list[tuple[str, float, float]] = []
        self.not_judged: dict[str, str] = {}
        self.roots: frozenset[int] = frozenset()
        self.has_second_derivatives = False
        """Are gradients of gradients asked for? What comes back to a call is then more than its own derivative."""
        self._gradient_leaves: dict[str, dict[str, Leaf]] = {}

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for leaf in operation.outputs:
            if leaf.is_floating and leaf.slot in tensors:
                self._measure(operation.name, leaf, tensors[leaf.slot])
                if leaf.tensor in self.roots and not operation.is_module and leaf.element_count == 1:
                    self._note_loss(operation, leaf, tensors[leaf.slot])
        if not operation.is_module:
            self._judge_alone(operation)

    def _note_loss(self, operation: Operation, leaf: Leaf, truth: torch.Tensor) -> None:
        try:
            recorded = self.recorded.load(leaf)
        except MissingContentError as error:
            self.not_judged[operation.name] = str(error)
            return
        self.losses.append((operation.name, float(recorded), float(truth.detach())))

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        if leaf.after is not None and leaf.after.data_name is not None:
            self._measure(record, replace(leaf.after, slot=leaf.name), gradient)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        leaf = self._leaves_of(record).get(slot)
        if leaf is not None:
            self._measure(record, leaf, gradient)

    def _judge_alone(self, operation: Operation) -> None:
        if is_random(operation) or is_undefined(operation):
            return
        arriving, departing = self._gradients(operation)
        try:
            alone = self._make_alone(operation, arriving)
            for leaf in operation.outputs:
                if leaf.is_floating:
                    self._judge_result(operation, leaf, alone, arriving.get(leaf.slot))
            if operation.inside is None and not self.has_second_derivatives:
                for slot in departing:
                    self._judge_gradient(operation, slot, departing, alone)
        except Exception as error:  # no file of an input, or whatever torch says to float64
            self.not_judged[operation.name] = describe_error(error)

    def _make_alone(self, operation: Operation, arriving: dict[str, Leaf]) -> LoneCall:
        if not operation.is_made_of_calls:
            return LoneCall(self._invoker, operation, arriving)
        return LoneFunction(self._invoker, operation, arriving)

    def _judge_result(self, operation: Operation, leaf: Leaf, alone: LoneCall, gradient: Leaf | None) -> None:
        recorded, truth = self.recorded.load(leaf), alone.results[leaf.slot].detach()
        row = self.rows[operation.name, leaf.slot]
        unit = self._unit(operation, leaf)
        counts = [given.element_count for given in operation.inputs if given.is_floating]
        allowed = allow_units(leaf.element_count, counts)
        row.own = judge(recorded, truth, unit, allowed, lambda: alone.find_sensitivity(leaf.slot))
        if not row.own.is_explained:
            self.findings.append(Finding("kernel", operation.name, leaf.slot, row.own))
        overflow = int((~torch.isfinite(recorded) & torch.isfinite(truth)).sum())
        if overflow:
            self.findings.append(Finding("overflow", operation.name, leaf.slot, count=overflow))
        if gradient is not None:
            slope = self.recorded.load(gradient).to(truth.dtype)
            difference = torch.nan_to_num(recorded.to(truth.dtype) - truth, 0.0, 0.0, 0.0)
            row.effect = float((slope.conj() * difference).sum().real)

    def _judge_gradient(self, operation: Operation, slot: str, departing: dict[str, Leaf], alone: LoneCall) -> None:
        truth, leaf = alone.gradients.get(slot), departing[slot]
        if truth is None or not leaf.is_floating:
            return
        recorded = self.recorded.load(leaf)
        for twin in alone.twins.get(slot, ()):  # the same tensor in another place
            if twin in departing:
                recorded = recorded + self.recorded.load(departing[twin])
        unit = self._unit(operation, leaf)
        counts = [given.element_count for given in (*operation.inputs, *operation.outputs) if given.is_floating]
        allowed = allow_units(leaf.element_count, counts)
        judgement = judge(recorded, truth, unit, allowed, lambda: alone.find_gradient_sensitivity(slot))
        row = self.rows.setdefault(
            (operation.backward_name, leaf.slot), CallTruth(operation.backward_name, leaf.slot, leaf.dtype)
        )
        row.own = judgement
        if not judgement.is_explained:
            self.findings.append(Finding("derivative", operation.backward_name, leaf.slot, judgement))
        overflow = int((~torch.isfinite(recorded) & torch.isfinite(truth)).sum())
        if overflow:
            self.findings.append(Finding("overflow", operation.backward_name, leaf.slot, count=overflow))

    def _unit(self, operation: Operation, leaf: Leaf) -> Unit:
        """What one rounding is: of the result's dtype, or of the one in which autocast has it computed."""
        casts = operation.fields.get("autocast")
        names = [str(dtype) for dtype in casts.values()] if isinstance(casts, dict) else []
        return Unit.of(*(torch_dtype(name) for name in (leaf.dtype, *names)))

    def _measure(self, record: str, leaf: Leaf, truth: torch.Tensor) -> None:
        try:
            recorded = self.recorded.load(leaf)
        except MissingContentError:
            return
        row = self.rows.setdefault((record, leaf.slot), CallTruth(record, leaf.slot, leaf.dtype))
        row.accumulated = measure(recorded, truth)

    def _gradients(self, operation: Operation) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
        return backward_leaves(self._program.gradients.get(operation.backward_name, {}))

    def _leaves_of(self, record: str) -> dict[str, Leaf]:
        found = self._gradient_leaves.get(record)
        if found is None:
            found = self._gradient_leaves[record] = dict(_named_leaves(self._program.gradients.get(record, {})))
        return found


def _named_leaves(fields: Any) -> Iterator[tuple[str, Leaf]]:
    """The tensors of a backward record, or of one of the gradients of parameters, by their places."""
    slots = {"input": "input", "output": "output", "output_kwargs": "kwargs"}
    for name, tree in fields.items():
        for leaf in iter_leaves(tree, slots.get(name, name)):
            yield (leaf.slot if name in slots else name), leaf
