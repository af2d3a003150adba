"""Places: what is simulated, what runs on real ranks, and what the two together may conclude."""

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from probed import Discover

from conftest import TrialMaker
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import InjectedFailure
from ddp_invariants.discovery.result import to_plain
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.discovery.simulation import why_not_simulated
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.backends import ON_THE_CPU
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Finding, Violation
from ddp_invariants.search import runner
from ddp_invariants.search.messages import explored
from ddp_invariants.search.places import MOST_UNREAL, Places
from ddp_invariants.search.schedules import all_schedules, late
from ddp_invariants.search.search import Asked, Search
from ddp_invariants.session.state import STATE
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.surroundings import Surrounding, Surroundings
from ddp_invariants.situations.turns import Turns

SHARED_COUNT = """
    import torch
    import torch.distributed as dist
    from torch import nn

    WRAPPED = []

    class Counts(nn.Module):
        '''Divides by two from the second wrapper of a process on: right in a process per rank.'''

        def __init__(self, module, process_group=None):
            super().__init__()
            self.module, self.group = module, process_group
            WRAPPED.append(self)
            self.first = len({id(each) for each in WRAPPED}) == 1
            WRAPPED[:] = WRAPPED[-1:] if dist.get_world_size() == 1 else WRAPPED
            for tensor in (*module.parameters(), *module.buffers()):
                same = tensor.detach().contiguous()
                dist.broadcast(same, 0, group=process_group)
                tensor.data.copy_(same)

        def forward(self, *inputs, **named):
            return self.module(*inputs, **named)

        def finish_gradient_synchronization(self):
            size = dist.get_world_size(self.group)
            for parameter in self.module.parameters():
                if parameter.requires_grad:
                    total = torch.zeros_like(parameter)  # A gradient may be expanded or sparse.
                    if parameter.grad is not None:
                        total += parameter.grad
                    dist.all_reduce(total, group=self.group)
                    parameter.grad = total / (size if self.first else 2 * size)
            WRAPPED.clear()
"""
"""It keeps its wrappers in its module, which the ranks of a simulation share."""


@pytest.fixture
def shared_count(tmp_path: Path) -> Ddp:
    """Return an implementation that is right only in a process per rank."""
    path = tmp_path / "counts.py"
    path.write_text(textwrap.dedent(SHARED_COUNT))
    return Ddp(f"{path}:Counts")


@pytest.mark.parametrize("name", ["reference", "torch"])
def test_shipped_implementations_are_simulated(pool: Pool, name: str) -> None:
    """Both places give the same bits for the reference and for torch's DDP."""
    assert why_not_simulated(pool, Ddp(name), Scope()) == ""


def test_probes_have_the_answers_that_they_have_over_gloo(
    pool: Pool, discovered: Discover, pytestconfig: pytest.Config
) -> None:
    """Tests simulate the probes; those of the reference were made over gloo for this session."""
    over_gloo = pytestconfig.stash[STATE].shared["discovery"]
    simulated = to_plain(discovered(pool, Ddp(), Sampler(), 4))
    for name in ("ddp_probes", "sampler_probes", "driven", "buckets", "not_simulated"):
        assert json.dumps(simulated[name]) == json.dumps(over_gloo[name])


def test_state_that_ranks_would_share_keeps_an_implementation_on_real_ranks(
    pool: Pool, shared_count: Ddp
) -> None:
    """A difference between the places is named, and then nothing is simulated."""
    why = why_not_simulated(pool, shared_count, Scope())
    assert "of a case differs in" in why
    assert pool.train(BASE, shared_count).incident is None


def test_a_failure_of_the_simulation_alone_accuses_nobody(
    make_trial: TrialMaker, shared_count: Ddp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such cases are listed; after a few nothing more is simulated, and the rule holds."""
    monkeypatch.setattr(runner, "MOST_RUNS", 4)  # Each failure is tried after that many runs.
    trial = make_trial(
        shared_count, cases=40, scope=replace(Scope(), without=frozenset({"no_sync", "subgroup"}))
    )
    trial.certify("GRAD-2")
    assert len(trial.ledger.unreal) == MOST_UNREAL
    assert trial.places.why_not.startswith(f"{MOST_UNREAL} cases failed only in the simulation")
    assert trial.ledger["GRAD-2"].seen == 0
    assert trial.ledger.verdict_of("GRAD-2") == "holds"


def test_every_condition_is_met_on_real_ranks_too(make_trial: TrialMaker) -> None:
    """A tenth of the cases and at least one for each condition run on real ranks."""
    trial = make_trial()
    trial.certify("GRAD-5")
    ran = trial.ledger.ran
    assert ran["simulated"] > ran["gloo"]
    assert ran["gloo"] >= sum(ran.values()) // 20


def test_conditions_met_in_real_cases_of_other_properties_count() -> None:
    """A real case counts for every rule that judged it, and for no rule that could not."""
    places = Places(ON_THE_CPU)
    places.judged_really(
        (
            Finding("GRAD-1", 1, frozenset({"one"})),
            Finding("GRAD-1", 1, frozenset({"another"})),
            Finding("GRAD-2", met=frozenset({"one"}), unjudged="no evidence"),
        )
    )
    assert places.met == {"GRAD-1": {"one", "another"}}


def test_a_search_leaves_out_what_it_cannot_simulate_once_its_real_cases_are_spent(
    make_trial: TrialMaker,
) -> None:
    """A rank dies in real processes alone; the case of a failed probe is judged all the same."""
    trial = make_trial(scope=Scope())
    trial.places = Places(ON_THE_CPU, most_real=1)
    death = BASE.with_situation(FailureInjection(InjectedFailure("death", 1, 0)))
    assert not trial.leaves_out(death)
    trial.places.begins_really(death)
    assert trial.leaves_out(death)
    assert not trial.leaves_out(BASE)
    search = Search(trial, "", limit=3)
    for case in (death, BASE):
        search.look_at(Asked("LIVE-3", case))
    assert search.cases.total() == 1
    trial.options = replace(trial.options, suspects=(("LIVE-3", death),))
    assert not trial.leaves_out(death)
    trial.places.why_not = "its ranks share state"
    assert trial.survey(["GRAD-2"], 5).cases == 1  # The suspect.


@pytest.mark.parametrize(
    "fault", ["timing:ForgetsOneWait", "timing:DividesInFlight", "timing:HangsOnThree"]
)
def test_a_simulated_failure_is_confirmed_on_real_ranks(make_trial: TrialMaker, fault: str) -> None:
    """A missing wait and a hang are found in the simulation, and reported as seen on real ranks."""
    trial = make_trial(f"ddp_invariants.faults.{fault}", scope=Scope())
    rule = "LIVE-1" if fault.endswith("HangsOnThree") else "GRAD-2"
    with pytest.raises(Violation) as raised:
        trial.certify(rule)
    assert "confirmed in" in str(raised.value) or "seen again" in str(raised.value)
    assert trial.ledger.unreal == {}


def test_a_simulated_deadlock_takes_no_deadline(pool: Pool) -> None:
    """Ranks that wait for one another are known without a clock, each with its wait."""
    case = replace(BASE, world_size=3)
    evidence = pool.simulate(case, Ddp("ddp_invariants.faults.timing:HangsOnThree"))
    assert evidence is not None
    assert evidence.incident is not None
    assert (evidence.incident.kind, evidence.incident.seconds) == ("hung", 0.0)
    assert all("no rank can run" in words for words in evidence.incident.ranks.values())
    assert evidence.incident.calls.keys() == evidence.incident.ranks.keys()


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_a_simulation_leaves_nothing_that_needs_a_new_process(pool: Pool, ddp: str) -> None:
    """Neither another environment during the case nor groups of other sizes count as changes."""
    for case in (
        replace(BASE, outside=1),
        *(BASE.with_situation(Surroundings((name,))) for name in get_args(Surrounding)),
    ):
        evidence = pool.simulate(case, Ddp(ddp))
        assert evidence is not None
        assert [rank.changed for rank in evidence.ranks] == [[]] * case.world_size, case


def test_all_schedules_of_small_cases_are_run(make_trial: TrialMaker) -> None:
    """The rule about timing holds in each, and the ledger counts them."""
    trial = make_trial(cases=60)
    trial.certify("COMM-2")
    assert trial.ledger.schedules
    assert trial.ledger.unreal == {}
    assert explored(trial.ledger.schedules).startswith(f"all {sum(trial.ledger.schedules)} ")


TWO_BUCKETS = replace(
    BASE, model=Model(2, (Layer("linear", outputs=2), Layer("linear", outputs=2))), bucket_cap=1
)


@pytest.mark.parametrize(
    ("name", "differ"), [("reference", False), ("timing:TakesResultsAsTheyArrive", True)]
)
def test_only_a_race_depends_on_the_schedule(pool: Pool, name: str, *, differ: bool) -> None:
    """Results that arrive in another order change what a race computes, and nothing else."""
    ddp = Ddp(name if name == "reference" else f"ddp_invariants.faults.{name}")
    evidence = pool.simulate(late(TWO_BUCKETS), ddp)
    assert evidence is not None
    schedules = all_schedules(evidence)
    assert len(schedules) > 8
    results = set()
    for case in schedules:
        run = pool.simulate(case, ddp)
        assert run is not None
        results.add(tuple(bytes(t.bits) for rank in run.ranks for t in rank.tensors.values()))
    assert (len(results) > 1) == differ


def test_the_rank_behind_may_be_missing_from_an_earlier_run(pool: Pool) -> None:
    """A state that fewer ranks saved is loaded by more, of which the last is behind."""
    case = BASE.with_situation(Resized(1)).with_situation(Turns("behind", behind=1, lags=(1,)))
    for evidence in (pool.simulate(case, Ddp()), pool.train(case, Ddp())):
        assert evidence is not None
        assert evidence.incident is None
        assert [rank.raised for rank in evidence.ranks] == [None, None]
