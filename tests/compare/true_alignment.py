"""Is an alignment the true one? Records of two builders belong together when they have the same mark."""

from __future__ import annotations

from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.alignment import Alignment
from tests.compare.run_builder import RunBuilder


def align_builders(reference: RunBuilder, candidate: RunBuilder) -> Alignment:
    return align_calls(reference.build(), candidate.build())


def assert_true_pairs(alignment: Alignment, reference: RunBuilder, candidate: RunBuilder) -> None:
    """Exactly the records that both programs have are paired; groups are not looked at."""
    made = {(match.reference[0].name, match.candidate[0].name) for match in alignment.matches if match.rule != "group"}
    assert made == true_pairs(reference, candidate)


def true_pairs(reference: RunBuilder, candidate: RunBuilder) -> set[tuple[str, str]]:
    names = {candidate.marks[call.name]: call.name for call in candidate.build().calls}
    calls = reference.build().calls
    return {(call.name, names[reference.marks[call.name]]) for call in calls if reference.marks[call.name] in names}


def assert_every_call_once(alignment: Alignment, reference: RunBuilder, candidate: RunBuilder) -> None:
    for builder, of_match, lonely in (
        (reference, lambda match: match.reference, alignment.only_reference),
        (candidate, lambda match: match.candidate, alignment.only_candidate),
    ):
        seen = [call.name for match in alignment.matches for call in of_match(match)]
        seen += [unpaired.call.name for unpaired in lonely]
        assert sorted(seen) == sorted(call.name for call in builder.build().calls)
