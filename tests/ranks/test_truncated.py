"""A property of all judges: truncated evidence makes no rule crash, and accuses nobody."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from truncated import truncations

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import Incident, ShardEvidence, TrainingEvidence
from ddp_invariants.search.strategies import cases_for

CASES, TRUNCATIONS = 4, 10
"""Cases for each rule, and truncations of the evidence of each."""
TRAINED = [name for name, rule in ALL_RULES.items() if not rule.is_about_samplers]
SAMPLED = [name for name, rule in ALL_RULES.items() if rule.is_about_samplers]
OFFERED = Scope(4, without=frozenset({"join", "other_method", "elastic", "workers"}))
"""The limits of cases that the reference takes."""
GENERATED = settings(
    max_examples=CASES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def evidence_of(pool: Pool, case: TrainingCase, rule: str) -> TrainingEvidence | None:
    """Return the simulated evidence of a case as the rule needs it; None if it needs real ranks."""
    evidence = pool.simulate(case, Ddp())
    if evidence is None or not ALL_RULES[rule].repeats_undisturbed(case):
        return evidence
    plain = pool.simulate(case.without(*ALL_RULES[rule].without), Ddp())
    return None if plain is None else replace(evidence, unperturbed=plain)


@pytest.mark.parametrize("rule", TRAINED)
def test_truncated_evidence_crashes_no_rule_and_accuses_nobody(pool: Pool, rule: str) -> None:
    """A rule that lacks evidence says so: it neither crashes nor fails."""

    @seed(1)
    @GENERATED
    @given(cases_for(rule, OFFERED))
    def truncate(case: TrainingCase | ShardCase) -> None:
        assert isinstance(case, TrainingCase)
        evidence = evidence_of(pool, case, rule)
        if evidence is None:
            return
        whole = {name for name, finding in judge(evidence).items() if finding.failure is not None}
        for how, part, may_fail in truncations(evidence, Random(case.seed), TRUNCATIONS):
            findings = judge(part)
            crashed = {name: each.unjudged for name, each in findings.items() if each.crashed}
            assert crashed == {}, how
            failed = {name for name, each in findings.items() if each.failure is not None}
            assert may_fail is None or failed <= whole | may_fail, (how, findings)

    truncate()


@pytest.mark.parametrize("rule", SAMPLED)
def test_a_sampler_without_answers_crashes_no_rule_and_is_accused_of_nothing_else(
    pool: Pool, rule: str
) -> None:
    """Rules about samplers say that they lack evidence after a hang, a death or an exception."""
    raised = {
        "raised": {
            "phase": "iteration",
            "step": 0,
            "type": "RuntimeError",
            "message": "refused",
            "traceback": "",
        },
        "refused": {},
        "warned": [],
    }

    @seed(1)
    @GENERATED
    @given(cases_for(rule, OFFERED))
    def truncate(case: TrainingCase | ShardCase) -> None:
        assert isinstance(case, ShardCase)
        first, second = pool.shards(case, Sampler()).answers
        hung = Incident("hung", {0: "waits"}, {}, 3.0)
        for evidence, may_fail in (
            (ShardEvidence(case, (), hung), {"LIVE-1"}),
            (ShardEvidence(case, (first, second), hung), {"LIVE-1"}),
            (ShardEvidence(case, (raised, raised)), set()),
            (ShardEvidence(case, (raised, second)), {"SHARD-4"}),
            (ShardEvidence(case, (first, raised)), {"SHARD-4"}),
        ):
            findings = judge(evidence)
            assert {name: each.unjudged for name, each in findings.items() if each.crashed} == {}
            failed = {name for name, each in findings.items() if each.failure is not None}
            assert failed <= may_fail, findings

    truncate()
