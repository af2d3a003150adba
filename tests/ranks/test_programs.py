"""Tests of whole programs: actions between steps, the order of passes, and expected deviations."""

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import CASE, altered, everywhere, right
from hypothesis import HealthCheck, Phase, given, settings

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, BetweenStepsKind, Data, Exhausted, Optimizer
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery import deviations
from ddp_invariants.discovery.deviations import Deviation, expected, read
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.errors import CaseError, DeviationError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.invariants.grad_schedule import PASSES
from ddp_invariants.invariants.live import INTERLUDES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import Moment, TrainingEvidence
from ddp_invariants.records.verdict import Inconclusive, NotJudged
from ddp_invariants.search.scale import LARGE
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.search.trial import Options, Trial
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.uneven import UnevenInputs

FACTOR, FROZEN = "layers.4.factor", "layers.1.factor"
SCALE, FROZEN_SCALE = 4, 1
DRAWN = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def between(*between_steps: BetweenSteps, **changes: object) -> TrainingCase:
    """Return the handmade case with actions between its steps."""
    return replace(CASE, **changes).with_situation(Actions(between_steps))  # type: ignore[arg-type]  # checked by the case


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(log2_lr=-10),
        Optimizer(log2_lr=-10, momentum=0.5, weight_decay=0.25),
        Optimizer("adamw", log2_lr=-10, weight_decay=0.25),
    ],
)
@pytest.mark.parametrize(
    "between_steps",
    [
        *[
            (BetweenSteps(kind, 1, FROZEN_SCALE if kind == "unfreeze" else SCALE),)
            for kind in (*INTERLUDES, "reload")
            if kind not in ("assign", "prune")
        ],  # All linear layers of CASE are tied.
        (BetweenSteps("freeze", 1, SCALE), BetweenSteps("unfreeze", 2, SCALE)),
        (
            BetweenSteps("learning rate", 1),
            BetweenSteps("learning rate", 2),
            BetweenSteps("unfreeze", 2, FROZEN_SCALE),
        ),
    ],
    ids=str,
)
def test_right_evidence_of_interludes_breaches_no_rule(
    between_steps: tuple[BetweenSteps, ...], optimizer: Optimizer
) -> None:
    """Right evidence with actions between steps violates no rule.

    Parameters that are frozen for some steps keep their state, and so does a saved state. A lower
    learning rate is used from its step on.
    """
    findings = judge(right(between(*between_steps, optimizer=optimizer)))
    assert {name: finding.failure for name, finding in findings.items() if finding.failure} == {}
    kinds: set[BetweenStepsKind] = {action.kind for action in between_steps}
    assert {INTERLUDES[kind] for kind in kinds if kind in INTERLUDES} <= findings[
        "LIVE-5"
    ].met | set()
    assert ("saved and loaded" in findings["STATE-1"].met) == ("reload" in kinds)
    assert ("frozen for some steps" in findings["PARAM-5"].met) == bool(
        kinds & {"freeze", "unfreeze"}
    )


def raised(values: object) -> object:
    """Return the values, each increased by one."""
    return values + 1  # type: ignore[operator]  # an array


ALTERATIONS: list[tuple[str, str, TrainingCase, Callable[[TrainingEvidence], TrainingEvidence]]] = [
    (
        "LIVE-5",
        "with an evaluation between steps, the gradient is not the mean",
        between(BetweenSteps("evaluation")),
        lambda e: everywhere(e, "reduced", 1, FACTOR, raised),
    ),
    (
        "LIVE-5",
        "with a new learning rate between steps, parameters do not move",
        between(BetweenSteps("learning rate")),
        lambda e: everywhere(e, "updated", 1, FACTOR, raised),
    ),
    (
        "PARAM-5",
        "a frozen parameter moved",
        between(BetweenSteps("freeze", 1, SCALE)),
        lambda e: everywhere(e, "updated", 1, FACTOR, raised),
    ),
    (
        "LIVE-5",
        "a layer unfrozen",
        between(BetweenSteps("unfreeze", 1, FROZEN_SCALE)),
        lambda e: everywhere(e, "reduced", 2, FROZEN, raised),
    ),
    (
        "GRAD-4",
        "a parameter that was used has no gradient",
        between(BetweenSteps("unfreeze", 1, FROZEN_SCALE)),
        lambda e: everywhere(e, "reduced", 2, FROZEN, None),
    ),
    (
        "STATE-1",
        "a parameter changes between saving and loading",
        between(BetweenSteps("reload")),
        lambda e: altered(e, 1, "restored", 1, FACTOR, raised),
    ),
    (
        "STATE-1",
        "a buffer changes between saving and loading",
        between(BetweenSteps("reload")),
        lambda e: altered(e, 1, "restored buffers", 1, "layers.5.running", raised),
    ),
    (
        "STATE-1",
        "the optimizer's state changes between saving and loading",
        between(BetweenSteps("reload", 2)),
        lambda e: altered(e, 0, "restored state", 2, "momentum", raised),
    ),
    (
        "STATE-1",
        "a saved state has other names",
        between(BetweenSteps("reload")),
        lambda e: replace(
            e, ranks=tuple(replace(rank, saved=[rank.saved[0][1:]]) for rank in e.ranks)
        ),
    ),
    (
        "GRAD-13",
        "with all forwards before one backward, the gradient is not",
        replace(CASE, accumulation=2).with_situation(PassOrder("joint")),
        lambda e: everywhere(e, "reduced", 1, FACTOR, raised),
    ),
    (
        "GRAD-13",
        "with a layer called twice, the gradient is not",
        replace(
            CASE,
            optimizer=Optimizer(log2_lr=-24),
            model=Model(
                2,
                tuple(replace(layer, twice=layer.tied is not None) for layer in CASE.model.layers),
            ),
        ),
        lambda e: everywhere(e, "reduced", 1, FACTOR, raised),
    ),
    (
        "GRAD-13",
        "with a layer computed again in backward, the gradient is not",
        replace(
            CASE,
            model=Model(
                2,
                tuple(
                    replace(layer, checkpoint="plain") if number == SCALE else layer
                    for number, layer in enumerate(CASE.model.layers)
                ),
            ),
        ),
        lambda e: everywhere(e, "reduced", 1, FACTOR, raised),
    ),
]


@pytest.mark.parametrize(
    ("rule", "fact", "case", "alter"),
    ALTERATIONS,
    ids=[f"{rule}-{fact[:40]}" for rule, fact, _, _ in ALTERATIONS],
)
def test_rule_fires(
    rule: str, fact: str, case: TrainingCase, alter: Callable[[TrainingEvidence], TrainingEvidence]
) -> None:
    """The altered evidence violates the rule with the expected fact; right evidence does not."""
    evidence = right(case)
    assert judge(evidence)[rule].failure is None
    failure = judge(alter(evidence))[rule].failure
    assert failure is not None
    assert failure.rule == rule
    assert failure.fact.startswith(fact) or fact in failure.fact


def test_a_rate_that_stays_is_told() -> None:
    """An update with the first step's learning rate, after it was lowered, is diagnosed as such."""
    lowered, never = (
        right(between(BetweenSteps("learning rate"), steps=2)),
        right(replace(CASE, steps=2)),
    )
    evidence = replace(
        lowered,
        ranks=tuple(
            replace(rank, tensors={**rank.tensors, ("updated", 1): unchanged.tensors["updated", 1]})
            for rank, unchanged in zip(lowered.ranks, never.ranks, strict=True)
        ),
    )
    failure = judge(evidence)["LIVE-5"].failure
    assert failure is not None
    assert "the learning rate of the first step" in failure.perhaps


@pytest.mark.parametrize("passes", ["joint", "retained"])
def test_right_evidence_of_other_passes_breaches_no_rule(passes: str) -> None:
    """Right evidence violates no rule, whatever the order of a step's passes."""
    findings = judge(right(replace(CASE, accumulation=2).with_situation(PassOrder(passes))))  # type: ignore[arg-type]  # checked by the case
    assert {name: found.failure for name, found in findings.items() if found.failure} == {}
    assert PASSES[passes] in findings["GRAD-13"].met


UNEVEN = replace(CASE, world_size=3, data=Data(samples=6, batch_size=1)).with_situation(
    UnevenInputs((Exhausted(0, 1), Exhausted(2, 2)))
)


def test_right_evidence_of_uneven_batches_breaches_no_rule() -> None:
    """A rank without batches counts as zero, and ends with the same parameters as the others."""
    findings = judge(right(UNEVEN))
    assert {name: finding.failure for name, finding in findings.items() if finding.failure} == {}
    assert findings["GRAD-11"].met == set(ALL_RULES["GRAD-11"].needs)


@pytest.mark.parametrize(
    ("fact", "perhaps", "alter"),
    [
        (
            "with 1 of 3 ranks left the gradient is not the mean over all ranks",
            "",
            lambda e: of_all_parameters(e, 1, "reduced", 2, 3),
        ),
        (
            "with 2 of 3 ranks left the gradient is not the mean over all ranks",
            "divided by the 2 ranks that are left",
            lambda e: of_all_parameters(e, 1, "reduced", 1, 1.5),
        ),
        (
            "with 2 of 3 ranks left the gradient is not the mean over all ranks",
            "it is the sum: never divided",
            lambda e: of_all_parameters(e, 1, "reduced", 1, 3),
        ),
        (
            "the ranks end with different parameters",
            "",
            lambda e: altered(e, 0, "joined", 0, FACTOR, raised),
        ),
        (
            "ranks with a batch have wrong parameters once another rank has none",
            "",
            lambda e: altered(e, 1, "updated", 1, FACTOR, raised),
        ),
        (
            "ranks with a batch have wrong parameters once another rank has none",
            "",
            lambda e: altered(e, 1, "updated", 2, FACTOR, raised),
        ),
        (
            "ranks with a batch have wrong parameters once another rank has none",
            "",
            lambda e: of_all_parameters(e, 1, "updated", 2, 0),
        ),
        (
            "ranks with a batch have wrong parameters once another rank has none",
            "",
            lambda e: altered(e, 1, "forward", 2, FACTOR, raised),
        ),
    ],
)
def test_uneven_batches_are_judged(
    fact: str, perhaps: str, alter: Callable[[TrainingEvidence], TrainingEvidence]
) -> None:
    """Uneven batches are judged at each step among the remaining ranks, and finally among all."""
    failure = judge(alter(right(UNEVEN)))["GRAD-11"].failure
    assert failure is not None
    assert failure.fact == fact
    assert perhaps in failure.perhaps


def test_no_owner_is_asked_for_a_gradient_once_ranks_have_left() -> None:
    """A rank without a batch may own it; the parameters show whether it was right."""
    evidence = right(UNEVEN)
    for step in (1, 2):
        evidence = altered(evidence, 1, "reduced", step, FACTOR, None)
    finding = judge(evidence, declared=Declarations(gradients="owner"))["GRAD-11"]
    assert finding.failure is None
    assert finding.compared
    wrong = altered(evidence, 1, "updated", 2, FACTOR, raised)
    assert judge(wrong, declared=Declarations(gradients="owner"))["GRAD-11"].failure is not None


def of_all_parameters(
    evidence: TrainingEvidence, rank: int, moment: Moment, step: int, factor: float
) -> TrainingEvidence:
    """Multiply all tensors of a moment by a factor."""
    for slot in evidence.ranks[rank].tensors[moment, step].layout.slots:
        evidence = altered(
            evidence, rank, moment, step, slot.name, lambda values: values * np.float32(factor)
        )
    return evidence


def test_right_evidence_of_another_number_of_ranks_breaches_no_rule() -> None:
    """Right evidence of ranks that load a state saved by more or fewer ranks violates no rule."""
    for saved_by, met in ((1, "fewer ranks saved"), (3, "more ranks saved")):
        findings = judge(right(replace(CASE, outside=1).with_situation(Resized(saved_by))))
        assert {name: found.failure for name, found in findings.items() if found.failure} == {}
        assert met in findings["STATE-2"].met


@pytest.mark.parametrize(
    ("fact", "alter"),
    [
        (
            "a parameter changes when another number of ranks loads it",
            lambda e: altered(e, 1, "restored", 0, FACTOR, raised),
        ),
        (
            "a parameter changes between loading and the next forward",
            lambda e: everywhere(e, "forward", 0, FACTOR, raised),
        ),
        (
            "after 1 ranks saved and 2 loaded the state, the gradient is not",
            lambda e: everywhere(e, "reduced", 1, FACTOR, raised),
        ),
        (
            "after 1 ranks saved and 2 loaded the state, parameters do not move",
            lambda e: everywhere(e, "updated", 2, FACTOR, raised),
        ),
    ],
)
def test_a_state_of_another_number_of_ranks_is_judged(
    fact: str, alter: Callable[[TrainingEvidence], TrainingEvidence]
) -> None:
    """A state saved by another number of ranks is judged at loading and in every later step."""
    failure = judge(alter(right(CASE.with_situation(Resized(1)))))["STATE-2"].failure
    assert failure is not None
    assert failure.rule == "STATE-2"
    assert fact in failure.fact


def test_ranks_agree_after_they_load_a_state_that_is_not_known() -> None:
    """The update of an optimizer with a state of its own is not known, but all ranks make it."""
    declared = Declarations(optimizer="own")
    evidence = right(CASE.with_situation(Resized(1)))
    assert judge(evidence, declared)["STATE-2"].failure is None
    for wrong in (
        altered(evidence, 1, "updated", 1, FACTOR, raised),
        everywhere(evidence, "forward", 2, FACTOR, raised),
    ):
        assert judge(wrong, declared)["STATE-2"].failure is not None


def test_the_names_of_a_state_that_others_load_are_the_other_rules_affair() -> None:
    """STATE-1 reports wrong names in a saved state, and STATE-2 then judges nothing."""
    evidence = right(CASE.with_situation(Resized(1)))
    findings = judge(
        replace(evidence, ranks=tuple(replace(rank, saved=[["x"]]) for rank in evidence.ranks))
    )
    assert findings["STATE-1"].failure is not None
    assert findings["STATE-2"].failure is None
    assert "(STATE-1)" in findings["STATE-2"].unjudged


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CASE.with_situation(Resized(3)), "saved_by is 3, expected an integer from 1 to 2"),
        (
            lambda: between(BetweenSteps("evaluation")).with_situation(Resized(1)),
            "between_steps is .*, expected .* if a state is loaded that other",
        ),
        (
            lambda: UNEVEN.with_situation(UnevenInputs((Exhausted(0, 3),))),
            r"exhausted\[0\].steps is 3, expected an integer from 1 to 2",
        ),
        (
            lambda: UNEVEN.with_situation(UnevenInputs((Exhausted(3, 1),))),
            r"exhausted\[0\].rank is 3, expected an integer from 0 to 2",
        ),
        (
            lambda: UNEVEN.with_situation(
                UnevenInputs(tuple(Exhausted(rank) for rank in range(3)))
            ),
            "different ranks, and not all ranks",
        ),
        (
            lambda: replace(UNEVEN, accumulation=2).with_situation(PassOrder("joint")),
            "passes is 'joint', expected 'alternate' if a rank runs out of batches",
        ),
        (lambda: replace(UNEVEN, zero_grad="never"), "another value if a rank runs out of batches"),
        (
            lambda: between(BetweenSteps("forward only", 3)),
            r"between_steps\[0\].step is 3, expected an integer from 1 to 2",
        ),
        (
            lambda: between(BetweenSteps("forward only", 0)),
            r"between_steps\[0\].step is 0, expected an integer from 1 to 2",
        ),
        (lambda: between(BetweenSteps("freeze", 1, 9)), r"between_steps\[0\].layer is 9"),
        (lambda: between(BetweenSteps("freeze", 1, 0)), "tied to no other layer"),
        (lambda: between(BetweenSteps("freeze", 1, 5)), "a layer with parameters of its own"),
        (
            lambda: between(BetweenSteps("cast"), zero_grad="never"),
            "zero_grad is 'never', expected another value, since gradients do not",
        ),
        (
            lambda: between(BetweenSteps("assign")),
            r"between_steps\[0\].kind is 'assign', expected another kind if a tensor has two names",
        ),
        (
            lambda: between(BetweenSteps("copy"), outside=1),
            "outside is 1, expected 0 if a copy is taken",
        ),
        (
            lambda: BetweenSteps("sleep"),  # type: ignore[arg-type]  # the wrong value under test
            "kind is 'sleep', expected one of 'evaluation'",
        ),
        (
            lambda: CASE.with_situation(PassOrder("joint")),
            "passes is 'joint', expected 'alternate' if a step has one backward",
        ),
        (
            lambda: replace(CASE, accumulation=2).with_situation(
                PassOrder("joint"), NoSyncStyle("nested")
            ),
            "no_sync is 'nested', expected 'plain'",
        ),
        (
            lambda: Layer("scale", twice=True),
            "twice is True, expected false if the layer is not linear",
        ),
        (
            lambda: Model(2, (Layer("linear", 1, twice=True),)),
            r"layers\[0\].twice is True, expected false if the outputs of the layer",
        ),
        (lambda: Layer("statistics", checkpoint="plain"), "checkpoint is 'plain', expected 'none'"),
        (
            lambda: TrainingCase(
                Model(1, (Layer("linear"),)),
                steps=2,
                situations=(Actions((BetweenSteps("freeze"),)),),
            ),
            "at least one trainable",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(make: Callable[[], object], message: str) -> None:
    """A case that cannot be run is refused with the field, its value and the allowed values."""
    with pytest.raises(CaseError, match=message):
        make()


@pytest.mark.parametrize("rule", ["LIVE-5", "STATE-1", "GRAD-13", "PARAM-5", "GRAD-11", "STATE-2"])
def test_drawn_programs_can_be_run_and_become_simpler(rule: str) -> None:
    """Every drawn case, and every simpler case made from it, is valid and can be described.

    A case that was made large may have lost its program.
    """

    @DRAWN
    @given(cases_for(rule, Scope()))
    def property_(case: object) -> None:
        assert isinstance(case, TrainingCase)
        assert (
            case.between_steps
            or case.exhausted
            or case.saved_by
            or case.passes != "alternate"
            or case.penalty
            or any(layer.checkpoint != "none" for layer in case.model.layers)
            or any(is_large(case) for is_large in LARGE.values())
        )
        assert describe(case)
        for smaller in simpler(case):
            assert isinstance(smaller, TrainingCase)
            for step in range(smaller.steps):
                smaller.at(step)

    property_()


def test_at_a_step_the_case_is_what_the_program_made_of_it() -> None:
    """The case at a step includes the actions up to that step, and no later ones."""
    case = between(
        BetweenSteps("learning rate", 1),
        BetweenSteps("freeze", 1, SCALE),
        BetweenSteps("learning rate", 2),
        BetweenSteps("unfreeze", 2, SCALE),
    )
    assert [case.at(step).optimizer.log2_lr for step in range(3)] == [-10, -12, -14]
    assert [case.at(step).model.layers[SCALE].frozen for step in range(3)] == [False, True, False]
    assert case.sometimes_frozen == {FACTOR}


# Deviations.

ENTRY = """
[[deviation]]
ddp = "torch"
capability = "cast"
reason = "so it is"
link = "https://example.org/1"
expires = 2100-01-01
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[deviation]]\nddp = 3", "expected|should be"),
        ("deviation = [", "not valid TOML"),
        ("[other]\nx = 1", "other"),
        (ENTRY.replace('"cast"', '"casting"'), "capability is 'casting', which does not exist"),
        (ENTRY + 'rule = "GRAD-1"\n', "it must name either a capability or a rule"),
        (
            ENTRY.replace('capability = "cast"', 'rule = "GRAD-99"'),
            "rule is 'GRAD-99', which does not exist",
        ),
        (ENTRY.replace("https", "http"), "expected an https address"),
        (ENTRY + 'torch = "new"\n', "expected versions such as"),
        (ENTRY.replace("2100", "2020"), "expired on 2020-01-01"),
        (ENTRY + ENTRY, "occurs twice"),
        (ENTRY + "colour = 1\n", "colour"),
    ],
)
def test_a_bad_file_of_deviations_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A bad file of deviations is refused with the place and the reason."""
    path = tmp_path / "deviations.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeviationError, match=message):
        expected(Ddp("torch"), "2.13.0", [path])


def test_a_file_of_deviations_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing file of deviations is refused, and the message says that it does not exist."""
    with pytest.raises(DeviationError, match="No such file"):
        expected(Ddp("torch"), "2.13.0", [tmp_path / "none.toml"])


def test_a_deviation_is_of_one_implementation_and_some_versions() -> None:
    """A deviation applies to one implementation by name, given arguments and torch versions.

    A local version such as `2.13.0+cpu` counts as the version itself.
    """
    deviation = Deviation(
        "torch",
        "so",
        "https://example.org",
        dt.date(2100, 1, 1),
        capability="cast",
        torch=">=2.6,<2.14",
        arguments={"static_graph": "True"},
    )
    static = Ddp("torch", arguments=(("static_graph", "True"), ("bucket_cap_mb", "1")))
    assert deviation.is_of(static, "2.13.0+cpu")
    assert not deviation.is_of(Ddp("torch"), "2.13.0")
    assert not deviation.is_of(replace(static, name="reference"), "2.13.0")
    assert not deviation.is_of(static, "2.5.1")
    assert not deviation.is_of(static, "2.14.0")


def test_a_shipped_deviation_that_a_later_torch_has_fixed_is_a_note() -> None:
    """A shipped deviation that no longer shows is told, and a user's own is expected all the same."""
    shipped = expected(Ddp("torch"), "2.99.0")
    own = replace(shipped[0], reason="another", capability="cast")
    expects, fixed = deviations.remarks([*shipped, own], {"retained", "cast"})
    assert {"unfreeze", "assign", "cast"} <= expects.keys()
    assert fixed["retained"].startswith("no longer deviates; the deviation was expected until ")
    assert "another" in expects["cast"]


def test_what_is_shipped_is_expected_of_torch_and_shows(pool: Pool) -> None:
    """The DDP of torch is wrong where this is expected, and nowhere else."""
    discovery = discover(pool, Ddp("torch"), Sampler(), 4)
    assert discovery.stale() == []
    assert not any("no longer deviates" in probe.words for probe in discovery.ddp_probes)
    wrong = {probe.capability for probe in discovery.ddp_probes if probe.standing is Standing.WRONG}
    assert wrong == {probe.capability for probe in discovery.ddp_probes if probe.expected}
    assert wrong == {"retained", "in_parts", "forward_only_quiet", "unfreeze", "cast", "assign"}
    assert all(not discovery.scope(4).has(name) for name in wrong)


def test_a_reduction_whose_operation_nobody_names_is_a_sum(pool: Pool) -> None:
    """A reduction without a named operation counts as a sum.

    Ranks without batches use another call than the other ranks to ask which parameters are used.
    """
    discovery = discover(pool, Ddp("torch", (("find_unused_parameters", "True"),)), Sampler(), 4)
    probed = {probe.capability: probe for probe in discovery.ddp_probes}
    assert probed["join"].standing is Standing.RIGHT
    # A rank whose loss reaches no parameter sends nothing.
    assert probed["unreached"].standing is Standing.WRONG
    assert "wait for ever" in probed["unreached"].expected


def test_a_deviation_that_does_not_show_is_told(pool: Pool, tmp_path: Path) -> None:
    """A deviation that is expected of the right reference is reported as stale."""
    path = tmp_path / "mine.toml"
    path.write_text(ENTRY.replace('"torch"', '"reference"'), encoding="utf-8")
    (message,) = discover(pool, Ddp(), Sampler(), 4, [path]).stale()
    assert message == (
        "'cast' is right now, but its deviation is expected until 2100-01-01: so it is "
        "(https://example.org/1); remove the deviation from its file"
    )


def test_a_rule_that_is_expected_to_be_breached_must_be(pool: Pool, tmp_path: Path) -> None:
    """A rule that is expected to fail is not claimed; if it holds, the session is inconclusive."""

    def trial(name: str) -> Trial:
        scope = Scope(4, deviating=(("GRAD-1", "expected"),))
        return Trial(
            pool, UnderTest(Ddp(name), Sampler(), scope), Options(seed=1, cases=8, store=tmp_path)
        )

    breaching = trial("ddp_invariants.faults.bucketed:ReducesParameters")
    with pytest.raises(NotJudged, match="deviates as expected"):
        breaching.certify("GRAD-1")
    with pytest.raises(
        Inconclusive,
        match="GRAD-1 does not deviate, although a deviation was expected; remove the deviation",
    ):
        trial("reference").certify("GRAD-1")


def test_every_shipped_deviation_names_a_rule_or_capability_and_can_be_read() -> None:
    """Every shipped deviation can be read, is valid today, and names a rule or a capability."""
    shipped = read(deviations.SHIPPED)
    assert shipped
    deviations.current(
        (deviation.term for deviation in shipped),
        deviations.SHIPPED,
        dt.datetime.now(dt.UTC).date(),
    )
    assert all(
        deviation.about and (not deviation.rule or deviation.rule in ALL_RULES)
        for deviation in shipped
    )


@pytest.mark.parametrize("kind", ["forward only", "evaluation with gradients"])
def test_a_forward_without_a_backward_is_one_in_an_evaluation_too(kind: BetweenStepsKind) -> None:
    """Both kinds of forward without a backward are left out where they are not quiet.

    Each kind arms torch's reducer, which then reduces the next backward although it is under
    no_sync.
    """
    case = between(BetweenSteps(kind, 1), BetweenSteps("decay", 1), accumulation=2)
    fitted = Scope(without=frozenset({"forward_only_quiet"})).fit(case)
    assert [action.kind for action in fitted.between_steps] == ["decay"]
    assert (
        Scope(without=frozenset({"forward_only_quiet"}))
        .fit(replace(case, accumulation=1))
        .between_steps
        == case.between_steps
    )


INFERENCE = replace(
    GENTLE,
    model=Model(4, (Layer("linear", 4), Layer("statistics"), Layer("batch_norm", bias=True))),
    steps=3,
    data=Data(samples=24, batch_size=3),
    situations=(Actions((BetweenSteps("inference"), BetweenSteps("inference", 2))),),
)


@pytest.mark.parametrize(
    "ddp", ["reference", "torch", "ddp_invariants.faults.programs:InferencePassesBy"]
)
def test_an_evaluation_under_inference_mode_changes_nothing(
    make_trial: TrialMaker, ddp: str
) -> None:
    """Right wrappers train on after it, with buffers that every rank has alike."""
    findings = make_trial(ddp=ddp, scope=Scope()).really(INFERENCE)
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    assert "an evaluation under inference mode" in findings["LIVE-5"].met


@pytest.mark.parametrize(
    ("fault", "rule", "words"),
    [
        ("InferenceSwitchesOff", "LIVE-5", "under inference mode between steps, the gradient"),
        ("KeepsAnInferenceTensor", "LIVE-1", "raises an exception after a step that succeeded"),
    ],
)
def test_inference_mode_alone_shows_a_fault(
    make_trial: TrialMaker, fault: str, rule: str, words: str
) -> None:
    """The same case with a usual evaluation is right."""
    trial = make_trial(ddp=f"ddp_invariants.faults.programs:{fault}", scope=Scope())
    usual = INFERENCE.with_situation(Actions((BetweenSteps("evaluation"),)))
    assert {name: each.failure for name, each in trial.really(usual).items() if each.failure} == {}
    failure = trial.really(INFERENCE)[rule].failure
    assert failure is not None
    assert words in failure.fact
