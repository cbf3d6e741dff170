"""Is the corpus itself right? By plain numbers: loss and gradients, without recording and without compare."""

from __future__ import annotations

from collections.abc import Iterator

from held_out import fault as pair_fault
from held_out import patch
from held_out.model import Training
from held_out.record import PAIRS, REFACTORS
from held_out.source import load_network
from held_out.third_party import MODELS
from held_out.variant import VARIANTS
from held_out.weight import Step, measure_difference

ROUNDING = 1e-5
"""The most by which two right programs differ in float32."""
ROUNDING_OF_VARIANT = 1e-4
"""… where a gradient is nearly nothing, as that of a bias before a norm."""
EFFECT = 1e-4
"""The least that a fault changes."""
LEAST_STEPS = 2
ROUNDING_OF_DOUBLE = 1e-10
"""The most by which two right programs in PyTorch differ in float64 …"""
ROUNDING_OF_LOSS = {"float32": 1e-5, "bfloat16": 0.02, "float16": 0.005, "autocast": 0.02}
"""… and the most of their losses in other types: a wrong branch, as of a choice that is too close, is more."""


def find_objections(subject: str) -> Iterator[str]:
    check = check_pair if subject in PAIRS else check_refactor if subject in REFACTORS else check_model
    yield from check(subject)


def check_pair(name: str) -> Iterator[str]:
    from held_out import pair

    faults = pair.load_network(name, "reference").FAULTS
    steps = max(LEAST_STEPS, *(fault.steps for fault in faults))
    reference = list(pair.run_reference(pair.load_network(name, "reference"), steps))
    candidate = list(pair.run_candidate(pair.load_network(name, "candidate"), steps))
    difference = max(max(measure_difference(*both)) for both in zip(candidate, reference, strict=True))
    if difference > ROUNDING:
        yield f"{name}: the two networks differ by {difference:.1e}"
    for fault in faults:
        run, right = (pair.run_reference, reference) if fault.side == "reference" else (pair.run_candidate, candidate)
        faulty = list(run(pair.load_network(name, fault.side, fault), fault.steps))
        yield from object_to_fault(name, fault, faulty, right)


def check_refactor(name: str) -> Iterator[str]:
    """In float64, so that rounding hides nothing; in other types, that it runs and comes to about the same loss."""
    from held_out.rewrite import run_candidate, run_reference

    runs = {"reference": run_reference, "candidate": run_candidate}
    faults = load_network(name, "reference").FAULTS
    right = {
        side: list(run(load_network(name, side, is_double=True), 3, dtype="float64")) for side, run in runs.items()
    }
    for number, both in enumerate(zip(right["candidate"], right["reference"], strict=True)):
        difference = max(measure_difference(*both))
        if difference > ROUNDING_OF_DOUBLE:
            yield f"{name}: the two networks differ by {difference:.1e} in step {number}"
    for fault in faults:
        module = load_network(name, fault.side, fault, is_double=True)
        faulty = list(runs[fault.side](module, fault.steps, dtype="float64"))
        yield from object_to_fault(name, fault, faulty, right[fault.side])
    for dtype, limit in ROUNDING_OF_LOSS.items():
        sides = [list(run(load_network(name, side), 1, dtype=dtype)) for side, run in runs.items()]
        difference, _ = measure_difference(sides[1][0], sides[0][0])
        if not difference <= limit:
            yield f"{name}: the losses differ by {difference:.1e} in {dtype}"


def check_model(name: str) -> Iterator[str]:
    model = MODELS[name]
    steps = max(LEAST_STEPS, *(fault.steps for fault in model.faults))
    right = list(Training(model, steps=steps).run())
    for variant in model.variants:
        other = Training(model, variant=variant, steps=variant.steps).run()
        difference = max(max(measure_difference(*both)) for both in zip(other, right, strict=False))
        if difference > ROUNDING_OF_VARIANT:
            yield f"{name}: {variant.name} differs by {difference:.1e}"
    for fault in model.faults:
        faulty = list(Training(model, variant=VARIANTS[fault.variant], fault=fault, steps=fault.steps).run())
        yield from object_to_fault(name, fault, faulty, right)


def object_to_fault(
    name: str, fault: pair_fault.Fault | patch.Fault, faulty: list[Step], right: list[Step]
) -> Iterator[str]:
    differences = [measure_difference(*steps) for steps in zip(faulty, right, strict=False)]
    before, (loss, gradient) = differences[: fault.first_step], differences[fault.first_step]
    if not fault.has_effect:
        largest = max(max(one) for one in differences)
        if largest > ROUNDING:
            yield f"{name}: {fault.name}: meant to have no effect, changes {largest:.1e}"
    elif max(loss, gradient) < EFFECT:
        yield f"{name}: {fault.name}: changes the loss by {loss:.1e} and gradients by {gradient:.1e} only"
    if fault.is_backward and loss > ROUNDING:
        yield f"{name}: {fault.name}: meant for the backward alone, changes the loss by {loss:.1e}"
    if before and max(max(one) for one in before) > ROUNDING:
        yield f"{name}: {fault.name}: shows before step {fault.first_step}"
