"""pytest as a user runs it: one-sentence messages, exit statuses, and no leftovers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from survivors import LOOKS, alive, dying, survivors

from conftest import Session
from ddp_invariants.cases.case import TrainingCase, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.records.reading import read_any
from ddp_invariants.records.violation import StoredViolation

ROOT = Path(__file__).parents[2]
NEVER_DIVIDES = "ddp_invariants/faults/bucketed.py:NeverDivides"


@pytest.fixture
def under_pytest(session: Session) -> Session:
    """Return a function that runs a pytest session from the checkout's root, as a user would."""
    return partial(session, "pytest", "-p", "no:cacheprovider")


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return everything that a session printed."""
    return done.stdout + done.stderr


BAD_OPTIONS: list[tuple[list[str], str]] = [
    (
        ["--ddp", "nonsense"],
        "--ddp nonsense: expected reference, torch, accelerate, ",
    ),
    (
        ["--sampler", "no_such_package.data:Sampler"],
        "--sampler no_such_package.data:Sampler: there is no module",
    ),
    (["--max-world-size", "0"], "--max-world-size 0: expected a whole number from 1 to 64"),
    (["--cases", "0"], "--cases 0: expected a whole number from 1 to"),
    (["--seed=-5"], "--seed -5: expected a whole number from 0 to"),
    (["--seed", "9" * 400], f"--seed {'9' * 24}… (400 characters): expected a whole number"),
    (["-k", "nosuchrule"], "-k nosuchrule: no property has such a name; `ddp-invariants rules`"),
    (["-k", "GRAD-2"], "-k GRAD-2: no property has such a name; did you mean grad1 or grad2 or"),
    (["-k", "grad2 and"], "the expression is wrong: "),
    (["--replay", "no/such/case.json"], "no/such/case.json: No such file"),
    (
        ["--certificate", "certificate.pdf"],
        "--certificate certificate.pdf: expected FILE.json or FILE.html",
    ),
    (
        ["--replay", "case.json", "--badge", "badge.json"],
        "--replay judges one case and makes no certificate",
    ),
    (
        ["--replay", "case.json", "--propose", "it.toml"],
        "--replay judges one case and makes no certificate",
    ),
]


@pytest.mark.parametrize(
    ("options", "message"), BAD_OPTIONS, ids=[" ".join(options) for options, _ in BAD_OPTIONS]
)
def test_bad_options_end_in_one_sentence_and_status_64(
    under_pytest: Session, options: list[str], message: str
) -> None:
    """A bad option ends in one sentence, before any property runs and without a traceback."""
    done = under_pytest("properties/", *options)
    assert done.returncode == 64
    assert message in output_of(done)
    assert "Traceback" not in output_of(done)
    assert len(output_of(done).strip().splitlines()) == 1


def test_a_case_for_more_ranks_than_allowed_is_refused(
    under_pytest: Session, tmp_path: Path
) -> None:
    """The message names the file and the option to change; no given limit allows any case."""
    path = tmp_path / "case.json"
    path.write_text(to_json(TrainingCase(model=Model(1, (Layer("linear"),)), world_size=5)))
    done = under_pytest("properties/", "--replay", str(path), "--max-world-size", "4")
    assert done.returncode == 64
    assert f"{path}: the case needs 5 ranks, but --max-world-size is 4: raise it" in output_of(done)
    assert under_pytest("properties/", "--replay", str(path), "-k", "grad2").returncode == 0


def test_a_violation_is_reported_and_its_repeat_line_repeats_it(
    under_pytest: Session, tmp_path: Path
) -> None:
    """The report names rule, rank, step, parameter and cause; its repeat line fails again."""
    done = under_pytest(
        "properties/test_grad.py",
        "-k",
        "grad2",
        "--ddp",
        NEVER_DIVIDES,
        "--seed",
        "1",
        "--cases",
        "20",
    )
    assert done.returncode == 1
    assert (
        f"GRAD-2 violated by {NEVER_DIVIDES}: "
        "the gradient is not the mean of the ranks' local gradients" in done.stdout
    )
    assert re.search(
        r"where     rank 0 of 2, step 0, parameter 'layers\.0\.weight' \(1, 1\)", done.stdout
    )
    assert "perhaps   got / expected = 2 = world size: summed, never divided" in done.stdout
    assert "Traceback" not in output_of(done)
    repeat = re.search(r"repeat    pytest (.+)", done.stdout)
    assert repeat is not None
    again = under_pytest(*repeat[1].split())
    assert again.returncode == 1
    assert "GRAD-2 violated by ddp_invariants/faults/bucketed.py:NeverDivides" in again.stdout
    case = repeat[1].split()[repeat[1].split().index("--replay") + 1]
    fixed = under_pytest("properties/", "--replay", case, "-k", "grad2")
    assert fixed.returncode == 0, output_of(fixed)
    stored = json.loads((ROOT / case).read_text())
    (tmp_path / "wrong.json").write_text(
        json.dumps({**stored, "case": {**stored["case"], "steps": "many"}})
    )
    wrong = under_pytest("properties/", "--replay", str(tmp_path / "wrong.json"))
    assert wrong.returncode == 64
    assert "case.steps: Input should be a valid integer" in output_of(wrong)


def test_what_is_seen_while_another_rule_is_tested_fails_the_session(under_pytest: Session) -> None:
    """A failure that is seen while another rule is tested fails the session.

    INIT-3 holds for a wrapper that never divides. Its failure of GRAD-2 is reported and stored.
    """
    done = under_pytest(
        "properties/test_init.py",
        "-k",
        "init3",
        "--ddp",
        NEVER_DIVIDES,
        "--cases",
        "40",
        "--seed",
        "1",
    )
    assert "1 passed" in done.stdout
    assert done.returncode == 2
    assert re.search(r"GRAD-2 +inconclusive .*failed in \d+ cases?, not confirmed", done.stdout)
    why = (
        r"the session fails: probes, or cases drawn for other rules, failed .*GRAD-2.*; "
        r"run with -k .*grad2"
    )
    assert re.search(why, done.stdout)
    kept = re.search(r"ddp-invariants replay (\w{6}) +GRAD-2: world_size=", done.stdout)
    assert kept is not None
    stored = read_any(ROOT / ".ddp-invariants" / f"{kept[1]}.json")
    assert isinstance(stored, StoredViolation)
    assert (stored.failure.rule, stored.confirmed, stored.ddp.name) == (
        "GRAD-2",
        (0, 0),
        NEVER_DIVIDES,
    )


def test_a_constructor_that_raises_is_inconclusive_under_xdist_too(under_pytest: Session) -> None:
    """A constructor that raises is neither a pass nor a violation, and the reason is shown.

    The header names the implementation under test.
    """
    done = under_pytest(
        "properties/test_grad.py",
        "-k",
        "grad2 or grad3",
        "-n",
        "2",
        "--ddp",
        "tests/helpers/unjudged.py:RaisesOnWrap",
        "--cases",
        "5",
        "--seed",
        "7",
    )
    assert done.returncode == 2
    assert "rank 0 raised NotImplementedError in wrap of step 0: to be" in done.stdout
    assert " violated" not in done.stdout
    assert "ddp under test: tests/helpers/unjudged.py:RaisesOnWrap" in done.stdout
    assert "seed 7, profile default, 5 cases per property" in done.stdout
    assert re.search(r"GRAD-2 +inconclusive", done.stdout)


def test_too_small_a_world_is_said_to_prove_nothing(under_pytest: Session) -> None:
    """With one rank GRAD-1 is not run, because `--max-world-size 1` excludes a second rank."""
    done = under_pytest(
        "properties/test_grad.py", "-k", "grad1_", "--max-world-size", "1", "--cases", "5"
    )
    assert done.returncode == 2
    assert re.search(r"GRAD-1 +not run .*not with", done.stdout)
    assert "--max-world-size 1" in done.stdout


def test_fresh_isolation_certifies_too(under_pytest: Session) -> None:
    """A rule holds also if every case runs in new processes with plain gloo groups."""
    done = under_pytest(
        "properties/test_grad.py",
        "-k",
        "grad2",
        "--isolation",
        "fresh",
        "--cases",
        "12",
        "--seed",
        "3",
    )
    assert done.returncode == 0, output_of(done)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_session_that_is_terminated_or_killed_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The hosts and ranks of the main process and of its workers end with the session.

    A session that is terminated, as at the end of a time limit, ends as after Ctrl-C, which
    `test_watch.py` presses.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "properties/",
        "--cases",
        "5000",
    ]
    with (
        (tmp_path / "output").open("w") as output,
        subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output) as session,
        ExitStack() as ending,
    ):
        ending.callback(session.kill)  # Also if an assertion below fails.
        below: list[psutil.Process] = []
        # This takes seconds on a quiet machine, because the hosts import torch first.
        until = time.monotonic() + 150
        while len(below) < 8 and time.monotonic() < until:
            time.sleep(0.2)
            below = psutil.Process(session.pid).children(recursive=True)
        assert len(below) >= 8
        session.send_signal(number)
        session.wait(timeout=20)
        assert (
            survivors(
                lambda: {process.pid for process in below if process.is_running()}, looks=5 * LOOKS
            )
            == set()
        )
    text = (tmp_path / "output").read_text()
    interrupted = number is signal.SIGTERM
    assert ("KeyboardInterrupt" in text) == interrupted, text
    assert session.returncode == (pytest.ExitCode.INTERRUPTED if interrupted else -number)
    assert "Traceback" not in text


SLEEPER = """
import os, pathlib, time

def test_sleeps():
    pathlib.Path("worker.tmp").write_text(str(os.getpid()))
    pathlib.Path("worker.tmp").rename("worker")
    time.sleep(1000)
"""


def test_a_worker_ends_at_once_with_a_main_process_that_is_killed(tmp_path: Path) -> None:
    """The kernel ends a worker in the middle of a test when the main process is killed."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["ddp_invariants.plugin"]\n')
    (tmp_path / "test_sleeps.py").write_text(SLEEPER)
    with (
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "test_sleeps.py"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as session,
        ExitStack() as ending,
    ):
        ending.callback(session.kill)  # Also if an assertion below fails.
        until = time.monotonic() + 150
        while not (tmp_path / "worker").exists() and time.monotonic() < until:
            time.sleep(0.1)
        worker = int((tmp_path / "worker").read_text())
        session.kill()
        session.wait()
        assert survivors(lambda: {worker}) == set()


def test_a_killed_process_is_no_survivor_and_a_living_one_is() -> None:
    """A process survives if it lives and nobody has killed it."""
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        assert alive(sleeper.pid)
        assert not dying(sleeper.pid)
        assert survivors(lambda: {sleeper.pid}, looks=2) == {sleeper.pid}
        sleeper.kill()
        assert survivors(lambda: {sleeper.pid}, looks=1) == set()
    assert not alive(sleeper.pid)
