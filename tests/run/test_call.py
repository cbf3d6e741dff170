"""What a name says of a call, and what its records in other directions are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorprobe.model.name import BACKWARD, FORWARD, RECOMPUTE
from tensorprobe.run.call import name_call


@pytest.mark.parametrize(
    ("name", "kind", "op", "path", "phase", "stem"),
    [
        ("Functional.linear.5.forward", "api", "linear", "", "forward", "Functional.linear.5"),
        ("Functional.linear.5.recompute", "api", "linear", "", "backward", "Functional.linear.5"),
        ("NN_Dense_1_backward", "api", "Dense", "", "backward", "NN_Dense_1"),
        ("Module.a.fc.Linear.backward.2", "module", "Linear", "a.fc", "backward", "Module.a.fc.Linear"),
        ("Module.GPT.forward.0", "module", "GPT", "", "forward", "Module.GPT"),
        ("Module.fc.Linear.parameters_grad", "parameters_grad", "Linear", "fc", "backward", "Module.fc.Linear"),
        ("Module.fc.Linear.parameters_grad.0", "parameters_grad", "Linear", "fc", "backward", "Module.fc.Linear"),
        ("x2_grad.0.debug", "saved", "x2_grad", "", None, "x2_grad.0.debug"),
    ],
)
def test_a_name_says_what_was_called(name: str, kind: str, op: str, path: str, phase: str | None, stem: str) -> None:
    call = name_call(name)
    assert (call.kind, call.op, call.path, call.phase, call.stem) == (kind, op, path, phase, stem)
    assert call.is_named and call.slots == ()


@pytest.mark.parametrize("name", ["forward", "", "a name of another tool", "Functional.linear.forward"])
def test_a_name_that_follows_no_grammar_is_what_was_called_and_in_no_pass(name: str) -> None:
    call = name_call(name)
    assert (call.kind, call.op, call.stem, call.phase, call.is_named) == ("api", name, name, None, False)


@pytest.mark.parametrize(
    ("name", "backward", "recompute"),
    [
        ("Torch.add.0.forward", "Torch.add.0.backward", "Torch.add.0.recompute"),
        ("NN_Dense_1_forward", "NN_Dense_1_backward", "NN_Dense_1_recompute"),
        ("Module.forward.Linear.forward.3", "Module.forward.Linear.backward.3", "Module.forward.Linear.recompute.3"),
        ("Cell.Net.forward.0", "Cell.Net.backward.0", "Cell.Net.recompute.0"),
    ],
)
def test_the_same_call_is_found_in_every_direction(name: str, backward: str, recompute: str) -> None:
    call = name_call(name)
    assert call.in_direction(BACKWARD) == backward and call.in_direction(RECOMPUTE) == recompute
    assert name_call(backward).in_direction(FORWARD) == name


def test_the_gradients_of_parameters_are_in_a_module_that_their_record_does_not_name() -> None:
    gradients = replace(name_call("Module.fc.Linear.parameters_grad"), module_path="fc")
    assert gradients.told_path is None
    assert replace(name_call("Torch.add.0.forward"), module_path="fc").told_path == "fc"
