"""What pyproject.toml cannot say: tensorprobe.pth goes beside the package, where Python looks for such files when it
starts. It does nothing unless a variable asks for a recording (docs/run.md). The compiled part of capture. And what an
index of packages shows of README.md: the files beside it are not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

START_FILE = "src/tensorprobe.pth"
RELATIVE_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]*\)\n+", re.MULTILINE)
RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)]*\)")


class BuildWithStartFile(build_py):
    """For wheels."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file(START_FILE, self.build_lib)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        extra = [] if self.editable_mode else [str(Path(self.build_lib, Path(START_FILE).name))]
        return [*super().get_outputs(include_bytecode), *extra]


class EditableWithStartFile(editable_wheel):
    """For `pip install -e`: setuptools has no public place for it; the method has been there since 64."""

    def _run_build_commands(self, name: str, unpacked_wheel: Any, *rest: Any) -> Any:
        self.copy_file(START_FILE, str(unpacked_wheel))
        return super()._run_build_commands(name, unpacked_wheel, *rest)


def describe_at_length() -> str:
    """README.md without its pictures, and with the words of its links alone: an index has none of the files."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    parts = text.split("```")  # every other one is code
    parts[::2] = [RELATIVE_LINK.sub(r"\1", RELATIVE_IMAGE.sub("", part)) for part in parts[::2]]
    return "```".join(parts)


def compiled_part(name: str) -> Extension:
    """Without a compiler its twin in Python does the same."""
    return Extension(
        f"tensorprobe.{name.replace('/', '.')}",
        [f"src/tensorprobe/{name}.c"],
        depends=[str(header) for header in Path("src/tensorprobe", name).parent.glob("*.h")],
        extra_compile_args=["-O3"],
        extra_link_args=["-pthread", "-ldl"],
        py_limited_api=True,
        optional=True,
    )


COMPILED = ("capture/_native", "capture/torch/_look", "capture/torch/_launch", "store/_encode")

setup(
    long_description=describe_at_length(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithStartFile, "editable_wheel": EditableWithStartFile},
    ext_modules=[compiled_part(name) for name in COMPILED],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
