"""Is the corpus itself right? By plain numbers: loss and gradients, without recording and without compare."""

from __future__ import annotations

from collections.abc import Iterator

from held_out import fault as pair_fault
from held_out import patch
from held_out.model import Training
from held_out.record import PAIRS
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


def find_objections(subject: str) -> Iterator[str]:
    yield from (check_pair(subject) if subject in PAIRS else check_model(subject))


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
