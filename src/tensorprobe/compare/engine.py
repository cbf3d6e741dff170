"""Two runs, compared step by step and process by process.

    read -> align -> pair -> measure -> judge -> verdict

Measuring is lazy and in the order of execution, so that `first` can stop at the first source.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tensorprobe.compare.circumstance import compare_circumstances, find_unrepeated
from tensorprobe.compare.filtered_run import filter_alike
from tensorprobe.compare.garbage import collect_garbage, garbage_left_alone
from tensorprobe.compare.judge.choice import choose_verdict, has_source
from tensorprobe.compare.judge.course import Course, Past
from tensorprobe.compare.judge.dissolution import dissolve_pairs
from tensorprobe.compare.judge.evidence import Finding
from tensorprobe.compare.judge.judge import Judge
from tensorprobe.compare.judge.other_precision import find_other_precision
from tensorprobe.compare.judge.other_program import heed_results
from tensorprobe.compare.judge.relation import doubt_verdict, relate_runs
from tensorprobe.compare.judge.status import is_unknown
from tensorprobe.compare.judge.verdict import find_sources, give_verdict, make_result, own_tensors
from tensorprobe.compare.layout.statistic.engine import compare_layout_statistics
from tensorprobe.compare.lost_source import forget_data_calls, restore_sources
from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.alignment import Alignment, Unpaired
from tensorprobe.compare.match.mapping import Mapping as NameMapping
from tensorprobe.compare.match.mapping import read_mapping
from tensorprobe.compare.match.pairing import PairedCall, RunSide, pair_calls
from tensorprobe.compare.match.setting import make_values
from tensorprobe.compare.match.slot_pair import pair_match_slots
from tensorprobe.compare.measure.executor import Engine, MeasureTask, make_task, open_engine, run_tasks
from tensorprobe.compare.option import DEFAULT_ATOL, DEFAULT_RTOL, CompareOptions
from tensorprobe.compare.result import Comparison, Coverage, RankResult, ValuePair, Verdict
from tensorprobe.compare.same_run import note_same_run
from tensorprobe.compare.shelf import Shelf
from tensorprobe.compare.step import RankPair, pair_layouts, pair_ranks, pair_steps
from tensorprobe.compare.truth.decision import TruthDecision
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.url import show_location
from tensorprobe.replay import check_replayable, find_device
from tensorprobe.replay.completion import completed
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import Dump, open_dump
from tensorprobe.store.slot import TensorSlot, is_count
from tensorprobe.word.signature import MINDSPORE
from tensorprobe.word.vocabulary import is_across_frameworks

logger = logging.getLogger("tensorprobe")

Progress = Callable[[int, int], None]
"""Called with how many values were measured and how many there are."""


def compare_runs(
    reference: str | Path, candidate: str | Path, options: CompareOptions, progress: Progress | None = None
) -> Comparison:
    """What `tensorprobe.compare` does, with options that are checked already."""
    mapping = read_mapping(options.mapping)
    with garbage_left_alone(), ExitStack() as stack:
        dumps = [open_dump(path).select(options.step, options.rank) for path in (reference, candidate)]
        found = _compare_as_layouts((show_location(reference), show_location(candidate)), dumps, options)
        if found is not None:
            return found
        whole = [_complete(dump, stack) for dump in dumps]
        work = _Work(stack.enter_context(open_engine(options.engine)), progress)
        found = _compare_dumps((show_location(reference), show_location(candidate)), whole, (mapping, options), work)
        return _compare_as_other_layouts(found, dumps, options)


@dataclass(frozen=True)
class _Work:
    """Where values are measured, and who is told how far that has come."""

    engine: Engine | None
    progress: Progress | None


def _compare_as_layouts(names: tuple[str, str], dumps: Sequence[Dump], options: CompareOptions) -> Comparison | None:
    """One program on different numbers of processes; None where that is not so, or where it cannot be replayed."""
    pairs, problems = pair_layouts(*dumps)
    if not pairs or options.by == "growth" or options.has_fixed_tolerance:
        return None
    try:
        for rank in (rank for dump in dumps for rank in dump.ranks()):
            check_replayable(rank)
        find_device("cpu")
        from tensorprobe.compare.layout.engine import compare_layouts  # needs PyTorch

        results = []
        for pair in pairs:
            results.append(compare_layouts(pair))
            if options.first and results[-1].verdict.kind != "agree":
                break
    except (DumpError, UsageError) as error:
        if options.by == "truth":
            raise
        logger.info("the runs have different numbers of processes, and cannot be executed again: %s", error)
        try:
            results = [compare_layout_statistics(pair) for pair in pairs]
        except DumpError:
            logger.warning("the runs have different numbers of processes, and cannot be executed again: %s", error)
            return None
    return Comparison(*names, tuple(results), choose_verdict(results, options.allow_uncompared), tuple(problems))


def _compare_as_other_layouts(found: Comparison, dumps: Sequence[Dump], options: CompareOptions) -> Comparison:
    """Where ranks of one number do not agree, each run may have shared out the program in its own way."""
    pairs = pair_steps(*dumps)
    if found.verdict.kind == "agree" or not pairs or options.by == "growth" or options.has_fixed_tolerance:
        return found
    results = []
    try:
        for rank in (rank for dump in dumps for rank in dump.ranks()):
            check_replayable(rank)
        find_device("cpu")
        from tensorprobe.compare.layout.engine import compare_other_layouts  # needs PyTorch

        for pair in pairs:
            result = compare_other_layouts(pair)
            if result is None:
                return found
            results.append(result)
            if options.first and result.verdict.kind != "agree":
                break
    except (DumpError, UsageError) as error:
        logger.debug("the ranks were compared by their numbers only: %s", error)
        return found
    except Exception as error:  # a second look: what was found by the first one is not lost
        logger.warning("the runs could not be compared as two layouts: %s: %s", type(error).__name__, error)
        return found
    verdict = choose_verdict(results, options.allow_uncompared)
    return replace(found, ranks=tuple(results), verdict=verdict)


def _complete(dump: Dump, stack: ExitStack) -> Dump:
    """With the tensors that task `replay` leaves to be computed; without them where that is not possible here, which
    leaves the statistics."""
    try:
        return stack.enter_context(completed(dump))
    except UsageError as error:
        logger.warning("only statistics are compared: %s", error)
        return dump


def _compare_dumps(
    names: tuple[str, str], dumps: Sequence[Dump], how: tuple[NameMapping, CompareOptions], work: _Work
) -> Comparison:
    mapping, options = how
    pairs, problems = pair_ranks(dumps[0], dumps[1])
    results: list[RankResult] = []
    shelf = Shelf()
    histories: dict[int | None, _History] = {}
    unknown: dict[tuple[str, str], UsageError] | None = None
    for pair in pairs:
        if options.first and any(has_source(found) and found.step != pair.step for found in results):
            break  # all ranks of one step: the difference of another one may have arisen before
        history = histories.setdefault(pair.rank, _History(TruthDecision(options)))
        try:
            aligned = _align(pair, mapping, history.truth)
        except DumpError as error:
            if len(pairs) == 1:
                raise
            results.append(_unreadable_result(pair, error))
            if unknown and pair is pairs[-1]:
                raise next(iter(unknown.values())) from None
            continue
        here = aligned[1].unknown_names
        unknown = here if unknown is None else {name: unknown[name] for name in unknown if name in here}
        if unknown and pair is pairs[-1]:  # no step and no rank has it
            raise next(iter(unknown.values()))
        results.append(shelf.put(_compare_ranks(pair, aligned, history, options, work)))
        del aligned  # before the next step is read
        if shelf.is_used:
            pair.reference.forget()
            pair.candidate.forget()
            collect_garbage()
    verdict = choose_verdict(results, options.allow_uncompared)
    if verdict.kind == "agree" and problems:
        verdict = replace(verdict, headline=f"{verdict.headline} But {'; '.join(problems[:3])}.")
    return Comparison(*names, tuple(results), verdict, tuple(problems))


def _unreadable_result(pair: RankPair, error: DumpError) -> RankResult:
    """One rank that cannot be read says so in its place; the others are compared all the same."""
    verdict = Verdict(
        "not compared", f"{pair.reference.name} could not be compared: {error}", (), pair.step, pair.reference.name
    )
    nothing = Coverage(0, 0, 0, 0, 0, 0)
    problems = (f"{pair.reference.name}: {error}",)
    names = (pair.reference.name, pair.candidate.name)
    return RankResult(pair.step, *names, (), (), (), verdict, (), nothing, Counter(), problems=problems)


@dataclass
class _History:
    """What the earlier steps of a process leave for the next one to be judged by."""

    truth: TruthDecision
    past: Past = field(default_factory=Past)


_Aligned = tuple[tuple[Run, Run], Alignment]
"""Both runs of one step and rank, read and aligned."""


def _align(pair: RankPair, mapping: NameMapping, truth: TruthDecision) -> _Aligned:
    runs = filter_alike(read_run(pair.reference), read_run(pair.candidate))
    for run in runs:
        if run.framework == MINDSPORE and run.has_flow:
            restore_sources(run.calls)
        if is_across_frameworks(*(run.framework for run in runs)):
            forget_data_calls(run.calls)
    return runs, align_calls(*runs, mapping, truth.prove(pair, runs))


def _compare_ranks(
    pair: RankPair, aligned: _Aligned, history: _History, options: CompareOptions, work: _Work
) -> RankResult:
    runs, alignment = aligned
    reference, candidate = RunSide(runs[0], alignment.only_reference), RunSide(runs[1], alignment.only_candidate)
    pairs = pair_calls(reference, candidate, alignment)
    for paired in pairs:
        calls = paired.reference, paired.candidate
        paired.hold(make_values(pair_match_slots(paired.match, alignment), calls))
    precision = find_other_precision(*runs)
    options = replace(options, other_dtype=options.other_dtype or precision is not None)
    course = Course(reference, candidate, options, history.past)
    judged = _measure_and_judge(pairs, pair, Judge(course), options, work)
    is_cut_short = len(judged) < len(pairs)
    finding = Finding(
        judged, alignment, reference, candidate, history.past, precision, is_cut_short, options.allow_uncompared
    )
    if not is_cut_short and not options.has_fixed_tolerance and dissolve_pairs(finding):
        course.forget_differences(finding.pairs)
    verdict = doubt_verdict(give_verdict(finding), relate_runs(pairs, alignment))
    verdict = history.truth.decide(pair, runs, finding, verdict)
    judged_with = history.truth.judged_with(pair)
    if not options.has_fixed_tolerance and judged_with != "recorded numbers":
        is_drawn, is_told = judged_with == "drawn numbers", history.truth.names_argument(pair)
        verdict = heed_results(verdict, finding, is_drawn=is_drawn, is_told=is_told)
        if verdict.kind == "agree":
            course.forget_differences(finding.pairs)
    verdict = replace(note_same_run(verdict, pair), step=pair.step, rank_name=pair.reference.name)
    history.past = course.end(finding.pairs)
    errors = history.truth.find_errors(pair, runs) if options.own_errors else {}
    history.truth.end_step()
    return replace(_make_result(pair, finding, verdict), truth_errors=errors)


class _Scheduled(NamedTuple):
    """A value that is to be measured, and when it is needed."""

    order: tuple[int, int]
    value: ValuePair
    task: MeasureTask


def _measure_and_judge(
    pairs: list[PairedCall], ranks: RankPair, judge: Judge, options: CompareOptions, work: _Work
) -> list[PairedCall]:
    """Judge the calls in their order, each when its values are measured; all of them, or up to the first source."""
    scheduled = sorted(_schedule(pairs, ranks, options), key=lambda one: one.order)
    tasks = [one.task for one in scheduled]
    judged: list[PairedCall] = []
    done = 0
    measuring = run_tasks(tasks, options.processes, work.engine)
    with closing(measuring) as measurements:  # ends the workers, whatever happens here
        for pair in pairs:
            while done < len(scheduled) and scheduled[done].order[0] <= pair.place:
                _take(scheduled[done].value, next(measurements))
                done += 1
                if work.progress is not None:
                    work.progress(done, len(tasks))
            judge.judge(pair)
            judged.append(pair)
            if options.first and find_sources([pair]):
                break
    return judged


def _take(value: ValuePair, measurement: Any) -> None:
    value.measurement = measurement
    if measurement.problem is not None:
        value.reason = measurement.problem
        value.is_mismatch = measurement.is_other_shape


def _schedule(pairs: list[PairedCall], ranks: RankPair, options: CompareOptions) -> Iterator[_Scheduled]:
    """What goes into a module is needed when the first call inside it is judged; its parameters before all calls."""
    rtol = DEFAULT_RTOL if options.rtol is None else options.rtol
    atol = DEFAULT_ATOL if options.atol is None else options.atol
    if options.has_fixed_tolerance:
        rtol, atol = options.rtol or 0.0, options.atol or 0.0
    number = 0
    for pair in pairs:
        for value in pair.values:
            if not isinstance(value.reference, TensorSlot) or not isinstance(value.candidate, TensorSlot):
                continue
            needed = pair.place
            if value.is_input:
                needed = min(needed, pair.start)
            if value.slot.startswith("parameters."):
                needed = -1
            task = make_task(value.reference, value.candidate, ranks.reference, ranks.candidate, rtol, atol)
            yield _Scheduled((needed, number), value, task)
            number += 1


def _make_result(pair: RankPair, finding: Finding, verdict: Verdict) -> RankResult:
    runs = (finding.reference.run, finding.candidate.run)
    named = verdict.call.name if verdict.call else None
    others = [source for source in find_sources(finding.pairs) if source.reference.name != named]
    others += [found for found in finding.pairs if found.role == "discontinuity" and found.reference.name != named]
    results = {found.reference.name: make_result(found, *runs) for found in finding.pairs}
    compared = [value for value in own_tensors(finding.pairs) if value.status != "not comparable"]
    bases = Counter[str](value.measurement.basis for value in compared if value.measurement is not None)
    return RankResult(
        step=pair.step,
        reference_name=pair.reference.name,
        candidate_name=pair.candidate.name,
        calls=tuple(results.values()),
        only_reference=finding.alignment.only_reference,
        only_candidate=finding.alignment.only_candidate,
        verdict=verdict,
        others=tuple(make_result(found, *runs) for found in others if not found.is_framework_made),
        coverage=_count_coverage(finding.alignment, finding.pairs, *runs),
        bases=bases,
        circumstances=compare_circumstances(pair.reference.run, pair.candidate.run),
        notes=find_unrepeated(pair.reference.run, pair.candidate.run) if _differs_in_bits(finding.pairs) else (),
        problems=tuple(_describe_problems(pair)),
        is_cut_short=finding.is_cut_short,
    )


def _differs_in_bits(pairs: Sequence[PairedCall]) -> bool:
    return any(value.status in ("close", "different") for value in own_tensors(pairs))


def _count_coverage(alignment: Alignment, pairs: Sequence[PairedCall], reference: Run, candidate: Run) -> Coverage:
    counted = [match for match in alignment.matches if match.reference[-1].caller is None]
    values = own_tensors(pairs)
    return Coverage(
        reference_calls=sum(call.caller is None for call in reference.calls),
        candidate_calls=sum(call.caller is None for call in candidate.calls),
        paired_reference=sum(len(match.reference) for match in counted),
        paired_candidate=sum(len(match.candidate) for match in counted),
        idle_reference=_count_idle(alignment.only_reference),
        idle_candidate=_count_idle(alignment.only_candidate),
        compared_values=sum(value.status in ("equal", "close", "different") for value in values),
        values=len(values),
        uncompared_values=sum(map(is_unknown, values)),
        unseen_reference=_unseen(reference),
        unseen_candidate=_unseen(candidate),
    )


def _count_idle(lonely: Sequence[Unpaired]) -> int:
    return sum(unpaired.is_idle and unpaired.call.caller is None for unpaired in lonely)


def _unseen(run: Run) -> dict[str, int]:
    coverage = run.rank.run.get("coverage")
    unseen = coverage.get("unseen") if isinstance(coverage, dict) else None
    if not isinstance(unseen, dict):
        return {}
    return {str(reason): count for reason, count in unseen.items() if is_count(count)}


def _describe_problems(pair: RankPair) -> Iterator[str]:
    for word, rank in (("reference", pair.reference), ("candidate", pair.candidate)):
        for problem in rank.problems:
            yield f"{word} {rank.name}: {problem}"
        ended = rank.run.get("ended")
        if ended:
            yield f"{word} {rank.name}: the run ended by {ended}; it is compared as far as it goes"
        elif not rank.is_complete:
            yield f"{word} {rank.name}: the step was not finished (a kill?); it is compared as far as it goes"
