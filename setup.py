"""What pyproject.toml cannot say: tensorprobe.pth goes beside the package, where Python looks for such files when it
starts. It does nothing unless a variable asks for a recording (docs/run.md). And the compiled part of capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

START_FILE = "src/tensorprobe.pth"


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


setup(
    cmdclass={"build_py": BuildWithStartFile, "editable_wheel": EditableWithStartFile},
    ext_modules=[
        Extension(
            "tensorprobe.capture._native",
            ["src/tensorprobe/capture/_native.c"],
            extra_compile_args=["-O3"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,  # without a compiler numpy and torch do the same
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
