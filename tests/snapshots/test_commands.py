"""Tests of the command line for newcomers: certify, rules, doctor, demo, init, exit statuses."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from certificates import certified, discovery
from click.testing import CliRunner, Result

from conftest import Session
from ddp_invariants.cli import certify as certifying
from ddp_invariants.cli import doctor, main, pool
from ddp_invariants.discovery.result import Probed, Standing
from ddp_invariants.errors import USAGE_ERROR, HarnessError, LoadFailure
from ddp_invariants.implementation.spec import OPTIONS
from ddp_invariants.invariants import SHIPPED
from ddp_invariants.processes.load import Load
from ddp_invariants.report import rulebook, side_by_side
from ddp_invariants.report.certificate.certificate import to_json
from ddp_invariants.report.certificate.verifying import read
from ddp_invariants.report.outcome import SessionResult
from ddp_invariants.search.ledger import Entry, Ledger
from ddp_invariants.session import ending, run
from ddp_invariants.session.doctor import MIB, diagnose
from ddp_invariants.session.facts import MachineFacts, TorchFacts

ROOT = Path(__file__).parents[2]
NEVER_DIVIDES = "ddp_invariants.faults.bucketed:NeverDivides"


def command(*words: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ddp_invariants", *words],
        cwd=at,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


def invoke(*words: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, words)


# Exit statuses.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cerify"], "No such command 'cerify'"),
        (["certify", "--nonsense"], "No such option"),
        (["certify", "--profile", "slow"], "'slow' is not one of"),
        (["certify", "--cases", "many"], "many: expected a whole number from 1"),
        (["certify", "torch", "--ddp", "torch"], "name the ddp by NAME or by --ddp, not by both"),
        (
            ["certify", "sampler:torch", "--sampler", "torch"],
            "name the sampler by NAME or by --sampler",
        ),
        (["discover", "--max-world-size", "0"], "0: expected a whole number from 1 to 64"),
        (["rules", "GRAD-200"], "there is no such rule"),
        (["replay", "no-such-id"], "there is no"),
        (["compare"], "either --old or --baseline"),
        (["faults", "--only", "NeverDivide"], "did you mean NeverDivides?"),
        (["init", "no/such/folder"], "does not exist"),
    ],
)
def test_a_mistake_in_what_was_asked_ends_with_64_and_a_sentence(
    words: list[str], sentence: str
) -> None:
    """A usage mistake ends with status 64 and a sentence, because status 2 is a verdict."""
    done = invoke(*words)
    assert done.exit_code == 64, done.output
    assert sentence in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LoadFailure("--ddp a: it does not load"), 64),
        (FileNotFoundError(2, "No such file or directory", "pin.toml"), 64),
        (HarnessError("the host is gone"), 2),
        (OSError(24, "Too many open files"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_the_user_did_not_cause_is_no_mistake_of_theirs(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of the harness or the system gives status 2, and an interrupt gives status 130."""

    def failing(**_: object) -> None:
        raise error

    monkeypatch.setattr(pool, "Hosts", failing)
    done = invoke("discover")
    assert done.exit_code == status
    assert "Traceback" not in done.output
    assert (str(error) or "interrupted") in done.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ddp", "nonsense"], "--ddp nonsense: expected reference, torch"),
        (["--ddp", "refrence"], "did you mean reference?"),
        (["--ddp", "no/file.py:X"], "--ddp no/file.py:X: there is no file no/file.py"),
        (["--sampler", "a:"], "--sampler a:: expected"),
    ],
)
def test_a_bad_name_is_told_before_anything_is_started(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad name is reported before any host is started, if the name alone shows the mistake."""
    monkeypatch.setattr(pool, "Hosts", None)
    done = invoke("discover", *words)
    assert (done.exit_code, sentence in done.output) == (64, True), done.output


def test_the_statuses_and_completion_stand_in_the_help() -> None:
    """The help lists all five exit statuses, and every command has a line of its own."""
    text = " ".join(invoke("--help").output.split())
    for words in (
        "0 certified",
        "1 violated",
        "2 inconclusive",
        "64 usage error",
        "130 interrupted",
        'eval "$(_DDP_INVARIANTS_COMPLETE=bash_source ddp-invariants)"',
    ):
        assert words in text
    with main.make_context("ddp-invariants", ["rules"]) as context:
        for name in main.list_commands(context):
            offered = main.get_command(context, name)
            assert offered is not None
            assert offered.get_short_help_str()


def test_every_option_has_its_default_in_the_help() -> None:
    """The help of every command tells each option's default and all exit statuses it can have."""
    without_default = {"compare": {"old", "baseline"}, "record": {"out"}}
    with main.make_context("ddp-invariants", ["rules"]) as context:
        for name in main.list_commands(context):
            offered = main.get_command(context, name)
            assert offered is not None
            for option in offered.get_params(context):
                if isinstance(option, click.Option) and not option.is_flag and not option.count:
                    assert option.name is not None
                    shown = "(default: " in (option.help or "")
                    assert shown != (option.name in without_default.get(name, ())), (
                        name,
                        option.name,
                    )
            text = " ".join(invoke(name, "--help").output.split())
            assert re.search(r"Exit status: 0 \w", text), name
            unwritten = {
                "certify": "73 no certificate, badge or proposal written; ",
                "merge": "73 the output could not be written; ",
                "history": "73 the page could not be written; ",
            }.get(name, "")
            assert f"64 {USAGE_ERROR}; {unwritten}130 interrupted." in text, name
    replaying = " ".join(invoke("replay", "--help").output.split())
    assert "default: reference" not in replaying
    assert replaying.count("(default: as stored in the file)") == len(OPTIONS)


def test_a_usage_error_has_the_same_words_everywhere() -> None:
    """The README, the page on usage and every help text word exit status 64 alike."""
    for document in (ROOT / "README.md", ROOT / "docs" / "usage.md"):
        assert USAGE_ERROR in " ".join(document.read_text(encoding="utf-8").split())


def test_completion_offers_commands_and_rules(tmp_path: Path) -> None:
    """Completion offers commands, rules and options after the setup that the help describes."""
    source = command(at=tmp_path, _DDP_INVARIANTS_COMPLETE="zsh_source")
    assert "compdef" in source.stdout
    for words, offered in (
        ("ddp-invariants ce", "certify"),
        ("ddp-invariants rules GRAD-1", "GRAD-12"),
        ("ddp-invariants certify --sampler-", "--sampler-arg"),
    ):
        done = command(
            at=tmp_path,
            _DDP_INVARIANTS_COMPLETE="bash_complete",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split()) - 1),
        )
        assert f"plain,{offered}" in done.stdout.splitlines(), done.stdout + done.stderr


# certify.


def test_several_are_judged_one_after_another_and_compared(
    session: Session, tmp_path: Path
) -> None:
    """Several implementations are judged one after another, and then compared.

    The command prints one table of rules and one of capabilities. It writes a certificate for each
    implementation and one page for all. Its exit status is the worst one.
    """
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    done = session(
        "ddp_invariants",
        "certify",
        NEVER_DIVIDES,
        "sampler:torch",
        "--cases",
        "5",
        "--seed",
        "1",
        "-n",
        "0",
        "-k",
        "grad2 or shard1_",
        "--max-world-size",
        "2",
        "--certificate",
        "both.html",
        "--json",
        at=tmp_path,
        environment={
            **os.environ,
            "PYTEST_ADDOPTS": "--neither",
            "PYTEST_PLUGINS": "no_such_plugin",
        },
    )
    assert done.returncode == 1, done.stdout + done.stderr
    plain = json.loads(done.stdout)
    assert (plain["status"], plain["outcome"], [entry["status"] for entry in plain["judged"]]) == (
        1,
        "violated",
        [1, 0],
    )
    assert [entry["rules"].get("SHARD-1") for entry in plain["judged"]] == ["holds", "holds"]
    assert [(tmp_path / path).exists() for path in plain["judged"][0]["violations"]] == [True]
    mine = "both-ddp-invariants.faults.bucketed-NeverDivides"
    written = {
        f"{name}.{kind}" for name in (mine, "both-sampler-torch") for kind in ("html", "json")
    } | {"both.html"}
    assert {path.name for path in tmp_path.glob("both*")} == written
    certificates = [read(tmp_path / name) for name in (f"{mine}.json", "both-sampler-torch.json")]
    assert [len(certificate.violations) for certificate in certificates] == [1, 0]
    page = (tmp_path / "both.html").read_text()
    assert all(words in page for words in (NEVER_DIVIDES, "torch", "violated"))
    assert "comparison: both.html, of the 2 certificates beside it" in done.stderr
    rows = done.stderr.partition("side by side")[2].splitlines()
    assert ["GRAD-2", "violated"] in [row.split() for row in rows]
    assert ["SHARD-1", "holds", "holds"] in [row.split() for row in rows]
    assert ["outcome", "violated", "partial"] in [row.split() for row in rows]
    assert ["resume", "right", "not", "offered"] in [row.split() for row in rows]
    repeat = re.search(
        rf"repeat +ddp-invariants (certify --ddp {NEVER_DIVIDES} "
        r"--replay \.ddp-invariants/\w+\.json -k grad2)",
        done.stderr,
    )
    assert repeat is not None
    again = session("ddp_invariants", *repeat[1].split(), at=tmp_path)
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"GRAD-2 violated by {NEVER_DIVIDES}" in again.stdout


def test_a_comparison_that_cannot_be_written_is_said_to_be_none(tmp_path: Path) -> None:
    """A comparison that cannot be written is reported with the reason.

    The reason is a folder at its path, or a missing certificate.
    """
    (tmp_path / "one.json").write_text(to_json(certified()), encoding="utf-8")
    (tmp_path / "both.html").mkdir()
    message, written = certifying._compared(tmp_path / "both.json", [tmp_path / "one.json"])
    assert message.endswith("both.html could not be written: Is a directory")
    assert not written
    message, written = certifying._compared(tmp_path / "other.html", [tmp_path / "none.json"])
    assert message.endswith("other.html was not written: there is no certificate")
    assert not written


def test_a_proposal_is_about_one_implementation() -> None:
    """Several names with one declaration file are refused before anything is started."""
    refused = invoke("certify", "reference", "torch", "--propose", "lacking.toml")
    assert refused.exit_code == 64
    assert "--propose writes the declarations of one implementation" in refused.output


def test_what_pytest_says_and_what_was_found_make_the_status() -> None:
    """A failure is a violation if it was confirmed, and inconclusive otherwise.

    An interrupt keeps its own status, whatever was found.
    """
    violated, seen, well = Ledger(), Ledger(), Ledger()
    violated["GRAD-2"].confirmed = 1
    seen["GRAD-2"].seen = 1
    # A session that was cut short ends with 2, for example by -x under xdist.
    for status, ledger, failed_elsewhere, expected in (
        (0, well, False, 0),
        (0, seen, False, 2),
        (1, violated, False, 1),
        (1, seen, False, 2),
        (1, seen, True, 1),
        (1, well, False, 2),
        (2, violated, False, 1),
        (2, well, False, 2),
        (2, seen, True, 2),
        (3, violated, False, 3),
    ):
        assert ending.exit_status(status, ledger, other_test_failed=failed_elsewhere) == expected, (
            status,
            expected,
        )
    for status, began, interrupted, expected in (
        (0, True, False, 0),
        (1, True, False, 1),
        (1, False, False, 2),
        (2, True, True, 130),
        (2, False, False, 2),
        (3, True, False, 2),
        (4, False, False, 64),
        (5, True, False, 64),
        (64, False, False, 64),
    ):
        assert run._status(status, began=began, interrupted=interrupted) == expected, (
            status,
            expected,
        )


def test_a_comparison_tells_what_differs_and_what_was_not_looked_at() -> None:
    """A comparison shows capabilities that differ, and counts those that were not probed.

    A capability that was not probed is no difference. For a sampler, only its own capabilities
    count. The outcome of a session of one rule is partial, also if the rule holds.
    """
    right, broken = Ledger(), Ledger()
    for ledger in (right, broken):
        ledger.entries["GRAD-2"], ledger.cases = Entry(judged=3), 3
        ledger.tested = ledger.ended = {"GRAD-2"}
    broken["GRAD-2"].confirmed = 1
    first, second = (
        discovery(probed=(Probed("tied", tied), Probed("unused", unused)))
        for tied, unused in (
            (Standing.RIGHT, Standing.WRONG),
            (Standing.UNKNOWN, Standing.REFUSED),
        )
    )
    text = side_by_side.text(
        {
            "one": SessionResult(0, right, first),
            "other": SessionResult(1, broken, second),
            "sampler:torch": SessionResult(2, right, first, of_sampler=True),
            "bad": SessionResult(64),
        }
    )
    rows = [re.split(r"  +", row.strip()) for row in text.splitlines()]
    assert ["GRAD-2", "holds", "violated", "holds"] in rows
    assert ["unused", "wrong", "refused"] in rows
    assert not any(row[0] in ("tied", "shuffle") for row in rows)
    assert ["outcome", "partial", "violated", "inconclusive", "cannot be tested"] in rows
    assert text.endswith("\nother: 1 capabilities were not probed")


# rules, doctor, demo, init.


def test_every_rule_is_explained() -> None:
    """Every rule is explained with its source, its judgement, its property and its code.

    If planted faults violate the rule, the explanation names them.
    """
    for rule in SHIPPED:
        explanation = rulebook.explain(rule.lower())
        assert explanation.source, rule
        assert explanation.judged, rule
        assert re.fullmatch(r"properties/test_\w+\.py:\d+", explanation.property), rule
        file, _, line = explanation.code.partition(":")
        source = (ROOT / "ddp_invariants" / file).read_text().splitlines()[int(line) - 1 :]
        assert any(f'"{rule}"' in text for text in source[:3]), rule
        assert explanation.level in ("core", "extended", "robust")
        assert explanation.applies in ("always", "capability", "declared", "observed")
    text = invoke("rules", "grad2").output
    assert text.startswith("GRAD-2  The gradient is the mean of the ranks' local gradients")
    assert "catches   NeverDivides: Summed, never divided" in text
    assert "exactness = lossy" in text
    assert rulebook.explain("MEM-1").applies == "declared"
    assert rulebook.explain("GRAD-9").applies == "capability"
    assert rulebook.explain("SHARD-7").level == "robust"
    listed = json.loads(invoke("rules", "--json").output)
    assert [entry["id"] for entry in listed] == list(SHIPPED)
    assert (
        "there is no such rule; did you mean LOSS-1 or LOSS-2 or LOSS-3?"
        in invoke("rules", "loss").output
    )
    assert "did you mean GRAD-" in invoke("rules", "gard-2").output


TORCH = TorchFacts(
    "2.13.0",
    "2.4",
    debug=False,
    built_for="CPU",
    backends=["gloo"],
    gpus=[],
    threads=1,
    forked="",
    subreaper="",
    batch_scheduling="",
)
WELL = MachineFacts(
    "Linux",
    (3, 12),
    TORCH,
    "",
    4,
    None,
    1024,
    None,
    None,
    8192 * MIB,
    1024 * MIB,
    "",
    ("127.0.0.1",),
    "",
    0.03,
    "",
)


def _torch(**changes: Any) -> MachineFacts:
    return replace(WELL, torch=replace(TORCH, **changes))


@pytest.mark.parametrize(
    ("facts", "name", "standing", "advice"),
    [
        (replace(WELL, system="Darwin"), "system", "problem", "use Linux, or a Linux container"),
        (replace(WELL, python=(3, 10)), "python", "problem", "3.11"),
        (
            replace(WELL, torch=None, torch_error="No module named 'torch'"),
            "torch",
            "problem",
            "pip install torch",
        ),
        (_torch(debug=True), "torch", "warning", "slow"),
        (_torch(backends=["nccl"]), "backends", "problem", "gloo"),
        (_torch(gpus=["H200"]), "GPUs", "ok", "asks for them"),
        (_torch(threads=3), "fork", "warning", "sitecustomize"),
        (_torch(forked="a forked child ended with status -11"), "fork", "problem", "sitecustomize"),
        (_torch(subreaper="Invalid argument"), "orphans", "problem", "sandbox"),
        (_torch(batch_scheduling="PermissionError"), "scheduling", "warning", "seccomp"),
        (replace(WELL, kernel="no anonymous file"), "kernel", "problem", "sandbox"),
        (
            replace(WELL, loopback="127.0.0.1: Cannot assign requested address"),
            "loopback",
            "problem",
            "ip link set lo up",
        ),
        (replace(WELL, localhost=("::1",)), "localhost", "warning", "/etc/hosts"),
        (replace(WELL, files=20), "open files", "problem", "ulimit -n"),
        (replace(WELL, files=256), "open files", "warning", "-n 4096"),
        (replace(WELL, processes=100), "processes", "warning", "ulimit -u"),
        (replace(WELL, group_processes=8), "processes of the container", "problem", "--pids-limit"),
        (replace(WELL, memory=100 * MIB), "memory", "problem", "-n 1"),
        (replace(WELL, shared=32 * MIB), "shared memory", "warning", "--shm-size=1g"),
        (replace(WELL, cores=1), "cores", "warning", "take turns"),
        (replace(WELL, quota=0.5), "cores", "warning", "take turns"),
        (replace(WELL, load=Load(20.0, 0.0, 0.1)), "load", "warning", "end other programs"),
        (replace(WELL, load=Load(0.5, 0.3, 0.1)), "load", "warning", "fewer workers"),
        (
            replace(WELL, training_seconds=None, training_error="the host is gone"),
            "two ranks",
            "problem",
            "report it",
        ),
    ],
)
def test_the_doctor_says_what_is_wrong_and_what_to_do(
    facts: MachineFacts, name: str, standing: str, advice: str
) -> None:
    """The doctor names the one fault of an otherwise healthy machine, and what to do."""
    odd = [check for check in diagnose(facts) if check.standing != "ok" or check.advice]
    assert [(check.name, check.standing) for check in odd] == [(name, standing)]
    assert advice in odd[0].advice
    text = doctor.text(diagnose(facts))
    assert ("this machine cannot run the suite" in text) == (standing == "problem")


def test_the_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    """The doctor shows with two ranks that this machine can run the suite.

    If torch cannot be imported, the doctor says so and exits with status 1.
    """
    assert [check for check in diagnose(WELL) if check.standing != "ok" or check.advice] == []
    done = command("doctor", "--json", at=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert checks["two ranks"]["standing"] == checks["fork"]["standing"] == "ok", done.stdout
    assert "correct by all rules" in checks["two ranks"]["result"]
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libgomp.so.1: cannot open shared object file')\n"
    )
    done = command("doctor", at=tmp_path)
    assert done.returncode == 1
    assert re.search(r"problem +torch +the import fails: ImportError: libgomp", done.stdout), (
        done.stdout
    )


def test_the_demonstration_shows_both_outcomes(session: Session, tmp_path: Path) -> None:
    """The demonstration certifies one implementation and not the other.

    The printed line that repeats the violation works.
    """
    done = session("ddp_invariants", "demo", at=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in ("SHARD-3", "GRAD-2", "PARAM-1"):
        assert re.search(rf"{rule} +holds", done.stdout)
    assert f"GRAD-2 violated by {NEVER_DIVIDES}" in done.stdout
    repeat = re.search(r"repeat +ddp-invariants (replay .+)", done.stdout)
    assert repeat is not None
    again = session("ddp_invariants", *repeat[1].split(), "--json", at=tmp_path)
    assert again.returncode == 1, again.stderr
    assert json.loads(again.stdout)["outcome"] == "VIOLATED"


def test_what_init_writes_certifies_and_nothing_is_overwritten(
    session: Session, tmp_path: Path
) -> None:
    """The adapter that `init` writes is driven and certified; a second `init` changes nothing."""
    done = session("ddp_invariants", "init", at=tmp_path)
    assert done.returncode == 0, done.stderr
    job = (tmp_path / ".github" / "workflows" / "ddp-invariants.yml").read_text()
    certified = re.search(r"run: ddp-invariants (certify .+)", job)
    assert certified is not None
    # Its file has a relative name, which hosts that run elsewhere do not find.
    judged = command(
        *certified[1].split(),
        "-n",
        "0",
        "-k",
        "grad2 or grad6",
        "--cases",
        "5",
        "--seed",
        "1",
        "-v",
        "--max-world-size",
        "3",
        at=tmp_path,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "driven    adapter with wrap, after_backward" in judged.stdout
    (tmp_path / "ddp_invariants_adapter.py").write_text("# ours\n")
    again = session("ddp_invariants", "init", str(tmp_path), at=tmp_path)
    assert again.returncode == 64
    assert again.stdout.count("kept: ") == 2
    assert (tmp_path / "ddp_invariants_adapter.py").read_text() == "# ours\n"


# From Python.


def test_what_the_package_offers_is_imported_when_asked_for() -> None:
    """A rank imports the package without Hypothesis or pydantic, which are imported on demand."""
    heavy = (
        "{'hypothesis', 'pydantic', 'pytest', 'click', 'rich', 'jinja2', 'torch', 'numpy'}"
        " & set(sys.modules)"
    )
    lines = [
        "import sys, ddp_invariants",
        f"assert not {heavy}",
        "import ddp_invariants.ranks.rank",
        f"print(sorted({heavy}))",
        "from ddp_invariants import Case, Implementation, certify, rules, strategies",
        "print(certify.__name__, sorted(set(ddp_invariants.__all__) - set(dir(ddp_invariants))))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert done.stdout.splitlines() == ["['numpy', 'torch']", "certify []"], done.stderr


def test_a_rule_of_ones_own_is_certified_and_shrunk_like_any_other(
    session: Session, host_addresses: list[str], tmp_path: Path
) -> None:
    """A user's own rule holds for torch's DDP, and is violated by gradients sent in bfloat16."""
    own: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "own_property.py")))
    from ddp_invariants import Implementation, certify
    from ddp_invariants.invariants import ALL_RULES
    from ddp_invariants.records.verdict import Violation

    hosts: Any = SimpleNamespace(addresses=host_addresses)
    try:
        held = certify(
            Implementation(ddp="torch"),
            "COMM-100",
            own.small_buckets(),
            examples=20,
            store=tmp_path,
            hosts=hosts,
        )
        assert held.verdict_of("COMM-100") == "holds"
        assert held["COMM-100"].met["several buckets"] > 0
        rounding = Implementation(ddp="ddp_invariants.faults.bucketed:RoundsToBfloat16")
        with pytest.raises(Violation, match=r"COMM-100 violated by .*RoundsToBfloat16") as raised:
            certify(
                rounding, "COMM-100", own.small_buckets(), examples=20, store=tmp_path, hosts=hosts
            )
        repeat = re.search(r"repeat +certify\(…, 'COMM-100', replay='(.+)'\)", raised.value.report)
        assert repeat is not None
        with pytest.raises(Violation, match="COMM-100 violated by"):
            certify(rounding, "COMM-100", replay=repeat[1], store=tmp_path, hosts=hosts)
    finally:
        from ddp_invariants.invariants.view import training

        del ALL_RULES["COMM-100"], training.rules["COMM-100"]
    unknown = invoke("replay", repeat[1])
    assert unknown.exit_code == 64
    assert (
        "there is no rule COMM-100 here. If it is your own, name the Python file that adds it"
        in unknown.output
    )
    for text, message in (("1 / 0", "it raised ZeroDivisionError"), ("", "it adds no rule")):
        (tmp_path / "rules.py").write_text(text)
        assert message in invoke("replay", repeat[1], "--rules", str(tmp_path / "rules.py")).output
    again = session(
        "ddp_invariants",
        "replay",
        repeat[1],
        "--rules",
        str(ROOT / "examples" / "own_property.py"),
        at=tmp_path,
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert "COMM-100" in again.stdout
    assert "--rules" in again.stdout.rpartition("repeat")[2]


def test_a_property_of_ones_own_is_a_test_like_any_other(session: Session, tmp_path: Path) -> None:
    """A user's own property runs in its own folder, and the line that repeats its failure works."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["ddp_invariants.plugin"]\n')
    for name, copied in (("own_property", "own_property"), ("test_own", "session_property")):
        text = (ROOT / "examples" / f"{copied}.py").read_text()
        (tmp_path / f"{name}.py").write_text(text)
    words = [
        "test_own.py",
        "--ddp",
        "ddp_invariants.faults.bucketed:RoundsToBfloat16",
        "--cases",
        "20",
        "--seed",
        "1",
        "--max-world-size",
        "2",
    ]
    for _ in range(2):
        done = session("pytest", "-p", "no:cacheprovider", *words, at=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "COMM-100 violated by ddp_invariants.faults.bucketed:RoundsToBfloat16" in done.stdout
        assert re.search(r"COMM-100 +violated", done.stdout), done.stdout
        repeat = re.search(r"repeat +pytest (test_own\.py .+)", done.stdout)
        assert repeat is not None, done.stdout
        words = repeat[1].split()


def test_a_failing_test_of_ones_own_shows_its_line_and_the_report(
    session: Session, tmp_path: Path
) -> None:
    """A test that calls `certify` and fails shows that call and the report, and no stack of ours."""
    (tmp_path / "test_own.py").write_text(
        "from ddp_invariants import Implementation, certify\n\n\n"
        "def test_violated():\n"
        f"    certify(Implementation(ddp='{NEVER_DIVIDES}'), 'GRAD-2', examples=20)\n\n\n"
        "def test_unmet():\n    certify(Implementation(), 'PARAM-3', examples=1)\n\n\n"
        "def test_misnamed():\n    certify(Implementation(ddp='refrence'), 'GRAD-2')\n\n\n"
        "def test_unknown():\n    certify(Implementation(), 'GRAD-200')\n"
    )
    done = session("pytest", "-p", "no:cacheprovider", "test_own.py", at=tmp_path)
    for words in (
        "GRAD-2 violated by",
        "PARAM-3 inconclusive for",
        "did you mean reference?",
        "GRAD-200: there is no such rule",
    ):
        assert words in done.stdout, words
    assert re.findall(r"^\S+\.py:\d+: ", done.stdout, re.MULTILINE) == [
        f"test_own.py:{line}: " for line in (5, 9, 13, 17)
    ]


@pytest.mark.parametrize("option", [["-n", "0"], ["-n", "1"]])
def test_a_limit_of_failures_does_not_count_inconclusive_rules(
    session: Session, tmp_path: Path, option: list[str]
) -> None:
    """With -x a session goes on after an inconclusive rule, and ends after another failure."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["ddp_invariants.plugin"]\n')
    (tmp_path / "test_own.py").write_text(
        "from ddp_invariants.records.verdict import Inconclusive\n\n\n"
        "def test_first():\n    raise Inconclusive('no evidence')\n\n\n"
        "def test_second():\n    assert False\n\n\ndef test_third():\n    pass\n"
    )
    words = ["-p", "no:cacheprovider", "test_own.py", "-x", *option]
    done = session("pytest", *words, at=tmp_path)
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert "passed" not in done.stdout
    assert "stopping after 1 failure" in done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_limit_of_one_failure_ends_a_plainly_broken_session_at_once(
    session: Session, tmp_path: Path, workers: str
) -> None:
    """The rule that the plain case breaks comes first, and its violation waits for no other test.

    The other test would take longer than this session may.
    """
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["ddp_invariants.plugin"]\n')
    (tmp_path / "test_own.py").write_text(
        "import time\n\nfrom hypothesis import given\n\nfrom ddp_invariants import cases_of\n\n\n"
        "def test_init1_waits():\n    time.sleep(600)\n\n\n"
        "@given(case=cases_of('GRAD-2'))\n"
        "def test_grad2_is_broken(case, ranks):\n    ranks.check('GRAD-2', case)\n"
    )
    words = ["-p", "no:cacheprovider", "test_own.py", "-x", "--cases=5", "--seed=1", "-n", workers]
    done = session("pytest", *words, "--ddp", NEVER_DIVIDES, at=tmp_path, seconds=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "stopping after 1 failure" in done.stdout
    assert "perhaps   got / expected = 2 = world size: summed, never divided" in done.stdout
    assert re.search(r"=+ 1 failed in ", done.stdout), done.stdout


@pytest.mark.parametrize("name", ["COMM-7", "MINE-100", "COMM", "comm-100"])
def test_a_rule_of_ones_own_has_a_name_that_no_other_will_have(name: str) -> None:
    """The name of a user's own rule is an invariant and a number from 100 on."""
    from ddp_invariants import rules

    with pytest.raises(ValueError, match="the number 100 or more"):
        rules.own(name, "whatever")
