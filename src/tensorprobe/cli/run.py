"""`tensorprobe run`: a program is recorded that does not know of it."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorprobe.launch.command import start_program
from tensorprobe.launch.setting import CONFIG, LEVEL, OUTPUT, STEP, STEP_AT, TASK, LaunchSetting

PARSING = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What comes after the script is the script's own."""


Program = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT | -m MODULE [ARGUMENTS]…", help="What is to run, as after `python`."),
]
Level = Annotated[str | None, typer.Option(envvar=LEVEL, help="L0 (modules), L1 (calls) or mix (both; the default).")]
Task = Annotated[str | None, typer.Option(envvar=TASK, help="statistics (the default), tensor, structure or replay.")]
Step = Annotated[str | None, typer.Option(envvar=STEP, help='Which steps: 0-2 (the default), "0,100-102", or all.')]
Output = Annotated[
    str | None, typer.Option("--output", "-o", envvar=OUTPUT, help="The folder of the dump: ./dump_path.")
]
Config = Annotated[
    str | None, typer.Option("--config", "-c", envvar=CONFIG, help="A config.json; the options win over it.")
]
StepAt = Annotated[
    str | None,
    typer.Option(
        envvar=STEP_AT, help="Where a step ends: auto (the optimizer's step), backward, or call (of a model)."
    ),
]


def run(
    program: Program = None,
    level: Level = None,
    task: Task = None,
    step: Step = None,
    output: Output = None,
    config: Config = None,
    step_at: StepAt = None,
) -> None:
    """Run a program and record what it computes. The program need not be changed.

    tensorprobe run train.py --lr 0.1                       steps 0 to 2, into ./dump_path

    tensorprobe run --step 100 --task tensor -o good train.py     one step, with its tensors

    tensorprobe run -m package.train --epochs 1             as python -m

    tensorprobe run torchrun --nproc_per_node 2 train.py    all ranks; msrun and accelerate launch likewise

    tensorprobe run --step-at call generate.py              each call of the model is a step

    A step ends at the optimizer's step; without an optimizer, at the end of a backward pass; without either, the whole
    program is one step. Then: tensorprobe show dump_path.

    A program that somebody else starts is recorded by variables: TENSORPROBE=config.json, or TENSORPROBE_LEVEL, _TASK,
    _STEP, _STEP_AT, _OUTPUT.

    Output, signals and exit code are those of the program; 2, if it could not be started.
    """
    start_program(program or [], LaunchSetting(config, level, task, step, step_at, output))
