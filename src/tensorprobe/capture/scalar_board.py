"""`tensorboard`: norms of activations and gradients, per module, as scalars. They come from records whose statistics
are fetched, so that nothing waits for a device. TensorBoard is imported only where it is asked for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorprobe.capture.sink import Finished
from tensorprobe.capture.step_watch import iter_leaves
from tensorprobe.config import CaptureConfig
from tensorprobe.errors import ConfigError
from tensorprobe.model.name import PARAMETERS_GRAD
from tensorprobe.store import layout

_WRITERS = (("tensorboard.summary", "Writer"), ("tensorboardX", "SummaryWriter"))
_MODULES = ("Module.", "Cell.")


def make_board(config: CaptureConfig) -> ScalarBoard | None:
    """The board of a session; None where none is asked for."""
    return None if config.tensorboard is None else ScalarBoard(config.tensorboard.absolute())


class ScalarBoard:
    """Writes one number for each module and step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._make_writer = find_writer()
        self._writer: Any = None
        self._squares: dict[str, float] = {}

    def observe(self, records: Iterable[Finished]) -> None:
        for record in records:
            tag = tag_of(record.name)
            if tag is not None:
                tree = record.fields.get("output") if tag.startswith("activation") else record.fields
                self._squares[tag] = self._squares.get(tag, 0.0) + sum_squares(tree)

    def end_step(self, step: int, rank: int | None) -> None:
        """Write what the records of the step had."""
        squares, self._squares = self._squares, {}
        if self._writer is None and squares:
            self._writer = self._make_writer(str(self._folder / layout.rank_name(rank)))
        for tag, square in squares.items():
            self._writer.add_scalar(tag, math.sqrt(square), step)
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def find_writer() -> Any:
    """What writes the files of TensorBoard here."""
    for module, name in _WRITERS:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ConfigError(
        'the key "tensorboard" needs the package tensorboard or tensorboardX, and none of them can be imported; run: '
        "pip install tensorboard"
    )


def tag_of(record: str) -> str | None:
    """`activation_norm/fc.Linear` for a call of a module, `gradient_norm/fc.Linear` for its gradients; None for others.

    >>> tag_of("Module.fc.Linear.forward.0"), tag_of("Module.fc.Linear.parameters_grad"), tag_of("Torch.add.0.forward")
    ('activation_norm/fc.Linear', 'gradient_norm/fc.Linear', None)
    """
    if not record.startswith(_MODULES):
        return None
    stem = record.partition(".")[2]
    if stem.endswith(f".{PARAMETERS_GRAD}"):
        return f"gradient_norm/{stem.removesuffix(f'.{PARAMETERS_GRAD}')}"
    module, separator, _ = stem.rpartition(".forward.")
    return f"activation_norm/{module}" if separator else None


def sum_squares(tree: Any) -> float:
    """The square of the norm of all its tensors together; NaN if there is one in them."""
    total = 0.0
    for leaf, _ in iter_leaves(tree, ""):
        stats = leaf.value.stats
        if stats is not None and isinstance(stats.norm, (int, float)):
            norm = float(stats.norm)
            total += math.nan if stats.nan_count else norm * norm  # a power of a large one would raise an error
    return total
