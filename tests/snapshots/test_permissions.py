"""Files and folders that this user may not read or write: one sentence each, and no verdict lost.

Permissions do not bind root. So these commands run in a process without the capabilities of root, to
which its own files and those of others are as closed as their modes say. Whole sessions also run as
the user `nobody`, who may read everything, since the interpreter may lie below a folder of root's.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, Session, serving
from ddp_invariants.errors import CERTIFIED, INCONCLUSIVE, UNWRITTEN, USAGE, VIOLATED

IS_ROOT, NOBODY = os.getuid() == 0, 65534
OVERRIDING = "-dac_override,-dac_read_search,-fowner"
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", OVERRIDING) if IS_ROOT else ()
READING = "-all,+dac_read_search"
AS_NOBODY = (
    "setpriv",
    *("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
    *("--inh-caps", READING, "--ambient-caps", READING),
)


def permits(before: tuple[str, ...]) -> str:
    """Return why a program cannot start others with fewer rights; empty if it can."""
    if not before:
        return ""
    if shutil.which(before[0]) is None:
        return "util-linux is not installed, which takes rights away"
    done = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip()


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a function that runs a module in a process to which permissions apply."""
    if why := permits(WITHOUT_CAPABILITIES):
        pytest.skip(why)
    with serving(tmp_path_factory.mktemp("probed"), (), WITHOUT_CAPABILITIES) as run:
        yield run


@pytest.fixture(scope="module")
def as_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a function that runs a module as another user."""
    if not IS_ROOT:
        pytest.skip("only root can become another user")
    if why := permits(AS_NOBODY):
        pytest.skip(why)
    probed = tmp_path_factory.mktemp("probed")
    os.chown(probed, NOBODY, NOBODY)
    with serving(probed, (), AS_NOBODY) as run:
        yield run


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with files that may not be read or written, and two such folders."""
    names = ("it.json", "it.html", "it.toml", "it.gz", "it.py", "python")
    for folder in (tmp_path, tmp_path / "sealed"):
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).touch(mode=0)
    (tmp_path / "sealed").chmod(0)
    (tmp_path / "fixed").mkdir(mode=0o555)
    yield tmp_path
    (tmp_path / "sealed").chmod(0o700)  # It could not be removed.
    (tmp_path / "fixed").chmod(0o700)


UNREADABLE = (
    "replay it.json",
    "replay sealed/it.json",
    "replay it.json --rules it.py",
    "export it.json",
    "verify it.json",
    "verify it.html",
    "verify sealed/it.json",
    "merge it.json it.html",
    "merge sealed/it.json",
    "certify --replay it.json",
    "certify --replay sealed/it.json",
    "certify --declare it.toml",
    "certify --deviations it.toml",
    "certify --ddp {at}/it.py:It",
    "certify --ddp sealed/it.py:It",
    "certify --sampler {at}/it.py:It",
    "discover --declare it.toml",
    "discover --deviations it.toml",
    "discover --deviations sealed/it.toml",
    "discover --ddp {at}/it.py:It",
    "compare --baseline it.gz",
    "compare --baseline sealed/it.gz",
    "compare --old ./python",
    "compare --old sealed/python",
    "compare --old ./python --accept it.toml",
    "record --out new.gz --python ./python",
    "faults --catalogue it.py",
    "faults --catalogue sealed",
    "mutate {at}/it.py:It",
)
UNWRITABLE = (
    "certify --certificate it.json",
    "certify --certificate fixed/it.json",
    "certify --certificate sealed/it.json",
    "certify --badge it.json",
    "certify --badge fixed/it.json",
    "certify --propose it.toml",
    "certify --propose fixed/it.toml",
    "certify --junitxml it.json",
    "certify --junitxml fixed/it.xml",
    "discover --pin fixed/it.toml",
    "record --out it.gz",
    "record --out fixed/it.gz",
    "compare --baseline it.gz --scripts fixed/scripts",
    "compare --old ./python --scripts fixed/scripts",
    "merge it.html --output fixed/it.json",
    "init fixed",
)


def sentences(output: str) -> list[str]:
    """Return the sentences of a command that refuses what it was asked."""
    return re.findall(r"^(?:Error: |(?:Exit: )?ddp-invariants: )(.+)", output, re.MULTILINE)


@pytest.mark.parametrize("words", [*UNREADABLE, *UNWRITABLE])
def test_what_may_not_be_read_or_written_is_refused_in_one_sentence(
    limited: Session, closed: Path, words: str
) -> None:
    """The sentence names the file or its folder, and says that permission lacks; nothing is judged."""
    # The hosts were started in another folder.
    done = limited("ddp_invariants", *words.format(at=closed).split(), at=closed)
    told = sentences(done.stdout + done.stderr)
    assert done.returncode == USAGE, done.stdout + done.stderr
    # `init` writes two files, and has a sentence for each.
    assert len(told) == (2 if words.startswith("init") else 1), done.stdout + done.stderr
    assert re.search(r"Permission denied|not (read|writ)able|can(not)? be written", told[0]), told
    assert re.search(r"it\.|python|sealed|fixed", told[0]), told
    assert "Traceback" not in done.stdout + done.stderr


def test_a_page_that_may_not_be_written_has_its_own_status(limited: Session, closed: Path) -> None:
    """The history is listed all the same."""
    done = limited("ddp_invariants", "history", "--html", "fixed/it.html", at=closed)
    assert (done.returncode, done.stderr) == (
        UNWRITTEN,
        "ddp-invariants: fixed/it.html: Permission denied\n",
    )
    assert "no session is recorded here" in done.stdout


@pytest.mark.parametrize("words", ["history", "replay abcdef", "export abcdef"])
def test_a_store_of_another_user_is_told(limited: Session, tmp_path: Path, words: str) -> None:
    """A command that needs a stored file says that it may not read the store."""
    store = tmp_path / ".ddp-invariants"
    store.mkdir(mode=0)
    try:
        done = limited("ddp_invariants", *words.split(), at=tmp_path)
    finally:
        store.chmod(0o700)
    assert done.returncode == USAGE
    assert [
        text.endswith("Permission denied") or "Permission" in text
        for text in sentences(done.stderr)
    ] == [True]


WRONG = "ddp_invariants.faults.strided:LenOfTheDataset"
SESSION = ("certify", "-n", "0", "--profile", "quick", "--seed", "1", "-k", "shard1_", "--sampler")


@pytest.mark.parametrize("mode", [0o000, 0o555])
@pytest.mark.parametrize("sampler", ["torch", WRONG])
def test_a_session_judges_beside_a_store_of_another_user(
    limited: Session, tmp_path: Path, sampler: str, mode: int
) -> None:
    """The verdict and the report are whole, and one line each says what is not stored."""
    store = tmp_path / ".ddp-invariants"
    store.mkdir()
    if IS_ROOT:
        os.chown(store, NOBODY, NOBODY)
    store.chmod(mode)
    try:
        done = limited("ddp_invariants", *SESSION, sampler, at=tmp_path)
    finally:
        store.chmod(0o700)
    require_judged(done, sampler)
    assert [*store.iterdir()] == []


@pytest.mark.parametrize("sampler", ["torch", WRONG])
def test_a_user_without_a_home_or_a_folder_to_write_to_gets_a_verdict(
    as_nobody: Session, tmp_path: Path, sampler: str
) -> None:
    """A session needs no home, no current folder that it may write to, and no TMPDIR of its own."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = as_nobody(
        "ddp_invariants",
        *SESSION,
        sampler,
        at=here,
        environment={**environment, "TMPDIR": str(temporary)},
    )
    require_judged(done, sampler)
    assert [*here.iterdir(), *temporary.iterdir()] == []


@pytest.mark.parametrize("processes", [2, 6])
def test_a_limit_of_processes_ends_a_session_without_a_verdict(
    tmp_path: Path, processes: int
) -> None:
    """Too few processes or threads are told in one sentence; the limit does not bind root."""
    if not IS_ROOT or permits(AS_NOBODY):
        pytest.skip("the limit counts all processes of this user")
    command = [sys.executable, "-m", "ddp_invariants", *SESSION, "torch"]
    done = subprocess.run(
        [*AS_NOBODY, "bash", "-c", f'ulimit -u {processes}; exec "$@"', "bash", *command],
        cwd=tmp_path,
        # The start of numpy needs threads of its own.
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == INCONCLUSIVE, done.stdout + done.stderr
    (told,) = sentences(done.stdout + done.stderr)
    assert re.search("no more (threads|processes)|temporarily unavailable", told), told
    assert "Traceback" not in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def require_judged(done: "subprocess.CompletedProcess[str]", sampler: str) -> None:
    """Require the verdict and the whole report of a session that could store nothing."""
    right = sampler == "torch"
    assert done.returncode == (CERTIFIED if right else VIOLATED), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert re.search(rf"SHARD-1 {'holds' if right else 'violated'} ", text), text
    assert "history: .ddp-invariants/history.jsonl could not be written: Permission denied" in text
    assert ("confirmed in 3 of 3 runs" in text) is not right
    assert ("not stored" in text and "could not be written" in text) is not right
