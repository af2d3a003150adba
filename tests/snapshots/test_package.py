"""The package as users install it: built, unpacked outside the checkout, and used there."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, and the sdist from the files in git.

    Untracked files are not included.
    """
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    tar = subprocess.run(
        ["tar", "--null", "-T", "-", "-c"], cwd=ROOT, input=listed, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=tar, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    [path] = out.glob("*.whl")
    return path


def test_the_wheel_and_the_sdist_hold_the_licence(wheel: Path) -> None:
    """Both hold the licence text, and the wheel's metadata names the licence."""
    text = (ROOT / "LICENSE").read_bytes()
    [sdist] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        packed = files.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/LICENSE")
        assert packed is not None
        assert packed.read() == text
    with zipfile.ZipFile(wheel) as built:
        [information] = {name.split("/")[0] for name in built.namelist() if ".dist-info/" in name}
        assert built.read(f"{information}/licenses/LICENSE") == text
        assert (
            "License-Expression: BSD-3-Clause\n" in built.read(f"{information}/METADATA").decode()
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Return a function that runs commands in an environment with the wheel installed.

    The environment finds the dependencies in the current one. The commands run in a folder of their
    own.
    """
    home = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(home / "env")], check=True, timeout=120
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "COV"))
    }
    [packages] = (home / "env").glob("lib/python*/site-packages")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(home / "env" / "bin" / "python"),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--disable-pip-version-check",
            str(wheel),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    # A plain path, not a site folder: Python would read the .pth files of a site folder, and would
    # find an editable installation of the checkout.
    here = next(path for path in sys.path if (Path(path) / "torch").is_dir())
    (packages / "needed.pth").write_text(here + "\n")
    folder = home / "project"
    folder.mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(home / "env" / "bin" / words[0]), *words[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return run


def test_everything_git_has_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    """The wheel holds every file of the package that is in git, and the properties.

    These are modules, templates, settings, the marker of types, and the properties, which lie
    beside the package in the checkout.
    """
    listed = subprocess.run(
        ["git", "ls-files", "ddp_invariants", "properties"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = {re.sub("^properties/", "ddp_invariants/properties/", path) for path in listed} - {
        "ddp_invariants/properties"
    }
    built = {path for path in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in path}
    assert built == expected
    assert {"ddp_invariants/py.typed", "ddp_invariants/properties/test_grad.py"} <= built


def test_an_installed_package_certifies_in_a_folder_with_settings_of_its_own(
    installed: Command,
) -> None:
    """The package certifies in a folder without reading the folder's conftest and settings.

    Nothing of the checkout is found.
    """
    where = installed(
        "python", "-c", "import ddp_invariants, os; print(os.getcwd(), ddp_invariants.__file__)"
    )
    assert where.returncode == 0, where.stderr
    folder, _, package = where.stdout.strip().partition(" ")
    assert not Path(package).is_relative_to(ROOT), where.stderr
    Path(folder, "conftest.py").write_text("raise RuntimeError('read')\n")
    Path(folder, "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    right = installed(
        "ddp-invariants",
        "certify",
        "--seed",
        "1",
        "--cases",
        "5",
        "-n",
        "0",
        "-k",
        "init3 or shard1_",
    )
    assert right.returncode == 0, right.stdout + right.stderr
    assert "2 passed" in right.stdout
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        ".ddp-invariants",
        "conftest.py",
        "pytest.ini",
    ]
    rules = installed("ddp-invariants", "rules", "SHARD-3", "--json")
    assert json.loads(rules.stdout)["property"].startswith("properties/test_shard.py:")


def test_a_suite_with_options_of_the_same_names_is_not_disturbed(installed: Command) -> None:
    """Without a request the plugin adds no option, imports nothing heavy and prints nothing."""
    folder = Path(installed("python", "-c", "import os; print(os.getcwd())").stdout.strip())
    (folder / "other").mkdir()
    (folder / "other" / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--ddp', action='store_true')\n"
        "    for name in ('seed', 'device', 'backend', 'profile', 'cases', 'sampler'):\n"
        "        parser.addoption(f'--{name}')\n"
    )
    (folder / "other" / "test_own.py").write_text(
        "import sys\n"
        "def test_own(pytestconfig):\n"
        "    assert pytestconfig.option.ddp\n"
        "    assert 'ddp_invariants.session.autoload' in sys.modules\n"
        "    assert not {'ddp_invariants.plugin', 'numpy', 'rich'}.intersection(sys.modules)\n"
    )
    done = installed(
        *[
            "python",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            "other",
            "--confcutdir",
            "other",
            "-c",
            "/dev/null",
        ],
        *["--seed", "3", "--ddp", "other/test_own.py::test_own"],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "under test" not in done.stdout


def test_any_pytest_judges_an_implementation_that_its_command_names(installed: Command) -> None:
    """No conftest is needed, not even by the workers of xdist."""
    done = installed(
        *[
            "python",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "-c",
            "/dev/null",
            "--rootdir",
            ".",
        ],
        *["--ddp", "reference", "--pyargs", "ddp_invariants.properties"],
        *["-k", "init3", "--cases", "5", "--seed", "1", "-n", "2"],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ddp under test: reference" in done.stdout
    assert re.search(r"^INIT-3 +holds", done.stdout, re.MULTILINE)
