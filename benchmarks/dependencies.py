"""Certify with the built wheel and the lowest, then the newest version of each dependency.

    python benchmarks/dependencies.py            # both
    python benchmarks/dependencies.py newest

It builds the wheel. For each end it makes a new environment, and installs the wheel with the
versions from the package index: exactly the lowest ones that pyproject.toml allows, or the newest
ones that the index has. torch is that of the environment at hand: no other version of torch is
installed for this (`matrix.py` is about those). The environments are removed at the end. The exit
status is that of the first command that fails, or 0.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    ("rules", "GRAD-2"),
    ("demo",),
    # Over two workers of pytest, and with a certificate and its page.
    (
        *("certify", "reference", "--profile", "quick", "--seed", "1", "-n", "2"),
        *("-k", "init1 or shard1 or grad2 or param1", "--certificate", "certificate.html"),
    ),
    ("history", "--html", "history.html"),
)


def dependencies(end: str) -> Iterator[str]:
    """Yield each dependency of the wheel, and of its pages, at its lowest or any allowed version.

    Args:
        end: `lowest` or `newest`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for wanted in (*project["dependencies"], *project["optional-dependencies"]["pages"]):
        name, least = re.fullmatch(r"([\w-]+)>=([\d.]+)", wanted).groups()  # type: ignore[union-attr]  # ours
        if name != "torch":
            yield f"{name}=={least}" if end == "lowest" else wanted


def lend_torch(site: Path) -> list[str]:
    """Link this environment's torch into another one, and return the packages that torch needs."""
    here = Path(sysconfig.get_path("purelib"))
    for source in (*here.glob("torch"), *here.glob("torchgen"), *here.glob("torch-*.dist-info")):
        (site / source.name).symlink_to(source)
    needed = [text for text in requires("torch") or () if "extra ==" not in text]
    return [text for text in needed if not re.match(r"jinja2|nvidia|triton|setuptools|cuda", text)]


def run(*words: str | Path, at: Path = ROOT) -> None:
    """Run a command, and end with its status if it fails."""
    print("$", *words, flush=True)
    # With PYTHONPATH pip would take the checkout for the installed wheel.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(word) for word in words]
    status = subprocess.run(command, cwd=at, env=environment, check=False).returncode
    if status:
        sys.exit(status)


def certify(wheel: Path, end: str, folder: Path) -> None:
    """Install the wheel with dependencies of one end into a new environment, and certify there."""
    environment = folder / end
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    install = (python, "-m", "pip", "install", "--quiet")
    run(*install, *lend_torch(site), *dependencies(end))
    run(*install, "--no-deps", wheel)
    run(python, "-m", "pip", "list")
    for words in COMMANDS:
        run(environment / "bin" / "ddp-invariants", *words, at=environment)


def main() -> None:
    """Build the wheel, and certify with the dependencies of each end that was asked for."""
    ends = sys.argv[1:] or ["lowest", "newest"]
    if not {*ends} <= {"lowest", "newest"}:
        sys.exit(f"{' '.join(ends)}: expected lowest, newest or nothing")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", "--no-isolation", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        for end in ends:
            certify(wheel, end, folder)


if __name__ == "__main__":
    main()
