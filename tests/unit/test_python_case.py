"""Tests of cases as Python source: what is pasted is the case."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import ShardCase, TrainingCase, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.python import to_python
from ddp_invariants.cli import main
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.records.verdict import Failure
from ddp_invariants.records.violation import StoredViolation, try_to_write
from ddp_invariants.search.strategies import shard_cases, training_cases

SMALL = TrainingCase(Model(1, (Layer("linear"),)))
LARGE = TrainingCase(Model(3, (Layer("linear", outputs=4, bias=True),) * 4), steps=3, seed=7)
ANY: SearchStrategy[Any] = training_cases(Scope()) | shard_cases(Scope())


def pasted(source: str) -> Any:
    """Return the case that a source makes, in a namespace of its own."""
    names: dict[str, Any] = {}
    exec(source, names)
    return names["case"]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=ANY)
def test_what_is_pasted_is_the_case(case: TrainingCase | ShardCase) -> None:
    """The source of any drawn case makes an equal case, and no line is wider than a formatter's."""
    source = to_python(case)
    assert pasted(source) == case
    assert max(map(len, source.splitlines())) <= 100


def test_a_small_case_is_one_line() -> None:
    """Fields with their defaults are left out."""
    assert to_python(SMALL).splitlines() == [
        "from ddp_invariants.cases.case import TrainingCase",
        "from ddp_invariants.cases.layers import Layer, Model",
        "",
        'case = TrainingCase(Model(1, (Layer("linear"),)))',
    ]


def test_a_large_case_has_a_line_for_each_argument() -> None:
    """A long expression is broken as a formatter breaks it."""
    assert to_python(LARGE).partition("case = ")[2] == (
        "TrainingCase(\n"
        "    Model(\n"
        "        3,\n"
        "        (\n" + 4 * '            Layer("linear", outputs=4, bias=True),\n' + "        ),\n"
        "    ),\n"
        "    steps=3,\n"
        "    seed=7,\n"
        ")\n"
    )


@pytest.mark.parametrize("case", [SMALL, ShardCase(3, Data(samples=8), epochs=(0, 4))])
def test_the_source_is_plain_calls(case: TrainingCase | ShardCase) -> None:
    """The source imports and calls, and does nothing else."""
    allowed = (ast.Module, ast.ImportFrom, ast.alias, ast.Assign, ast.Name, ast.Call, ast.keyword)
    nodes = (*allowed, ast.Tuple, ast.Constant, ast.UnaryOp, ast.USub, ast.expr_context)
    assert all(isinstance(node, nodes) for node in ast.walk(ast.parse(to_python(case))))


def test_export_prints_the_case_of_a_violation_and_a_bare_case(tmp_path: Path) -> None:
    """`export --case` runs nothing; JSON names the rule of the violation."""
    failure = Failure("GRAD-2", "wrong", "rank 0", "1")
    stored = StoredViolation(
        LARGE, failure, Ddp("somebody:Wrapper"), Sampler(), (3, 3), "2.13.0", ""
    )
    violation, bare = tmp_path / "violation.json", tmp_path / "case.json"
    assert not try_to_write(stored, violation)
    bare.write_text(to_json(SMALL))
    runner = CliRunner()
    assert pasted(runner.invoke(main, ["export", str(violation), "--case"]).output) == LARGE
    assert pasted(runner.invoke(main, ["export", str(bare), "--case"]).output) == SMALL
    plain = json.loads(runner.invoke(main, ["export", str(violation), "--case", "--json"]).output)
    assert (plain["rule"], pasted(plain["script"])) == ("GRAD-2", LARGE)
