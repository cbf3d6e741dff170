"""The sentence of a comparison of two layouts, and what it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tensorprobe.compare.layout.explanation import Explanation
from tensorprobe.compare.layout.judge import LayoutJudgement
from tensorprobe.compare.layout.kernel import RankFinding
from tensorprobe.compare.layout.observable import GradientMatch, list_ranks
from tensorprobe.compare.layout.pool import Steps
from tensorprobe.compare.layout.weight import Stray, count_kinds
from tensorprobe.compare.result import CallResult, Role, Verdict, VerdictKind
from tensorprobe.compare.truth.finding import describe_finding, word_finding, word_numbers
from tensorprobe.model.count import count_noun
from tensorprobe.replay.true_step import TrueCall
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, word_lines

_MAX_NAMED = 4
Runs = Mapping[int, Run]


class LayoutWords:
    """Words one judgement of two layouts."""

    def __init__(self, judgement: LayoutJudgement, reference: Runs, candidate: Runs) -> None:
        self._judgement = judgement
        self._reference = reference
        self._candidate = candidate

    def give_verdict(self) -> Verdict:
        judgement = self._judgement
        if judgement.holdings.strays:
            return self._word_strays(judgement.holdings.strays)
        if not judgement.has_same_loss:
            return self._word_forward()
        if judgement.wrong_gradients:
            return self._word_gradients()
        if not judgement.has_loss and not judgement.gradients:
            return Verdict("not compared", "The two layouts have no loss and no gradients in common.", self._coverage())
        if judgement.findings:
            return self._word_finding(judgement.findings[0], judgement.findings[1:])
        evidence = (*self._word_loss(), *self._word_weights(), *self._coverage())
        if judgement.unknown_gradients:
            ranks = sorted({one.held.rank for one in judgement.unknown_gradients})
            count = len({one.held.name for one in judgement.unknown_gradients})
            headline = (
                f"The loss is the same, but the gradient of {count_noun(count, 'parameter')} of {list_ranks(ranks)} is "
                "not known: it is not in the dump (record at level mix), or could not be computed again."
            )
            return Verdict("incomplete", headline, evidence)
        losses = judgement.loss[:2] if judgement.loss is not None else None
        return Verdict("agree", self._word_agreement(), evidence, losses=losses)

    # -- the same meaning ----------------------------------------------------------------------------------------------

    def _word_agreement(self) -> str:
        judgement = self._judgement
        weights = {one.held.weight.name for one in judgement.gradients}
        what = ["the loss"] if judgement.has_loss else []
        what += [f"the gradients of {count_noun(len(weights), 'parameter')}"] if weights else []
        error = max((one.error for one in judgement.gradients), default=0.0)
        if judgement.loss is not None:
            first, second, _ = judgement.loss
            error = max(error, abs(first - second) / abs(first) if first else 0.0)
        digits = f"to {error:.0e}" if error else "exactly"
        return (
            f"The runs agree. They are one program in two layouts, {self._describe_layouts()}: both were executed "
            f"again in float64, and {' and '.join(what)} have the same value {digits}. What remains is rounding."
        )

    def _describe_layouts(self) -> str:
        counts = [len(self._judgement.reference), len(self._judgement.candidate)]
        words = ["1 process" if count == 1 else f"{count} ranks" for count in counts]
        return f"{words[0]} against {words[1]}"

    def _word_loss(self) -> Iterator[str]:
        judgement = self._judgement
        if judgement.loss is not None and len(judgement.losses[1].totals) > 1:
            ranks = list_ranks(list(judgement.losses[1].totals))
            yield f"the loss of the reference is {judgement.loss[2]} of the candidate ({ranks})"
        elif judgement.loss is not None and len(judgement.candidate) > 1:
            yield f"{list_ranks(list(judgement.losses[1].totals))} of the candidate has the loss"

    def _word_weights(self) -> Iterator[str]:
        counts = count_kinds(self._judgement.holdings, len(self._judgement.candidate))
        several = len(self._judgement.candidate) > 1
        words = {
            "cut": "cut into parts",
            "replicated": "the same on all ranks" if several else "whole",
            "placed": "whole on some ranks",
        }
        found = [f"{count} {words[kind]}" for kind, count in counts.items() if count]
        if found:
            yield f"weights of the reference: {', '.join(found)}"
        yield from self._word_rounding()
        missing = self._judgement.holdings.missing
        if missing:
            names = ", ".join(missing[:_MAX_NAMED])
            yield f"not compared: weights that are incomplete in the candidate: {names}"

    def _word_rounding(self) -> Iterator[str]:
        sides = ("reference", "candidate"), ("candidate", "reference")
        for count, (side, other) in zip(self._judgement.rounded, sides, strict=True):
            if count:
                tensors = count_noun(count, "tensor")
                yield f"precision: {tensors} of the {side} (weights, data) were rounded to the dtype of the {other}"

    def _coverage(self) -> tuple[str, ...]:
        lines = list(self._judgement.remarks)
        gaps = self._judgement.gaps
        if gaps:
            first, reason = next(iter(gaps.items()))
            calls = count_noun(len(gaps), "call")
            lines.append(f"not executed again: {calls}, recorded results used instead ({first}: {reason})")
        return tuple(lines)

    def _word_finding(self, one: RankFinding, others: Sequence[RankFinding]) -> Verdict:
        """A recorded result that is not what its call means."""
        call = self._find_record(one)
        evidence = [*word_numbers(one.finding), *self._lines({one.side: () if call is None else (call,)})]
        evidence += [
            f"also: {self._place_finding(other)}: {describe_finding(other.finding)}" for other in others[:_MAX_NAMED]
        ]
        headline = word_finding(one.side, self._place_finding(one), one.finding)
        calls = {one.side: () if call is None else (call,)}
        result = self._result(
            calls.get("reference"), calls.get("candidate", ()), "source", describe_finding(one.finding)
        )
        evidence += [*self._word_loss(), *self._word_weights(), *self._coverage()]
        return Verdict("source", headline, tuple(evidence), call=result)

    def _find_record(self, one: RankFinding) -> Call | None:
        return (self._reference if one.side == "reference" else self._candidate)[one.rank].by_name.get(
            one.finding.record
        )

    def _place_finding(self, one: RankFinding) -> str:
        runs = self._reference if one.side == "reference" else self._candidate
        call = self._find_record(one)
        where = runs[one.rank].context_path(call) if call is not None else None
        rank = f" of rank {one.rank}" if len(runs) > 1 else ""
        return f"{one.finding.record}{rank}" + (f" in {where}" if where else "")

    # -- another meaning -----------------------------------------------------------------------------------------------

    def _word_strays(self, strays: Sequence[Stray]) -> Verdict:
        first = strays[0]
        ranks = sorted({one.rank for one in strays if one.name == first.name})
        peers = sorted({one.rank for one in self._judgement.holdings.held if one.name == first.name})
        size = f" (relative difference {first.error:.2g})" if first.error is not None else ""
        beside = f"; {list_ranks(peers)} has the reference's" if len(peers) == 1 else ""
        beside = f"; {list_ranks(peers)} have the reference's" if len(peers) > 1 else beside
        headline = (
            f"The runs started from different values: {first.name} of {list_ranks(ranks)} is neither the reference's "
            f"nor a part of it{size}{beside}."
        )
        names = dict.fromkeys(one.name for one in strays)
        evidence = [
            f"{count_noun(len(names), 'parameter')} of the candidate {'differs' if len(names) == 1 else 'differ'}: "
            f"{', '.join([*names][:_MAX_NAMED])}"
        ]
        call = self._find_user(first.rank, first.name)
        evidence += [*self._word_losses(), *self._lines({"candidate": self._call("candidate", first.rank, call)})]
        evidence += self._word_rounding()
        result = self._result(None, self._call("candidate", first.rank, call), "entered", "other weights")
        return Verdict("unequal start", headline, (*evidence, *self._coverage()), call=result)

    def _word_losses(self) -> Iterator[str]:
        reference, candidate = self._judgement.losses
        if reference.totals or candidate.totals:
            sides = [_describe_loss(one.totals) for one in (reference, candidate)]
            same = "the same" if self._judgement.has_same_loss else "not the same"
            yield f"Without rounding, the loss is {same}: {sides[0]} in the reference, {sides[1]} in the candidate"

    def _word_forward(self) -> Verdict:
        judgement = self._judgement
        if judgement.untaken:
            return self._word_untaken()
        if not judgement.differences:
            return self._word_scale()
        first, *others = judgement.differences
        reference = self._call("reference", first.reference_rank, first.reference)
        candidate = self._call("candidate", first.ranks[0], first.call)
        place = self._describe_place(first)
        headline = f"The runs first differ at {place}: {first.because}."
        evidence = [*self._word_losses(), *self._lines({"reference": reference, "candidate": candidate})]
        evidence += [
            f"also: {self._describe_place(one)}: {one.because}" for one in others if one.is_clear or not first.is_clear
        ]
        result = self._result(reference, candidate, _role_of(first.kind), first.because)
        return Verdict(first.kind, headline, (*evidence, *self._word_weights(), *self._coverage()), call=result)

    def _word_untaken(self) -> Verdict:
        one = self._judgement.untaken[0]
        user = next(
            (user for step in self._judgement.reference.values() for user in step.step.users.get(one.leaf.number, ())),
            None,
        )
        what = f"{one.leaf.slot} of {user.name}" if user is not None else one.leaf.slot
        headline = (
            f"The ranks did not get all of the data: {list_ranks(one.ranks)} have the same part of {what} of the "
            f"reference, {one.doubled.describe()}, and no rank has {one.missing.describe()}."
        )
        return Verdict("unequal start", headline, (*self._word_losses(), *self._word_weights(), *self._coverage()))

    def _word_scale(self) -> Verdict:
        judgement = self._judgement
        readings = judgement.losses[0].readings, judgement.losses[1].readings
        headline = "The losses of the two layouts differ, but the call that causes this could not be found."
        if readings[0] and readings[1]:
            expected = next(iter(readings[0].values()))
            words, found = next(iter(readings[1].items()))
            times = f"{found / expected:.6g} times" if expected else "not"
            headline = (
                f"The loss of the candidate ({words}) is {times} that of the reference, although everything that it "
                "is computed from is a part of what the reference computes: it is scaled or averaged differently."
            )
        roots = [(rank, value) for rank, one in judgement.candidate.items() for value in one.step.roots]
        maker = next(((rank, one.maker) for rank, one in roots if one.maker is not None and one.array.size == 1), None)
        calls: dict[str, tuple[Call, ...]] = {}
        if maker is not None:
            calls = {
                "candidate": self._call("candidate", maker[0], judgement.candidate[maker[0]].step.calls.get(maker[1]))
            }
            passes = sum(value.array.size == 1 for rank, value in roots if rank == maker[0])
        evidence = [*self._word_losses(), *self._lines(calls)]
        if maker is not None and passes > 1:
            evidence.insert(1, f"each rank adds up the losses of {passes} backward passes")
        result = self._result((), calls.get("candidate", ()), "source", "its scale")
        return Verdict("source", headline, (*evidence, *self._word_weights(), *self._coverage()), call=result)

    def _word_gradients(self) -> Verdict:
        wrong = self._judgement.wrong_gradients
        first = max(wrong, key=lambda one: self._last_use(one.held.rank, one.held.name))
        name = first.held.name
        ranks = sorted({one.held.rank for one in wrong if one.held.name == name})
        place = f"{name} on {list_ranks(ranks)}"
        headline = f"The loss is the same, but the gradient of {place} is not: {_describe_gradient(first)}."
        kinds = Counter(one.kind for one in wrong)
        names = list(
            dict.fromkeys(
                one.held.name for one in sorted(wrong, key=lambda one: -self._last_use(one.held.rank, one.held.name))
            )
        )
        total = len(dict.fromkeys(one.held.name for one in self._judgement.gradients))
        evidence = [
            f"{len(names)} of {total} parameter gradients differ; in the order of the backward pass: "
            f"{', '.join(names[:_MAX_NAMED])}{' …' if len(names) > _MAX_NAMED else ''}",
            *(_describe_kind(kind, count) for kind, count in kinds.items() if len(kinds) > 1),
        ]
        user = self._find_user(first.held.rank, name)
        calls = self._call("candidate", first.held.rank, user)
        own = self._find_user(first.held.weight.ranks[0], first.held.weight.name, "reference")
        others = self._call("reference", first.held.weight.ranks[0], own)
        evidence += [f"it is used by {user.name}"] if user is not None else []
        evidence += self._lines({"reference": others, "candidate": calls})
        result = self._result(others, calls, "source", _describe_gradient(first))
        return Verdict(
            "source", headline, (*evidence, *self._word_loss(), *self._word_weights(), *self._coverage()), call=result
        )

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _steps(self, side: str) -> Steps:
        return self._judgement.reference if side == "reference" else self._judgement.candidate

    def _last_use(self, rank: int, name: str) -> int:
        call = self._find_user(rank, name)
        return call.position if call is not None else -1

    def _find_user(self, rank: int, name: str, side: str = "candidate") -> TrueCall | None:
        """The last call that takes a parameter: the first one of the backward pass."""
        step = self._steps(side)[rank].step
        values = {value.number for value in step.values if value.parameter == name}
        users = [
            call for call in step.calls.values() if not values.isdisjoint(call.inputs.values()) and call.caller is None
        ]
        return users[-1] if users else None

    def _call(self, side: str, rank: int, call: TrueCall | None) -> tuple[Call, ...]:
        runs = self._reference if side == "reference" else self._candidate
        found = runs[rank].by_name.get(call.inside or call.name) if call is not None and rank in runs else None
        return () if found is None else (found,)

    def _describe_place(self, one: Explanation) -> str:
        if one.call is None:
            return list_ranks(one.ranks)
        run = self._candidate[one.ranks[0]]
        found = run.by_name.get(one.call.name)
        where = run.context_path(found) if found is not None else one.call.module_path
        return f"{one.call.name} of {list_ranks(one.ranks)}" + (f" in {where}" if where else "")

    def _lines(self, calls: Mapping[str, tuple[Call, ...]]) -> list[str]:
        found = {}
        for side, listed in calls.items():
            runs = self._reference if side == "reference" else self._candidate
            for call in listed:
                run = next(run for run in runs.values() if run.by_name.get(call.name) is call)
                lines = run.describe_lines(call, None)
                if lines:
                    found[side] = lines
        return word_lines(found)

    def _result(
        self, reference: tuple[Call, ...] | None, candidate: tuple[Call, ...], role: Role, because: str
    ) -> CallResult | None:
        reference = reference or ()
        if not reference and not candidate:
            return None
        return CallResult(reference or candidate, candidate or reference, "truth", (), role, because)


def _role_of(kind: VerdictKind) -> Role:
    return "entered" if kind in ("entered", "unequal start") else "source"


def _describe_loss(totals: Mapping[int, float]) -> str:
    if len(totals) == 1:
        return repr(next(iter(totals.values())))
    shown = [f"{number!r} on rank {rank}" for rank, number in list(totals.items())[:_MAX_NAMED]]
    return ", ".join(shown) + (" …" if len(totals) > _MAX_NAMED else "") if shown else "none"


def _describe_gradient(one: GradientMatch) -> str:
    if one.kind == "share":
        return (
            f"each of {list_ranks(one.ranks)} has only its own share; together they are that of the reference, but "
            "nothing has added them up"
        )
    if one.kind == "factor":
        return f"it is {one.factor:.6g} times that of the reference"
    if one.kind == "none":
        return "only one run has it"
    return f"relative difference {one.error:.2g}"


def _describe_kind(kind: str, count: int) -> str:
    words = {
        "share": "are the share of one rank only",
        "factor": "are a multiple of those of the reference",
        "other": "differ in another way",
        "none": "exist in one run only",
    }
    return f"{count} of them {words[kind]}"
