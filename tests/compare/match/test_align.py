"""Which call stands against which: programs whose truth is known, at every level."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.alignment import Alignment
from tests.compare.program import Transformer
from tests.compare.run_builder import RunBuilder
from tests.compare.true_alignment import align_builders, assert_every_call_once, assert_true_pairs

LEVELS = ("L0", "L1", "mix")
API_LEVELS = ("L1", "mix")
REFERENCE = Transformer()

each_level = pytest.mark.parametrize("level", LEVELS)
each_api_level = pytest.mark.parametrize("level", API_LEVELS)


def aligned(candidate: Transformer, level: str, reference: Transformer = REFERENCE) -> Alignment:
    """Aligned, and held against the truth."""
    builders = reference.record(RunBuilder(level)), candidate.record(RunBuilder(level))
    alignment = align_builders(*builders)
    assert_true_pairs(alignment, *builders)
    assert_every_call_once(alignment, *builders)
    return alignment


def rules(alignment: Alignment) -> Counter[str]:
    return Counter(match.rule for match in alignment.matches)


@each_level
def test_the_same_program_pairs_by_name_alone(level: str) -> None:
    alignment = aligned(REFERENCE, level)
    assert set(rules(alignment)) == {"same name"}
    assert not alignment.only_reference and not alignment.only_candidate


@each_level
@pytest.mark.parametrize(
    ("prefix", "wrapper"),
    [
        ("module", "DistributedDataParallel"),
        ("_orig_mod", "OptimizedModule"),
        ("_fsdp_wrapped_module", "FullyShardedDataParallel"),
        ("module._orig_mod", "DistributedDataParallel"),
    ],
)
def test_a_wrapped_model_pairs_with_the_bare_one(level: str, prefix: str, wrapper: str) -> None:
    alignment = aligned(Transformer(prefix=prefix, wrapper=wrapper), level)
    expected = {"wrapper"} if level == "L0" else {"same name"} if level == "L1" else {"wrapper", "same name"}
    assert set(rules(alignment)) - {"same name"} == expected - {"same name"}
    lonely = {unpaired.call.op for unpaired in alignment.only_candidate}
    assert lonely == (set() if level == "L1" else {wrapper})


def test_a_user_module_that_is_called_module_is_no_wrapper() -> None:
    builders = []
    for name in ("module", "other"):
        builder = RunBuilder("mix")
        x = builder.data("x", (4,))
        with builder.module("", "Net", mark="Net"):
            with builder.module("module", "Relu", mark="first"):
                x = builder.call("Functional", "relu", x, shape=(4,))
            with builder.module(f"{name}2", "Sigmoid", mark="second"):
                builder.call("Functional", "sigmoid", x, shape=(4,))
        builders.append(builder)
    alignment = align_builders(*builders)
    assert_true_pairs(alignment, *builders)


def test_a_call_that_one_module_lacks_is_not_taken_from_another_that_both_runs_have() -> None:
    """The last call of the first block and the first call of the second are in the same place of the order."""
    builders = []
    for place in ("first", "second"):
        builder = RunBuilder("L1")
        x = builder.data("x", (4,))
        with builder.module("", "Net", mark="Net"):
            with builder.module("first", "Block", mark="first"):
                x = builder.call("Functional", "tanh", x, shape=(4,))
                x = builder.call("Functional", "relu", x, shape=(4,)) if place == "first" else x
            with builder.module("second", "Block", mark="second"):
                x = builder.call("Functional", "relu", x, shape=(4,)) if place == "second" else x
                x = builder.call("Functional", "tanh", x, shape=(4,))
            builder.call("Functional", "sigmoid", x, shape=(4,))
            builder.call("Functional", "exp" if place == "first" else "log", x, shape=(4,))
        builders.append(builder)
    alignment = align_builders(*builders)
    assert all(call.op != "relu" for match in alignment.matches for call in match.reference)


@each_level
def test_renamed_modules_are_found_by_what_they_do(level: str) -> None:
    names = {"layers": "blocks", "attention": "mixer", "norm": "ln", "q": "query", "k": "key", "v": "value", "fc": "up"}
    alignment = aligned(Transformer(names=names), level)
    assert alignment.modules["layers.2.attention.k"] == "blocks.2.mixer.key"
    if level != "L1":
        assert rules(alignment)["module tree"] > 0


@each_level
@pytest.mark.parametrize("names", [{}, {"layers": "h", "words": "wte", "head": "lm_head"}])
def test_a_model_inside_another_module_is_found(level: str, names: dict[str, str]) -> None:
    alignment = aligned(Transformer(prefix="inner.model", wrapper="Trainer", names=names), level)
    assert alignment.modules["layers.1.fc"] == f"inner.model.{names.get('layers', 'layers')}.1.fc"


@each_level
@pytest.mark.parametrize("missing", [0, 1, 3])
def test_of_equal_layers_the_missing_one_is_told_by_its_parameters(level: str, missing: int) -> None:
    left = [layer for layer in (0, 1, 2, 3) if layer != missing]
    alignment = aligned(Transformer(layers=left), level)
    lonely = {unpaired.call.module_path for unpaired in alignment.only_reference}
    assert all(path is not None and path.startswith(f"layers.{missing}") for path in lonely)
    assert not alignment.only_candidate


@each_level
def test_an_added_layer_is_told_by_its_parameters(level: str) -> None:
    alignment = aligned(Transformer(layers=(0, 1, 9, 2, 3)), level)
    assert all((unpaired.call.module_path or "").startswith("layers.2") for unpaired in alignment.only_candidate)


@each_level
def test_two_missing_layers_and_another_name(level: str) -> None:
    aligned(Transformer(layers=(1, 2), names={"layers": "h"}), level)


def test_without_values_layers_pair_by_their_names() -> None:
    """Nothing else is left to tell them apart."""
    builders = REFERENCE.record(RunBuilder("L0")), Transformer(layers=(0, 2, 3)).record(RunBuilder("L0", seed=5))
    for match in align_builders(*builders).matches:
        assert match.reference[0].name == match.candidate[0].name


@each_api_level
@pytest.mark.parametrize("op", ["clone", "add", "transpose"])
def test_inserted_calls_shift_counters_and_nothing_else(level: str, op: str) -> None:
    alignment = aligned(Transformer(extra_after=frozenset({3, 9, 21, 40}), extra_op=op), level)
    assert {unpaired.call.op for unpaired in alignment.only_candidate} == {op}


@each_api_level
def test_operators_and_methods_in_any_spelling_are_one_operation(level: str) -> None:
    spelling = {
        "add": ("Tensor", "__iadd__"),
        "transpose": ("Torch", "swapaxes"),
        "gelu": ("Ops", "aten.gelu.default"),
        "linear": ("Torch", "linear"),
    }
    alignment = aligned(Transformer(spelling=spelling), level)
    assert not alignment.only_reference
    assert rules(alignment)["spelling"] > 0


@each_api_level
def test_fused_attention_stands_against_its_parts(level: str) -> None:
    alignment = aligned(Transformer(is_fused=False), level)
    groups = [match for match in alignment.matches if match.rule == "group"]
    forward = [match for match in groups if match.reference[0].direction == "forward"]
    assert [len(match.candidate) for match in forward] == [5] * 4
    assert all(match.reference[0].op == "scaled_dot_product_attention" for match in forward)
    assert len(groups) == 8, "the backward calls of a group are one as well"
    for match in forward:
        slots = [(one.slot, other.slot) for one, other in match.boundary if one is not None and other is not None]
        assert slots == [
            ("input.0", "input.0"),
            ("input.1", "input.0"),
            ("input.2", "input.1"),
            ("output.0", "output.0"),
        ]
    assert not alignment.only_reference and not alignment.only_candidate


def test_fused_attention_stands_against_its_parts_without_modules_or_data_flow() -> None:
    builders = [
        program.record(RunBuilder("L1", has_flow=False, has_paths=False))
        for program in (REFERENCE, Transformer(is_fused=False))
    ]
    alignment = align_builders(*builders)
    assert_true_pairs(alignment, *builders)
    assert rules(alignment)["group"] == 8


@each_api_level
def test_another_activation_is_held_against_the_one_it_replaces(level: str) -> None:
    alignment = aligned_with_replacement(level)
    replaced = [match for match in alignment.matches if match.rule == "group"]
    assert {(match.reference[0].op, match.candidate[0].op) for match in replaced} == {("gelu", "relu")}


def aligned_with_replacement(level: str) -> Alignment:
    builders = (
        REFERENCE.record(RunBuilder(level)),
        Transformer(spelling={"gelu": ("Functional", "relu")}).record(RunBuilder(level)),
    )
    return align_builders(*builders)


@pytest.mark.parametrize(
    "candidate",
    [
        Transformer(layers=(0, 1, 3)),
        Transformer(layers=(0, 1, 3), extra_after=frozenset({5, 17})),
        Transformer(extra_after=frozenset({3, 9, 21, 40}), extra_op="add"),
    ],
)
def test_one_flat_run_without_modules_or_data_flow(candidate: Transformer) -> None:
    """What msprobe writes at L1."""
    builders = [program.record(RunBuilder("L1", has_flow=False, has_paths=False)) for program in (REFERENCE, candidate)]
    alignment = align_builders(*builders)
    assert_true_pairs(alignment, *builders)


@pytest.mark.parametrize(("level", "other_level"), [("L0", "mix"), ("mix", "L1"), ("L1", "mix")])
def test_what_two_levels_have_in_common_is_paired(level: str, other_level: str) -> None:
    builders = REFERENCE.record(RunBuilder(level)), Transformer(layers=(0, 1, 3)).record(RunBuilder(other_level))
    alignment = align_builders(*builders)
    assert_true_pairs(alignment, *builders)
    assert_every_call_once(alignment, *builders)


def test_a_run_without_module_paths_stands_against_one_with_them() -> None:
    builders = REFERENCE.record(RunBuilder("L1", has_flow=False, has_paths=False)), REFERENCE.record(RunBuilder("mix"))
    alignment = align_builders(*builders)
    assert_true_pairs(alignment, *builders)
    assert alignment.has_same_gradient_order is False


def test_what_an_optimizer_calls_is_paired_among_itself() -> None:
    builders = []
    for count in (3, 4):
        builder = RunBuilder("L1")
        x = builder.data("x", (4,))
        y = builder.call("Tensor", "mul", x, shape=(4,), mark="the user's")
        for number in range(count):
            weight = builder.weight(f"w{number + (count == 3)}", (4,))
            builder.call("Tensor", "mul", weight, shape=(4,), mark=f"step of {weight.seed}", caller="optimizer")
        builder.call("Tensor", "mul", y, shape=(4,), mark="the user's")
        builders.append(builder)
    assert_true_pairs(align_builders(*builders), *builders)


def test_a_call_without_a_partner_has_its_nearest_and_the_reason() -> None:
    alignment = aligned(Transformer(layers=(0, 1, 3)), "mix")
    unpaired = next(one for one in alignment.only_reference if one.call.name == "Module.layers.2.fc.Linear.forward.0")
    assert unpaired.nearest is not None and unpaired.nearest.op == "Linear"
    partner = next(match.reference[0] for match in alignment.matches if match.candidate[0] is unpaired.nearest)
    assert unpaired.why == f"already paired with {partner.name}"


def test_the_nearest_may_be_in_another_module_or_of_other_shapes() -> None:
    builders = []
    for path, shape in (("a", (4,)), ("b", (5, 5))):
        builder = RunBuilder("mix")
        x = builder.data("x", shape)
        with builder.module("", "Net"):
            with builder.module("first", "First"):
                x = builder.call("Torch", "sin" if path == "a" else "cos", x, shape=shape)
            with builder.module("second", "Second"):
                builder.call("Torch", "cos" if path == "a" else "sin", x, shape=shape)
        builders.append(builder)
    alignment = align_builders(*builders)
    why = {one.call.name: one.why for one in alignment.only_reference}
    assert why["Torch.sin.0.forward"] == "in another module, second"
    assert why["Torch.cos.0.forward"] == "in another module, first"


@settings(max_examples=15)
@given(
    level=st.sampled_from(API_LEVELS),
    places=st.frozensets(st.integers(0, 60), max_size=8),
    op=st.sampled_from(["clone", "mul", "contiguous"]),
)
def test_any_calls_may_be_inserted(level: str, places: frozenset[int], op: str) -> None:
    aligned(Transformer(layers=(0, 1, 2), extra_after=places, extra_op=op), level, Transformer(layers=(0, 1, 2)))


programs = st.builds(
    Transformer,
    layers=st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
    prefix=st.sampled_from(["", "module", "inner"]),
    names=st.sampled_from([{}, {"layers": "h"}, {"q": "query"}]),
    is_fused=st.booleans(),
    extra_after=st.frozensets(st.integers(0, 40), max_size=4),
    extra_op=st.sampled_from(["add", "clone", "view", "linear"]),
)


@settings(max_examples=25)
@given(reference=programs, candidate=programs, level=st.sampled_from(LEVELS), has_flow=st.booleans())
def test_every_call_is_once_in_the_result_and_sides_may_be_swapped(
    reference: Transformer, candidate: Transformer, level: str, has_flow: bool
) -> None:
    builders = [program.record(RunBuilder(level, has_flow=has_flow)) for program in (reference, candidate)]
    alignment = align_builders(*builders)
    assert_every_call_once(alignment, *builders)
    mirrored = align_builders(*builders[::-1])
    assert {(m.candidate, m.reference, m.rule) for m in named(mirrored)} == {
        (m.reference, m.candidate, m.rule) for m in named(alignment)
    }
    assert set(rules(align_builders(builders[0], builders[0]))) <= {"same name"}


class named(list):  # noqa: N801  reads as a verb
    """Matches by the names of their calls."""

    def __init__(self, alignment: Alignment) -> None:
        super().__init__(
            _Named(tuple(c.name for c in m.reference), tuple(c.name for c in m.candidate), m.rule)
            for m in alignment.matches
        )


class _Named:
    def __init__(self, reference: tuple[str, ...], candidate: tuple[str, ...], rule: str) -> None:
        self.reference, self.candidate, self.rule = reference, candidate, rule


def test_no_calls_at_all() -> None:
    empty = RunBuilder().build()
    full = REFERENCE.record(RunBuilder()).build()
    assert align_calls(empty, empty).matches == ()
    alignment = align_calls(empty, full)
    assert not alignment.matches and len(alignment.only_candidate) == len(full.calls)
