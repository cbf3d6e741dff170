"""The sentence of a comparison of two layouts by statistics, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorprobe.compare.layout.difference import Beginning
from tensorprobe.compare.layout.observable import list_ranks
from tensorprobe.compare.layout.statistic.judge import SummaryJudgement
from tensorprobe.compare.result import CallResult, Verdict
from tensorprobe.model.count import count_noun
from tensorprobe.replay.true_step import TrueCall
from tensorprobe.run.step import Run, word_lines

_MAX_NAMED = 4


class SummaryWords:
    """The sentence, and what it rests on."""

    def __init__(self, judgement: SummaryJudgement, runs: Mapping[int, Run]) -> None:
        self._judgement = judgement
        self._runs = runs

    def give_verdict(self) -> Verdict:
        judgement = self._judgement
        if judgement.strays:
            return self._word_strays()
        if judgement.has_losses and judgement.loss is None:
            return self._word_forward()
        if judgement.wrong_gradients:
            return self._word_gradients()
        unknown = list(self._word_unknown())
        what = ["the loss"] if judgement.loss is not None else []
        same = [one for one in judgement.gradients if one.kind == "same"]
        what += [f"the gradients of {count_noun(len(same), 'parameter')}"] if same else []
        known = {one.name for one in judgement.held if one.kind != "unknown"}
        what += [count_noun(len(known), "parameter")] if known else []
        if judgement.loss is None or unknown:
            headline = "Statistics alone do not tell whether the two layouts agree: " + (
                "; ".join(unknown) or "there is no loss in both runs"
            )
            return Verdict("incomplete", f"{headline}. Record with task tensor or replay.", self._evidence())
        headline = (
            f"The runs agree, as far as statistics tell. They are one program in two layouts, {self._layouts()}: "
            f"{_list(what)} have the same norm, mean, largest and smallest number, taken together over the ranks."
        )
        return Verdict("agree", headline, self._evidence(), losses=judgement.loss[:2])

    def _layouts(self) -> str:
        counts = [len(self._judgement.reference), len(self._judgement.candidate)]
        return " against ".join("1 process" if count == 1 else f"{count} ranks" for count in counts)

    def _word_unknown(self) -> Iterator[str]:
        judgement = self._judgement
        weights = dict.fromkeys(one.name for one in judgement.held if one.kind == "unknown")
        if weights:
            yield f"the reference has nothing of the size of {count_noun(len(weights), 'parameter')} ({_name(weights)})"
        gradients = [one.name for one in judgement.gradients if one.kind == "unknown"]
        if gradients:
            which = f"{count_noun(len(gradients), 'parameter')} is not in the dump, or only in shares"
            yield f"the gradient of {which} ({_name(gradients)})"

    def _word_strays(self) -> Verdict:
        strays = self._judgement.strays
        first = strays[0]
        ranks = [one.rank for one in strays if one.name == first.name]
        size = f" (relative difference about {first.error:.2g})" if first.error else ""
        peers = f"; {list_ranks(first.peers)} fit" if len(first.peers) > 1 else ""
        peers = f"; {list_ranks(first.peers)} fits" if len(first.peers) == 1 else peers
        headline = (
            f"The runs started from different values: by its statistics, {first.name} of {list_ranks(ranks)} is "
            f"neither the reference's nor a part of it{size}{peers}."
        )
        names = dict.fromkeys(one.name for one in strays)
        differ = "differs" if len(names) == 1 else "differ"
        evidence = f"{count_noun(len(names), 'parameter')} of the candidate {differ}: {_name(names)}"
        return Verdict("unequal start", headline, (evidence, *self._evidence()))

    def _word_forward(self) -> Verdict:
        if not self._judgement.beginnings:
            return Verdict("source", self._word_scale(), self._evidence())
        (first, kind, because), *others = self._judgement.beginnings
        headline = f"The runs first differ at {self._place(first)}: {because}."
        last = self._judgement.last
        if last is not None:
            headline = (
                f"The runs first differ between {self._place(first)} and {self._place(last)}: there the difference is "
                f"larger than rounding, and at the first of the two {because}."
                if last.call.name != first.call.name
                else f"{headline.removesuffix('.')} (by little more than rounding)."
            )
        evidence = [*self._lines(first.rank, first.call)]
        evidence += [f"also: {self._place(one)}: {words}" for one, _, words in others]
        return Verdict(kind, headline, (*evidence, *self._evidence()), call=self._result(first, because))

    def _word_scale(self) -> str:
        readings = [next(iter(loss.readings.items())) for loss in self._judgement.losses]
        (_, expected), (words, found) = readings
        times = f"{found / expected:.6g} times" if expected else "not"
        return (
            f"The loss of the candidate ({words}) is {times} that of the reference, and statistics do not show where "
            "the runs diverge: it may be scaled or averaged differently."
        )

    def _word_gradients(self) -> Verdict:
        wrong = self._judgement.wrong_gradients
        first = wrong[-1]
        words = {
            "share": f"each of {list_ranks(first.ranks)} has only its own share; together they are that of the "
            "reference, but nothing has added them up",
            "factor": f"it is {first.factor or 0.0:.6g} times that of the reference",
        }
        because = words.get(first.kind, "its statistics differ")
        headline = (
            f"The loss is the same, but the gradient of {first.name} on {list_ranks(first.ranks)} is not: {because}."
        )
        names = _name([one.name for one in reversed(wrong)])
        evidence = f"{len(wrong)} of {len(self._judgement.gradients)} parameter gradients differ: {names}"
        return Verdict("source", headline, (evidence, *self._evidence()))

    def _evidence(self) -> tuple[str, ...]:
        judgement = self._judgement
        lines = [
            "compared by statistics: the tensors were not recorded, and what has the same statistics is taken as equal"
        ]
        for side, loss in zip(("reference", "candidate"), judgement.losses, strict=True):
            shown = [f"{number!r} on rank {rank}" for rank, number in loss.totals.items()][:_MAX_NAMED]
            lines.append(f"the loss of the {side}: {', '.join(shown) or 'not known'}")
        if not judgement.gradients:
            lines.append("not judged: parameter gradients, which were not recorded (record at level mix)")
        return (*lines, *(f"not judged: {words}" for words in self._word_unknown()))

    def _place(self, one: Beginning) -> str:
        where = one.call.module_path
        return f"{one.call.name} of {list_ranks(one.ranks)}" + (f" in {where}" if where else "")

    def _lines(self, rank: int, call: TrueCall) -> list[str]:
        run = self._runs[rank]
        found = run.by_name.get(call.inside or call.name)
        lines = run.describe_lines(found, None) if found is not None else None
        return word_lines({"candidate": lines}) if lines else []

    def _result(self, one: Beginning, because: str) -> CallResult | None:
        found = self._runs[one.rank].by_name.get(one.call.name)
        return None if found is None else CallResult((found,), (found,), "truth", (), "source", because)


def _name(names: Sequence[str] | Mapping[str, None]) -> str:
    listed = list(names)
    return ", ".join(listed[:_MAX_NAMED]) + (" …" if len(listed) > _MAX_NAMED else "")


def _list(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)
