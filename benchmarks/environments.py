"""Environments of their own for the libraries that the scripts in this folder test."""

import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "libraries"
LIBRARIES = sorted(path.stem for path in FOLDER.glob("*.toml"))
"""The names of the libraries; each has a file in the folder."""


def described(library: str) -> dict[str, Any]:
    """Return the contents of a library's file: its packages, and a table for each implementation."""
    return tomllib.loads((FOLDER / f"{library}.toml").read_text(encoding="utf-8"))


def packages(library: str) -> list[str]:
    """Return the distributions that a library needs beside torch; the first one is the library."""
    return str(described(library).get("packages", "")).split()


def installed(folder: Path, library: str) -> Path:
    """Make an environment with a library over the packages here, and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (here,) = folder.glob("lib/python*/site-packages")
    (here / "suite.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    if needed := packages(library):
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--no-deps", *needed], check=True
        )
    return python
