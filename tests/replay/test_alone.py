"""What a call gives back for the gradients that were recorded of its results."""

from __future__ import annotations

import subprocess
import sys

import torch

from tensorprobe.replay.alone import differentiate


def test_each_result_has_the_gradient_that_is_given() -> None:
    given = torch.tensor([1.0, 2.0], requires_grad=True)
    square, twice = given**2, given.sum() * torch.tensor(2j)
    (found,) = differentiate([square, twice], [torch.tensor([1.0, 10.0]), torch.tensor(3j)], [given])
    (wanted,) = torch.autograd.grad([square, twice], given, [torch.tensor([1.0, 10.0]), torch.tensor(3j)])
    assert found is not None
    assert found.equal(wanted)


def test_what_no_result_depends_on_has_none() -> None:
    given = [torch.ones(2, requires_grad=True) for _ in range(2)]
    assert differentiate([given[0] * 2], [torch.ones(2)], given)[1] is None


def test_torch_need_not_load_its_symbolic_shapes_for_it() -> None:
    program = """
import sys, torch
from tensorprobe.replay.alone import differentiate
given = torch.ones(2, requires_grad=True)
differentiate([given * 2], [torch.ones(2)], [given])
print("torch.fx.experimental.symbolic_shapes" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"
