"""A meaning, called in place of a kernel: what it gives is held against what was recorded, and where it does not fit,
that is said in words for the one who wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorprobe.replay.meaning.registry import KernelMeaning, MeaningError
from tensorprobe.replay.program import Operation
from tensorprobe.run.leaf import Leaf


def fit_meaning(
    meaning: KernelMeaning, operation: Operation, pin: Callable[[Leaf], torch.Tensor]
) -> Callable[..., tuple[Any, ...]]:
    """The function of a meaning, with its results as those of the kernel: `pin` gives a result as it was recorded, for
    the ones that the meaning does not know."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        try:
            given = meaning.function(*args, **kwargs)
        except NotImplementedError as error:
            raise MeaningError(f"its meaning ({meaning.description}) does not cover {error}") from error
        except Exception as error:  # somebody else's function
            text = str(error).strip().splitlines()
            raise MeaningError(
                f"its meaning ({meaning.description}) raised {type(error).__name__}: {text[0][:200] if text else ''}"
            ) from error
        results = given if isinstance(given, tuple) else (given,)
        return tuple(_fit(meaning, operation, list(results), pin))

    return call


def _fit(
    meaning: KernelMeaning, operation: Operation, results: list[Any], pin: Callable[[Leaf], torch.Tensor]
) -> list[Any]:
    count = len(operation.results)
    if meaning.is_built_in:  # versions of a library return more or less beside the result
        results = [*results[:count], *[None] * (count - len(results))]
    if len(results) != count:
        raise MeaningError(
            f"its meaning ({meaning.description}) gave {_count(len(results))} where the kernel gave {_count(count)}: "
            "return what the kernel returns, None in place of a result that it does not say"
        )
    for leaf in operation.outputs:
        first, *inner = (int(part) for part in leaf.slot.split(".")[1:] if part.isdigit())
        result = results[first]
        if not inner and (result is None or not _fits(meaning, leaf, result, is_first=first == 0)):
            results[first] = pin(leaf)
    return results


def _fits(meaning: KernelMeaning, leaf: Leaf, result: Any, is_first: bool) -> bool:
    """Is it what was recorded there, by its kind? MeaningError if not; a by-product of a meaning that is built in may
    be laid out otherwise in another version."""
    if not isinstance(result, torch.Tensor):
        problem = f"gave {type(result).__name__} where the kernel gave a tensor ({leaf.slot})"
    elif tuple(result.shape) != leaf.shape:
        problem = f"gave a tensor of {list(result.shape)} where the kernel gave {list(leaf.shape)} ({leaf.slot})"
    elif leaf.is_floating and result.dtype not in (torch.float64, torch.complex128):
        problem = (
            f"gave {result.dtype} ({leaf.slot}) for arguments in float64: name no dtype in it (x.float(), "
            "dtype=torch.float32)"
        )
    else:
        return True
    if meaning.is_built_in and not is_first:
        return False
    raise MeaningError(f"its meaning ({meaning.description}) {problem}")


def _count(number: int) -> str:
    return f"{number} result" if number == 1 else f"{number} results"
