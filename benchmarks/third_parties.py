"""Judge other projects' implementations, and write docs/third-parties.md.

    python benchmarks/third_parties.py [--page | --discover] [NAME]...

`libraries/` has a file for each library, with the packages to install and a table for each
implementation. Each library is installed into an environment of its own, in a temporary folder.
`certify` judges each implementation as a user would call it. The results are kept beside the file, with
their date, so a run of some libraries or implementations keeps the others. `--page` runs nothing, and writes the page
anew. `--discover` prints the seconds that `discover` takes for each, and keeps nothing.
"""

import datetime as dt
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import FOLDER, LIBRARIES, described, installed, packages
from pages import templates

from ddp_invariants.implementation.names import ADAPTERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "third-parties.md"
BUDGET = ("--cases", "12", "--max-world-size", "3", "-n", "0")


@dataclass(frozen=True)
class Row:
    """An implementation, and how a user names it.

    Attributes:
        library: The name of its library, which is the name of the file.
        options: The options of `certify` that name it. `FOLDER` in them stands for the folder of
            the files, where an implementation may have an adapter of its own.
        declared: The declarations that it needs, in TOML.
        reports: The names of the reports on what it does wrong.
        only_imports: True if its adapter does nothing but import it without the rest of its
            library, which does not load without CUDA or a large dependency.
    """

    library: str
    options: str
    declared: str = ""
    reports: tuple[str, ...] = ()
    only_imports: bool = False

    @property
    def kind(self) -> str:
        """The kind of the implementation: sampler or ddp."""
        return "sampler" if "--sampler" in self.options else "ddp"

    @property
    def glue(self) -> str:
        """What a user writes beside the options."""
        if "FOLDER" in self.options and not self.only_imports:
            return "an adapter"
        if self.options.split()[1] in ADAPTERS[self.kind]:
            return "a shipped adapter" + (" and a declaration" if self.declared else "")
        return "a declaration" if self.declared else "nothing"


def read(library: str) -> dict[str, Row]:
    """Read the implementations of a library, by name."""
    return {
        name: Row(library, **{**table, "reports": tuple(table.get("reports", ()))})
        for name, table in described(library).items()
        if isinstance(table, dict)
    }


ROWS = {name: row for library in LIBRARIES for name, row in read(library).items()}
"""The implementations by name."""


def version(python: Path, library: str) -> str:
    """Return the name and version of a library's distribution in an environment."""
    name = (packages(library) or ["torch"])[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return f"{name} {done.stdout.strip()}"


def asked(
    python: Path, row: Row, folder: Path, command: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run a command on an implementation, as a user would call it, and return its JSON."""
    words = [str(python), "-m", "ddp_invariants", command]
    words += row.options.replace("FOLDER", str(FOLDER)).split()
    if row.declared:
        (folder / "declared.toml").write_text(row.declared, encoding="utf-8")
        words += ["--declare", "declared.toml"]
    return subprocess.run(
        [*words, *options, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def timed(python: Path, row: Row, folder: Path) -> str:
    """Discover what an implementation can do, and return how long that took."""
    began = time.perf_counter()
    done = asked(python, row, folder, "discover")
    return f"{time.perf_counter() - began:.1f} s, exit status {done.returncode}"


def judged(python: Path, row: Row, folder: Path) -> dict[str, Any]:
    """Judge an implementation, and return its result, ready for JSON."""
    of_samplers = ("-k", "shard") if row.kind == "sampler" else ()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = asked(python, row, folder, "certify", *BUDGET, *of_samplers)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = json.loads(done.stdout)["judged"][0] if done.stdout else {}
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "version": version(python, row.library),
        "status": done.returncode,
        "levels": {level["level"]: level["verdict"] for level in answer.get("card", ())},
        "violated": [
            rule for rule, verdict in answer.get("rules", {}).items() if verdict == "violated"
        ],
        "cases": answer.get("cases", 0),
        "minutes": round(seconds / 60, 1),
    }


def run(names: Sequence[str], *, discovers: bool) -> None:
    """Judge some implementations, library by library, and store each result at once.

    Args:
        names: The implementations, or their libraries.
        discovers: True to time `discover` instead.
    """
    for library in LIBRARIES:
        rows = {name: row for name, row in read(library).items() if {name, library} & {*names}}
        with tempfile.TemporaryDirectory() as folder:
            python = installed(Path(folder) / "env", library) if rows else Path()
            for name, row in rows.items():
                if discovers:
                    print(f"{name}: {timed(python, row, Path(folder))}", flush=True)
                    continue
                result = judged(python, row, Path(folder))
                print(f"{name}: {result}", flush=True)
                if result["levels"]:  # Otherwise it was not loaded, and the log says why.
                    store(library, name, result)


def stored(library: str) -> dict[str, Any]:
    """Return the stored results of a library, by implementation."""
    path = FOLDER / f"{library}.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def store(library: str, name: str, result: dict[str, Any]) -> None:
    """Store the result of an implementation beside those of the others."""
    text = json.dumps(stored(library) | {name: result}, indent=1)
    (FOLDER / f"{library}.json").write_text(text + "\n", encoding="utf-8")


def write_page() -> None:
    """Write the page from the stored results."""
    results = {name: result for library in LIBRARIES for name, result in stored(library).items()}
    rows = [(name, row, results[name]) for name, row in ROWS.items() if name in results]
    environment = templates(keep_trailing_newline=True)
    page = environment.get_template("third-parties.md.j2").render(
        rows=rows, budget=BUDGET, glues=Counter(row.glue for _, row, _ in rows).most_common()
    )
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Judge the named implementations or libraries, all if none is named, and write the page."""
    names = [name for name in sys.argv[1:] if name not in ("--page", "--discover")]
    if unknown := {*names} - {*ROWS} - {*LIBRARIES}:
        raise SystemExit(f"no implementation and no library: {', '.join(sorted(unknown))}")
    discovers = "--discover" in sys.argv
    if "--page" not in sys.argv:
        run(names or list(ROWS), discovers=discovers)
    if not discovers:
        write_page()


if __name__ == "__main__":
    main()
