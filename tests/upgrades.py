"""Simulated upgrades: interpreters like this one that alter torch right after its import.

The script runs `ddp-invariants compare` for each alteration, and for this interpreter against
itself. It prints the differences that were found. A run of all takes more than two hours. A `+` between names
puts several alterations into one interpreter, where none may hide another:

    python tests/upgrades.py [NAME[+NAME…]…]
"""

import json
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from alterations import ALTERATIONS

EQUAL = 10_000
"""The cases in which an interpreter is compared with itself."""

HOOK = '''
import importlib.abc
import importlib.machinery
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Alters torch once it has been imported, and not before: \
importing it here would slow down every start."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            alter()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterTorch())


def alter():
    import functools
    import warnings

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DistributedSampler

'''


def interpreter(folder: Path, *alterations: str) -> str:
    """Create an interpreter with this one's packages, and with the named alterations."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "base.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
    if alterations:
        parts = [textwrap.dedent(ALTERATIONS[name].code) for name in alterations]
        scopes = [
            f"def part_{number}():\n{textwrap.indent(part, '    ')}\npart_{number}()\n"
            for number, part in enumerate(parts)
        ]
        code = textwrap.indent("\n".join(scopes), "    ")
        (site / "sitecustomize.py").write_text(HOOK + code, encoding="utf-8")
    return str(folder / "bin" / Path(sys.executable).name)


def given(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ddp_invariants", *words],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )


def compared(
    old: str,
    new: str,
    cases: int,
    *options: str,
    command: Callable[..., subprocess.CompletedProcess[str]] = given,
) -> tuple[int, dict[str, dict[str, str]]]:
    """Compare torch's DDP and sampler under two interpreters.

    Returns:
        The exit status of `ddp-invariants compare`, and the differences by name.
    """
    done = command(
        "compare",
        "--old",
        old,
        "--new",
        new,
        "--ddp",
        "torch",
        "--sampler",
        "torch",
        "--cases",
        str(cases),
        "--json",
        *options,
    )
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return done.returncode, {
        difference["name"]: difference for difference in json.loads(done.stdout)["found"]
    }


def main() -> None:
    """Run all alterations, or those named on the command line."""
    with tempfile.TemporaryDirectory() as folder:
        old = interpreter(Path(folder) / "old")
        if not sys.argv[1:]:
            status, differences = compared(old, old, EQUAL)
            sys.stdout.write(
                f"identical sides, {EQUAL:,} cases: exit status {status}, "
                f"{len(differences)} differences\n"
            )
        for number, together in enumerate(sys.argv[1:] or ALTERATIONS):
            names = together.split("+")
            python = interpreter(Path(folder) / str(number), *names)
            status, differences = compared(old, python, 300)
            starts = tuple(ALTERATIONS[name].wanted for name in names)
            for name, wanted in zip(names, starts, strict=True):
                found = any(difference.startswith(wanted) for difference in differences)
                outcome = "found" if found else "MISSED"
                sys.stdout.write(f"{name}: exit status {status}, {outcome} {wanted!r}\n")
            unexpected = [each for each in differences if not each.startswith(starts)]
            more = f", and {len(unexpected) - 6} more" if len(unexpected) > 6 else ""
            sys.stdout.write(f"  with it {', '.join(unexpected[:6]) or 'nothing else'}{more}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
