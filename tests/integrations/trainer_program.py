"""A training with the `Trainer` of transformers, with dropout, accumulation, evaluation, a log and checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from tensorprobe.integrations.transformers import TensorprobeCallback

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
STEPS = 4


class ObservedTrainer(Trainer):
    """Keeps the loss of every micro-batch."""

    losses: list[torch.Tensor]

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **keywords)
        self.losses.append(loss.clone())
        return loss


def train(
    callbacks: list[TrainerCallback], *, resume: str | None = None, folder: str = "out", **options: Any
) -> list[torch.Tensor]:
    """Train; every loss, every weight and the state of the random numbers afterwards."""
    set_seed(0)
    dataset = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (32, 6))]
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1, attn_implementation="eager"))
    choices = {"eval_strategy": "steps", "eval_steps": 1, "logging_steps": 3, "save_steps": 2, **options}
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        **choices,
    )
    trainer = ObservedTrainer(model, arguments, train_dataset=dataset, eval_dataset=dataset[:4], callbacks=callbacks)
    trainer.losses = []
    trainer.train(resume_from_checkpoint=resume)
    return [*trainer.losses, *(weight.detach().clone() for weight in model.parameters()), torch.get_rng_state()]


def are_equal(reference: list[torch.Tensor], candidate: list[torch.Tensor]) -> bool:
    """To the bit?"""
    return len(reference) == len(candidate) and all(map(torch.equal, reference, candidate))


class Interruption(TrainerCallback):
    """Ctrl-C in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


if __name__ == "__main__":
    if sys.argv[1] == "interrupt":
        train([TensorprobeCallback("dump"), Interruption(1)])
    else:
        plain = train([], save_strategy="no")
        assert are_equal(plain, train([TensorprobeCallback("dump")], save_strategy="no"))
        Path(f"equal{torch.distributed.get_rank()}").touch()
        torch.distributed.destroy_process_group()
