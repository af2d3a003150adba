"""The JSON of every command has the keys that docs/json.md lists, whatever the result is."""

import ast
import json
from pathlib import Path
from typing import Any

import click
from certificates import SMALLEST, certified, discovery, ledger
from click.testing import CliRunner
from readme import json_keys

from ddp_invariants.cli import main
from ddp_invariants.proof import tables
from ddp_invariants.proof.mutants.judging import Judged
from ddp_invariants.proof.mutants.operators import mutants as mutants_of
from ddp_invariants.records.verdict import Failure, Outcome, Replayed, Violation
from ddp_invariants.report import machine, mutants
from ddp_invariants.report.certificate.certificate import to_json
from ddp_invariants.report.outcome import SessionResult
from ddp_invariants.upgrades.baseline import Environment, Head
from ddp_invariants.upgrades.comparison import Offer
from ddp_invariants.upgrades.outcome import Gated

ALTERED = ast.parse("a + b")


def printed(*words: str, status: int = 0) -> Any:
    """Return the JSON that a command prints."""
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def test_every_command_prints_json_and_stands_in_the_document() -> None:
    """Every command has the option `--json` and a row of keys in docs/json.md."""
    with main.make_context("ddp-invariants", ["rules"]) as context:
        for name in main.list_commands(context):
            command = main.get_command(context, name)
            assert command is not None
            assert "--json" in [
                word
                for parameter in command.get_params(click.Context(command))
                for word in parameter.opts
            ], name
            assert json_keys(name), name


def test_what_quick_commands_print_has_the_keys_of_the_document(tmp_path: Path) -> None:
    """The output of rules, init and verify has the documented keys."""
    assert set(printed("rules", "GRAD-2")) == set(printed("rules")[0]) == json_keys("rules")
    begun = printed("init", str(tmp_path))
    assert (set(begun), len(begun["written"]), begun["left"]) == (json_keys("init"), 2, [])
    assert printed("init", str(tmp_path), status=64)["left"] == begun["written"]
    (tmp_path / "it.json").write_text(to_json(certified()), encoding="utf-8")
    assert set(printed("verify", str(tmp_path / "it.json"))) | {"reason"} == json_keys("verify")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    assert set(printed("verify", str(tmp_path / "other.json"), status=2)) == {"valid", "reason"}


def test_what_slow_commands_print_has_the_keys_of_the_document() -> None:
    """The output of the slow commands has the documented keys; their results are handmade."""
    here = Environment("python", "2.13.0", "2.0", "3.12")
    failure = Failure("GRAD-2", "wrong", "rank 0", "1", "never divided")
    replayed = Replayed(Outcome.VIOLATED, "reference", SMALLEST, ("GRAD-2",), (failure,), 3, 3)
    outputs: dict[str, dict[str, Any]] = {
        "certify": machine.certification(
            {"a": SessionResult(0, ledger(), discovery()), "b": SessionResult(64)}, 64
        ),
        "replay": machine.replay(replayed, "ddp-invariants replay 525cc8"),
        "export": machine.export("pass", failure.rule, "525cc8"),
        "discover": machine.discovery(discovery()),
        "compare": machine.comparison((here, here), Gated((), 3)),
        "record": machine.recording(
            Path("it.gz"), Head("0.1", 1, here, Offer({}, {}, {}, {}), "", 0, 3)
        ),
        "faults": tables.to_plain(tables.planned((), (), {}, "")),
        "mutate": mutants.document([Judged(mutants_of(ALTERED)[0], "killed")], "a", "a.py"),
        "demo": machine.demonstration(ledger(), ["GRAD-2"], "wrong", None),
    }
    for name, plain in outputs.items():
        assert set(plain) == json_keys(name), name
    assert set(outputs["mutate"]["mutants"][0]) == json_keys("mutants")
    first, second = outputs["certify"]["judged"]
    assert set(first) == set(second) == json_keys("judged")
    assert (first["rules"]["GRAD-2"], first["outcome"], second["rules"], second["outcome"]) == (
        "holds",
        "certified",
        {},
        "cannot be tested",
    )
    seen = machine.demonstration(
        ledger(), ["GRAD-2"], "wrong", Violation("told", failure, SMALLEST)
    )
    assert set(seen["right"]) == json_keys("right")
    assert set(seen["wrong"]) | set(seen["wrong"]["violation"]) == json_keys("wrong")
