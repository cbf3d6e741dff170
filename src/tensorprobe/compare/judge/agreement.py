"""The sentence where no call is to blame: the runs agree, or it is not known, because something was not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tensorprobe.compare.judge.evidence import MAX_NAMES, MAX_VALUES, Finding
from tensorprobe.compare.judge.status import DISSOLVED, STRUCTURE_ONLY
from tensorprobe.compare.judge.uncompared import Uncompared, find_uncompared, is_unfinished
from tensorprobe.compare.result import ValuePair, Verdict
from tensorprobe.model.count import count_noun

WHAT_TO_DO = (
    "record the runs again; or, if this is of no concern, allow it: --allow-uncompared, in Python allow_uncompared=True"
)


def word_agreement(finding: Finding) -> Verdict:
    """Nothing that was compared differs."""
    own = [pair for pair in finding.pairs if not pair.is_framework_made] or finding.pairs
    values = [value for pair in own for value in pair.values if value.is_tensor]
    compared = [value for value in values if value.status in ("equal", "close")]
    if not compared and not any(pair.values for pair in own):
        return Verdict("not compared", "Nothing could be compared: no call of one run has a partner in the other.")
    if not compared and all(value.reason == STRUCTURE_ONLY for value in values):
        words = count_noun(len(finding.pairs), "call is paired, its", "calls are paired, their")
        words += " shapes and arguments agree, no values were recorded"
        return Verdict("not compared", f"Only the structure could be compared: {words}.")
    if not compared and values:
        reasons = sorted({value.reason for value in values if value.reason})[:MAX_NAMES]
        return Verdict("not compared", f"Nothing could be compared: {'; '.join(reasons) or 'no value has a partner'}.")
    words = f"{count_noun(len(own), 'call is', 'calls are')} paired, and {_word_values(values, compared)}"
    words += f"; {finding.precision}" if finding.precision is not None else ""
    sides = {"reference": finding.reference, "candidate": finding.candidate}
    cut = " and ".join(f"the {word}" for word, side in sides.items() if is_unfinished(side.run.rank))
    how_far = f" as far as {cut} {'go' if ' and ' in cut else 'goes'}, which ended early" if cut else ""
    missing = [] if finding.allows_uncompared else find_uncompared(finding)
    if missing:
        return _word_incomplete(missing, f"Everything else agrees{how_far}: {words}.")
    return Verdict("agree", f"The runs agree{how_far}: {words}.")


def _word_incomplete(missing: Sequence[Uncompared], rest: str) -> Verdict:
    first = missing[0]
    more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    subject = "1 value could not be compared, and the results depend on it"
    if more:
        subject = f"{len(missing):,} values could not be compared, and the results depend on them"
    evidence = [f"not compared: {one.name}: {one.reason}" for one in missing[:MAX_VALUES]]
    if len(missing) > MAX_VALUES:
        evidence.append(f"not compared: {len(missing) - MAX_VALUES:,} more")
    headline = f"{subject}: {first.name} ({first.reason}){more}. {rest}"
    return Verdict("incomplete", headline, (*evidence, WHAT_TO_DO))


def _word_values(values: Sequence[ValuePair], compared: Sequence[ValuePair]) -> str:
    """`all 8 values agree, bit for bit`; of one, `1 value agrees, bit for bit`"""
    equal = sum(value.status == "equal" for value in compared)
    worst = max((value.error or 0.0 for value in compared), default=0.0)
    detail = "bit for bit" if equal == len(compared) and _is_bitwise(compared) else f"{equal:,} of them equal"
    if len(values) == len(compared) == 1:
        rounding = f"up to rounding, with an error of {worst:.2g}"
        detail = detail.removeprefix("1 of them ") if equal else rounding
        return f"1 value agrees, {detail}{_word_exceptions(values, compared)}"
    if equal < len(compared):
        detail += f", the others up to rounding, with errors of at most {worst:.2g}"
    share = f"all {len(values):,}" if len(compared) == len(values) else f"{len(compared):,} of {len(values):,}"
    return f"{share} values agree, {detail}{_word_exceptions(values, compared)}"


def _word_exceptions(values: Sequence[ValuePair], compared: Sequence[ValuePair]) -> str:
    """What agrees only by its record, and what does not agree although no call is to blame."""
    words = []
    fallbacks = [value.measurement.fallback for value in compared if value.measurement and value.measurement.fallback]
    if fallbacks:
        reason, count = Counter(fallbacks).most_common(1)[0]
        more = f" and {len(fallbacks) - count:,} more" if len(fallbacks) > count else ""
        words.append(f"{len(fallbacks):,} only by their records: {reason}{more}")
    different = [value for value in values if _differs(value)]
    if different:
        what = "input" if all(value.is_input for value in different) else "value"
        subject = f"1 {what} differs" if len(different) == 1 else f"{len(different):,} {what}s differ"
        words.append(f"{subject}, with no effect on the results")
    unknown = sum(value.status == "not comparable" and not _differs(value) for value in values)
    if unknown:
        words.append(f"{unknown:,} could not be compared")
    return "".join(f"; {one}" for one in words)


def _differs(value: ValuePair) -> bool:
    return value.is_bad or value.reason == DISSOLVED


def _is_bitwise(values: Iterable[ValuePair]) -> bool:
    return all(value.measurement is not None and value.measurement.basis in ("tensor", "checksum") for value in values)
