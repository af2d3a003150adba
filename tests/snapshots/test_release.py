"""The release: its workflow, the changelog and its files."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ddp_invariants

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # A folder of scripts, which is no package.
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
JOBS: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
VERSION = ddp_invariants.__version__


def compared(tag: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the step that compares the tag with the version, as a runner would."""
    (script,) = (
        step["run"] for step in JOBS["build"]["steps"] if "Compare" in step.get("name", "")
    )
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the version, and a changelog that has a section for it."""
    (tmp_path / "ddp_invariants").mkdir()
    text = (ROOT / "ddp_invariants" / "__init__.py").read_text(encoding="utf-8")
    (tmp_path / "ddp_invariants" / "__init__.py").write_text(text)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n## {VERSION} (2026-01-01)\n")
    return tmp_path


def test_a_tag_releases_the_version_that_it_names(checkout: Path) -> None:
    """The workflow goes on with the tag of the version, and refuses any other."""
    right, wrong = compared(f"v{VERSION}", checkout), compared("v99.0.0", checkout)
    assert right.returncode == 0, right.stderr
    assert wrong.returncode == 1
    assert f"v99.0.0 is not v{VERSION}" in wrong.stderr


def test_a_release_needs_its_section_in_the_changelog(checkout: Path) -> None:
    """The workflow refuses a version that the changelog does not describe."""
    (checkout / "CHANGELOG.md").write_text("# Changes\n")
    done = compared(f"v{VERSION}", checkout)
    assert done.returncode == 1
    assert "towncrier build" in done.stderr


def test_only_the_job_that_publishes_may_prove_its_identity() -> None:
    """No job has a secret, and the one that publishes runs after the checks."""
    assert "secrets." not in WORKFLOW.read_text(encoding="utf-8")
    allowed = {name for name, job in JOBS.items() if "id-token" in job.get("permissions", {})}
    assert allowed == {"publish"}
    assert JOBS["publish"]["needs"] == "build"
    assert ".ci/run" in [step.get("run") for step in JOBS["build"]["steps"]]


def test_every_file_of_the_changelog_is_in_the_next_section() -> None:
    """Towncrier reads each file in changelog.d/, so its name has the right form."""
    fragments = sorted((ROOT / "changelog.d").glob("*.md"))
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for path in fragments:
        assert re.fullmatch(r"(\+[\w-]+|\d+)\.(added|changed|fixed|removed)\.md", path.name)
        assert " ".join(path.read_text(encoding="utf-8").split()) in printed, path.name


def test_issue_forms_are_whole() -> None:
    """Each form has the keys that GitHub needs, and each question a label."""
    forms = [
        yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
        if path.name != "config.yml"
    ]
    assert len(forms) == 2
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        assert all(part["id"] and part["attributes"]["label"] for part in form["body"])


def test_the_matrix_of_versions_runs_tests_that_exist() -> None:
    """A test that is renamed is renamed in the matrix, too, which runs too long to be tested."""
    tests = importlib.import_module("matrix").TESTS
    for path, _, name in (test.partition("::") for test in tests):
        assert f"def {name or 'test_'}" in (ROOT / path).read_text(encoding="utf-8"), (path, name)
