"""Three optimizer steps, and everything about them that must not change when capture is on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn

from tensorprobe.capture.context import make_session
from tensorprobe.capture.session import Session
from tensorprobe.config import load_config
from tests.capture.mindspore.models import MODELS

Observed = dict[str, Any]


def train(model_name: str, around: Callable[[Any], Any] | None = None) -> Observed:
    """Train from a fixed seed; `around(model)` is a context manager for each step."""
    random.seed(7)
    mindspore.set_seed(7)
    np.random.seed(7)
    model, loss_of, batches = MODELS[model_name]()
    model.set_train()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-2)
    names = [parameter.name for parameter in optimizer.parameters]
    compute = mindspore.value_and_grad(lambda batch: loss_of(model, batch), None, optimizer.parameters)
    observed: Observed = {}
    for step, batch in enumerate(batches):
        with around(model) if around is not None else nothing():
            loss, gradients = compute(batch)
            observed[f"loss {step}"] = loss.asnumpy().copy()
            for name, gradient in zip(names, gradients, strict=True):
                observed[f"gradient {step} {name}"] = gradient.asnumpy().copy()
            optimizer(gradients)
    for parameter in model.get_parameters():
        observed[f"weight {parameter.name}"] = parameter.asnumpy().copy()
    observed["numpy generator"] = np.random.get_state()[1]
    observed["python generator"] = random.getstate()
    return observed


def difference(reference: Observed, candidate: Observed) -> list[str]:
    """What is not bit for bit the same."""
    assert reference.keys() == candidate.keys()
    return [key for key in reference if not same(reference[key], candidate[key])]


def same(reference: Any, candidate: Any) -> bool:
    if isinstance(reference, np.ndarray):
        return reference.dtype == candidate.dtype and reference.tobytes() == candidate.tobytes()
    return bool(reference == candidate)


def open_session(dump_path: Path, **options: Any) -> Session:
    return make_session(load_config(None, dump_path=dump_path, **options), "mindspore")


@contextmanager
def recorded_step(session: Session, model: Any) -> Iterator[None]:
    session.start(model)
    yield
    session.stop()
    session.step()


@contextmanager
def nothing() -> Iterator[None]:
    yield
