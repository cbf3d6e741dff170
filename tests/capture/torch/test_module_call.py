"""What modules are called, whatever they are wrapped in."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from tensorprobe.capture.torch.module_call import class_name_of, walk_modules


class FSDPBlock(nn.Module):
    """A user's class that is called like what FSDP2 makes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


class DistributedDataParallel(nn.Module):
    """A wrapper is known by its name, so that nothing need be imported to know it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class ParametrizedLayer(nn.Linear):
    pass


def refuse(where: str, error: BaseException) -> None:
    raise error


def test_a_users_class_keeps_its_name_whatever_it_is_called() -> None:
    assert class_name_of(FSDPBlock()) == "FSDPBlock"
    assert class_name_of(ParametrizedLayer(1, 1)) == "ParametrizedLayer"


def test_a_parametrized_module_has_the_name_of_its_class() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", nn.Identity())
    assert type(layer) is not nn.Linear
    assert class_name_of(layer) == "Linear"


def test_a_wrapper_has_no_part_in_the_names_and_says_whose_gradients_are_reduced() -> None:
    model = nn.Sequential(DistributedDataParallel(FSDPBlock()), nn.Linear(2, 2))
    found = [(path, class_name, is_reduced) for path, _, class_name, is_reduced in walk_modules(model, refuse)]
    assert found == [
        ("", "Sequential", False),
        ("0", "FSDPBlock", True),
        ("0.fc", "Linear", True),
        ("1", "Linear", False),
    ]


def test_a_compiled_module_stands_for_what_it_compiles() -> None:
    model = torch.compile(DistributedDataParallel(FSDPBlock()), backend="eager")
    found = list(walk_modules(model, refuse))
    assert found == [("", model, "FSDPBlock", True), ("fc", model._orig_mod.module.fc, "Linear", True)]
