"""Tests of the judgement whether silent ranks hang, on handmade looks at their threads."""

from dataclasses import dataclass, field

import pytest

from ddp_invariants.processes.pace import Pace, Patience, Spent
from ddp_invariants.processes.stillness import INTERVAL, ISSUING, PATIENT, Looks, Silence
from ddp_invariants.processes.threads import IO_THREAD, Look, ThreadLook

MAIN, IO, PROGRAM = 10, 11, 12
SECOND = 1_000_000_000
PATIENCE = Patience(idle=10.0, busy=10.0, below=30.0)


@dataclass
class Ranks:
    """Two handmade ranks, each with a main thread and gloo's I/O thread."""

    silence: Silence = field(default_factory=lambda: Silence(PATIENCE))
    moment: float = 0.0
    issued: int = 0
    threads: dict[int, Look] = field(
        default_factory=lambda: {
            rank: {
                MAIN: ThreadLook("python", "S", SECOND, 0, 5),
                IO: ThreadLook(IO_THREAD, "S", SECOND, 0, 5),
            }
            for rank in (0, 1)
        }
    )

    def starts_a_program(self, rank: int) -> None:
        """Add the thread of a program that a rank has started."""
        self.threads[rank][PROGRAM] = ThreadLook("cc1plus", "S", 0, 0, 0, below=True)

    def change(
        self, rank: int, thread: int, *, state: str = "S", ran: float = 0.0, queued: float = 0.0
    ) -> None:
        """Give a thread a turn if it ran, and a state."""
        before = self.threads[rank][thread]
        self.threads[rank][thread] = ThreadLook(
            before.name,
            state,
            before.ran + int(ran * SECOND),
            before.queued + int(queued * SECOND),
            before.turns + (ran > 0) * 10,
            before.below,
        )

    def see(self, *, polls: tuple[int, ...] = (0, 1), issues: int = 0) -> None:
        """Look after another interval, in which the I/O threads of some ranks polled.

        Meanwhile the ranks issued some collectives.
        """
        self.issued += issues
        self.moment += INTERVAL
        for rank in polls:
            self.change(rank, IO, ran=0.0002)
        shown = {rank: dict(threads) for rank, threads in self.threads.items()}
        self.silence.see(Looks(self.moment, shown, self.issued))


def test_ranks_are_still_when_no_thread_has_run_over_several_looks() -> None:
    """A few looks at sleeping threads make a deadlock; I/O threads may poll meanwhile."""
    ranks = Ranks()
    ranks.see()
    assert not ranks.silence.is_still
    for _ in range(4):
        ranks.see()
    assert ranks.silence.is_still


def test_a_thread_that_ran_once_starts_the_looks_anew() -> None:
    """A thread that has run between two looks is not still, although it sleeps at both."""
    ranks = Ranks()
    for _ in range(5):
        ranks.see()
    ranks.change(1, MAIN, ran=0.00001)
    ranks.see()
    assert not ranks.silence.is_still


def test_a_starved_thread_is_not_still() -> None:
    """A thread that can run but is given no processor is no part of a deadlock."""
    ranks = Ranks()
    ranks.change(0, MAIN, state="R")
    for _ in range(20):
        ranks.see()
    assert not ranks.silence.is_still


def test_a_thread_that_waits_for_a_disk_is_not_still() -> None:
    """A thread in state D goes on when the disk answers."""
    ranks = Ranks()
    ranks.change(0, MAIN, state="D")
    for _ in range(20):
        ranks.see()
    assert not ranks.silence.is_still


def test_an_io_thread_that_did_not_run_may_have_a_message_to_handle() -> None:
    """Ranks are not still before each I/O thread has run often enough to handle any message."""
    ranks = Ranks()
    for _ in range(10):
        ranks.see(polls=(0,))
    assert not ranks.silence.is_still
    ranks.see()
    assert ranks.silence.is_still


def test_a_new_thread_starts_the_looks_anew() -> None:
    """A thread that appears, or ends, has been at work."""
    ranks = Ranks()
    for _ in range(5):
        ranks.see()
    ranks.threads[0][12] = ThreadLook("python", "S", 0, 0, 0)
    ranks.see()
    assert not ranks.silence.is_still
    del ranks.threads[0][12]
    ranks.see()
    assert not ranks.silence.is_still


def test_sleeping_ranks_hang_at_the_deadline() -> None:
    """Ranks that use no processor hang once the deadline has passed on the wall's clock."""
    ranks = Ranks()
    for _ in range(110):
        ranks.see()
    assert ranks.silence.over(10.0) is None
    assert ranks.silence.over(10.2) == "silent"


def test_a_rank_that_runs_hangs_when_it_has_used_the_deadline() -> None:
    """A rank that loops hangs once one thread has used as much processor time as the deadline."""
    ranks = Ranks()
    ranks.see()
    for _ in range(199):
        ranks.change(0, MAIN, state="R", ran=INTERVAL / 2, queued=INTERVAL)
        ranks.see()
    assert ranks.silence.over(ranks.moment) is None
    for _ in range(2):
        ranks.change(0, MAIN, state="R", ran=INTERVAL / 2, queued=INTERVAL)
        ranks.see()
    assert ranks.silence.over(ranks.moment) == "runs"


def test_a_long_run_that_still_issues_collectives_does_not_hang() -> None:
    """The limit on busy time starts anew with each collective, up to a multiple of it."""
    ranks = Ranks()
    for look in range(490):
        ranks.change(0, MAIN, state="R", ran=INTERVAL)
        ranks.see(issues=look % 90 == 0)
        assert ranks.silence.over(ranks.moment) is None
    for _ in range(12):
        ranks.change(0, MAIN, state="R", ran=INTERVAL)
        ranks.see(issues=1)
    assert ranks.silence.spent(ranks.moment).busy >= ISSUING * PATIENCE.busy
    assert ranks.silence.over(ranks.moment) == "runs"


def test_ranks_that_queue_for_a_processor_do_not_hang() -> None:
    """The time that threads queue for a processor does not count, up to a last resort."""
    ranks = Ranks()
    for _ in range(300):
        ranks.change(0, MAIN, ran=INTERVAL / 10, queued=INTERVAL * 9 / 10)
        ranks.see()
    assert ranks.silence.over(30.0) is None
    assert ranks.silence.over(10.0 * PATIENT) == "silent"


def test_a_rank_that_is_given_no_processor_at_all_does_not_hang() -> None:
    """A thread that queues the whole time has used nothing and slept not at all."""
    ranks = Ranks()
    ranks.change(0, MAIN, state="R")
    for _ in range(150):
        ranks.see()
    assert ranks.silence.over(15.0) is None


def test_the_grace_after_a_death_counts_the_ranks_own_time_too() -> None:
    """After a rank died the others get a shorter time, again without the time in the queue."""
    ranks = Ranks()
    ranks.see()
    ranks.silence.hasten(1.0, 2.0)
    assert ranks.silence.over(2.9) is None
    assert ranks.silence.over(3.1) == "silent"
    ranks.change(0, MAIN, ran=0.1, queued=5.0)
    ranks.see()
    assert ranks.silence.over(7.9) is None
    ranks.silence.hasten(7.9, 2.0)
    assert ranks.silence.over(8.1) == "silent"


def test_without_looks_the_clock_on_the_wall_decides() -> None:
    """Ranks on other machines or with devices hang at the deadline."""
    silence = Silence(PATIENCE)
    assert not silence.is_still
    assert silence.over(9.9) is None
    assert silence.over(10.0) == "silent"


def test_a_rank_that_used_a_processor_for_a_while_has_that_time_more() -> None:
    """A rank that imports for eight seconds may still idle for ten; before, it hung after ten."""
    ranks = Ranks()
    ranks.see()
    for _ in range(80):
        ranks.change(0, MAIN, state="R", ran=INTERVAL)
        ranks.see()
    ranks.change(0, MAIN)
    for _ in range(95):
        ranks.see()
    assert ranks.silence.over(ranks.moment) is None
    for _ in range(6):
        ranks.see()
    assert ranks.silence.over(ranks.moment) == "silent"


def test_a_program_that_a_rank_has_started_may_run_longer_than_a_rank() -> None:
    """A compiler is waited for, and a program that never ends meets a limit of its own."""
    ranks = Ranks()
    ranks.starts_a_program(0)
    ranks.see()
    for _ in range(290):
        ranks.change(0, PROGRAM, state="R", ran=INTERVAL)
        ranks.see()
    assert ranks.silence.over(ranks.moment) is None
    ranks.silence.hasten(ranks.moment, 2.0)
    assert ranks.silence.over(ranks.moment) is None
    for _ in range(12):
        ranks.change(0, PROGRAM, state="R", ran=INTERVAL)
        ranks.see()
    assert ranks.silence.over(ranks.moment) == "runs"
    assert ranks.silence.waited_below == pytest.approx(30.2)


def test_a_thread_that_polls_is_idle_between_its_looks() -> None:
    """A thread that wakes, finds nothing and sleeps again does not make a rank busy."""
    ranks = Ranks()
    for _ in range(104):
        ranks.change(0, MAIN, ran=INTERVAL / 50)
        ranks.see()
    assert ranks.silence.over(ranks.moment) == "silent"


def test_a_thread_that_waits_for_a_disk_is_busy() -> None:
    """An import from a slow disk is no idle time; a disk that never answers meets the limit."""
    ranks = Ranks()
    for _ in range(60):
        ranks.change(0, MAIN, state="D")
        ranks.see()
    assert ranks.silence.spent(ranks.moment).busy > 5


def test_a_pace_gives_the_first_case_more_and_later_ones_what_was_seen() -> None:
    """The first case has no usual deadline; later ones have it and twice what a case took."""
    pace = Pace()
    assert pace.patience(10.0) == Patience(30.0, 120.0, 120.0)
    pace.learn(Spent(idle=1.0, busy=20.0), ended=True)
    assert pace.patience(10.0) == Patience(12.0, 50.0, 160.0)
    pace.learn(Spent(idle=9.0, busy=9.0), ended=False)
    assert pace.patience(10.0) == Patience(12.0, 50.0, 160.0)
    hung = Pace()
    hung.learn(Spent(idle=30.0), ended=False)
    assert hung.patience(10.0) == Patience(10.0, 10.0, 120.0)
