"""Tests of the upgrade gate: it finds each difference between two interpreters, and no other."""

import datetime as dt
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alterations import ALTERATIONS
from click.testing import CliRunner
from handmade import CASE, altered, everywhere, right
from lent import LentHosts
from probed import Discover, remembering
from upgrades import compared, interpreter

from ddp_invariants.cases.case import Case, ShardCase, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data, Optimizer
from ddp_invariants.cli import compare, main
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.errors import INTERRUPTED, BaselineError, DeviationError
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants.compare import numbers
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import (
    Backward,
    Incident,
    RaisedError,
    RankEvidence,
    ShardEvidence,
    TrainingEvidence,
)
from ddp_invariants.records.trace import Call
from ddp_invariants.report import upgrade
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.upgrades import baseline, comparison, gate, outcome, recorded, sides
from ddp_invariants.upgrades.accepted import Accepted, accepted_changes
from ddp_invariants.upgrades.baseline import FORM, Answer, Environment, Head
from ddp_invariants.upgrades.comparison import Offer, before_any_case, described
from ddp_invariants.upgrades.difference import Difference, steady
from ddp_invariants.upgrades.interpreter import side
from ddp_invariants.upgrades.outcome import Gated, ShrunkDifference
from ddp_invariants.upgrades.pace import Cost, cost, ratios
from ddp_invariants.upgrades.progress import Event, Found, Tried
from ddp_invariants.upgrades.sequences import parting
from ddp_invariants.upgrades.shift import RUNS, Movement, movement, other_numbers, shifted
from ddp_invariants.upgrades.sides import Pair, Sides
from ddp_invariants.upgrades.sorts import Sorts

FACTOR = "layers.4.factor"
ACCEPTED = """
[[accepted]]
change = "discrete: warning FutureWarning: this will change"
reason = "read"
expires = 2100-01-01
"""


def names(old: TrainingEvidence, new: TrainingEvidence) -> list[str]:
    """Return the sorts of the differences between two sides, those of rules without a cause."""
    return [
        f"rule: {difference.subject}" if difference.kind == "rule" else difference.sort
        for difference in comparison.compared(old, new, Declarations(), SamplerDeclarations())
    ]


def test_a_side_does_not_differ_from_itself() -> None:
    """Two runs with equal evidence show no difference."""
    assert names(right(), right()) == []


def test_every_class_of_difference_is_told() -> None:
    """A comparison reports violated rules, exact mismatches, and the stage where numbers differ."""
    old = right()
    assert names(old, everywhere(old, "reduced", 1, FACTOR, lambda values: values + 1)) == [
        *(f"rule: {rule}" for rule in ("GRAD-2", "GRAD-3", "GRAD-5", "GRAD-6")),
        "number: reduced gradient",
    ]
    fewer = replace(old, ranks=tuple(replace(rank, sent=[rank.sent[0][1:]]) for rank in old.ranks))
    assert f"discrete: collectives: one {old.ranks[0].sent[0][0].kind} fewer" in names(old, fewer)
    assert "discrete: end of the run: by itself -> it hung" in names(
        old, replace(old, incident=Incident("hung", {1: "gave no answer"}, {}, 1.0))
    )
    assert "discrete: gradients that are None" in names(
        old, everywhere(old, "reduced", 1, FACTOR, None)
    )
    assert (
        names(old, altered(old, 1, "wrapped", 0, FACTOR, lambda values: values + 1))[-1]
        == "number: initialisation"
    )
    saved = right(CASE.with_situation(Actions((BetweenSteps("reload"),))))
    prefixed = replace(
        saved,
        ranks=tuple(
            replace(rank, saved=[[f"module.{name}" for name in rank.saved[0]]])
            for rank in saved.ranks
        ),
    )
    assert set(names(saved, prefixed)) == {"discrete: names in a saved state"}


def test_each_warning_is_a_sort_of_its_own() -> None:
    """Each warning is a difference of its own, named by its first sentence without numbers.

    An accepted warning hides no other warning. The difference says which ranks gave the warning.
    """
    old, both = (
        right(),
        [
            "FutureWarning: 2 of 3 are so. More",
            "UserWarning: b (Triggered internally at /a/b.cpp:12.)",
        ],
    )
    new = replace(old, ranks=tuple(replace(rank, warned=both) for rank in old.ranks))
    differences = comparison.compared(old, new, Declarations(), SamplerDeclarations())
    assert [
        (difference.name, difference.old, difference.new, difference.moves)
        for difference in differences
    ] == [
        (
            "discrete: warning FutureWarning: # of # are so.",
            "none",
            "0, 1: FutureWarning: 2 of 3 are so. More",
            True,
        ),
        ("discrete: warning UserWarning: b…", "none", "0, 1: UserWarning: b…", True),
    ]
    renumbered = replace(
        new,
        ranks=(
            replace(new.ranks[0], warned=["FutureWarning: 3 of 4 are so. More", both[1]]),
            new.ranks[1],
        ),
    )
    assert names(new, renumbered) == []
    assert names(new, replace(new, ranks=(new.ranks[0], old.ranks[1]))) == [
        difference.name for difference in differences
    ]
    case = ShardCase(data=Data(samples=3))
    plain, warning_answer = (
        {"raised": {"type": "E", "phase": "p", "message": ""}, "refused": {}, "warned": warnings}
        for warnings in ([], ["UserWarning: c"])
    )
    silent, warning = (ShardEvidence(case, (answer, answer)) for answer in (plain, warning_answer))
    assert [
        difference.name
        for difference in comparison.compared(
            silent, warning, Declarations(), SamplerDeclarations()
        )
    ] == ["discrete: warning UserWarning: c"]


@pytest.fixture
def known(discovered: Discover, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gate reuse the probes of other tests, and probe only what none has probed.

    The surface has tests of its own (`test_surface.py`).
    """
    monkeypatch.setattr(sides, "discover", discovered)
    monkeypatch.setattr(Pool, "surface", lambda *_: {})


ONCE = '''
import warnings

from torch.nn.parallel import DistributedDataParallel

given = False


class Warns(DistributedDataParallel):
    """Warns once a process."""

    def forward(self, *arguments, **options):
        global given
        if not given:
            given = True
            warnings.warn("only once", stacklevel=2)
        return super().forward(*arguments, **options)
'''


@pytest.mark.usefixtures("known")
def test_a_warning_given_once_a_process_is_asked_of_new_ones(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning that a process gives only once is a difference only if one side never gives it.

    Two sides that share processes give the warning in turn. If one side never gives it, every
    repetition in fresh processes shows the difference.
    """
    (tmp_path / "warns.py").write_text(ONCE, encoding="utf-8")
    both = Sides(pool, pool, Ddp(f"{tmp_path}/warns.py:Warns"), Sampler(), 2)
    assert gate.Gate(both).run(12, 0).differences == ()
    answers = both.answers

    def silent_before(case: Case, **options: bool) -> Pair:
        monkeypatch.setattr(both, "_turn", 0)  # The new side runs first, and gives the warning.
        pair = answers(case, **options)
        if isinstance(pair.old, ShardEvidence):
            return pair
        ranks = [
            replace(rank, warned=[words for words in rank.warned if "only once" not in words])
            for rank in pair.old.ranks
        ]
        return pair._replace(old=replace(pair.old, ranks=tuple(ranks)))

    monkeypatch.setattr(both, "answers", silent_before)
    monkeypatch.setattr(gate, "SHRINK_RUNS", 5)
    pool.anew()
    results = gate.Gate(both).run(12, 0).differences
    assert [(result.difference.name, result.seen) for result in results] == [
        ("discrete: warning UserWarning: only once", outcome.REPEATS)
    ]


@pytest.mark.usefixtures("known")
def test_what_was_only_warned_of_while_something_else_was_shrunk_is_told(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning given by one side alone is checked again in fresh processes and then reported.

    The gate compares the warnings of all cases at the end. A warning that both sides gave, in
    different cases, is no difference.
    """
    both = Sides(pool, pool, Ddp(), Sampler(), 2)
    compares = gate.Gate(both)
    difference = Difference("discrete", "warning UserWarning: so", "", "none", "0: UserWarning: so")
    both.warned[1][difference.subject] = CASE
    assert compares._only_warned({}) == []
    monkeypatch.setattr(compares, "_compared", lambda _pair: [difference])
    assert [result.difference for result in compares._only_warned({})] == [difference]
    both.warned[0][difference.subject] = CASE
    assert compares._only_warned({}) == []


def _unsent(answer: Answer) -> Answer:
    """Return an answer in which the ranks of a training case send no collective."""
    if isinstance(answer, ShardEvidence):
        return answer
    return replace(answer, ranks=tuple(replace(rank, sent=[[]]) for rank in answer.ranks))


@pytest.mark.usefixtures("known")
def test_a_difference_of_the_simulation_alone_is_not_judged(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference counts once real ranks show it; otherwise it is listed with its case.

    The simulated new side loses its collectives; the real one sends them.
    """
    both = Sides(pool, pool, Ddp(), Sampler(), 2)
    simulated = both._simulated

    def silent(case: Case) -> Pair | None:
        pair = simulated(case)
        return pair and pair._replace(new=_unsent(pair.new))

    monkeypatch.setattr(both, "_simulated", silent)
    outcome = gate.Gate(both).run(30, 0)
    assert outcome.differences == ()
    assert outcome.status == 0
    assert "discrete: collectives: " in "".join(name for name, _ in outcome.unreal)
    assert 0 < outcome.simulated < outcome.cases == 30
    assert "because the simulation alone shows it: discrete: collectives" in upgrade.comparison(
        (HEAD.environment, HEAD.environment), outcome
    )


@pytest.mark.parametrize("varies", [False, True])
def test_an_old_side_that_differs_from_itself_is_not_judged(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, *, varies: bool
) -> None:
    """Numbers that are others in each of its runs tell nothing; those of the new side alone do."""
    both, added = Sides(pool, pool, Ddp(), Sampler(), 2), count(1)

    def answers(_case: Case, **_: bool) -> Pair:
        more = next(added)
        other = everywhere(right(), "reduced", 1, FACTOR, lambda values: values + more)
        return Pair(*((other, right()) if varies else (right(), other)), simulated=False)

    monkeypatch.setattr(both, "answers", answers)
    compares = gate.Gate(both)
    difference = next(
        each for each in compares.differences(CASE) if each.sort == "number: reduced gradient"
    )
    entry, *_ = compares._shrunk(CASE, difference, {})
    assert entry.seen == outcome.REPEATS
    assert entry.varies == varies
    assert entry.counts != varies
    assert Gated((entry,), 1).status == (2 if varies else 1)
    text = upgrade.comparison((HEAD.environment, HEAD.environment), Gated((entry,), 1))
    assert ("differs from itself" in text) == varies


def test_what_names_a_process_or_a_folder_is_no_offer(
    pool: Pool, discovered: Discover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two interpreters lie in other folders, and two processes have other numbers."""
    monkeypatch.setattr(sides, "discover", discovered)
    name = f"{Path(__file__).parents[1]}/helpers/right_wrappers.py:NamesItsProcess"
    _, offer = sides.discovered_side(pool, Ddp(name), Sampler(), 2)
    assert offer.ddp["defaults"]["run"] == sides.VARIES
    assert offer.ddp["defaults"]["folder"] == "'{prefix}/share/kernels'"
    assert offer.surface["attribute folder of a wrapped module"] == "'{prefix}/share/kernels'"
    assert offer.surface["attribute process of a wrapped module"] == sides.VARIES


@pytest.mark.usefixtures("known")
def test_an_interrupt_loses_no_difference(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference is told when it shows, and an interrupt while it is shrunk keeps it."""
    both = Sides(pool, pool, Ddp(), Sampler(), 2)
    answers = both.answers
    monkeypatch.setattr(
        both,
        "answers",
        lambda case, **options: (pair := answers(case, **options))._replace(new=_unsent(pair.new)),
    )
    told: list[Event] = []

    def listen(event: Event) -> None:
        told.append(event)
        if isinstance(event, Tried):
            raise KeyboardInterrupt

    outcome = gate.Gate(both, listen).run(30, 0)
    assert outcome.status == INTERRUPTED
    entry = outcome.differences[-1]
    assert entry.difference == next(each for each in told if isinstance(each, Found)).difference
    assert entry.seen == 0
    assert "simpler cases follow" in "".join(map(upgrade.event, told))
    text = upgrade.comparison((HEAD.environment, HEAD.environment), outcome)
    assert entry.difference.name in text
    assert text.endswith("INTERRUPTED: the report holds the results until then")


def test_speed_and_memory_are_ratios_from_the_same_run() -> None:
    """Speed is a median ratio over the cases; memory is a ratio of the largest ranks.

    A run that did not end by itself has no cost.
    """

    def answered(seconds: float, peak: float) -> TrainingEvidence:
        ranks = tuple(
            replace(
                rank,
                cost=[seconds, 100.0 * 2**20, peak * 2**20],
                backwards=[Backward(0.0, seconds / 2, [])],
            )
            for rank in right().ranks
        )
        return replace(
            right(), ranks=(*ranks[:1], replace(ranks[1], cost=[seconds / 2, 0.0, 2.0**20]))
        )

    pairs = [
        (cost(answered(0.5, 110)), cost(answered(1.0 * factor, 120 + factor)))
        for factor in (1, 2, 3)
    ]
    by_name = {
        ratio.quantity: ratio for ratio in ratios([(old, new) for old, new in pairs if old and new])
    }
    assert [(ratio.ratio, ratio.quartiles, ratio.cases) for ratio in by_name.values()] == [
        (4.0, (3.0, 5.0), 3),
        (4.0, (3.0, 5.0), 3),
        (123 / 110, None, 3),
        (2.3, None, 3),
    ]
    assert by_name["a training case"].new == 2000
    assert cost(right()) is None
    assert cost(replace(answered(1, 1), incident=Incident("hung", {}, {}, 1.0))) is None
    assert (
        cost(
            replace(
                answered(1, 1),
                ranks=tuple(
                    replace(rank, raised=RaisedError("wrap", 0, "E", "", ""))
                    for rank in answered(1, 1).ranks
                ),
            )
        )
        is None
    )
    shards = ShardEvidence(ShardCase(), ({"cost": [1.0, 2.0, 3.0]},) * 2)
    assert cost(shards) == Cost(1.0, 0.0, 2.0, 3.0)
    text = upgrade.comparison(
        (HEAD.environment, HEAD.environment), Gated((), 3, (), tuple(by_name.values()))
    )
    assert (
        "  a training case               4.00, "
        "half of 3 cases from 3.00 to 5.00 (2,000.0 ms, old 500.0)" in text
    )
    assert "  resident memory of a rank     1.12 (123.0 MiB, old 110.0)" in text


def test_a_difference_within_the_bound_is_a_rounding() -> None:
    """A difference within the rounding bound is a rounding, unless the arithmetic is exact."""
    case = replace(CASE, values="real", world_size=3)
    old = right(case)
    new = everywhere(old, "reduced", 0, FACTOR, lambda values: values * (1 + 2.0**-23))
    differences = comparison.compared(old, new, Declarations(), SamplerDeclarations())
    assert [difference.sort for difference in differences] == ["rounding: reduced gradient"]
    assert differences[0].where == "rank 0 of 3, step 0, parameter 'layers.4.factor' ()"
    left = everywhere(old, "updated", 0, FACTOR, lambda values: values * (1 + 2.0**-23))
    left = everywhere(left, "forward", 1, FACTOR, lambda values: values * (1 + 2.0**-23))
    differences = comparison.compared(old, left, Declarations(), SamplerDeclarations())
    assert [difference.sort for difference in differences if difference.kind != "rule"] == [
        "rounding: optimizer",
    ]
    overflowing = everywhere(old, "reduced", 0, FACTOR, lambda values: values * np.inf)
    rounded = overflowing
    for name in ("loss", "twin"):
        rounded = everywhere(rounded, "loss", 0, name, lambda values: values * (1 + 2.0**-51))
    assert names(overflowing, rounded) == ["unbounded: forward"]
    first = everywhere(old, "forward", 0, FACTOR, lambda values: values * (1 + 2.0**-23))
    assert names(old, first)[-1] == "number: forward"


def test_a_sort_is_a_rule_a_cause_and_a_condition() -> None:
    """A sort of difference is told apart by its cause, and by the features of its smallest case."""
    known = Sorts()
    adam, clipped = (
        Difference("rule", "PARAM-3", "", "", "", cause="they are not", condition=condition)
        for condition in (("adam", "momentum"), ("clipping",))
    )
    known.add(adam)
    assert known.explain(replace(adam, condition=("adam", "momentum", "several steps")))
    assert not known.explain(replace(adam, condition=("momentum",)))
    assert not known.explain(clipped)
    assert not known.explain(replace(adam, cause="another"))
    assert adam.name == "rule: PARAM-3: they are not; with adam, momentum"
    assert replace(adam, condition=()).name == "rule: PARAM-3: they are not; in every case"


def test_numbers_of_no_known_bound_are_a_class_of_their_own() -> None:
    """Buffers have no derived bound: a difference is no rounding, and two NaNs do not differ.

    A difference beside the failure of a rule follows from the failure.
    """
    case = replace(CASE, values="real")
    old = right(case)
    slots = old.ranks[0].tensors["left buffers", 0].layout.slots
    name = next(slot.name for slot in slots if slot.dtype == "float32")
    new = everywhere(old, "left buffers", 0, name, lambda values: values + 0.1)
    (difference,) = comparison.compared(old, new, Declarations(), SamplerDeclarations())
    assert difference.name.startswith("unbounded: buffers; with ")
    assert Gated((ShrunkDifference(difference, case),), 1).status == 2
    nan = everywhere(old, "left buffers", 0, name, lambda values: values * np.nan)
    negated = everywhere(
        old, "left buffers", 0, name, lambda values: np.copysign(np.nan, -1) + values
    )
    assert names(nan, negated) == []
    integer = next(slot.name for slot in slots if slot.dtype == "int64")
    counted = everywhere(old, "left buffers", 0, integer, lambda values: values + 1)
    assert "number: buffers" in names(old, counted)


def test_numbers_that_all_move_the_same_way_are_a_shift() -> None:
    """A sign test over runs with other numbers tells a shift from a rounding.

    A shift of one unit in the last place may come from one constant that is rounded otherwise.
    """
    case = replace(CASE, values="real", optimizer=Optimizer(log2_lr=0), steps=1)
    rounding = Difference("rounding", "optimizer", "", "1", "2", condition=())
    assert len(list(other_numbers(case))) == RUNS

    def movements(factors: list[float]) -> Iterator[Movement | None]:
        for factor, other in zip(factors, other_numbers(case), strict=False):
            old = right(other)
            forward = old.ranks[0].tensors["forward", 0].by_name[FACTOR]
            new = everywhere(
                old,
                "updated",
                0,
                FACTOR,
                lambda values, start=forward, by=factor: np.float32(start + (values - start) * by),
            )
            yield movement(old, new, "optimizer")

    shift = shifted(rounding, movements([1 - 2.0**-16] * 40))
    assert shift is not None
    assert shift.name == "shift: optimizer: all smaller; in every case"
    assert re.match(r"smaller in (\d+) of \1 runs with other numbers, by 1\.\de-05", shift.where)
    assert shifted(rounding, movements([1 - 2.0**-16, 1 + 2.0**-16] * 20)) is None
    assert shifted(rounding, movements([1 - 2.0**-16] * 20)) is None
    unit = Movement(-1, -(2.0**-24), 1.0, 2.0**-23)
    assert shifted(rounding, [unit] * 40) is None


def test_what_a_step_left_is_no_difference_of_the_next() -> None:
    """Loaded values that equal the saved ones show no difference of loading."""
    case = replace(CASE.with_situation(Actions((BetweenSteps("reload"),))), values="real")
    old = right(case)
    new = everywhere(old, "updated", 0, FACTOR, lambda values: values * (1 + 2.0**-23))
    new = everywhere(new, "restored", 1, FACTOR, lambda values: values * (1 + 2.0**-23))
    new = everywhere(new, "forward", 1, FACTOR, lambda values: values * (1 + 2.0**-23))
    assert [name for name in names(old, new) if "rule" not in name] == ["rounding: optimizer"]
    lossy = everywhere(old, "restored", 1, FACTOR, lambda values: values * 2)
    assert "number: saving and loading" in names(old, lossy)


def test_two_numbers_that_differ_have_two_texts() -> None:
    """Numbers that differ in the 17th digit alone are printed with 17 digits."""
    assert numbers(0.1, 0.2) == ["0.1", "0.2"]
    assert numbers(-1.984375, -1.984375 - 2.0**-52) == [
        "-1.984375",
        "-1.9843750000000002",
    ]


def test_sequences_are_aligned_before_they_are_told() -> None:
    """A missing broadcast is one broadcast fewer, and no other type of each call that follows."""
    broadcasts = [Call("broadcast", "float32", 1, "0"), Call("broadcast", "int32", 2, "0")]
    reduced = Call("allreduce", "float32", 8, "SUM")
    halves = [Call("allreduce", "float32", 4, "SUM")] * 2
    old = RankEvidence({}, sent=[[*broadcasts, reduced]], marks=[[[2], [3]]])

    def parts(*calls: Call) -> tuple[str, str, str, str] | None:
        return parting(old, RankEvidence({}, sent=[list(calls)]))

    assert parts(*broadcasts, reduced) is None
    assert parts(broadcasts[1], reduced) == (
        "one broadcast fewer",
        "call 1",
        "broadcast float32 x 1 0",
        "none",
    )
    assert parts(*broadcasts, *halves) == (
        "the same elements in more calls of allreduce",
        "step 0, call 3",
        "allreduce float32 x 8 SUM",
        "allreduce float32 x 4 SUM, allreduce float32 x 4 SUM",
    )
    causes = (
        parts(broadcasts[1], broadcasts[0], reduced),
        parts(*broadcasts, reduced._replace(operation="AVG")),
        parts(*broadcasts, reduced, *halves),
    )
    assert [cause and cause[0] for cause in causes] == [
        "the same calls in another order",
        "other operations of allreduce",
        "several allreduce more",
    ]


def test_a_samplers_answers_must_match_exactly() -> None:
    """A sampler's answers must match exactly, and the report names the first mismatch.

    Mismatches that follow from the first one are not reported.
    """
    case = ShardCase(data=Data(samples=3))
    shards = [[0, 2], [1, 0]]
    plain: dict[str, object] = {
        "raised": None,
        "refused": {},
        "shards": [shards],
        "lengths": [2, 2],
        "again": shards,
        "afresh": shards,
        "reseeded": None,
        "touched": [],
        "batches": None,
        "promised": None,
        "worked": None,
        "orders": None,
        "resumed": None,
    }
    changed = {
        **plain,
        "shards": [[[0, 2], [1, 2]]],
        "again": [[0, 2], [1, 2]],
        "afresh": [[0, 2], [1, 2]],
    }
    old, new = (ShardEvidence(case, (answer, answer)) for answer in (plain, changed))
    differences = comparison.compared(old, new, Declarations(), SamplerDeclarations())
    assert "discrete: indices" in [difference.sort for difference in differences]
    assert comparison.compared(old, old, Declarations(), SamplerDeclarations()) == []
    gone = ShardEvidence(case, (), Incident("died", {0: "died"}, {}, 1.0))
    assert [
        difference.sort
        for difference in comparison.compared(old, gone, Declarations(), SamplerDeclarations())
    ][-1] == "discrete: end of the sampler"


def test_defaults_are_compared_before_any_case() -> None:
    """A new argument, a missing argument and another default differ before any case is run."""
    old = {"target": "torch:DDP", "defaults": {"module": "", "gone": "1", "changed": "True"}}
    new = {"target": "torch:DDP", "defaults": {"module": "", "changed": "False", "fresh": ""}}
    assert [
        (difference.subject, difference.old, difference.new) for difference in described(old, new)
    ] == [
        ("argument gone", "default 1", "not taken"),
        ("argument changed", "default True", "default False"),
        ("argument fresh", "not taken", "required"),
    ]


def test_capabilities_are_compared_by_what_became_of_them() -> None:
    """Capabilities are compared by their result; their messages may differ.

    A capability that one side does not know is a difference.
    """
    plain: dict[str, Any] = {"target": "torch:DDP", "defaults": {}}
    old = Offer(
        plain,
        plain,
        {"scalar": ("right", ""), "tied": ("refused", "ValueError: so"), "gone": ("right", "")},
        {"same": "1", "changed": "1", "refusal of an argument that is gone": "taken"},
    )
    new = Offer(
        plain,
        plain,
        {"scalar": ("refused", "TypeError: no"), "tied": ("refused", "ValueError: thus")},
        {"same": "1", "changed": "raises ValueError", "fresh": "(a, b=1)"},
    )
    assert [
        (difference.subject, difference.old, difference.new)
        for difference in before_any_case(old, new)
    ] == [
        ("capability scalar", "right", "refused TypeError: no"),
        ("capability gone", "right", "not known"),
        ("surface changed", "1", "raises ValueError"),
        ("surface fresh", "none", "(a, b=1)"),
    ]


@pytest.mark.parametrize(
    ("differences", "status"),
    [
        ((), 0),
        ((ShrunkDifference(Difference("rounding", "forward", "", "1", "2"), None),), 0),
        ((ShrunkDifference(Difference("discrete", "warnings", "", "1", "2"), None),), 1),
        (
            (
                ShrunkDifference(
                    Difference("discrete", "warnings", "", "1", "2"), None, accepted="read"
                ),
            ),
            0,
        ),
        ((ShrunkDifference(Difference("discrete", "warnings", "", "1", "2"), CASE, seen=1),), 2),
    ],
)
def test_the_gate_closes_on_what_is_not_accepted(
    differences: tuple[ShrunkDifference, ...], status: int
) -> None:
    """A rounding never closes the gate; a difference that does not repeat leaves it undecided."""
    assert Gated(differences, 10).status == status


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[accepted]]\nchange = 3\nreason = 'x'\nexpires = 2100-01-01", "change"),
        ("accepted = [", "not valid TOML"),
        (
            "[[other]]\nchange = 'x'\nreason = 'x'\nexpires = 2100-01-01",
            "'other' is not allowed here",
        ),
        (
            "[[accepted]]\nchange = 'x'\nreason = 'y'\nexpires = 2020-01-01",
            "'x' expired on 2020-01-01",
        ),
        ("[[accepted]]\nchange = 'x'\nreason = 'y'", "expires"),
        *(
            (
                f"[[accepted]]\nchange = '{old}'\nreason = 'y'\nexpires = 2100-01-01",
                f"'{old}' names no cause and no condition",
            )
            for old in ("rule: PARAM-3", "discrete: collectives", "number: optimizer")
        ),
    ],
)
def test_a_bad_file_of_accepted_changes_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A bad file of accepted changes is refused with the place and the reason."""
    path = tmp_path / "accepted.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeviationError, match=message):
        accepted_changes(path, dt.date(2026, 11, 20))


Command = Callable[..., subprocess.CompletedProcess[str]]


class Interpreters:
    """Altered interpreters and their hosts, each made once.

    Args:
        folder: A folder for the interpreters.
        addresses: The addresses of the hosts of this interpreter.
        discover: The `discover` for these hosts.
        probed: The folder of its results.
    """

    def __init__(
        self, folder: Path, addresses: list[str], discover: Discover, probed: Path
    ) -> None:
        self._folder, self.discover, self._probed = folder, discover, probed
        self._lent = {sys.executable: LentHosts(addresses)}
        self._started: list[Hosts] = []
        self.side = cache(side)

    def altered(self, name: str = "") -> str:
        """Return an interpreter with an alteration of `upgrades.py`, or with none."""
        folder = self._folder / (name or "equal")
        python = folder / "bin" / Path(sys.executable).name
        return str(python) if python.exists() else interpreter(folder, *([name] if name else []))

    def hosts(self, python: str) -> LentHosts:
        """Return the hosts of an interpreter."""
        if python not in self._lent:
            hosts = Hosts(python)
            self._started.append(hosts)
            self._lent[python] = LentHosts(hosts.addresses)
            # Neither alteration changes the result of a probe.
            self.discover = remembering(self._probed, hosts.addresses, self.discover)
        return self._lent[python]

    def close(self) -> None:
        """End the hosts that were started."""
        for hosts in self._started:
            hosts.close()


@pytest.fixture(scope="module")
def interpreters(
    tmp_path_factory: pytest.TempPathFactory,
    host_addresses: list[str],
    discovered: Discover,
    probed: Path,
) -> Iterator[Interpreters]:
    """Yield altered interpreters for the tests of this file."""
    folder = tmp_path_factory.mktemp("interpreters")
    with closing(Interpreters(folder, host_addresses, discovered, probed)) as interpreters:
        yield interpreters


@pytest.fixture
def command(interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs the command line in this process.

    The command uses hosts that are running, asks each interpreter once for its versions, and
    shrinks differences in few runs.
    """

    def discover(*arguments: Any) -> Discovery:
        return interpreters.discover(*arguments)

    def given(*words: str) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(main, words)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    monkeypatch.setattr(compare, "Hosts", interpreters.hosts)
    monkeypatch.setattr("ddp_invariants.upgrades.interpreter.side", interpreters.side)
    monkeypatch.setattr(sides, "discover", discover)
    monkeypatch.setattr(Pool, "surface", lambda *_: {})
    monkeypatch.setattr(gate, "SHRINK_RUNS", 20)
    return given


def test_equal_sides_are_the_same_and_accepted_changes_that_do_not_show_are_told(
    command: Command, interpreters: Interpreters, tmp_path: Path
) -> None:
    """Equal sides exit with status 0, and an accepted change that does not occur is reported."""
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(ACCEPTED, encoding="utf-8")
    new = interpreters.altered()
    done = command(
        "compare",
        "--old",
        sys.executable,
        "--new",
        new,
        "--cases",
        "20",
        "--max-world-size",
        "2",
        "--accept",
        str(accepted),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SAME" in done.stdout
    assert (
        "accepted but not seen: 'discrete: warning FutureWarning: this will change'" in done.stdout
    )
    assert "speed and memory, ratios of new to old, never judged" in done.stdout


@pytest.mark.parametrize(
    ("name", "ddp", "cases", "accept", "status"),
    [("a new warning", "torch", 6, ACCEPTED, 0), ("padding rule", "reference", 60, "", 1)],
)
def test_a_simulated_upgrade_is_found(
    command: Command,
    interpreters: Interpreters,
    tmp_path: Path,
    name: str,
    ddp: str,
    cases: int,
    accept: str,
    status: int,
) -> None:
    """A simulated upgrade is found with a script, and an accepted change opens the gate.

    These two alterations of `upgrades.py` show within few cases.
    """
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(accept, encoding="utf-8")
    done, differences = compared(
        sys.executable,
        interpreters.altered(name),
        cases,
        "--ddp",
        ddp,
        "--max-world-size",
        "2",
        "--accept",
        str(accepted),
        "--scripts",
        str(tmp_path / "scripts"),
        command=command,
    )
    assert done == status
    assert not [key for key in differences if key.startswith(("number", "rounding"))]
    different = next(
        difference
        for key, difference in differences.items()
        if key.startswith(ALTERATIONS[name].wanted)
    )
    assert different["accepted"] == ("read" if accept else "")
    assert "python discrete-" in Path(different["script"]).read_text(encoding="utf-8")


def test_what_is_accepted_is_plain_data() -> None:
    """An accepted change has a reason and a last day; its link may be empty."""
    assert Accepted("x", "y", dt.date(2100, 1, 1)).link == ""


# A recorded side.


HEAD = Head(
    "0.1.0",
    FORM,
    Environment("p", "2", "2", "3.11.0", "c", "b"),
    Offer({"target": "a.b:C", "defaults": {}}, {"target": "a.b:D", "defaults": {}}, {}, {}),
    "",
    0,
    3,
)
SHARDS = ShardEvidence(ShardCase(data=Data(samples=3)), ({"refused": {}}, {"refused": {}}))


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A baseline is read back exactly: each rank's evidence, a sampler's answers, a run's end."""
    hung = replace(right(), incident=Incident("hung", {1: "gave no answer"}, {}, 0.0))
    path = tmp_path / "baseline.json.gz"
    baseline.write(path, HEAD, [right(), hung, SHARDS])
    head, answers = baseline.read(path)
    assert head == HEAD
    assert list(tmp_path.iterdir()) == [path]
    kept: list[Answer] = [right(), hung, SHARDS]
    for before, after in zip(kept, answers, strict=True):
        assert after.case == before.case
        assert (after.incident and after.incident.kind) == (
            before.incident and before.incident.kind
        )
        assert comparison.compared(before, after, Declarations(), SamplerDeclarations()) == []
    assert isinstance(answers[0], TrainingEvidence)
    for rank, read_rank in zip(right().ranks, answers[0].ranks, strict=True):
        assert {moment: tensors.bits for moment, tensors in rank.tensors.items()} == {
            moment: tensors.bits for moment, tensors in read_rank.tensors.items()
        }


def pressed(plain: bytes) -> bytes:
    """Return the gzipped bytes, without a time.

    The time would change the ids of parametrized tests from one second to the next.
    """
    return gzip.compress(plain, mtime=0)


def packed(*lines: object) -> bytes:
    """Return a file of JSON lines with a matching foot."""
    encoded = [json.dumps(line).encode() for line in lines]
    foot = {"cases": len(lines) - 1, "digest": hashlib.sha256(b"".join(encoded)).hexdigest()}
    return pressed(b"\n".join([*encoded, json.dumps(foot).encode(), b""]))


ONE = {**asdict(HEAD), "cases": 1}
TRAINING: dict[str, Any] = {"case": json.loads(to_json(CASE)), "incident": None, "ranks": []}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no gzip", "Not a gzipped file"),
        (packed(asdict(HEAD))[:40], "cut short or damaged"),
        (pressed(b"x"), "it is cut short"),
        (pressed(b"{}\n"), "it has 1 lines"),
        (pressed(b"{}\n[\n"), "line 2 is not valid JSON"),
        (pressed(b"{}\n[]\n"), "line 2 is no JSON object"),
        (packed({"kind": "violation"}), "kind is 'violation', expected 'baseline'"),
        (packed({**asdict(HEAD), "form": 7}), "its form is 7"),
        (
            pressed(json.dumps(asdict(HEAD)).encode() + b"\n{}\n"),
            "the last line is not the foot of a baseline",
        ),
        (
            pressed(json.dumps(asdict(HEAD)).encode() + b'\n{"cases": 0, "digest": "0"}\n'),
            "its digest does not match",
        ),
        (packed(asdict(HEAD)), "it holds 0 cases, its head says 3"),
        (
            packed({**ONE, "offer": {**ONE["offer"], "ddp": {}}}, TRAINING),
            "no name or no arguments",
        ),
        (packed({**asdict(HEAD), "environment": {"torch": 2}}), "environment"),
        (packed({**asdict(HEAD), "seed": "x"}), "seed: "),
        (packed({**asdict(HEAD), "more": 1}), "more: "),
        (packed(ONE, {}), "line 2 is no valid answer to a case: KeyError"),
        (packed(ONE, {"case": {"kind": "other"}}), "line 2 is no valid answer to a case"),
        (packed(ONE, TRAINING), "0 ranks answered, expected 2"),
        (
            packed(ONE, {**TRAINING, "ranks": [[{}, "?"]] * 2}),
            "line 2 is no valid answer to a case",
        ),
        (
            packed(ONE, {**TRAINING, "case": {**TRAINING["case"], "steps": 10**9}}),
            "line 2 is no valid answer to a case",
        ),
        (
            packed(ONE, {"case": json.loads(to_json(SHARDS.case)), "incident": None, "answers": 3}),
            "its answers are no list of objects",
        ),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """A truncated, altered, foreign or malformed file is refused with the reason."""
    path = tmp_path / "baseline.json.gz"
    path.write_bytes(data)
    with pytest.raises(BaselineError, match=message):
        baseline.read(path)


def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with too long a line, or too large in all, is refused before it is unpacked whole."""
    path = tmp_path / "baseline.json.gz"
    monkeypatch.setattr(baseline, "LONGEST", 1000)
    path.write_bytes(pressed(b"x" * 5000))
    with pytest.raises(BaselineError, match="a line is longer than the limit of"):
        baseline.read(path)
    monkeypatch.setattr(baseline, "MOST", 100)
    path.write_bytes(pressed(b"{}\n" * 100))
    with pytest.raises(BaselineError, match="unpacked it is larger than"):
        baseline.read(path)


def test_a_recorded_side_is_compared(
    command: Command, interpreters: Interpreters, tmp_path: Path
) -> None:
    """A recorded side is compared like any other side.

    The same side shows no difference, and an altered side does. A baseline of another
    implementation is refused.
    """
    path = tmp_path / "baseline.json.gz"
    torch = ["--ddp", "torch", "--sampler", "torch", "--max-world-size", "2"]
    against = ["compare", "--baseline", str(path)]
    done = command("record", "--out", str(path), "--cases", "8", *torch)
    assert done.returncode == 0, done.stderr
    assert "8 cases of --ddp torch --sampler torch, under torch" in done.stdout
    done = command(*against, *torch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SAME" in done.stdout
    new = interpreters.altered("a new warning")
    done = command(*against, "--new", new, *torch)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "discrete: warning FutureWarning: this will change" in done.stdout
    refused = command(*against)
    assert refused.returncode == 64
    assert (
        "it was recorded for --ddp torch --sampler torch, but the reference is under test"
        in refused.stderr
    )
    assert command("compare").returncode == 64
    assert command(*against, "--old", "python").returncode == 64


@pytest.mark.usefixtures("known")
def test_an_answer_that_is_none_is_told(pool: Pool) -> None:
    """An answer that cannot be compared is reported as such, even if the file's digest fits.

    A person who alters a file can also make its digest fit.
    """
    unreadable: list[Any] = [3]
    altered = replace(
        right(), ranks=tuple(replace(rank, warned=unreadable) for rank in right().ranks)
    )
    here = Environment("python", "2", "2", "3.11.0")
    with pytest.raises(
        BaselineError,
        match=r"the baseline's answer to world_size=2 .* cannot be compared: TypeError",
    ):
        recorded.against(HEAD, [altered], pool, Ddp(), Sampler(), here, max_world_size=2)


@pytest.mark.usefixtures("known")
def test_numbers_of_another_processor_are_not_compared(pool: Pool) -> None:
    """Numbers of another processor are not compared, but facts that must match exactly are."""
    case = replace(
        CASE,
        model=Model(2, (Layer("linear", 2),)),
        steps=1,
        bucket_cap=None,
        optimizer=Optimizer(log2_lr=-10),
    )
    answer = pool.train(case, Ddp())
    first, *other_ranks = answer.ranks
    tensors = first.tensors["reduced", 0]
    altered_bits = {
        **first.tensors,
        ("reduced", 0): replace(tensors, bits=bytes([tensors.bits[0] ^ 1]) + tensors.bits[1:]),
    }
    kept = replace(
        answer,
        ranks=(replace(first, tensors=altered_bits, warned=["FutureWarning: so"]), *other_ranks),
    )
    names_by_cpu = []
    for cpu in ("c", "another"):
        here = Environment("python", "2", "2", "3.11.0", cpu)
        gated = recorded.against(HEAD, [kept], pool, Ddp(), Sampler(), here, max_world_size=2)
        names_by_cpu.append({result.difference.sort for result in gated.differences})
    assert "discrete: warning FutureWarning: so" in names_by_cpu[0] & names_by_cpu[1]
    assert "number: reduced gradient" in names_by_cpu[0] - names_by_cpu[1]


def test_what_differs_between_processes_and_builds_is_no_difference() -> None:
    """Addresses, ports and source lines may vary between processes and builds."""
    assert steady("<function f at 0x7f00aa>") == "<function f…>"
    assert (
        steady("UserWarning: so (Triggered internally at /pytorch/a.cpp:12.)") == "UserWarning: so…"
    )
    assert (
        steady("[/pytorch/gloo/pair.cc:538] closed by peer [127.0.0.1]:4711")
        == "[…] closed by peer …"
    )


def test_long_answers_of_samplers_are_compared_whole() -> None:
    """Long answers of samplers are compared whole, not by their first few hundred characters."""
    case = ShardCase(world_size=4, data=Data(samples=400))
    shards = [list(range(rank, 400, 4)) for rank in range(4)]
    plain: dict[str, object] = {"raised": None, "refused": {}, "shards": [shards]}
    changed = {**plain, "shards": [[*shards[:3], shards[2]]]}
    old, new = (ShardEvidence(case, (answer, answer)) for answer in (plain, changed))
    assert "discrete: indices" in [
        difference.sort
        for difference in comparison.compared(old, new, Declarations(), SamplerDeclarations())
    ]


def test_no_difference_of_a_sampler_hides_one_that_does_not_follow_from_it() -> None:
    """Refused arguments and indices are told side by side; lengths that follow are not told."""
    plain: dict[str, object] = {
        "raised": None,
        "refused": {"rank -1 of 2": "ValueError"},
        "shards": [[[0, 2], [1]]],
        "lengths": [[2, 1]],
    }
    changed = {**plain, "refused": {}, "shards": [[[0, 2], [1, 2]]], "lengths": [[2, 2]]}
    raising = {**changed, "raised": {"type": "ValueError", "phase": "making it", "message": ""}}
    case = ShardCase(data=Data(samples=3))
    old, new, raised = (
        ShardEvidence(case, (answer, answer)) for answer in (plain, changed, raising)
    )
    for other, subjects in (
        (new, ["arguments refused", "indices"]),
        (raised, ["arguments refused", "an exception"]),
        (old, []),
    ):
        found = comparison.compared(old, other, Declarations(), SamplerDeclarations())
        assert [each.subject for each in found if each.kind == "discrete"] == subjects
