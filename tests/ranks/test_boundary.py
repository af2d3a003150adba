"""Tests of the conditions that a violation names, on composed faults whose triggers are known."""

from pathlib import Path
from typing import Literal

import pytest

from conftest import TrialMaker, fault_of
from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.errors import HarnessError
from ddp_invariants.faults.generated.choices import PARTS
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import root_failure
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import violation_class
from ddp_invariants.search import confirm
from ddp_invariants.search.boundary import condition
from ddp_invariants.search.trial import Options, Trial
from ddp_invariants.situations.second import SecondWrapper

PLAIN = Model(1, (Layer("linear"),))


def _condition(pool: Pool, store: Path, operator: str, trigger: str, case: Case) -> str:
    """Return the condition of a composed fault, whose smallest case is given."""
    fault = (("operator", operator), ("trigger", trigger))
    ddp, sampler = Ddp("reference"), Sampler("reference")
    if isinstance(case, TrainingCase):
        ddp = Ddp(PARTS["ddp"].target, (("layout", "each"), *fault))
    else:
        sampler = Sampler(PARTS["sampler"].target, fault)
    trial = Trial(pool, UnderTest(ddp, sampler, Scope(max_world_size=8)), Options(store=store))
    failure = root_failure(trial.failures(trial.findings(case), case))
    assert failure is not None
    return condition(trial, failure, case)


@pytest.mark.parametrize(
    ("operator", "trigger", "case", "words"),
    [
        ("sum", "always", TrainingCase(PLAIN), ""),
        (
            "sum",
            "65 elements",
            TrainingCase(Model(65, (Layer("linear"),))),
            "the number of elements is at least 65",
        ),
        ("sum", "odd ranks", TrainingCase(PLAIN, 3), "the number of ranks is odd"),
        (
            "sum",
            "last bucket",
            TrainingCase(Model(1, (Layer("linear", bias=True),))),
            "the number of parameters is at least 2",
        ),
        (
            "sum",
            "float64",
            TrainingCase(Model(1, (Layer("linear", dtype="float64"),))),
            "the case contains float64 parameters",
        ),
        (
            "sum",
            "bias",
            TrainingCase(Model(1, (Layer("linear", bias=True),))),
            "the case contains parameters of one dimension",
        ),
        (
            "fewer",
            "second wrapper",
            TrainingCase(PLAIN, situations=(SecondWrapper("in turn"),)),
            "the case contains 'second wrapper'",
        ),
        ("short", "always", ShardCase(world_size=1, data=Data(samples=1)), ""),
        (
            "short",
            "no power of two",
            ShardCase(world_size=3, data=Data(samples=1)),
            "the number of ranks is no power of two",
        ),
        (
            "short",
            "uneven",
            ShardCase(data=Data(samples=1)),
            "the number of ranks does not divide the number of samples",
        ),
        (
            "skip",
            "uneven",
            ShardCase(data=Data(samples=3)),
            "there are more samples than ranks, whose number does not divide theirs",
        ),
        (
            "skip",
            "five ranks",
            ShardCase(world_size=5, data=Data(samples=6)),
            "there are more samples than ranks; the number of ranks is at least 5",
        ),
        (
            "short",
            "third epoch",
            ShardCase(world_size=1, data=Data(samples=1), epochs=(3,)),
            "the last epoch is 3",
        ),
        (
            "short",
            "in order",
            ShardCase(world_size=1, data=Data(samples=1)),
            "the case has no shuffle",
        ),
    ],
)
def test_a_condition_is_that_of_the_trigger(
    pool: Pool, tmp_path: Path, operator: str, trigger: str, case: Case, words: str
) -> None:
    """The condition is the trigger of the fault, in the terms of cases."""
    assert _condition(pool, tmp_path, operator, trigger, case).partition(" (")[0] == words


@pytest.mark.parametrize(("kind", "outputs"), [("norm", 4), ("scale", 5)])
def test_what_only_changes_the_number_of_elements_is_no_condition(
    pool: Pool, tmp_path: Path, kind: Literal["norm", "scale"], outputs: int
) -> None:
    """A LayerNorm or a scale leaves six elements; without it other sizes fail, too."""
    ddp = Ddp("tests/helpers/tails.py:LosesALoneElement")
    case = TrainingCase(Model(1, (Layer(kind), Layer("linear", outputs=outputs))))
    trial = Trial(
        pool, UnderTest(ddp, Sampler("reference"), Scope(max_world_size=8)), Options(store=tmp_path)
    )
    failure = root_failure(trial.failures(trial.findings(case), case))
    assert failure is not None
    assert condition(trial, failure, case).partition(" (")[0] == (
        "the number of elements is 1 more than a multiple of 5 and at least 6"
    )
    assert "contains" not in condition(trial, failure, case)


def test_a_relation_that_full_batches_contradict_is_no_condition(
    pool: Pool, tmp_path: Path
) -> None:
    """Ranks with one sample each lose it, and so do ranks with one sample beyond a full batch."""
    sampler = Sampler("tests/helpers/tails.py:LosesALoneSample")
    case = ShardCase(world_size=1, data=Data(samples=1, batch_size=3))
    trial = Trial(
        pool, UnderTest(Ddp("reference"), sampler, Scope(max_world_size=8)), Options(store=tmp_path)
    )
    failure = root_failure(trial.failures(trial.findings(case), case))
    assert failure is not None
    assert "than ranks" not in condition(trial, failure, case)


def test_a_dataset_without_samples_has_neighbours(pool: Pool, tmp_path: Path) -> None:
    """No neighbour has fewer samples than none, and the accounts of the trial stay as they were."""
    sampler = Sampler("ddp_invariants.faults.strided:AcceptsRankW")
    case = ShardCase(world_size=1, data=Data(samples=0))
    under_test = UnderTest(Ddp("reference"), sampler, Scope(max_world_size=8))
    trial = Trial(pool, under_test, Options(store=tmp_path))
    failure = trial.findings(case)["SHARD-7"].failure
    assert failure is not None
    before = trial.ledger.to_plain()
    assert isinstance(condition(trial, failure, case), str)
    assert trial.ledger.to_plain() == before
    assert not trial.hung


def test_an_error_in_a_neighbour_costs_only_the_condition(
    make_trial: TrialMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The violation is confirmed and stored, whatever happens to its neighbours."""

    def fail(*_: object) -> str:
        raise HarnessError("no rank can be started")

    monkeypatch.setattr(confirm, "condition", fail)
    trial = make_trial(ddp=fault_of("NeverDivides"), cases=10)
    with pytest.raises(violation_class("GRAD-2")) as raised:
        trial.certify("GRAD-2")
    assert "only when" not in str(raised.value)
    assert [*trial.options.store.glob("*.json")]
