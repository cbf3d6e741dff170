"""What is right to say about a case: which records may be named. Found from marks in the dumps, never by compare.

At L1 and mix, the calls made at the place of the fault, in either run. Each place is written so that it holds only
what is wrong: the call with the wrong argument or operand, the calls inserted, the call that was removed. Where one run
makes no call there, the first call that takes its value is right as well. For faults of the backward, the backward
records of these calls, and of the call on the other side of the wrong edge.

At L0, the module that is called at the place, or else the innermost module whose own code the place is in. Modules that
merely receive the wrong value first are kept apart, as `receivers`. A hook or a detach on what a module returns leaves
the same records as one in the code that calls it, so there the module around is right as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from fault.case import Case, Survey, draw_fault, survey_model
from fault.dump import Dump, backward_of, forward_of, is_module
from fault.kind import KINDS
from fault.place import Place


@dataclass(frozen=True)
class Truth:
    reference: frozenset[str]
    candidate: frozenset[str]
    verdicts: frozenset[str]
    receivers: frozenset[str] = frozenset()
    """At L0: modules that get the wrong value first, and are not wrong themselves."""
    parameter: str = ""
    """The parameter that differs from the start."""

    @property
    def names(self) -> frozenset[str]:
        return self.reference | self.candidate


class NoTruthError(Exception):
    """The dumps do not hold what the place should have left there."""


Names = set[str]


def find_truth(case: Case, reference: Dump, candidate: Dump, changed: str) -> Truth:
    kind, level = KINDS[case.kind], case.setting.level
    receivers: Names = set()
    if case.kind == "data":
        right = wrong = find_data(reference, candidate, level)
    elif case.kind == "start":
        right = wrong = find_users(reference, candidate, changed, level)
    elif case.kind == "untied":
        right, wrong = (
            find_gradients(dump, changed) | find_tied_calls(dump, changed) for dump in (reference, candidate)
        )
    else:
        place = find_place(case)
        if level == "L0":
            right = wrong = find_modules(place, kind.direction, reference, candidate)
            calls = survey_of(case).calls
            receivers = find_receivers(place, kind.direction, calls, reference, candidate)
        elif kind.direction == "forward":
            right, wrong = find_calls(place, reference, candidate)
        else:
            right, wrong = find_edges(place, reference, candidate)
            right, wrong = right | find_leaf(place, reference), wrong | find_leaf(place, candidate)
    if case.kind == "stale":
        right, wrong = (names | find_later_calls(place, reference) for names in (right, wrong))
    if case.kind == "detach" and level == "L0":
        right = wrong = right | find_gradient_takers(place, reference, candidate)
    if case.kind in ("detach", "gradient_hook") and level == "L0":
        right = wrong = right | find_callers(place, survey_of(case).calls, reference)
    truth = Truth(
        frozenset(right & set(reference.records)),
        frozenset(wrong & set(candidate.records)),
        kind.verdicts,
        frozenset(receivers - right),
        changed if case.kind == "start" else "",
    )
    if not truth.names:
        raise NoTruthError(f"{case.name} at {level}: no record at the place of the fault")
    return truth


def survey_of(case: Case) -> Survey:
    return survey_model(case.model, case.setting.framework)


def find_place(case: Case) -> Place:
    if case.kind == "seed":
        return survey_of(case).places["dropout_share"][0]  # the first that draws random numbers
    fault = draw_fault(case)
    assert fault is not None
    return fault.place


def find_calls(place: Place, reference: Dump, candidate: Dump) -> tuple[Names, Names]:
    right, wrong = (choose_apis(dump.names_at(place.mark)) for dump in (reference, candidate))
    found_right, found_wrong = set(right), set(wrong)
    if not ops_of(right) & ops_of(wrong):
        producers = reference.sources_of(right[-1]) if right else candidate.sources_of(wrong[0])
        found_right |= {*find_consumers(reference, set(right[-1:]) or producers, right)[:1]}
        found_wrong |= {*find_consumers(candidate, set(wrong[-1:]) or producers, wrong)[:1]}
    return found_right, found_wrong


def find_edges(place: Place, reference: Dump, candidate: Dump) -> tuple[Names, Names]:
    """A wrong gradient: of the calls at the place, and where a call is inserted of those whose value it takes."""
    right, wrong = (choose_apis(dump.names_at(place.mark)) for dump in (reference, candidate))
    inserted = [name for name in wrong if name not in right]
    producers = {source for name in inserted for source in candidate.sources_of(name)}
    ends_right, ends_wrong = {*right, *producers}, {*wrong, *producers}
    if inserted and not right:
        ends_right |= find_takers(reference, producers, candidate)
        ends_wrong |= find_takers(candidate, set(wrong[-1:]), candidate)
    found_right = {backward_of(name) for name in ends_right}
    found_wrong = {backward_of(name) for name in ends_wrong} | set(inserted)
    return found_right, found_wrong


def find_takers(dump: Dump, producers: Names, candidate: Dump, part: str = ".forward") -> Names:
    """The calls that take these values; and through calls that have no gradient any more, those behind them."""
    found: Names = set()
    waiting = list(producers)
    while waiting:
        taking = [name for name in find_consumers(dump, {waiting.pop()}, [], part) if name not in found]
        found.update(taking)
        waiting += [name for name in taking if backward_of(name) not in candidate.records]
    return found


def ops_of(names: list[str]) -> Names:
    return {name.split(".")[1] for name in names}


def choose_apis(names: list[str]) -> list[str]:
    """Or the modules, where a module computes without any."""
    return [name for name in names if not is_module(name)] or names


def find_consumers(dump: Dump, producers: Names, besides: list[str], part: str = ".forward") -> list[str]:
    """The calls that take one of these values, after all of them are there, in order."""
    order = {name: position for position, name in enumerate(dump.names)}
    known = [order[name] for name in producers if name in order]
    return [
        name
        for name in (dump.names[max(known) + 1 :] if known else [])
        if part in name and name not in besides and dump.sources_of(name) & producers
    ]


def find_modules(place: Place, direction: str, reference: Dump, candidate: Dump) -> Names:
    called = {name for dump in (reference, candidate) for name in dump.names_at(place.mark) if is_module(name)}
    accepted = called | find_module_call(candidate, place.path, place.call)
    if not accepted and place.begun == 0:
        return find_data(reference, candidate, "L0")
    if not accepted:  # outside all modules and behind them: the gradient is the first that a module sees of it
        roots = find_module_call(candidate, "", 0)
        return {backward_of(name) for name in roots | find_passers(candidate, roots)}
    if direction == "forward":
        return accepted
    passed = accepted | find_passers(candidate, accepted)
    return {backward_of(name) for name in passed} | {gradients_of(name) for name in accepted}


def find_receivers(
    place: Place, direction: str, calls: list[tuple[str, int]], reference: Dump, candidate: Dump
) -> Names:
    """Modules called by the same code after the place (in backward: before it): the first that gets something else."""
    prefix = f"{place.path}." if place.path else ""
    near: Names = set()
    for path, index in calls[place.begun :] if direction == "forward" else calls[: place.begun][::-1]:
        if path == place.path or not path.startswith(prefix):
            break
        near |= find_module_call(reference, path, index)
    if direction == "backward":
        near = {backward_of(name) for name in near}
    others = [name for name in reference.names if name in near and gets_other(name, reference, candidate)]
    if not others:
        return set()
    first = str(reference.records[others[0]].get("module_path"))
    return {name for name in others if f"{first}.".startswith(f"{reference.records[name].get('module_path')}.")}


def gets_other(name: str, reference: Dump, candidate: Dump) -> bool:
    """By more than rounding, in what goes in or comes out: statistics do not see a permutation of the input."""
    if name not in candidate.records:
        return True
    values = [dump.inputs_of(name) + dump.outputs_of(name) for dump in (reference, candidate)]
    pairs = zip(*values, strict=False)
    return any(
        abs(left[key] - right[key]) > 1e-5 * abs(left["Norm"]) for left, right in pairs for key in ("Mean", "Norm")
    )


def find_leaf(place: Place, dump: Dump) -> Names:
    """For a backward fault: the module that does nothing but this call says the same as the call."""
    modules = find_module_call(dump, place.path, place.call)
    paths = {str(record.get("module_path")) for record in dump.records.values()}
    is_leaf = not any(path.startswith(f"{place.path}.") for path in paths)
    modules |= find_passers(dump, modules)
    return {backward_of(name) for name in modules} if is_leaf and place.path else set()


def find_later_calls(place: Place, dump: Dump) -> Names:
    """A stale buffer shows when the module uses it next."""
    return {
        name
        for name, record in dump.records.items()
        if record.get("module_path") == place.path
        and "forward" in name
        and ("batch_norm" in name or ".BatchNorm." in name or is_module(name))
    }


def find_gradient_takers(place: Place, reference: Dump, candidate: Dump) -> Names:
    """The modules whose input needs no gradient any more."""
    made = find_module_call(reference, place.path, place.call)
    return {backward_of(name) for name in find_takers(reference, made, candidate, ".forward.")}


def find_callers(place: Place, calls: list[tuple[str, int]], dump: Dump) -> Names:
    """The module around: what is hooked or detached just before a return is the same as just after the call.

    And those around it, as far as the value is passed on as it is.
    """
    found: Names = set()
    inner, passed = place.path, find_module_call(dump, place.path, place.call)
    for path, index in reversed(calls[: place.begun]):
        if path != inner and f"{inner}.".startswith(f"{path}." if path else ""):
            around = find_module_call(dump, path, index)
            found |= {backward_of(name) for name in around}
            if not around & find_passers(dump, passed):
                break
            inner, passed = path, passed | around
    return found


def find_passers(dump: Dump, modules: Names) -> Names:
    """Modules that return the very value that one of these returns: around them, or in them."""
    found: Names = set()
    for name in dump.names:
        if is_module(name) and ".forward." in name:
            sources = {leaf["source"] for leaf in dump.outputs_of(name) if "source" in leaf}
            if sources & modules:
                found.add(name)
            if name in modules:
                found |= {source for source in sources if is_module(source)}
    return found


def find_module_call(dump: Dump, path: str, index: int) -> Names:
    return {
        name
        for name, record in dump.records.items()
        if is_module(name) and name.endswith(f".forward.{index}") and record.get("module_path") == path
    }


def find_data(reference: Dump, candidate: Dump, level: str) -> Names:
    """The first call that gets other data from outside, and the first whose result it changes: another slice of it.

    And the modules around them that get it too. At L0 labels are seen by no call: the gradient is the first of it.
    """
    entered = [
        name
        for name in reference.names
        if name in candidate.records
        and ("forward" in name or is_module(name))
        and has_other_data(name, reference, candidate)
    ]
    changing = [name for name in entered if reference.outputs_of(name) != candidate.outputs_of(name)]
    found = {*entered[:1], *changing[:1]} if level != "L0" else {*entered[:1]}
    for first in tuple(found):
        if ".backward." in first:
            found |= {backward_of(name) for name in find_passers(candidate, {forward_of(first)})}
        found |= {name for name in entered if ".forward." in name and is_around(name, first, reference)}
    return found


def is_around(module: str, name: str, dump: Dump) -> bool:
    outer, inner = (dump.records[record].get("module_path") for record in (module, name))
    return is_module(module) and inner is not None and (not outer or f"{inner}.".startswith(f"{outer}."))


def has_other_data(name: str, reference: Dump, candidate: Dump) -> bool:
    """Does an input that no recorded call made have other statistics?"""
    pairs = zip(reference.inputs_of(name), candidate.inputs_of(name), strict=False)
    return any("source" not in left and describe(left) != describe(right) for left, right in pairs)


def find_users(reference: Dump, candidate: Dump, parameter: str, level: str) -> Names:
    path = parameter.rpartition(".")[0]
    users = [
        name
        for name, record in reference.records.items()
        if "forward" in name and is_within(record.get("module_path"), path) and (level != "L0" or is_module(name))
    ]
    return {name for name in users if name in candidate.records and has_other_data(name, reference, candidate)}


def is_within(module_path: object, owner: str) -> bool:
    """A cell may hand its parameters to one inside it, as MindSpore's LSTM does."""
    return module_path == owner or (bool(owner) and str(module_path).startswith(f"{owner}."))


def find_gradients(dump: Dump, parameter: str) -> Names:
    owners = [name.rpartition(".")[0] for name in parameter.split()]
    paths = tuple(f"{prefix}.{owner}." for owner in owners for prefix in ("Module", "Cell"))
    return {name for name in dump.names if name.endswith(".parameters_grad") and name.startswith(paths)}


def find_tied_calls(dump: Dump, parameters: str) -> Names:
    """The calls that take the weight that was tied: where it is used a second time."""
    owner = parameters.split()[-1].rpartition(".")[0]
    return {name for name, record in dump.records.items() if is_within(record.get("module_path"), owner)}


def gradients_of(name: str) -> str:
    return name.partition(".forward.")[0] + ".parameters_grad"


def describe(leaf: dict[str, object]) -> list[object]:
    return [str(leaf.get(key)) for key in ("shape", "dtype", "Max", "Min", "Mean", "Norm")]
