"""Tests of the rules about samplers: each fires on shards that break it, and on no right ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shard_case import may_repeat
from ddp_invariants.implementation.declarations import SamplerDeclarations
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.invariants.sampler_view import UNDECLARED
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.verdict import Finding


def dealt(
    shards: list[list[list[int]]],
    *,
    data: Data,
    epochs: tuple[int, ...] = (0,),
    declared: SamplerDeclarations = UNDECLARED,
    **answer: object,
) -> dict[str, Finding]:
    """Return the findings about a sampler that yields these shards.

    Every process gives the same answer, unless `elsewhere` holds the second process's shards.
    """
    case = ShardCase(world_size=len(shards[0]), data=data, epochs=epochs)
    plain = {
        "lengths": [len(s) for s in shards[0]],
        "shards": shards,
        "again": shards[-1],
        "afresh": shards[-1],
        "reseeded": None,
        "touched": [],
        "batches": [2] * len(shards[0]),
        "promised": [None] * len(shards[0]),
        "worked": None,
        "orders": None,
        "refused": {"rank below 0": "ValueError"},
        **answer,
    }
    second_answer = {**plain, "shards": answer.get("elsewhere", shards)}
    return judge(ShardEvidence(case, (plain, second_answer)), sampler=declared)


PADDED = Data(samples=3, batch_size=1)
SHUFFLED = Data(samples=13, shuffle=True)
ORDER = list(range(13))


def test_right_shards_breach_no_rule() -> None:
    """Strided shards, cyclic padding, and a shuffle that changes with the epoch violate no rule."""
    findings = dealt([[[0, 2], [1, 0]]], data=PADDED)
    assert {name for name, f in findings.items() if f.failure} == set()
    shuffled = dealt([[ORDER], [ORDER[::-1]]], data=SHUFFLED, epochs=(0, 1), batches=[13])
    assert {name for name, f in shuffled.items() if f.failure} == set()
    assert shuffled["SHARD-5"].compared == 1


SHARD_ALTERATIONS: list[tuple[str, str, Callable[[], dict[str, Finding]]]] = [
    ("SHARD-1", "unequal lengths", lambda: dealt([[[0, 2], [1]]], data=PADDED)),
    ("SHARD-1", "len lies", lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, lengths=[2, 3])),
    ("SHARD-1", "outside", lambda: dealt([[[0, 2], [1, 3]]], data=PADDED)),
    ("SHARD-2", "a sample is lost", lambda: dealt([[[0, 1], [1, 0]]], data=PADDED)),
    ("SHARD-2", "dropped although not asked", lambda: dealt([[[0], [1]]], data=PADDED)),
    (
        "SHARD-2",
        "drop_last repeats",
        lambda: dealt([[[0], [0]]], data=replace(PADDED, drop_last=True)),
    ),
    ("SHARD-3", "overlap", lambda: dealt([[[0, 1], [0, 1]]], data=Data(samples=4))),
    (
        "SHARD-3",
        "padding always the same sample",
        lambda: dealt([[[0], [0], [0], [1]]], data=Data(samples=2)),
    ),
    (
        "SHARD-4",
        "re-iteration differs",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, again=[[2, 0], [1, 0]]),
    ),
    (
        "SHARD-4",
        "touches a generator",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, touched=["torch"]),
    ),
    (
        "SHARD-4",
        "another process differs",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, elsewhere=[[[2, 0], [1, 0]]]),
    ),
    (
        "SHARD-4",
        "depends on earlier epochs",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, afresh=[[2, 0], [1, 0]]),
    ),
    ("SHARD-4", "the seed is ignored", lambda: dealt([[ORDER]], data=SHUFFLED, reseeded=[ORDER])),
    ("SHARD-5", "epoch ignored", lambda: dealt([[ORDER], [ORDER]], data=SHUFFLED, epochs=(0, 1))),
    (
        "SHARD-5",
        "changes unshuffled",
        lambda: dealt([[ORDER], [ORDER[::-1]]], data=Data(samples=13), epochs=(0, 1)),
    ),
    ("SHARD-6", "unequal batches", lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, batches=[2, 1])),
    ("SHARD-6", "len says more", lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, promised=[2, 4])),
    (
        "SHARD-10",
        "every worker the whole share",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, worked=[[[0, 2], [0, 2]], [[1], [0]]]),
    ),
    (
        "SHARD-10",
        "one lost",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, worked=[[[0], [2]], [[1], []]]),
    ),
    ("SHARD-6", "too few batches", lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, batches=[1, 1])),
    (
        "SHARD-8",
        "contiguous, declared strided",
        lambda: dealt(
            [[[0, 1], [2, 0]]],
            data=PADDED,
            orders=[[0, 1, 2]],
            declared=SamplerDeclarations(layout="strided"),
        ),
    ),
    (
        "SHARD-7",
        "accepted",
        lambda: dealt([[[0, 2], [1, 0]]], data=PADDED, refused={"rank below 0": None}),
    ),
]


@pytest.mark.parametrize(
    ("rule", "alteration", "judged"),
    SHARD_ALTERATIONS,
    ids=[f"{rule}-{title}" for rule, title, _ in SHARD_ALTERATIONS],
)
def test_shard_rule_fires(
    rule: str, alteration: str, judged: Callable[[], dict[str, Finding]]
) -> None:
    """A violation of the sampler rule is found."""
    assert judged()[rule].failure is not None, alteration


def test_what_has_no_len_is_not_asked_for_one() -> None:
    """An iterable without `len` is not asked for its length, but its indices are judged."""
    assert dealt([[[0, 2], [1, 0]]], data=PADDED, lengths=[None, None])["SHARD-1"].failure is None
    assert dealt([[[0, 2], [1]]], data=PADDED, lengths=[None, None])["SHARD-1"].failure is not None


def test_what_a_sampler_declares_is_what_it_is_judged_by() -> None:
    """A sampler is judged by the padding and the layout that it declares.

    Shards may be unequal if no padding is declared. Whole batches may be added if padding by batch
    is declared.
    """
    exact = dealt([[[0, 2], [1]]], data=PADDED, declared=SamplerDeclarations(padding="none"))
    assert {name for name, f in exact.items() if f.failure} <= {"SHARD-6"}
    repeated = dealt([[[0, 1], [0, 1]]], data=PADDED, declared=SamplerDeclarations(padding="none"))
    assert repeated["SHARD-3"].failure is not None
    by_batch = Data(samples=3, batch_size=2)
    shards = [[[0, 1], [2, 0]], [[0, 1, 2, 0], [1, 2, 0, 1]]]
    fits, too_many = (
        dealt([epoch_shards], data=by_batch, declared=SamplerDeclarations(padding="batch"))
        for epoch_shards in shards
    )
    assert fits["SHARD-3"].failure is None
    assert too_many["SHARD-3"].failure is not None
    strided = dealt(
        [[[0, 2], [1, 0]]],
        data=PADDED,
        orders=[[0, 1, 2]],
        declared=SamplerDeclarations(layout="strided"),
    )
    assert strided["SHARD-8"].failure is None
    assert strided["SHARD-8"].compared == 4


WHOLE, LATER, NEXT = [3, 1, 6, 0, 7, 4], [5, 2, 8, 9, 10, 11], [8, 1, 4, 7, 2, 6]
"""The two ranks' shuffled shards of epoch 1, and rank 0's shard of the next epoch."""


def went_on(rank: int, answer: dict[str, object], raised: dict[str, str] | None = None) -> Finding:
    """Return SHARD-9's finding about a sampler that gives one rank this answer when it resumes.

    Everything that `answer` leaves out is right.
    """
    case = ShardCase(
        world_size=2, data=Data(samples=12, batch_size=2, shuffle=True), epochs=(1,), saved_after=1
    )
    rows: list[dict[str, object]] = [
        {
            "taken": whole[:2],
            "rest": whole[2:],
            "loaded": whole[2:],
            "taken_again": whole[2:4],
            "twice": whole[4:],
            "repeated": whole,
            "fresh": whole[::-1],
            "following": [NEXT, NEXT],
            "after_leaving": [NEXT, NEXT],
            "lengths": [6, 6],
        }
        for whole in (WHOLE, LATER)
    ]
    rows[rank] |= answer
    plain: dict[str, object] = {
        "lengths": [6, 6],
        "shards": [[WHOLE, LATER]],
        "again": [WHOLE, LATER],
        "resumed": rows,
    }
    plain = {"refused": {}, **(plain if raised is None else {"raised": raised})}
    return judge(ShardEvidence(case, (plain, plain)))["SHARD-9"]


def test_shard9_holds_where_the_rest_is_yielded_and_the_next_epoch_is_whole() -> None:
    """SHARD-9 holds if the rest is yielded and the next epoch is whole.

    The case meets the middle of a later, shuffled epoch of several ranks.
    """
    finding = went_on(0, {})
    assert finding.failure is None
    assert finding.met == set(ALL_RULES["SHARD-9"].needs) - {"another world size"}
    assert finding.compared == 8


def test_shard9_lets_a_sampler_keep_its_place_in_an_epoch_that_was_left() -> None:
    """Without a resumption, it does not yield the whole next epoch either."""
    assert went_on(0, {"after_leaving": [NEXT[1:], NEXT[3:]]}).failure is None


def test_shard9_tells_a_resumed_sampler_that_never_yields_a_whole_epoch_again() -> None:
    """A resumed sampler that is iterated again without set_epoch yields the whole epoch."""
    failure = went_on(1, {"repeated": LATER[4:]}).failure
    assert failure is not None
    assert failure.fact == "a resumed sampler that is iterated again does not yield the whole epoch"
    assert (
        failure.perhaps
        == "the 4 indices consumed before the last save are skipped in every later iteration"
    )


@pytest.mark.parametrize(
    ("loaded", "following", "wrong"),
    [
        ([], NEXT, ""),
        (NEXT, NEXT, ""),
        (WHOLE, NEXT, "starts the same epoch over"),
        (WHOLE, WHOLE, ""),
        (WHOLE[1:], NEXT, "continues in the middle of one"),
    ],
)
def test_shard9_lets_a_state_saved_at_the_end_belong_to_either_epoch(
    loaded: list[int], following: list[int], wrong: str
) -> None:
    """A state saved at the end yields nothing or the next epoch; starting over is wrong.

    If two epochs have one order, nothing shows which of them it is. A part of an epoch is wrong.
    """
    answer = {"taken": WHOLE, "rest": [], "loaded": loaded, "following": [following, following]}
    failure = went_on(0, answer).failure
    assert (failure.fact if failure else "") == (
        f"a state saved at the end of an epoch {wrong}" if wrong else ""
    )


LEFT = [1, 6, 0, 7, 4, 2, 8, 9, 10]
"""The indices that are left after the two ranks took 3, 5 and 11."""


def taken_up(world_size: int, **changes: object) -> Finding:
    """Return SHARD-9's finding if this number of ranks loads the state.

    Everything that `changes` leaves out is right.
    """
    rest = [LEFT[rank::world_size] for rank in range(world_size)]
    longest = len(rest[0])
    rest = [(part + LEFT[:1])[:longest] for part in rest]
    whole = [WHOLE[:2], LATER[:2]]
    right: dict[str, object] = {
        "taken": [[3, 11], [5, 3]],
        "rest": rest,
        "once_more": rest,
        "following": whole,
        "fresh": whole,
    }
    case = ShardCase(
        world_size=2,
        data=Data(samples=12, batch_size=2, shuffle=True),
        epochs=(1,),
        saved_after=1,
        resumed_by=world_size,
    )
    rows = [
        {
            "taken": whole[:2],
            "rest": whole[2:],
            "loaded": whole[2:],
            "taken_again": whole[2:4],
            "twice": whole[4:],
            "repeated": whole,
            "fresh": whole[::-1],
            "following": [NEXT, NEXT],
            "after_leaving": [NEXT, NEXT],
            "lengths": [6, 6],
        }
        for whole in (WHOLE, LATER)
    ]
    plain: dict[str, object] = {
        "lengths": [6, 6],
        "shards": [[WHOLE, LATER]],
        "again": [WHOLE, LATER],
        "resumed": rows,
        "elsewhere": {**right, **changes},
        "refused": {},
    }
    return judge(ShardEvidence(case, (plain, plain)))["SHARD-9"]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_shard9_holds_where_ranks_of_another_number_share_what_is_left(world_size: int) -> None:
    """SHARD-9 holds if another number of ranks shares the rest, padded to equal lengths."""
    finding = taken_up(world_size)
    assert finding.failure is None
    assert ("another world size" in finding.met) == (world_size != 2)


@pytest.mark.parametrize(
    ("fact", "got", "changes"),
    [
        (
            "another number of ranks does not continue with the rest",
            "1 of the 9 remaining indices are lost, 1 consumed ones come again",
            {"rest": [[1, 6, 0, 7], [4, 2, 8, 9], [3]]},
        ),
        (
            "another number of ranks does not continue with the rest",
            "0 of the 9 remaining indices are lost, 3 consumed ones come again, 12",
            {"rest": [LEFT[:4], [*LEFT[4:8]], [*LEFT[8:], 3, 5, 11]]},
        ),
        (
            "a state that another number of ranks saves after a resumption does not continue",
            "before and after [[1, 6, 0], [4, 2, 8], [3, 9, 10]]; 1 of the 9 remaining indices",
            {"once_more": [[1, 6, 0], [4, 2, 8], [3, 9, 10]]},
        ),
        (
            "the epoch after one that another number of ranks resumed is wrong",
            "without a resumption",
            {"following": [[1]]},
        ),
    ],
)
def test_shard9_fires_where_ranks_of_another_number_go_on_wrongly(
    fact: str, got: str, changes: dict[str, object]
) -> None:
    """SHARD-9 reports how many indices were lost and how many came again."""
    failure = taken_up(3, **changes).failure
    assert failure is not None
    assert fact in failure.fact
    assert got in failure.got
    assert "loaded by 3 ranks" in failure.where


@pytest.mark.parametrize(
    ("fact", "cause", "answer"),
    [
        (
            "does not continue with the rest",
            "from the beginning: the 2 consumed indices are yielded again",
            {"loaded": WHOLE},
        ),
        (
            "does not continue with the rest",
            "nothing of the state is restored",
            {"loaded": WHOLE[::-1]},
        ),
        ("does not continue with the rest", "the saved epoch is lost", {"loaded": WHOLE[::-1][2:]}),
        (
            "does not continue with the rest",
            "off by one: the 1 indices after the 2 consumed are skipped",
            {"loaded": WHOLE[3:]},
        ),
        (
            "does not continue with the rest",
            "the whole rest of the epoch is skipped",
            {"loaded": []},
        ),
        ("does not continue with the rest", "the rest in another order", {"loaded": WHOLE[:1:-1]}),
        (
            "does not continue with the rest",
            "of another order: the state that fixes the order is lost",
            {"loaded": [9, 2, 5, 8]},
        ),
        ("state saved after a resumption does not", "the count starts anew", {"twice": WHOLE[2:]}),
        (
            "after a resumed one is not that of an uninterrupted run",
            "the skip stays for the next epoch",
            {"following": [NEXT, NEXT[2:]]},
        ),
        (
            "after a resumed one is not that of an uninterrupted run",
            "it is the resumed epoch again",
            {"following": [NEXT, WHOLE]},
        ),
        (
            "after a resumed epoch that was left early, the next one is not complete",
            "set_epoch changes nothing until the resumed iteration ends",
            {"after_leaving": [NEXT, WHOLE]},
        ),
        (
            "len(sampler) in the epoch after a resumed one is not that of an uninterrupted run",
            "missing from every later length",
            {"lengths": [6, 4]},
        ),
        (
            "len(sampler) in the epoch after a resumed one is not that of an uninterrupted run",
            "",
            {"lengths": [6, 5]},
        ),
        ("saving the state changes the indices", "", {"rest": [WHOLE[-1]]}),
        ("saving the state changes the indices", "", {"rest": WHOLE[3:]}),
    ],
)
def test_shard9_fires(fact: str, cause: str, answer: dict[str, object]) -> None:
    """SHARD-9 reports lost and repeated indices, and the cause if the evidence shows one."""
    failure = went_on(0, answer).failure
    assert failure is not None
    assert fact in failure.fact
    assert cause in failure.perhaps
    assert bool(cause) == bool(failure.perhaps)
    assert "rank 0, 12 samples over 2 ranks, epoch 1, saved after 2 of 6 indices" in failure.where


def test_shard9_tells_the_count_of_one_rank_from_all_and_a_batch_from_the_world() -> None:
    """SHARD-9 lists every cause that a short case leaves open, and prefers none of them."""
    failure = went_on(1, {"loaded": LATER[4:]}).failure
    assert failure is not None
    assert failure.perhaps == ""
    assert {cause.kind for cause in failure.causes} == {
        "times the world",
        "counted twice",
        "a batch ahead",
        "indices for batches",
    }
    assert "rank 1" in failure.where
    assert (
        "0 of the 2 consumed indices come again, 2 of the 4 remaining ones are lost" in failure.got
    )
    assert (
        {
            cause.kind
            for cause in went_on(  # type: ignore[union-attr]  # the rule fails
                1,
                {"loaded": LATER[1:]},
            ).failure.causes
        }
        == {
            "counted for all",
            "one behind",
            "batches for indices",
        }
    )


def test_shard9_is_not_judged_where_nothing_is_left_and_accuses_what_raises() -> None:
    """SHARD-9 is not judged if nothing is left, and fails if saving or loading raises.

    A state saved at an epoch's end may belong to either epoch. An exception during iteration is
    left to other rules.
    """
    assert (
        went_on(0, {"taken": WHOLE, "rest": [], "loaded": []}).compared == 4
    )  # Only rank 1 is compared.
    failure = went_on(
        0, {}, {"type": "KeyError", "phase": "resuming", "message": "'epoch'"}
    ).failure
    assert failure is not None
    assert failure.fact == "saving or loading a state raises"
    assert failure.got == "KeyError: 'epoch'"
    elsewhere = went_on(0, {}, {"type": "KeyError", "phase": "iteration", "message": "3"})
    assert elsewhere.failure is None
    assert elsewhere.unjudged


def test_shard5_is_not_judged_where_chance_could_repeat_an_order() -> None:
    """Two orders of a short dataset may be equal by chance, so SHARD-5 is not judged."""
    finding = dealt([[[0, 1]], [[0, 1]]], data=Data(samples=2, shuffle=True), epochs=(0, 1))[
        "SHARD-5"
    ]
    assert finding.failure is None
    assert finding.unjudged


@pytest.mark.parametrize(
    ("samples", "shards", "repeats"),
    [
        (12, [list(range(12))], True),
        (13, [list(range(13))], False),
        (13, [[], []], True),  # Fewer samples than ranks, of which the tail is dropped.
        (13, [[5], [7]], True),
        (1000, [[5], [7], [11]], True),
        (1000, [[5], [7], [11], [13]], False),
        (13, [list(range(13)), list(range(13))], False),
    ],
)
def test_orders_are_compared_only_if_none_repeats_by_chance(
    samples: int, shards: list[list[int]], repeats: bool
) -> None:
    """Two random orders of so many dealt samples give the same shards by a chance below 1e-9."""
    assert may_repeat(samples, shards) is repeats
