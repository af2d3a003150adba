"""The command line, the files it writes, and the files a package ships, as a user meets them."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from readme import json_keys

from conftest import Session, fault_of
from ddp_invariants.cli import main

ROOT = Path(__file__).parents[2]
SHAPES = "tests/helpers/shapes.py"


ONE_RULE = (
    "pytest",
    "-p",
    "no:cacheprovider",
    "properties/test_grad.py",
    "-k",
    "grad1_",
    "--cases",
    "5",
    "--seed",
    "1",
    "--max-world-size",
    "2",
)
"""A command that judges one rule quickly, after few probes."""


def run(module: str, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the checkout's root, with one more folder on the import path."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), path])},
        check=False,
    )


def test_what_is_discovered_is_printed_and_pinned_and_a_pin_is_held_to(
    session: Session, tmp_path: Path
) -> None:
    """The pinned file is a declaration file: its claims are checked for another implementation.

    A claim that does not hold there is an error.
    """
    pin = tmp_path / "pin.toml"
    discovered = session(
        "ddp_invariants",
        "discover",
        "--ddp",
        f"{SHAPES}:Flavoured",
        "--ddp-arg",
        "flavour=plain",
        "--pin",
        str(pin),
        "--max-world-size",
        "2",
    )
    assert discovered.returncode == 0, discovered.stderr
    assert "given: flavour='plain'" in discovered.stdout
    assert "wrong     strided" in discovered.stdout
    assert "not offered bucket_cap" in discovered.stdout
    assert (
        "strided is wrong; the file declares it unsupported, so it is reported and no "
        "longer judged" in discovered.stdout
    )
    declared = tomllib.loads(pin.read_text())
    assert "strided" in declared["ddp"]["unsupported"]
    assert "tied" in declared["ddp"]["supports"]
    held = session(
        *ONE_RULE,
        "--ddp",
        f"{SHAPES}:Flavoured",
        "--ddp-arg",
        "flavour=plain",
        "--declare",
        str(pin),
    )
    assert held.returncode == 0, held.stdout
    assert "wrong, declared strided" in held.stdout
    on_torch = session(
        *ONE_RULE, "--ddp", "torch", "--ddp-arg", "static_graph=True", "--declare", str(pin)
    )
    assert on_torch.returncode == 64
    assert (
        "it claims 'accumulation' (several backwards per step), "
        "which is refused: RuntimeError in backward" in on_torch.stderr
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[ddp]\nzeero = 1\n", "'zeero' is no declaration (did you mean 'zero'?)"),
        ("ddp = 1\n", "'ddp' is no table"),
        ("[ddp\n", "is not valid TOML"),
        ("[ddp]\nstack = {activation = 'tanh'}\n", "activation = 'tanh': expected one of"),
        (None, "No such file"),
    ],
)
def test_a_bad_declaration_file_gets_one_sentence(
    session: Session, tmp_path: Path, text: str | None, sentence: str
) -> None:
    """Both the command line and pytest end with status 64 and no traceback."""
    path = tmp_path / "declared.toml"
    if text is not None:
        path.write_text(text)
    discovered = CliRunner().invoke(main, ["discover", "--declare", str(path)])
    done = session(*ONE_RULE, "--declare", str(path))
    for status, output in (
        (discovered.exit_code, discovered.output),
        (done.returncode, done.stderr + done.stdout),
    ):
        assert status == 64
        assert sentence in output
        assert "Traceback" not in output


def test_a_package_ships_its_adapter_as_an_entry_point(session: Session, tmp_path: Path) -> None:
    """The name of an entry point is enough, and a declaration file beside an adapter is found."""
    info = tmp_path / "shipped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shipped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ddp_invariants.ddp]\nshipped = shipped_ddp:Adapter\n")
    (tmp_path / "shipped_ddp.py").write_text((ROOT / SHAPES).read_text())
    done = run(*ONE_RULE, "--ddp", "shipped", "-v", path=str(tmp_path))
    assert "ddp under test: shipped = shipped_ddp:Adapter" in done.stdout
    assert "driven    adapter with wrap, after_backward" in done.stdout
    misspelt = run(*ONE_RULE, "--ddp", "shiped", path=str(tmp_path))
    assert misspelt.returncode == 64
    assert "did you mean shipped?" in misspelt.stderr + misspelt.stdout
    beside = tmp_path / "mine.py"
    beside.write_text((ROOT / SHAPES).read_text())
    (tmp_path / "mine.UsualCall.toml").write_text(
        '[ddp]\nunsupported = ["strided", "channels_last"]\n'
    )
    declared = session(*ONE_RULE, "--ddp", f"{beside}:UsualCall")
    assert 'declared  unsupported = ["strided", "channels_last"]' in declared.stdout


def test_faults_are_searched_for_and_counted(session: Session) -> None:
    """The faults command prints a table with totals; its status says if the judge did well."""
    none = CliRunner().invoke(
        main, ["faults", "--only", "NeverDivides", "--only", "unchanged_order", "--only", "SHARD-7"]
    )
    assert none.exit_code == 64
    assert (
        "--only unchanged_order: "
        "the catalogue has no fault, control, module or rule of that name" in none.output
    )
    done = session(
        "ddp_invariants",
        "faults",
        "--only",
        "NeverDivides",
        "--only",
        "reference",
        "--control-cases",
        "60",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(
        line.split()[:4] == ["NeverDivides", "GRAD-2", "GRAD-2", "GRAD-2"] for line in lines
    ), done.stdout
    assert lines[-3].startswith(
        "1 searches for planted faults: 1 (100.0 %) caught, 1 (100.0 %) by the right rule"
    )
    assert re.fullmatch(
        r"60 cases of 2 controls \(\d+ runs simulated, \d+ on real ranks or of samplers\): "
        "0 false violations",
        lines[-1],
    )


def test_what_faults_came_to_is_json_too(session: Session) -> None:
    """The JSON of the faults command holds all facts about each search, and the totals."""
    done = session("ddp_invariants", "faults", "--only", "NeverDivides", "--json", "--seeds", "2")
    plain = json.loads(done.stdout)
    assert set(plain) == json_keys("faults")
    assert (
        plain["totals"]["caught"]
        == plain["totals"]["right_rule"]
        == plain["totals"]["searches"]
        == 2
    )
    assert [
        search["seed"] for search in sorted(plain["searches"], key=lambda search: search["seed"])
    ] == [0, 1]
    assert plain["searches"][0]["planted"]["name"] == "NeverDivides"
    assert "GRAD-2" in plain["searches"][0]["failed"]


def test_a_proposed_declaration_lets_the_next_session_certify(
    session: Session, tmp_path: Path
) -> None:
    """A violation ends with the declaration that excludes it, which the certificate then shows."""
    proposed, certificate = tmp_path / "lacking.toml", tmp_path / "it.json"
    fault = ("--ddp", fault_of("StridedBroadcast"))
    command = ("ddp_invariants", "certify", *fault, "-k", "init1", "-n", "0", "--seed", "1")
    accused = session(*command, "--propose", str(proposed))
    assert accused.returncode == 1, accused.stdout
    assert "extended  violated: strided (INIT-1)" in accused.stdout
    assert f"proposal: {proposed}, for --declare" in accused.stdout
    assert "users must never:\n  # - wrap a model with a parameter that is not" in accused.stdout
    assert "strided" in tomllib.loads(proposed.read_text())["ddp"]["unsupported"]
    by_core = session(*command, "--level", "core")
    assert by_core.returncode == 0, by_core.stdout
    assert "exit      the status is decided by core alone" in by_core.stdout
    declared = session(
        *command, "--declare", str(proposed), "--certificate", str(certificate), "--json"
    )
    assert declared.returncode == 0, declared.stdout
    shown = json.loads(declared.stdout)["judged"][0]
    assert [each["verdict"] for each in shown["card"]] == ["partial"] * 3
    made = json.loads(certificate.read_text())
    assert any("strided" in line for line in made["subjects"][0]["declares"])
    assert (
        "declared unsupported: strided"
        in CliRunner().invoke(main, ["verify", str(certificate)]).output
    )
