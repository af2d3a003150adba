"""The versions of torch and of Python that the package claims, as `docs/versions.md`.

    python benchmarks/matrix.py [--folder FOLDER] [--python PYTHON]... [VERSION]...

Each version of torch gets an environment of its own under each Python. There, the quick profile
judges the reference, and torch's own DDP and sampler. `discover` probes their capabilities,
`compare` asks what changes towards the next version, and the tests run that depend on torch's
version. The folder keeps environments and results, so
that a second run does only what is missing. An environment takes about 7 GB where torch comes with
its CUDA libraries.
"""

import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
from packaging.requirements import Requirement
from packaging.version import Version
from pages import templates

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("2.6.0", "2.13.0", "2.15.0")
"""The lowest claimed version, the pinned one, and the newest."""
JUDGED = (("reference", "sampler:reference"), ("torch", "sampler:torch"))
TESTS = (
    "tests/ranks/test_simulated_collectives.py",
    "tests/ranks/test_inherited.py",
    "tests/ranks/test_group.py::test_every_collective_gives_the_same_bits_as_on_plain_groups",
    "tests/ranks/test_group.py::test_a_work_that_torch_alone_holds_ends",
    "tests/ranks/test_programs.py::test_what_is_shipped_is_expected_of_torch_and_shows",
    "tests/ranks/test_programs.py::test_a_reduction_whose_operation_nobody_names_is_a_sum",
    "tests/unit/test_complexes.py",
    "tests/unit/test_oracle.py",
)
"""Tests of what torch's kernels round, of what gloo sends, of works that torch's C++ code holds, and
of torch's known deviations."""


@dataclass(frozen=True)
class Place:
    """An environment of the matrix.

    Attributes:
        folder: The folder of all environments and results.
        base: The interpreter that it is made with.
        torch: Its version of torch.
    """

    folder: Path
    base: str
    torch: str

    @property
    def name(self) -> str:
        """Python's version and torch's."""
        command = [self.base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        return f"python{version}-torch{self.torch}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / self.name / "bin" / "python"

    def install(self) -> None:
        """Make the environment, unless an earlier run has finished it."""
        finished = self.folder / self.name / "finished"
        if finished.exists():
            return
        if self.base == sys.executable:
            venv.create(self.folder / self.name, with_pip=True, clear=True)
        else:
            command = [self.base, "-m", "venv", "--clear", str(self.folder / self.name)]
            subprocess.run(command, check=True)
        packages = [f"torch=={self.torch}", *_requirements()]
        command = [str(self.python), "-m", "pip", "install", "-q", "--no-compile", *packages]
        subprocess.run(command, check=True)
        finished.touch()

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command of the suite in this environment, and return its JSON.

        Raises:
            ClickException: The command printed no JSON.
        """
        done = subprocess.run(
            [str(self.python), "-m", "ddp_invariants", *arguments, "--json"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout:
            raise click.ClickException(f"{self.name}: {' '.join(arguments)}: {done.stderr[-2000:]}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def test(self) -> dict[str, Any]:
        """Run the tests that depend on torch's version; return the passed number, the failed names."""
        report = self.folder / f"{self.name}.xml"
        command = [str(self.python), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, f"--junitxml={report}", *TESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        suite = ET.parse(report).getroot()[0]
        failed = [
            each.attrib["name"].removeprefix("test_").replace("_", " ")
            for each in suite
            if each.find("failure") is not None or each.find("error") is not None
        ]
        ran = int(suite.attrib["tests"]) - int(suite.attrib["skipped"])
        return {"passed": ran - len(failed), "failed": failed}


def _requirements() -> list[str]:
    """Return what the package and the tests need besides torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed: list[str] = [*project["dependencies"], "psutil"]
    return [each for each in needed if Requirement(each).name != "torch"]


def _judged(place: Place) -> dict[str, Any]:
    """Return the verdicts in an environment, and the standing of torch's capabilities."""
    certified = [
        judged
        for names in JUDGED
        for judged in place.run("certify", "--profile", "quick", *names)["judged"]
    ]
    discovered = place.run("discover", "--ddp", "torch", "--sampler", "torch")
    return {
        "verdicts": [
            {key: judged[key] for key in ("name", "outcome", "headline", "cases", "rules")}
            for judged in certified
        ],
        "standings": {
            probed["capability"]: probed["standing"] for probed in discovered["capabilities"]
        },
        "stale": discovered["stale"],
        "tests": place.test(),
    }


def _changes(old: Place, new: Place) -> dict[str, Any]:
    """Return the sorts of difference between two environments."""
    outcome = new.run(
        *("compare", "--old", str(old.python), "--new", str(new.python)),
        *("--ddp", "torch", "--sampler", "torch"),
    )
    rows = [{key: row[key] for key in ("name", "old", "new", "counts")} for row in outcome["found"]]
    return {"cases": outcome["cases"], "found": rows}


class Results:
    """The results of a commit so far, in a file; those of another commit are dropped."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        stored = json.loads(path.read_text()) if path.exists() else {}
        self.rows: dict[str, Any] = stored if stored.get("commit") == commit else {"commit": commit}

    def add(self, name: str, row: Mapping[str, Any]) -> None:
        """Store a result at once: the next one may take minutes."""
        self.rows[name] = row
        self._path.write_text(json.dumps(self.rows, indent=1), encoding="utf-8")


def _violated(rules: Mapping[str, str]) -> str:
    """Return the names of the violated rules."""
    return ", ".join(rule for rule, verdict in rules.items() if verdict == "violated")


def _differing(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the capabilities that are not right in every environment."""
    known = {capability for place in places for capability in place["standings"]}
    return sorted(
        capability
        for capability in known
        if {place["standings"].get(capability) for place in places} != {"right"}
    )


def _cell(text: str) -> str:
    """Return a text as code that fits into a cell of a table."""
    return f"`{text}`".replace("|", "\\|").replace("\n", " ")


def _document(places: Sequence[Place], results: Results) -> str:
    """Return the page."""
    environment = templates()
    environment.filters |= {"violated": _violated, "differing": _differing, "cell": _cell}
    return environment.get_template("versions.md.j2").render(
        places=[
            {"name": place.name, "torch": place.torch, **results.rows[place.name]}
            for place in places
        ],
        changes=[
            {"old": old.name, "new": new.name, **results.rows[f"{old.name} {new.name}"]}
            for old, new in pairwise(places)
        ],
    )


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default="matrix")
@click.option("--python", "bases", multiple=True, default=(sys.executable,))
@click.argument("versions", nargs=-1)
def main(folder: Path, bases: Sequence[str], versions: Sequence[str]) -> None:
    """Fill the folder, and write the document.

    The first Python gets every version of torch, and each further one the newest version.
    """
    folder = folder.resolve()
    folder.mkdir(exist_ok=True, parents=True)
    ordered = sorted(versions or VERSIONS, key=Version)
    places = [Place(folder, bases[0], version) for version in ordered]
    places += [Place(folder, base, ordered[-1]) for base in bases[1:]]
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    results = Results(folder / "results.json", commit)
    for place in places:
        click.echo(place.name, err=True)
        place.install()
        if place.name not in results.rows:
            results.add(place.name, _judged(place))
    for old, new in pairwise(places):
        name = f"{old.name} {new.name}"
        click.echo(name, err=True)
        if name not in results.rows:
            results.add(name, _changes(old, new))
    (ROOT / "docs" / "versions.md").write_text(_document(places, results), encoding="utf-8")


if __name__ == "__main__":
    main()
