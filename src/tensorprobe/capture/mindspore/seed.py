"""Fixes the randomness of a MindSpore program, and gives back what was before.

What is not of MindSpore is in `capture.seed`. Nothing here settles the device: `set_device` and the settings that have
to come before the first operation still can.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

import mindspore
from mindspore import dataset

from tensorprobe.capture.mindspore.dropout import set_dropout_inert
from tensorprobe.capture.mindspore.generator import seed_module, seed_state
from tensorprobe.capture.seed import (
    Changes,
    SeedHandle,
    Undo,
    apply_changes,
    check_arguments,
    remember_environment,
    seed_python,
    tell_of_dropout,
)

_DETERMINISM_VARIABLES = ("HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER")  # MindSpore sets them with deterministic="ON"
_logger = logging.getLogger("tensorprobe")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> SeedHandle:
    """Seed every random generator, with `mode` ask for deterministic algorithms, with `rm_dropout` make dropout inert.

    `mode` and `rm_dropout` leave things as they are when False. `seed` is 0 to 4294967295.
    """
    check_arguments(seed, mode, rm_dropout)
    return apply_changes(_changes(seed, mode, rm_dropout))


def _changes(seed: int, mode: bool, rm_dropout: bool) -> Changes:
    yield from seed_python(seed)
    yield from _seed_generators(seed)
    if mode:
        yield from _make_deterministic()
    if rm_dropout:
        yield "mindspore dropout", set_dropout_inert(True)
        tell_of_dropout()


def _seed_generators(seed: int) -> Changes:
    """`set_seed` seeds numpy too, with the same seed; mint's generator is not among what it seeds."""
    undo: Undo = partial(_set_seed_state, seed_state(), dataset.config.get_seed())
    mindspore.set_seed(seed)
    yield "mindspore", undo

    generator = mindspore.default_generator
    undo = partial(_set_generator_state, generator, generator.get_state(), _is_seeded(generator))
    generator.manual_seed(seed)
    yield "mindspore.default_generator", undo


def _set_seed_state(state: tuple[int | None, dict[Any, int]], dataset_seed: int) -> None:
    module = seed_module()
    module._GLOBAL_SEED, kernel_seeds = state  # None, nothing set, is what mindspore.set_seed does not take
    module._KERNEL_SEED.clear()
    module._KERNEL_SEED.update(kernel_seeds)
    dataset.config.set_seed(dataset_seed)


def _is_seeded(generator: Any) -> bool:
    return bool(generator._generator.attrs.get("manual_seed", False))


def _set_generator_state(generator: Any, state: Any, is_seeded: bool) -> None:
    generator.set_state(state)
    generator._generator.add_prim_attr("manual_seed", is_seeded)


def _make_deterministic() -> Changes:
    """By `set_context`: `set_deterministic` can be called but once in a process, and belongs to the program."""
    for name in _DETERMINISM_VARIABLES:
        yield name, remember_environment(name)

    before, reductions = mindspore.get_context("deterministic"), os.environ.get("HCCL_DETERMINISTIC")
    _set_deterministic("ON")
    if reductions == "strict":
        os.environ["HCCL_DETERMINISTIC"] = reductions  # MindSpore before 2.9 does not know it, and sets "true"
    yield "mindspore deterministic", partial(_set_deterministic, before)
    if mindspore.get_context("deterministic") != "ON":
        _logger.warning("seed_all: the program has called mindspore.set_deterministic(False), which cannot be changed")


def _set_deterministic(value: str) -> None:
    if value == "OFF":
        for name in _DETERMINISM_VARIABLES:
            os.environ.pop(name, None)  # MindSpore would, with a warning; their own undos follow
    mindspore.set_context(deterministic=value)
