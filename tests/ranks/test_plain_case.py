"""Tests of discovery on wrappers whose plain case fails: it says what failed, and its status shows it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from entered import entered

from conftest import TrialMaker
from ddp_invariants.cases.case import describe
from ddp_invariants.cli import main
from ddp_invariants.discovery import probe, result
from ddp_invariants.discovery.plain_case import plain_case
from ddp_invariants.discovery.result import Discovery, PlainFailure
from ddp_invariants.errors import INCONCLUSIVE, VIOLATED
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Violation

WRAPPERS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Local(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
    def forward(self, *inputs):
        return self.module(*inputs)

class Refuses(Local):
    def __init__(self, module):
        super().__init__(module)
        raise ValueError("not on a Monday")

class Seeds(DistributedDataParallel):
    def __init__(self, module):
        super().__init__(module)
        torch.manual_seed(42)

class Waits(Local):
    def __init__(self, module):
        super().__init__(module)
        if dist.get_rank() == 1:
            dist.barrier()
"""


@pytest.fixture
def discover(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the command `discover` on a wrapper, on ranks that exist."""

    @contextmanager
    def ranks(*_: Any) -> Iterator[Pool]:
        yield pool

    monkeypatch.setattr("ddp_invariants.cli.discover.ranks", ranks)
    (tmp_path / "wrappers.py").write_text(WRAPPERS)

    def run(name: str, *options: str) -> Result:
        return CliRunner().invoke(
            main, ["discover", "--ddp", f"{tmp_path}/wrappers.py:{name}", *options]
        )

    return run


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("Local", VIOLATED, "wrong     the plain case: INIT-1: parameters differ from rank 0's"),
        ("Refuses", INCONCLUSIVE, "refused   the plain case: ValueError in wrap: not on a Monday"),
        ("Waits", VIOLATED, "wrong     the plain case: LIVE-1: a rank hung"),
    ],
)
def test_a_plain_case_that_fails_is_told_and_is_no_success(
    discover: Any, name: str, status: int, words: str
) -> None:
    """The command ended with 0, and listed 75 capabilities as not probed without a reason."""
    ended = discover(name)
    assert ended.exit_code == status, ended.output
    output = " ".join(ended.output.split())
    assert " ".join(words.split()) in output
    assert "wrappers.py" in output or "rank 1 of 2, step 0, parameter" in output
    assert "plain case world_size=2 model=4->linear(outputs=4)" in output
    assert " capabilities, since the plain case fails" in output


def test_capabilities_are_probed_if_the_plain_case_breaks_no_rule_of_the_core(
    discover: Any,
) -> None:
    """A wrapper that seeds all ranks alike says nothing about gradients, which are probed as ever."""
    ended = discover("Seeds", "--json")
    assert ended.exit_code == VIOLATED
    told = json.loads(ended.output)
    assert told["plain_failure"]["fact"] == "RNG-1: two ranks draw the same random numbers"
    assert told["plain_failure"]["left_out"] == ["RNG-1"]
    standing = {probe["capability"]: probe["standing"] for probe in told["capabilities"]}
    assert standing["accumulation"] == standing["clipping"] == "right"
    assert standing["retained"] == standing["unfreeze"] == "wrong"  # As torch's DDP itself.


def test_the_failure_of_a_plain_case_is_in_the_json(discover: Any) -> None:
    """A program reads the same from the command's JSON, with the same status."""
    ended = discover("Refuses", "--json")
    assert ended.exit_code == INCONCLUSIVE
    failure = json.loads(ended.output)["plain_failure"]
    assert failure["fact"] == "ValueError in wrap: not on a Monday"
    assert failure["refused"]


def test_the_broken_rule_is_judged_on_the_plain_case_first(make_trial: TrialMaker) -> None:
    """The property of the rule that the plain case breaks draws nothing: that case is made smaller."""
    trial = make_trial("ddp_invariants.faults.bucketed:NeverDivides", cases=5)
    trial.options = replace(trial.options, broken="GRAD-2")
    judged = entered(trial)
    with pytest.raises(Violation) as caught:
        trial.certify("GRAD-2")
    assert judged[0] == plain_case(trial.scope)
    assert {"the plain case", "making smaller", "confirming"} == trial.stages.keys()
    assert describe(caught.value.case) == "world_size=2 model=1->linear"
    assert "summed, never divided" in str(caught.value)


def test_no_case_is_made_smaller_than_the_scope_allows(make_trial: TrialMaker) -> None:
    """What a wrapper does not support is not in the smallest case, though that case would be simpler."""
    trial = make_trial("ddp_invariants.faults.bucketed:NeverDivides", cases=5)
    scope = replace(trial.scope, without=trial.scope.without | {"few"})
    trial.under_test = replace(trial.under_test, scope=scope)
    with pytest.raises(Violation) as caught:
        trial.certify("GRAD-2")
    assert scope.allows(caught.value.case)
    assert describe(caught.value.case) == "world_size=2 model=1->linear(bias=True)"


def test_a_refused_plain_case_breaks_no_rule() -> None:
    """A refusal and an incident name no rule, so that no property comes first."""
    broken = PlainFailure("case", "GRAD-2: a fact", "where", refused=False)
    assert Discovery({}, {}, plain_failure=broken).broken == "GRAD-2"
    refused = PlainFailure("case", "ValueError in wrap: not on a Monday", "where", refused=True)
    assert Discovery({}, {}, plain_failure=refused).broken == ""
    assert Discovery({}, {}).broken == ""


def test_a_session_hands_the_failure_of_a_plain_case_to_its_workers() -> None:
    """The failure survives the way to a worker."""
    failure = PlainFailure("case", "fact", "where", refused=True, left_out=("RNG-1",))
    discovery = Discovery({}, {}, plain_failure=failure)
    plain = json.loads(json.dumps(result.to_plain(discovery)))
    assert result.from_plain(plain).plain_failure == discovery.plain_failure


def test_nothing_is_judged_that_a_broken_wrapper_does_not_claim(pool: Pool, tmp_path: Path) -> None:
    """Equal buffers are a claim, which no probe can show if the plain case fails."""
    (tmp_path / "wrappers.py").write_text(WRAPPERS)
    for declared, excluded in (({}, True), ({"supports": ("equal_buffers",)}, False)):
        ddp = Ddp(f"{tmp_path}/wrappers.py:Local", declares=declared)
        discovery = probe.discover(pool, ddp, Sampler(), 4)
        assert bool(discovery.scope(4).excluded("BUF-1")) is excluded
