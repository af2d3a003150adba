"""RNG-1 fails on handmade evidence of repeated draws, names their cause, and allows for chance."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from handmade import Maker

from conftest import TrialMaker
from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    BetweenStepsKind,
    Data,
    InjectedFailure,
    LossScale,
    Perturbation,
    Poison,
    Unused,
)
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.rng import FORWARDS, RANKS
from ddp_invariants.oracle import balls, training
from ddp_invariants.records.evidence import RankEvidence, Tensors, TrainingEvidence
from ddp_invariants.records.verdict import Failure, Finding
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.unused import UnusedLayers

WIDE = Model(2, (Layer("linear", 96), Layer("dropout"), Layer("linear", 2)))
CASE = TrainingCase(model=WIDE, world_size=3, data=Data(samples=6), steps=3, accumulation=2, seed=7)
MICRO_STEPS = 6
Array = np.ndarray


def stream(seed: int, forwards: int = MICRO_STEPS, width: int = 96) -> list[Array]:
    """Return the draws of several forwards of one sample after torch.manual_seed(seed).

    NumPy's generator computes them, independently of torch.
    """
    words = np.random.RandomState(seed).randint(0, 2**32, (forwards, 1, width), np.uint32)
    return [2.0 * (row >> np.uint32(23) & 1 == 0) for row in words]


OWN = [stream(numbers.seed(CASE, rank)) for rank in range(3)]


def drew(
    by_rank: list[list[Array]], case: TrainingCase = CASE, evaluated: Array | None = None
) -> TrainingEvidence:
    """Return evidence of ranks that drew these factors, micro-step by micro-step."""
    maker = Maker()

    def noted(factors: Array | None) -> Tensors:
        return maker.tensors({"layers.1": factors}, "uint8")

    evaluations = {} if evaluated is None else {("evaluated", 1): noted(evaluated)}
    return TrainingEvidence(
        case,
        tuple(
            RankEvidence(
                {
                    **{("drawn", number): noted(factors) for number, factors in enumerate(mine)},
                    **evaluations,
                }
            )
            for mine in by_rank
        ),
    )


def finding_of(
    by_rank: list[list[Array]], case: TrainingCase = CASE, evaluated: Array | None = None
) -> Finding:
    """Return the finding of RNG-1 on this evidence."""
    return judge(drew(by_rank, case, evaluated))["RNG-1"]


def failure_of(
    by_rank: list[list[Array]], case: TrainingCase = CASE, evaluated: Array | None = None
) -> Failure:
    """Return the failure of RNG-1 on this evidence."""
    violated = finding_of(by_rank, case, evaluated).failure
    assert violated is not None
    return violated


def test_streams_of_their_own_are_right() -> None:
    """All pairs of ranks are compared in each micro-step, and all pairs of a rank's forwards."""
    finding = finding_of(OWN)
    assert finding.failure is None
    assert finding.met == {RANKS, FORWARDS}
    assert finding.compared == MICRO_STEPS * 3 + 3 * MICRO_STEPS * (MICRO_STEPS - 1) // 2


@pytest.mark.parametrize(
    ("by_rank", "words"),
    [
        ([stream(42)] * 3, "every rank is seeded alike"),
        ([OWN[0]] * 3, "every rank is seeded alike"),
        ([stream(42, 1) * 6] * 3, "every rank is seeded alike, and anew in every forward"),
        ([stream(42, 2) * 3] * 3, "every rank is seeded alike, and anew in every step"),
        ([stream(rank, 1) * 6 for rank in range(3)], "each rank is seeded anew in every forward"),
        ([stream(rank, 2) * 3 for rank in range(3)], "each rank is seeded anew in every step"),
        ([[*OWN[rank][:2], *stream(42, 4)] for rank in range(3)], ""),
        ([OWN[0], OWN[1], OWN[1]], ""),
        ([[*OWN[0][:5], OWN[1][5]], OWN[1], OWN[2]], ""),
    ],
)
def test_what_is_drawn_twice_is_told_with_what_predicts_it(
    by_rank: list[list[Array]], words: str
) -> None:
    """A repeated draw is reported with its cause, or with no cause if none predicts it."""
    assert failure_of(by_rank).perhaps == words


def test_it_says_who_drew_what_when() -> None:
    """A repeat between ranks is reported before a repeat within a rank, and the earliest first."""
    failure = failure_of([[*OWN[0][:5], OWN[1][5]], OWN[1], OWN[2]])
    assert failure.fact == "two ranks draw the same random numbers"
    assert failure.where == "ranks 0 and 1 of 3, step 2, micro-step 1"
    assert failure.got.startswith("96 of 96 random bits are equal")
    failure = failure_of([OWN[0], OWN[1], [*OWN[2][:3], OWN[2][0], *OWN[2][4:]]])
    assert failure.fact == "a rank draws the same random numbers again"
    assert failure.where == "rank 2 of 3, step 0, micro-step 0 and step 1, micro-step 1"


def test_what_begins_after_an_interlude_is_told_as_that() -> None:
    """The failure names the between-steps action that precedes the first repeated draw."""
    case = CASE.with_situation(Actions((BetweenSteps("evaluation", 1),)))
    failure = failure_of([[*OWN[rank][:2], *stream(42, 4)] for rank in range(3)], case)
    assert failure.perhaps == "every rank is seeded alike from step 1 on, after this: evaluation"


def test_what_chance_may_repeat_is_not_compared() -> None:
    """Draws of fewer than 70 bits are not compared, because chance may repeat them.

    With 63 comparisons of six micro-steps, 70 bits are needed and 69 are too few.
    """
    for width, judged in ((69, False), (70, True)):
        case = replace(
            CASE, model=Model(2, (Layer("linear", width), Layer("dropout"), Layer("linear", 2)))
        )
        finding = finding_of([stream(42, width=width)] * 3, case)
        assert (finding.failure is not None) is judged
        assert bool(finding.unjudged) is not judged


def test_what_a_wrapper_made_anew_draws_again_is_its_affair() -> None:
    """A wrapper that seeds each rank in its constructor may repeat its draws when it is rebuilt.

    A draw that another rank repeats is still a failure.
    """
    case = replace(CASE, accumulation=1, steps=4).with_situation(
        Actions((BetweenSteps("reload", 2),))
    )
    assert (
        finding_of([[*stream(rank, 2), *stream(rank, 2)] for rank in range(3)], case).failure
        is None
    )
    assert (
        failure_of([[*stream(42, 2), *stream(42, 2)]] * 3, case).perhaps
        == "every rank is seeded alike"
    )


def test_backwards_through_one_forward_draw_once() -> None:
    """If two backwards share one forward, both micro-steps may record the same draws."""
    case = CASE.with_situation(PassOrder("retained"))
    assert (
        finding_of(
            [[factors for factors in mine[:3] for _ in range(2)] for mine in OWN], case
        ).failure
        is None
    )


def test_in_training_all_is_drawn_and_in_evaluation_nothing() -> None:
    """A forward in training must draw, and a forward in evaluation must not."""
    unchanged = np.ones((1, 96))
    failure = failure_of([OWN[0], [*OWN[1][:4], unchanged, OWN[1][5]], OWN[2]])
    assert failure.fact == "a forward in training draws no random numbers"
    assert failure.where == "rank 1 of 3, step 2, micro-step 0"
    assert finding_of(OWN, evaluated=unchanged).failure is None
    assert (
        failure_of(OWN, evaluated=OWN[0][0]).fact == "a forward in evaluation draws random numbers"
    )


def test_without_evidence_nothing_is_judged() -> None:
    """RNG-1 is not judged if the draws are unknown, or if the model draws nothing.

    The draws of a layer are unknown if it was called twice, or never.
    """
    unknown: list[list[Array]] = [
        [None] * MICRO_STEPS  # type: ignore[list-item]  # a tensor that is not there
    ] * 3
    assert "are not known" in finding_of(unknown).unjudged
    assert (
        finding_of([], replace(CASE, model=Model(2, (Layer("linear", 2),)))).unjudged
        == "no layer draws random numbers"
    )
    assert "no evidence of 'loss'" in judge(drew(unknown))["LOSS-1"].unjudged


def test_the_oracle_multiplies_by_what_was_drawn_and_rounds_nothing() -> None:
    """A multiplication by 0, 1 or 2 is exact; unknown values and overflows give unknown values."""
    ball = balls.Ball(np.array([3.0, 3.0, 3.0, 2.0**127]), np.array([0.5, 0.5, np.inf, 0.0]), 0.5)
    product = balls.masked(ball, np.array([2.0, 0.0, 0.0, 2.0]), "float32")
    assert product.centre.tolist() == [6.0, 0.0, 0.0, 2.0**128]
    assert product.radius.tolist() == [1.0, 0.0, np.inf, np.inf]


def test_one_batch_of_all_ranks_has_all_their_draws() -> None:
    """The joined batch holds the draws of all ranks.

    Single-process training therefore drops the same elements as the ranks did.
    """
    batches = training.batches(CASE)
    drawn = [
        replace(batch, drawn={1: np.stack([mine[number] for mine in OWN])})
        for number, batch in enumerate(batches)
    ]
    held = {
        "layers.0.weight": numbers.parameters(CASE, 0, 192).reshape(96, 2),
        "layers.2.weight": numbers.parameters(CASE, 0, 192).reshape(2, 96),
    }
    apart = [training.gradients(replace(CASE, accumulation=1), held, batch) for batch in drawn[:2]]
    whole = training.gradients(
        replace(CASE, accumulation=1, world_size=1), held, training.joined(drawn[:2])
    )
    for name, ball in whole.by_name.items():
        mean = np.mean([part.by_name[name].centre.mean(0) for part in apart], 0)
        assert (np.abs(ball.centre[0] - mean) <= 1e-4 * np.abs(mean).max()).all(), name


PLAIN = replace(CASE, world_size=2, accumulation=1, data=Data(samples=8, batch_size=2))
AROUND = {
    "accumulated": CASE,
    "nested": CASE.with_situation(NoSyncStyle("nested")),
    "joint": CASE.with_situation(PassOrder("joint")),
    "retained": CASE.with_situation(PassOrder("retained")),
    "one rank": replace(PLAIN, world_size=1),
    "subgroup": replace(PLAIN, outside=1),
    "fractions": replace(PLAIN, values="real", log2_scale=8),
    "forward error": PLAIN.with_situation(FailureInjection(InjectedFailure("forward error", 1))),
    "backward error": PLAIN.with_situation(FailureInjection(InjectedFailure("backward error", 1))),
    "withheld": PLAIN.with_situation(Perturbed(Perturbation("withheld"))),
    "saved by others": PLAIN.with_situation(Resized(1)),
    "poison": PLAIN.with_situation(Poisoned(Poison(1, 1))),
    "scaler": PLAIN.with_situation(Poisoned(Poison(1, 1, "inf")), Scaler(LossScale(4))),
    "unused": replace(
        PLAIN, model=replace(WIDE, layers=(*WIDE.layers, Layer("linear", 2)))
    ).with_situation(UnusedLayers((Unused(3, rank=1),))),
    **{
        kind: PLAIN.with_situation(Actions((BetweenSteps(kind, 1),)))
        for kind in get_args(BetweenStepsKind)
    },
}


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_a_right_wrapper_is_right_whatever_else_happens_around_dropout(
    make_trial: TrialMaker, ddp: str
) -> None:
    """A right wrapper violates no rule when dropout is combined with other features.

    The rules that compare are judged. Each loss equals that of the twin (the unwrapped module).
    Each step equals that of one process that drops the same elements.
    """
    trial = make_trial(ddp=ddp)
    for name, case in AROUND.items():
        findings = trial.findings(trial.scope.fit(case))
        assert {
            rule: finding.failure for rule, finding in findings.items() if finding.failure
        } == {}, name
        judged = {rule for rule, finding in findings.items() if not finding.unjudged}
        assert judged >= {"RNG-1", "LOSS-1", "LOSS-3", "PARAM-3"}, (name, findings)
        assert case.world_size > 1 or "PARAM-4" in judged


UNSEEN = '''
import torch
from ddp_invariants.faults.per_parameter import PerParameter as Right

class CallsTwice(Right):
    """Looks at a result before it returns another."""
    def forward(self, inputs):
        self.module(inputs)
        return super().forward(inputs)

class FillsUp(Right):
    """Fills a batch up to a multiple of four samples, and takes the results of what it added \
off."""
    def forward(self, inputs):
        more = inputs.new_zeros(-len(inputs) % 4, inputs.shape[1])
        return super().forward(torch.cat([inputs, more]))[: len(inputs)]

class MapsOverSamples(Right):
    """Has each sample go through the module by itself."""
    def forward(self, inputs):
        return torch.func.vmap(\
lambda one: super(MapsOverSamples, self).forward(one[None])[0], randomness="different")(inputs)
'''


LOGS = '''
import torch
from ddp_invariants.reference.ddp import DistributedDataParallel as Right

class Logs(Right):
    """Evaluates its module after every forward in training."""
    def forward(self, inputs):
        result = super().forward(inputs)
        if self.training:
            self.module.eval()
            with torch.no_grad():
                self.module(inputs)
            self.module.train()
        return result
'''


@pytest.mark.parametrize("name", ["CallsTwice", "MapsOverSamples"])
def test_who_hides_what_is_drawn_is_not_accused(
    make_trial: TrialMaker, tmp_path: Path, name: str
) -> None:
    """If the draws are unknown, no rule that compares with the twin is judged.

    The twin (the unwrapped module) cannot drop the same elements.
    """
    path = tmp_path / "unseen.py"
    path.write_text(UNSEEN, encoding="utf-8")
    findings = make_trial(ddp=f"{path}:{name}", scope=Scope()).findings(PLAIN)
    assert {rule: finding.failure for rule, finding in findings.items() if finding.failure} == {}
    assert all(
        findings[rule].unjudged for rule in ("LOSS-1", "LOSS-3", "GRAD-2", "GRAD-3", "PARAM-3")
    )
    assert not findings["RNG-1"].met  # Only the program's own numbers are compared.


def test_who_hands_its_module_more_samples_than_it_was_handed_is_not_accused(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """A wrapper that fills up its batches violates no rule.

    A batch of four samples is not filled up, so its draws serve the twin. The draws for a batch of
    two samples do not fit the twin, and this stops nothing.
    """
    path = tmp_path / "fills.py"
    path.write_text(UNSEEN, encoding="utf-8")
    findings = make_trial(ddp=f"{path}:FillsUp", scope=Scope()).findings(
        replace(PLAIN, data=Data(samples=12, batch_size=4))
    )
    assert {rule: finding.failure for rule, finding in findings.items() if finding.failure} == {}
    assert not findings["RNG-1"].unjudged


def test_where_the_twin_made_no_forward_nobody_is_accused_of_its_buffers(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """If the twin made no forward, BUF-2 is not judged.

    The wrapper evaluates its module in every forward, as a program does for a log. Dropout then
    draws ones, so the draws in training are unknown. The buffers still move only once.
    """
    path = tmp_path / "logs.py"
    path.write_text(LOGS, encoding="utf-8")
    model = replace(WIDE, layers=(*WIDE.layers, Layer("statistics")))
    findings = make_trial(ddp=f"{path}:Logs", scope=Scope()).findings(replace(PLAIN, model=model))
    assert {rule: finding.failure for rule, finding in findings.items() if finding.failure} == {}
    assert findings["BUF-2"].unjudged
