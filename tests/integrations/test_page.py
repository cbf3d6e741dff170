"""The program that each page begins with runs as it stands, and leaves the dump that the page describes."""

from __future__ import annotations

from tests.integrations.page import PAGES, TWO_RANKS, recorded_steps, run_page, run_page_here

# torchvision registers derivatives of its compiled functions as soon as it is imported. The index has its compiled part
# for another torch than the one for CPUs alone; timm needs none of these functions, only the rest of torchvision.
DECLARE_NMS = """
import torch
declared = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        declared.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
"""

# Else DeepSpeed compiles a faster way to communicate on first use, which takes a minute.
WITHOUT_COMPILER = """
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
"""


def test_every_page_has_its_test() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {
        "accelerate",
        "deepspeed",
        "lightning",
        "peft",
        "ray",
        "timm",
        "transformers",
    }


def test_the_program_on_transformers_runs() -> None:
    run_page_here("transformers")
    assert recorded_steps() == ["step0/rank", "step2/rank"]


def test_the_program_on_lightning_runs() -> None:
    run_page_here("lightning")
    assert recorded_steps() == ["step0/rank", "step2/rank"]


def test_the_program_on_accelerate_runs() -> None:
    run_page_here("accelerate")
    assert recorded_steps() == [f"step{number}/rank" for number in range(4)]


def test_the_program_on_peft_runs() -> None:
    run_page_here("peft")
    assert recorded_steps() == ["step0/rank", "step1/rank"]


def test_the_program_on_timm_runs() -> None:
    run_page("timm", before=DECLARE_NMS, has_apart=True)
    assert recorded_steps() == ["step0/rank", "step1/rank"]


def test_the_program_on_deepspeed_runs() -> None:
    run_page("deepspeed", *TWO_RANKS, before=WITHOUT_COMPILER, has_apart=True)
    assert recorded_steps() == [f"step{step}/rank{rank}" for step in range(4) for rank in range(2)]


def test_the_program_on_ray_runs() -> None:
    run_page("ray")
    assert recorded_steps() == [f"step{step}/rank{rank}" for step in range(2) for rank in range(2)]
