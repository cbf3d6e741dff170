"""Adds the .pth file, for which pyproject.toml has no place, beside the modules."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithGuard(build_py):
    """Python reads a .pth file when it starts, if it lies where packages are installed."""

    def run(self) -> None:
        super().run()
        self.copy_file("tensorprobe_compat.pth", str(Path(self.build_lib) / "tensorprobe_compat.pth"))


setup(cmdclass={"build_py": BuildWithGuard})
