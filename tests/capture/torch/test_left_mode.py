"""A window that is closed in another thread than it was opened in leaves its thread as it was, after the next call."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from tensorprobe.capture.session import Session
from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session


def stop_elsewhere(session: Session) -> None:
    thread = threading.Thread(target=session.stop)
    thread.start()
    thread.join()


def depth() -> int:
    return int(torch._C._len_torch_function_stack())


@pytest.mark.parametrize("call", [torch.sin, torch.Tensor.sin, lambda x: F.dropout(x, 0.0), lambda x: x + 1])
def test_the_mode_goes_with_the_next_call(call: object, tmp_path: Path) -> None:
    session, x = open_session(tmp_path), torch.ones(2)
    session.start()
    stop_elsewhere(session)
    assert depth() == 1  # nobody can take it away from there
    assert callable(call)
    call(x)
    assert depth() == 0 and sys.getprofile() is None
    assert torch.equal(torch.sin(x), torch.sin(x))
    session.close()


def test_a_mode_of_the_program_above_it_stays(tmp_path: Path) -> None:
    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.calls += 1
            return func(*args, **(kwargs or {}))

    session, x = open_session(tmp_path), torch.ones(2)
    session.start()
    with Counting() as counting:
        stop_elsewhere(session)
        for _ in range(3):
            torch.sin(x)
        assert depth() == 1 and counting.calls == 3
    assert depth() == 0
    session.close()


def test_a_profiler_of_the_program_is_left_alone(tmp_path: Path) -> None:
    session, x = open_session(tmp_path), torch.ones(2)
    session.start()
    stop_elsewhere(session)

    def profile(*_: object) -> None:
        pass

    sys.setprofile(profile)
    try:
        torch.sin(x)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    torch.sin(x)
    assert depth() == 0
    session.close()


def test_a_window_that_was_opened_meanwhile_keeps_its_mode(tmp_path: Path) -> None:
    session, x = open_session(tmp_path), torch.ones(2)
    session.start()
    stop_elsewhere(session)
    session.start()
    torch.sin(x)
    torch.cos(x)
    assert depth() == 1
    session.stop()
    session.step()
    assert list(only_step(tmp_path).records) == ["Torch.sin.0.forward", "Torch.cos.0.forward"]
    session.close()
