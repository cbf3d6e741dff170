"""One run against what it means: where does it lose its digits, and what in it is wrong?

The step is replayed in float64, which gives the truth of every value, and each call is replayed alone on its recorded
inputs, which gives its own error. Rounding is information; a kernel that does not compute what its call means, a
gradient that is not the derivative, a number that became infinite and a value that somebody wrote unseen are findings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from tensorprobe.replay.alone import LoneCall, LoneExchange, LoneFunction
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.communication import read_communication
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.error import measure
from tensorprobe.replay.gradient_sum import BrokenSum, find_broken_sums
from tensorprobe.replay.invocation import Invoker, NotReplayedError, Tensors, is_random, is_undefined
from tensorprobe.replay.joint import run_jointly
from tensorprobe.replay.joint_record import JointRecord, RecordedWholes
from tensorprobe.replay.judge import Unit, allow_units, judge
from tensorprobe.replay.meaning.registry import MeaningError
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.precision import Precision, torch_dtype
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.reason import describe_error
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.replica import find_drifts
from tensorprobe.replay.result import CallTruth, Finding, Truth
from tensorprobe.replay.spread_call import is_arranging
from tensorprobe.run.backward_pass import LeafGradient
from tensorprobe.run.leaf import Leaf
from tensorprobe.store.frame import describe_frame

_CUT_OFF = "the run ended before this step did: what it had not recorded by then is not covered"


def find_truths(
    programs: Sequence[Program], device: torch.device, advance: Callable[[], None] = lambda: None
) -> list[Truth]:
    """Replay a step of one process, or of several together, in float64, and hold everything that was recorded against
    it."""
    judges = [TruthJudge(program, device) for program in programs]
    replays = [
        Replay(program, Precision("float64"), device, judge_, advance)
        for program, judge_ in zip(programs, judges, strict=True)
    ]
    joint = JointRecord(
        {replay.rank: replay.program for replay in replays},
        {replay.rank: judge_.recorded for replay, judge_ in zip(replays, judges, strict=True)},
    )
    for replay, judge_ in zip(replays, judges, strict=True):
        judge_.sums = find_broken_sums(
            replay.program, RecordedTensors(replay.program.rank, device, replay.program.kept)
        )
        replay.pin_gradients(judge_.sums)
        judge_.roots = replay.roots
        judge_.has_second_derivatives = any(one.creates_graph for one in replay.passes)
        judge_.join(joint, replay.participant.flow.communicating)
    drifts = list(find_drifts(joint.programs, joint.recorded)) if len(replays) > 1 else []
    for replay, judge_ in zip(replays, judges, strict=True):
        judge_.findings += [finding for rank, finding in drifts if rank == replay.rank]
    with torch.random.fork_rng(devices=()):  # whatever a call draws, the program that asks draws the same as before
        run_jointly(replays)
    return [make_truth(replay, judge_) for replay, judge_ in zip(replays, judges, strict=True)]


def make_truth(replay: Replay, judge_: TruthJudge) -> Truth:
    """What is said of one process, after its replay."""
    program, findings = replay.program, judge_.findings
    if not program.rank.is_complete:
        replay.coverage.remarks.append(_CUT_OFF)
    writes = replay.workspace.unseen_writes if program.rank.header.get("level") != "api_dump" else []
    findings += [
        Finding("write", write.operation, write.leaf.slot, other=write.before.slot)
        for write in writes  # api_dump leaves out what an optimizer calls
    ]
    findings += [
        Finding("sum", one.record, one.gradient.slot, one.judgement, other=", ".join(one.users)) for one in judge_.sums
    ]
    findings.sort(key=lambda finding: program.position_of(finding.record))  # backward runs the other way round
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
        self._rank = program.rank.rank or 0
        self._recorded = RecordedTensors(program.rank, device, program.kept)
        self._wholes = RecordedWholes(program.rank, device, program.kept)
        self._invoker = Invoker(self._wholes, Precision("float64"), device, program.limit_bytes)
        self.rows: dict[tuple[str, str], CallTruth] = {}
        self.findings: list[Finding] = []
        self.losses: list[tuple[str, float, float]] = []
        self.not_judged: dict[str, str] = {}
        self.sums: list[BrokenSum] = []
        self.has_second_derivatives = False
        """Are gradients of gradients asked for? What comes back to a call is then more than its own derivative."""
        self.communicating: set[str] = set()
        """The autograd Functions that communicate with other ranks."""
        self._joint: JointRecord | None = None

    @property
    def recorded(self) -> RecordedTensors:
        return self._recorded

    def join(self, joint: JointRecord, communicating: set[str]) -> None:
        """Look at what other ranks recorded, too. `communicating`: the autograd Functions that do."""
        self._joint = self._wholes.joint = joint
        self.communicating = communicating

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        communication = read_communication(operation)
        for leaf in communication.results if communication is not None else ():
            self._recorded.note_late(leaf)
            self._wholes.note_late(leaf)
        for leaf in operation.outputs:
            if leaf.is_floating and leaf.slot in tensors and not leaf.is_undefined:
                self._measure(operation.name, leaf, tensors[leaf.slot])
                if leaf.element_count == 1 and not operation.is_module and self.roots.has(operation, leaf):
                    self._note_loss(operation, leaf, tensors[leaf.slot])
        if not operation.is_module:
            self._judge_alone(operation)

    def _note_loss(self, operation: Operation, leaf: Leaf, truth: torch.Tensor) -> None:
        try:
            recorded = float(self._recorded.load(leaf))
        except MissingContentError as error:
            number = leaf.fields.get("Max")  # the statistics of one number are that number
            if not isinstance(number, (int, float)):
                self.not_judged[operation.name] = str(error)
                return
            recorded = float(number)
        except (UnknownArgumentError, RuntimeError) as error:  # a loss that is complex
            self.not_judged[operation.name] = describe_error(error)
            return
        self.losses.append((operation.name, recorded, float(truth.detach().real)))

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        leaf = self._program.gradient_leaf(record, slot)
        if leaf is not None:
            self._measure(record, leaf, gradient)

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        if leaf.after is not None and leaf.after.data_name is not None:
            self._measure(record, replace(leaf.after, slot=leaf.name), gradient)

    def _judge_alone(self, operation: Operation) -> None:
        if is_random(operation) or is_undefined(operation) or is_arranging(operation):
            return
        arriving, departing = self._program.gradients_of(operation)
        try:
            alone = self._make_alone(operation, arriving)
            for leaf in operation.outputs:
                if leaf.is_floating and leaf.slot in alone.results and not leaf.is_undefined:
                    self._judge_result(operation, leaf, alone, arriving.get(leaf.slot))
            if operation.inside is None and not self.has_second_derivatives and isinstance(alone, LoneCall):
                for slot in departing:
                    self._judge_gradient(operation, slot, departing, alone)
        except Exception as error:  # no file of an input, or whatever torch says to float64
            self.not_judged[operation.name] = describe_error(error)

    def _make_alone(self, operation: Operation, arriving: Mapping[str, Leaf]) -> LoneCall | LoneExchange:
        communication = read_communication(operation)
        if communication is not None:
            calls = self._joint.find_calls(operation, self._rank) if self._joint is not None else None
            if calls is None:
                raise NotReplayedError("what other ranks gave to it is not there")
            return LoneExchange(calls, communication.members(self._rank).index(self._rank), Precision("float64"))
        if operation.name in self.communicating:
            raise NotReplayedError("what it computes depends on other ranks")
        kernel = self._invoker.find_kernel(operation)
        if not operation.is_made_of_calls or kernel is not None:
            try:
                return LoneCall(self._invoker, operation, arriving)
            except MeaningError:
                if not operation.is_made_of_calls or kernel is None or not kernel.is_built_in:
                    raise
        return LoneFunction(self._invoker, operation, arriving)

    def _judge_result(
        self, operation: Operation, leaf: Leaf, alone: LoneCall | LoneExchange, gradient: Leaf | None
    ) -> None:
        recorded, truth = self._wholes.load(leaf), alone.results[leaf.slot].detach()
        row = self.rows.setdefault((operation.name, leaf.slot), CallTruth(operation.name, leaf.slot, leaf.dtype))
        unit = self._unit(operation, leaf)
        counts = [given.element_count for given in operation.inputs if given.is_floating]
        allowed = allow_units(leaf.element_count, counts)
        row.own = judge(recorded, truth, unit, allowed, alone.find_sensitivities(leaf.slot))
        if not row.own.is_explained:
            self.findings.append(Finding("kernel", operation.name, leaf.slot, row.own, other=alone.meaning))
        overflow = int((~torch.isfinite(recorded) & torch.isfinite(truth)).sum())
        if overflow:
            self.findings.append(Finding("overflow", operation.name, leaf.slot, count=overflow))
        if gradient is not None:
            slope = self._wholes.load(gradient).to(truth.dtype)
            difference = torch.nan_to_num(recorded.to(truth.dtype) - truth, 0.0, 0.0, 0.0)
            effect = float((slope.conj() * difference).sum().real)
            row.effect = effect if math.isfinite(effect) else None

    def _judge_gradient(self, operation: Operation, slot: str, departing: Mapping[str, Leaf], alone: LoneCall) -> None:
        places, leaf = alone.find_places(slot), departing[slot]
        told = [place for place in places if place in departing]
        truth = alone.gradients.get(places[0])
        if truth is None or not leaf.is_floating or leaf.is_undefined or told[0] != slot:
            return
        recorded = self._wholes.load(leaf)
        if len(told) > 1:
            shares = [self._wholes.load(departing[place]).to(truth.dtype) for place in told]
            recorded = torch.stack(shares).sum(0).to(recorded.dtype)
        unit = self._unit(operation, leaf)
        counts = [given.element_count for given in (*operation.inputs, *operation.outputs) if given.is_floating]
        allowed = allow_units(leaf.element_count, counts)
        judgement = judge(recorded, truth, unit, allowed, alone.find_gradient_sensitivities(places[0]))
        row = self.rows.setdefault(
            (operation.backward_name, leaf.slot), CallTruth(operation.backward_name, leaf.slot, leaf.dtype)
        )
        row.own = judgement
        if not judgement.is_explained:
            found = Finding("derivative", operation.backward_name, leaf.slot, judgement, other=alone.meaning)
            self.findings.append(found)
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
            error = measure(self._recorded.load(leaf), truth)
        except MissingContentError:
            return
        except Exception as problem:  # what was recorded is of another kind than what was computed
            self.not_judged[record] = describe_error(problem)
            return
        row = self.rows.setdefault((record, leaf.slot), CallTruth(record, leaf.slot, leaf.dtype))
        row.accumulated = error
