"""Tests of the COMM rules on handmade evidence: of sequences of collectives, and of their timing."""

from dataclasses import replace

import pytest
from handmade import CASE, WEIGHT, altered, one_bit_up, right

from ddp_invariants.cases.program import (
    Perturbation,
    PerturbationKind,
)
from ddp_invariants.implementation.declarations import Buckets, Declarations
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.buckets import reductions_per_step
from ddp_invariants.invariants.comm import WITHHELD
from ddp_invariants.records.evidence import (
    Defect,
    Incident,
    RaisedError,
    RankEvidence,
    TrainingEvidence,
)
from ddp_invariants.records.trace import Call, LastCalls, label
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.second import Second, SecondWrapper


def test_comm5_takes_an_all_reduce_of_integers_for_no_gradient() -> None:
    """COMM-5 does not take an all-reduce of integers for a gradient bucket.

    With find_unused_parameters, torch sends which parameters are used after backward.
    """
    used = Call("allreduce", "int32", 4, "SUM", launched=1.89)
    sent = [
        [
            replaced
            for rank in right().ranks[:1]
            for call in rank.sent[0]
            for replaced in (
                [call._replace(launched=call.launched + 0.3)] if call.elements == 3 else []
            )
        ]
        + [used]
    ]
    ranks = tuple(replace(rank, sent=sent) for rank in right().ranks)
    assert judge(replace(right(), ranks=ranks))["COMM-5"].failure is None


@pytest.mark.parametrize("operation", ["MAX", "SUM"])
def test_a_reduction_of_flags_is_no_bucket(operation: str) -> None:
    """A float bitmap of used parameters is no bucket, whether it is summed or its maximum taken.

    The evidence has gradients of 0, 1, 2 and 4 elements, and the bitmap has four.
    """
    bitmap = Call("allreduce", "float32", 4, operation, launched=0.85)
    one_bucket = resent(right(replace(CASE, bucket_cap=1 << 20)), [*reduced((7, 0.7)), bitmap])
    findings = judge(one_bucket)
    assert findings["COMM-5"].unjudged
    assert findings["COMM-4"].compared
    assert findings["COMM-4"].failure is None
    assert reductions_per_step(one_bucket) == [1, 1, 1]


def test_comm3_counts_what_the_ranks_withhold() -> None:
    """The names that COMM-3 withholds are those of the ranks' module.

    The controller cannot import this module, so the names are written twice.
    """
    from ddp_invariants.ranks.groups.observed import IN_LISTS, IN_ONE

    assert {*WITHHELD} == {*IN_LISTS, *IN_ONE}


def test_comm6_observes_and_never_judges() -> None:
    """COMM-6 observes the bytes that are sent and never judges them.

    One all-reduce of all gradients is one ring all-reduce. Twice as many bytes are recorded, and no
    rule fails.
    """
    once = judge(right())["COMM-6"]
    twice = judge(
        replace(
            right(),
            ranks=tuple(
                replace(rank, sent=[[Call("allreduce", "float32", 7, "SUM")] * 12])
                for rank in right().ranks
            ),
        )
    )["COMM-6"]
    assert once.failure is None
    assert twice.failure is None
    assert max(twice.observed) == pytest.approx(2 * max(once.observed))


CALLS = [
    Call("broadcast", "uint8", 8, "from 0", site="ddp.py:3"),
    Call("allreduce", "float32", 4, "SUM", site="ddp.py:7"),
]
MAXIMUM, WIDER, SENT = (
    Call("allreduce", "float32", 4, "MAX"),
    Call("allreduce", "float64", 4, "SUM"),
    Call("send", "float32", 1, ""),
)


@pytest.mark.parametrize(
    ("theirs", "fires"),
    [
        (CALLS, False),
        (CALLS[:1], True),
        (CALLS[::-1], True),
        ([CALLS[0], MAXIMUM], True),
        ([CALLS[0], WIDER], True),
        ([*CALLS, SENT], False),
        ([], True),
    ],
)
def test_comm1_wants_one_sequence(theirs: list[Call], *, fires: bool) -> None:
    """COMM-1 compares kind, dtype, count, operation and length; point-to-point calls may differ."""
    evidence = right()
    ranks = (replace(evidence.ranks[0], sent=[CALLS]), replace(evidence.ranks[1], sent=[theirs]))
    assert (judge(replace(evidence, ranks=ranks))["COMM-1"].failure is not None) == fires


def test_comm1_tells_both_sequences_with_their_call_sites() -> None:
    """COMM-1 reports the calls and call sites of both ranks around the first call that differs."""
    evidence = right()
    other_calls = [CALLS[0], MAXIMUM._replace(site="b.py:9")]
    ranks = (
        replace(evidence.ranks[0], sent=[CALLS]),
        replace(evidence.ranks[1], sent=[other_calls]),
    )
    failure = judge(replace(evidence, ranks=ranks))["COMM-1"].failure
    assert failure is not None
    assert failure.where == "rank 1 of 2, call 2"
    assert failure.got == (
        "all_reduce (float32 x 4 MAX) at b.py:9, "
        "rank 0 issues all_reduce (float32 x 4 SUM) at ddp.py:7; "
        "2 calls in all, rank 0 2"
    )
    assert [line.split() for line in failure.notes.splitlines()][-1][:2] == [">", "2"]


@pytest.mark.parametrize(
    ("groups", "fires"),
    [
        (([[0, 1], [0]], [[0, 1], [1]]), False),  # Each rank is alone in its second group.
        (([[0, 1], [0, 1]], [[0, 1], [0, 1]]), True),
    ],
)
def test_comm1_compares_each_group_among_its_members(
    groups: tuple[list[list[int]], list[list[int]]], *, fires: bool
) -> None:
    """COMM-1 compares each group among its members; another group's calls are no difference."""
    sent = [CALLS, [CALLS[1]]], [CALLS, [WIDER]]
    ranks = tuple(
        replace(rank, sent=calls, groups=members)
        for rank, calls, members in zip(right().ranks, sent, groups, strict=True)
    )
    assert (judge(replace(right(), ranks=ranks))["COMM-1"].failure is not None) == fires


@pytest.mark.parametrize(("theirs", "fires"), [(CALLS[:1], False), ([CALLS[0], WIDER], True)])
def test_comm1_of_a_hang_tells_calls_that_differ_and_not_what_is_missing(
    theirs: list[Call], *, fires: bool
) -> None:
    """After a hang, COMM-1 reports calls that differ, and no calls that are missing.

    A rank that hangs may have been about to issue the rest.
    """
    last_calls = LastCalls(
        len(theirs),
        0,
        tuple((number, label([0, 1], 0), call) for number, call in enumerate(theirs, start=1)),
    )
    incident = Incident("hung", {1: "gave no answer within 3.0 s"}, {}, 3.0, {1: last_calls})
    evidence = replace(
        right(),
        ranks=(replace(right().ranks[0], sent=[CALLS]), RankEvidence({})),
        incident=incident,
    )
    finding = judge(evidence)["COMM-1"]
    assert (finding.failure is not None) == fires
    assert bool(finding.unjudged) != fires


@pytest.mark.parametrize(("theirs", "fires"), [(CALLS[:1], False), ([CALLS[0], WIDER], True)])
def test_comm1_hears_calls_that_differ_before_every_rank_raised(
    theirs: list[Call], *, fires: bool
) -> None:
    """An error that follows from a mismatch is no refusal; a rank that raised early sent less."""
    error = RaisedError("backward", 0, "RuntimeError", "sizes differ", "")
    ranks = tuple(
        replace(rank, sent=[calls], raised=error)
        for rank, calls in zip(right().ranks, (CALLS, theirs), strict=True)
    )
    finding = judge(replace(right(), ranks=ranks))["COMM-1"]
    assert (finding.failure is not None) == fires
    assert bool(finding.unjudged) != fires
    # A rank that the suite itself stops may send what it likes.
    for own in (error._replace(phase="evidence"), error._replace(limited=True)):
        stopped = (replace(ranks[0], raised=own), ranks[1])
        finding = judge(replace(right(), ranks=stopped))["COMM-1"]
        assert (finding.failure, finding.unjudged) == (None, "rank 0: sizes differ")


def test_a_process_group_nobody_sees_is_not_observed_and_nothing_holds() -> None:
    """If nobody sees the process group, rules about sent calls are not observed and do not hold."""
    case = CASE.with_situation(Perturbed(Perturbation("withheld")))
    blind = replace(
        right(case), ranks=tuple(replace(rank, sent=[[]]) for rank in right(case).ranks)
    )
    findings = judge(replace(blind, unperturbed=right()))
    for rule in ("COMM-1", "COMM-2", "COMM-3", "COMM-4", "COMM-5"):
        assert findings[rule].unjudged.startswith("not observed"), rule


def test_nothing_is_withheld_of_collectives_that_fill_lists() -> None:
    """COMM-2 then compares two runs, and has not met its condition."""
    case = CASE.with_situation(Perturbed(Perturbation("withheld")))
    evidence = right(case)
    assert judge(replace(evidence, unperturbed=right()))["COMM-2"].met == {"results withheld"}
    ranks = tuple(
        replace(rank, sent=[[call._replace(kind="allgather") for call in rank.sent[0]]])
        for rank in evidence.ranks
    )
    finding = judge(replace(evidence, ranks=ranks, unperturbed=right()))["COMM-2"]
    assert finding.compared
    assert not finding.met


def test_comm2_compares_bits_with_the_unperturbed_run() -> None:
    """A bit that depends on timing violates COMM-2, which judges nothing without a second run."""
    case = CASE.with_situation(Perturbed(Perturbation("delays")))
    evidence = right(case)
    assert judge(evidence)["COMM-2"].unjudged
    finding = judge(replace(evidence, unperturbed=right()))["COMM-2"]
    assert finding.failure is None
    assert finding.compared
    assert finding.met == {"collectives delayed"}
    moved = altered(evidence, 1, "updated", 1, WEIGHT, one_bit_up)
    failure = judge(replace(moved, unperturbed=right()))["COMM-2"].failure
    assert failure is not None
    assert (
        failure.perhaps
        == "it changes when collectives start up to 1 ms late, each rank's at times of its own"
    )


@pytest.mark.parametrize(
    ("kind", "delayed"),
    [
        ("delays", "collectives are delayed"),
        ("late", "collectives are delayed"),
        ("slow communication", "a stream is delayed"),
        ("slow computation", "a stream is delayed"),
    ],
)
def test_comm5_names_what_is_delayed(kind: PerturbationKind, delayed: str) -> None:
    """COMM-5 does not judge perturbed timing, and says if collectives or a stream are delayed."""
    finding = judge(right(CASE.with_situation(Perturbed(Perturbation(kind)))))["COMM-5"]
    assert (finding.unjudged, finding.about) == (delayed, False)


def resent(evidence: TrainingEvidence, calls: list[Call]) -> TrainingEvidence:
    """Return evidence in which every step sent these calls, at times within the step."""
    sent = [
        call._replace(launched=step + call.launched)
        for step in range(evidence.case.steps)
        for call in calls
    ]
    return replace(evidence, ranks=tuple(replace(rank, sent=[sent]) for rank in evidence.ranks))


def reduced(*pieces: tuple[int, float]) -> list[Call]:
    """Return all-reduces with these element counts, started at these times within a step."""
    return [Call("allreduce", "float32", elements, "SUM", launched=at) for elements, at in pieces]


@pytest.mark.parametrize(
    ("cap", "calls", "declared", "fires"),
    [
        (16, reduced((3, 0.5), (4, 0.7)), "within", False),
        (16, reduced((7, 0.7)), "within", True),
        (16, reduced((1, 0.3), (2, 0.5), (4, 0.7)), "within", True),
        (1 << 20, reduced((7, 0.7)), "within", False),
        (1 << 20, reduced((3, 0.5), (4, 0.7)), "within", True),
        (8, reduced((3, 0.5), (4, 0.7)), "reach", False),
        (8, reduced((1, 0.2), (1, 0.3), (1, 0.4), (4, 0.7)), "reach", True),
        (16, reduced((2, 0.5), (60, 0.7)), "within", True),
    ],
)
def test_comm4_wants_the_buckets_of_a_greedy_filling(
    cap: int, calls: list[Call], declared: Buckets, *, fires: bool
) -> None:
    """COMM-4 wants as many reductions as a greedy filling makes, and none above the cap.

    The trained tensors have 4, 0, 8 and 16 bytes.
    """
    evidence = resent(right(replace(CASE, bucket_cap=cap)), calls)
    finding = judge(evidence, Declarations(buckets=declared))["COMM-4"]
    assert finding.compared
    assert (finding.failure is not None) == fires


@pytest.mark.parametrize(
    ("calls", "fires"), [(reduced((3, 0.5), (4, 0.7)), False), (reduced((3, 0.65), (4, 0.7)), True)]
)
def test_comm5_wants_a_reduction_before_the_last_gradient(
    calls: list[Call], *, fires: bool
) -> None:
    """COMM-5 wants a reduction that starts before the last gradient is computed.

    The last gradient of each step is computed 0.6 s after the step began.
    """
    finding = judge(resent(right(), calls))["COMM-5"]
    assert finding.compared
    assert (finding.failure is not None) == fires
    assert judge(resent(right(), reduced((7, 0.7))))["COMM-5"].unjudged


@pytest.mark.parametrize(
    ("defect", "second", "perhaps"),
    [
        ("not waited for", "", "a wait is missing"),
        ("not waited for", "kept", "the module's earlier wrapper still sends"),
        ("written to while in flight", "", "a buffer is used before its wait"),
    ],
)
def test_comm3_wants_every_result_waited_for(defect: str, second: Second, perhaps: str) -> None:
    """COMM-3 is judged only if results are withheld and a rank has results to withhold."""
    case = CASE.with_situation(Perturbed(Perturbation("withheld")))
    case = case.with_situation(SecondWrapper(second)) if second else case
    evidence = right(case)
    assert judge(
        replace(evidence, ranks=tuple(replace(rank, sent=[[]]) for rank in evidence.ranks))
    )["COMM-3"].unjudged
    ranks = tuple(replace(rank, sent=[CALLS]) for rank in evidence.ranks)
    assert judge(replace(evidence, ranks=ranks))["COMM-3"].compared > 0
    lists = [call._replace(kind="allgather") for call in CALLS]
    late = replace(ranks[1], sent=[lists], in_flight=[Defect(1, lists[1], defect)])
    failure = judge(replace(evidence, ranks=(ranks[0], late)))["COMM-3"].failure
    assert failure is not None  # Though no result of an all-gather into a list can be withheld.
    late = replace(ranks[1], in_flight=[Defect(1, CALLS[1], defect)])
    failure = judge(replace(evidence, ranks=(ranks[0], late)))["COMM-3"].failure
    assert failure is not None
    assert defect in failure.fact
    assert failure.perhaps.endswith(perhaps)
