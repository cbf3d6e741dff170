"""Which argument, result or parameter is held against which."""

from __future__ import annotations

from typing import Any

from tensorprobe.compare.match.alignment import SlotPair
from tensorprobe.compare.match.slot_pair import pair_slots
from tensorprobe.run.call import Call
from tensorprobe.store.slot import iter_gradient_slots, iter_record_slots


def tensor(*shape: int) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), "Max": 1.0, "Min": 0.0}


def plain(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "value": value}


def call(direction: str = "forward", op: str = "op", **fields: Any) -> Call:
    slots = tuple(iter_record_slots(fields))
    return Call(f"Torch.{op}.0.{direction}", 0, "api", "Torch", op, 0, direction, "", None, None, slots)


def names(pairs: list[SlotPair]) -> list[tuple[str | None, str | None]]:
    return [(one and one.slot, other and other.slot) for one, other in pairs]


def test_slots_of_the_same_name_are_paired_even_when_their_shapes_differ() -> None:
    reference = call(input_args=[tensor(2, 3), tensor(3, 2)], output=[tensor(2, 2)])
    candidate = call(input_args=[tensor(3, 2), tensor(2, 3)], output=[tensor(3, 3)])
    assert names(pair_slots(reference, candidate)) == [
        ("input.0", "input.0"),
        ("input.1", "input.1"),
        ("output.0", "output.0"),
    ]


def test_an_argument_by_position_stands_against_the_same_by_keyword() -> None:
    reference = call(input_args=[tensor(4)], input_kwargs={"p": plain("float", 0.1), "other": tensor(5)})
    candidate = call(input_args=[tensor(4), plain("float", 0.1), tensor(5)])
    assert names(pair_slots(reference, candidate)) == [
        ("input.0", "input.0"),
        ("kwargs.p", "input.1"),
        ("kwargs.other", "input.2"),
    ]


def test_what_only_one_call_has_stands_alone() -> None:
    reference = call(input_args=[tensor(4)], input_kwargs={"eps": plain("float", 1e-5)})
    candidate = call(input_args=[tensor(4)], input_kwargs={"weight": tensor(4)})
    assert names(pair_slots(reference, candidate)) == [
        ("input.0", "input.0"),
        ("kwargs.eps", None),
        (None, "kwargs.weight"),
    ]


def test_numbers_under_other_names_are_paired_only_where_they_are_the_same() -> None:
    reference = call(input_args=[tensor(4)], input_kwargs={"eps": plain("float", 1e-5)})
    same, other = (call(input_args=[tensor(4)], input_kwargs={"e": plain("float", value)}) for value in (1e-5, 0.1))
    assert names(pair_slots(reference, same))[1:] == [("kwargs.eps", "kwargs.e")]
    assert names(pair_slots(reference, other))[1:] == [("kwargs.eps", None), (None, "kwargs.e")]
    whole = call(input_args=[tensor(4)], input_kwargs={"e": plain("int", 1)})
    one = call(input_args=[tensor(4)], input_kwargs={"eps": plain("float", 1.0)})
    assert names(pair_slots(one, whole))[1:] == [("kwargs.eps", None), (None, "kwargs.e")]


def test_the_same_place_is_the_same_argument_unless_both_calls_name_it_otherwise() -> None:
    ours = call(op="my_softmax", input_args=[tensor(4), plain("int", 1)])
    theirs = call(op="softmax", input_args=[tensor(4), plain("int", 0)])
    expected = [("input.0", "input.0"), ("input.1", "input.1")]
    assert names(pair_slots(ours, theirs)) == names(pair_slots(theirs, ours)) == expected


def test_a_result_never_stands_against_an_argument() -> None:
    reference = call(input_args=[tensor(4)])
    candidate = call(output=[tensor(4)])
    assert names(pair_slots(reference, candidate)) == [("input.0", None), (None, "output.0")]


def test_gradients_in_the_order_of_autograd_are_paired_by_their_shapes() -> None:
    """msprobe lists those of a linear as bias, input, weight."""
    reference = call("backward", input=[tensor(2, 5)], output=[tensor(2, 4), tensor(5, 4), tensor(5)])
    candidate = call("backward", input=[tensor(2, 5)], output=[tensor(5), tensor(2, 4), tensor(5, 4)])
    assert names(pair_slots(reference, candidate, by_shape=True))[1:] == [
        ("output.0", "output.1"),
        ("output.1", "output.2"),
        ("output.2", "output.0"),
    ]
    assert names(pair_slots(reference, candidate))[1] == ("output.0", "output.0")


def test_renamed_parameters_are_paired_by_their_shapes() -> None:
    slots = [tuple(iter_gradient_slots({name: [tensor(4)], "bias": [tensor(2)]})) for name in ("weight", "gamma")]
    calls = [
        Call("Module.n.N.parameters_grad", 0, "parameters_grad", "Module", "N", 0, "backward", "n", "n", None, one)
        for one in slots
    ]
    assert names(pair_slots(*calls)) == [("weight", "gamma"), ("bias", "bias")]


def test_a_mapping_comes_before_all_else() -> None:
    reference = call(input_args=[tensor(4), tensor(4)])
    candidate = call(input_args=[tensor(4), tensor(4)])
    assert names(pair_slots(reference, candidate, {"input.0": "input.1"})) == [
        ("input.0", "input.1"),
        ("input.1", "input.0"),
    ]
