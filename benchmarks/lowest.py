"""Certify with the built wheel and the lowest version of each dependency that pyproject.toml allows.

    python benchmarks/lowest.py

It builds the wheel, makes a new environment, and installs the wheel with exactly these versions
from the package index. torch is that of the environment at hand: no other version of torch is
installed for this. The environment is removed at the end. The exit status is that of the first
command that fails, or 0.
"""

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
        *("-k", "init1 or shard1 or grad2 or param1", "--certificate", "lowest.html"),
    ),
    ("history", "--html", "history.html"),
)


def lowest() -> Iterator[str]:
    """Yield each dependency of the wheel, and of its pages, at its lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for wanted in (*project["dependencies"], *project["optional-dependencies"]["pages"]):
        name, least = re.fullmatch(r"([\w-]+)>=([\d.]+)", wanted).groups()  # type: ignore[union-attr]  # ours
        if name != "torch":
            yield f"{name}=={least}"


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
    status = subprocess.run([str(word) for word in words], cwd=at, check=False).returncode
    if status:
        sys.exit(status)


def main() -> None:
    """Build, install and certify."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", "--no-isolation", ROOT)
        venv.create(folder / "new", with_pip=True)
        python = folder / "new" / "bin" / "python"
        (site,) = (folder / "new").glob("lib/python*/site-packages")
        install = (python, "-m", "pip", "install", "--quiet")
        run(*install, *lend_torch(site), *lowest())
        run(*install, "--no-deps", *(folder / "dist").glob("*.whl"))
        run(python, "-m", "pip", "list")
        for words in COMMANDS:
            run(folder / "new" / "bin" / "ddp-invariants", *words, at=folder)


if __name__ == "__main__":
    main()
