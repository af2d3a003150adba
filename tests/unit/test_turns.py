"""Turns of simulated ranks: one runs at a time, the order repeats, and a deadlock is known at once."""

import threading
from collections.abc import Callable

import pytest

from ddp_invariants.ranks.groups.simulated.order import Order
from ddp_invariants.ranks.groups.simulated.turns import NotSimulated, Turns
from ddp_invariants.situations.turns import TurnOrder

Rank = Callable[[Turns, list[object]], None]


def run(ranks: list[Rank], order: TurnOrder = "ranks", seed: int = 0) -> tuple[Turns, list[object]]:
    """Run ranks to their end or until none can run; return the turns and what the ranks noted."""
    turns = Turns(len(ranks), Order(order, seed, len(ranks)), lambda _before, _after: None)
    noted: list[object] = []

    def begin(number: int) -> None:
        turns.begin(number)
        ranks[number](turns, noted)
        turns.end(number)

    for number in range(len(ranks)):
        threading.Thread(target=begin, args=(number,), daemon=True).start()
    turns.start()
    assert turns.finished(10.0)
    return turns, noted


def noting(number: int) -> Rank:
    """Return a rank that notes its number before and after each of three pauses."""

    def rank(turns: Turns, noted: list[object]) -> None:
        for _ in range(3):
            noted.append(number)
            turns.pass_on()

    return rank


@pytest.mark.parametrize(
    ("order", "expected"), [("ranks", [0, 0, 0, 1, 1, 1]), ("reversed", [1, 1, 1, 0, 0, 0])]
)
def test_plain_orders_let_a_rank_run_until_it_waits(order: TurnOrder, expected: list[int]) -> None:
    """The lowest or the highest rank runs until it ends."""
    assert run([noting(0), noting(1)], order)[1] == expected


@pytest.mark.parametrize("order", ["random", "preempted"])
def test_a_drawn_order_repeats_and_depends_on_its_seed(order: TurnOrder) -> None:
    """One seed gives one order; over many seeds there are several."""
    ranks = [noting(number) for number in range(3)]
    orders = [run(ranks, order, seed)[1] for seed in range(12)]
    assert orders == [run(ranks, order, seed)[1] for seed in range(12)]
    assert len({tuple(noted) for noted in orders}) > 3


def test_a_rank_goes_on_once_its_condition_holds() -> None:
    """A waiting rank runs again after another rank has made its condition true."""

    def waits(turns: Turns, noted: list[object]) -> None:
        turns.wait(lambda: "sent" in noted, "a message")
        noted.append("received")

    def sends(_turns: Turns, noted: list[object]) -> None:
        noted.append("sent")

    turns, noted = run([waits, sends])
    assert noted == ["sent", "received"]
    assert turns.stuck == {}


def test_a_deadlock_is_known_without_a_clock() -> None:
    """If no rank can run, each rank's wait is reported in words, with its stack."""

    def waits(turns: Turns, noted: list[object]) -> None:
        turns.wait(lambda: len(noted) == 2, "a message that nobody sends")

    turns, _ = run([waits, noting(1)])
    assert turns.stuck == {0: "a message that nobody sends"}
    assert turns.unended().keys() == {0}
    assert "a message that nobody sends" in turns.stacks()[0]


def test_virtual_seconds_pass_when_all_ranks_wait() -> None:
    """A rank that sleeps an hour runs as soon as no other rank can."""

    def sleeps(turns: Turns, noted: list[object]) -> None:
        turns.sleep(3600.0)
        noted.append("late")

    assert run([sleeps, noting(1)])[1] == [1, 1, 1, "late"]


def test_a_thread_that_is_no_ranks_is_refused() -> None:
    """A thread of the implementation's own cannot take part."""
    errors: list[BaseException] = []

    def starts_a_thread(turns: Turns, _noted: list[object]) -> None:
        def aside() -> None:
            try:
                turns.wait(lambda: True, "anything")
            except NotSimulated as error:
                errors.append(error)

        thread = threading.Thread(target=aside)
        thread.start()
        thread.join()

    turns, _ = run([starts_a_thread])
    assert turns.refused == "it communicates from threads of its own"
    assert [str(error) for error in errors] == [turns.refused]
