"""Three optimizer steps, and everything about them that must not change when capture is on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.context import make_session
from tensorprobe.capture.session import Session
from tensorprobe.config import load_config
from tests.capture.torch.models import MODELS

Observed = dict[str, Any]


def train(model_name: str, around: Callable[[torch.nn.Module], Any] | None = None, device: str = "cpu") -> Observed:
    """Train from a fixed seed; `around(model)` is a context manager for each step."""
    if model_name in ("llama", "t5"):
        import transformers  # noqa: F401  the first import draws random numbers in some versions

    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    model, loss_of, batches = MODELS[model_name]()
    model.to(device).train()
    batches = [torch.utils._pytree.tree_map(lambda tensor: tensor.to(device), batch) for batch in batches]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    observed: Observed = {}
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        with around(model) if around is not None else nothing():
            loss = loss_of(model, batch)
            loss.backward()
            observed[f"loss {step}"] = loss.detach().clone()
            for name, parameter in model.named_parameters():
                observed[f"gradient {step} {name}"] = None if parameter.grad is None else parameter.grad.clone()
            optimizer.step()
    for name, tensor in model.state_dict().items():
        observed[f"weight {name}"] = tensor.clone()
    observed["torch generator"] = torch.get_rng_state()
    observed["numpy generator"] = torch.from_numpy(np.random.get_state()[1].astype(np.int64))
    observed["python generator"] = random.getstate()
    return observed


def difference(reference: Observed, candidate: Observed) -> list[str]:
    """What is not bit for bit the same."""
    assert reference.keys() == candidate.keys()
    return [key for key in reference if not same(reference[key], candidate[key])]


def same(reference: Any, candidate: Any) -> bool:
    if isinstance(reference, torch.Tensor) and isinstance(candidate, torch.Tensor):
        return reference.dtype == candidate.dtype and torch.equal(reference.reshape(-1), candidate.reshape(-1))
    return bool(reference == candidate)


def open_session(dump_path: Path, **options: Any) -> Session:
    return make_session(load_config(None, dump_path=dump_path, **options), "torch")


@contextmanager
def recorded_step(session: Session, model: Any) -> Iterator[None]:
    session.start(model)
    yield
    session.stop()
    session.step()


@contextmanager
def nothing() -> Iterator[None]:
    yield
