"""The judge, measured: which planted faults it catches, by which rule, how soon, with which cause; and whom it accuses falsely.

Each fault is searched for as a whole session would find it: cases of all rules' properties in turn,
each judged by all rules.
"""

import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import active_children, get_context
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryDirectory

from ddp_invariants.cases.case import describe
from ddp_invariants.discovery.probe import Discovery, of_ddp, of_sampler
from ddp_invariants.discovery.scope import OnTrial, Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.processes.pool import DEADLINE, Pool
from ddp_invariants.proof.catalogue import Planted
from ddp_invariants.proof.detection import Detection, contents, size
from ddp_invariants.search.trial import HUNG_DEADLINE, Options, Trial

CASES = 100
"""Cases per rule of a search for a fault, as in the default profile."""
MAX_WORLD_SIZE = 4


@dataclass(frozen=True)
class Job:
    """One search to be made: on what, with which seed, and with how many cases at most; 0 for as many as a session draws."""

    planted: Planted
    seed: int
    cases: int = 0


def search(pool: Pool, job: Job, store: Path) -> Detection:
    """Search for what is wrong with an implementation.

    Args:
        pool: Ranks.
        job: What is on trial, and how to search.
        store: Folder for violations.
    """
    planted, seed = job.planted, job.seed
    # What is known to be wrong need not be waited for as long as what may be right.
    pool.deadline = HUNG_DEADLINE if planted.is_fault else DEADLINE
    ddp, sampler = planted.on_trial
    trial = Trial(
        pool, OnTrial(ddp, sampler, _scope(pool, planted)), Options(seed=seed, store=store)
    )
    rules = [
        rule
        for rule in ALL_RULES
        if rule.startswith("SHARD") == planted.is_sampler and rule != "COMM-6"
    ]
    found = trial.survey(rules, job.cases or CASES * len(rules))
    if found.sighting is None:
        return Detection(planted, seed, found.cases)
    seen = partial(
        Detection,
        planted,
        seed,
        found.cases,
        found.sighting.of_its_kind,
        found.sighting.seconds,
        found.sighting.failure.rule,
    )
    if found.violation is None:
        return seen(case=describe(found.sighting.case), reason=found.reason)
    failure, case = found.violation.failure, found.violation.case
    named = "" if len({cause.words for cause in failure.causes}) > 1 else failure.perhaps
    return seen(
        rule=failure.rule,
        failed=found.failed,
        cause=named,
        told="" if failure.causes else f"{failure.fact}; {failure.got}",
        case=describe(case),
        size=size(case),
        needs=contents(case),
    )


@cache
def _scope(pool: Pool, planted: Planted) -> Scope:
    """What cases for it may contain; the same for all seeds."""
    ddp, sampler = planted.on_trial
    dealing = pool.describe(sampler)
    found = replace(
        _found(pool, ddp), sampler=dealing, dealt=of_sampler(pool, sampler, dealing, MAX_WORLD_SIZE)
    )
    return found.scope(MAX_WORLD_SIZE)


@cache
def _found(pool: Pool, ddp: Ddp) -> Discovery:
    """What is found out about a DDP: all samplers are planted beside the reference."""
    return of_ddp(pool, ddp, pool.describe(ddp), MAX_WORLD_SIZE)


def jobs(entries: Sequence[Planted], seeds: int, control_cases: int) -> list[Job]:
    """The searches for faults, and of controls.

    Args:
        entries: Of the catalogue.
        seeds: Searches for each fault, each with a seed of its own.
        control_cases: Cases of all controls together, each control's of one search: none is drawn
            twice.
    """
    controls = [one for one in entries if not one.is_fault]
    share = -(-control_cases // max(len(controls), 1))
    # Seed by seed, so that what an interrupt leaves is of all of them.
    return [
        *(Job(one, seed) for seed in range(seeds) for one in entries if one.is_fault),
        *(Job(one, 0, share) for one in controls if share),
    ]


class _Searcher:
    """What a process that searches holds: ranks of its own, and a folder for violations."""

    def __init__(self, addresses: list[str], backend: Backend, store: Path) -> None:
        self.pool, self.store = Pool(addresses, backend=backend), store

    def __call__(self, job: Job) -> Detection:
        return search(self.pool, job, self.store)


_searcher: list[_Searcher] = []


def _open(addresses: list[str], backend: Backend, store: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The process that started this one ends it.
    _searcher.append(_Searcher(addresses, backend, store))
    Finalize(
        None, _searcher[0].pool.close, exitpriority=10
    )  # Such a process ends without what `atexit` would do.


def _search(job: Job) -> Detection:
    return _searcher[0](job)


def measure(
    addresses: list[str], jobs: Iterable[Job], workers: int, backend: Backend = ON_THE_CPU
) -> Iterator[Detection]:
    """Make many searches at once, in processes of their own; what each came to, in the order they end.

    Args:
        addresses: Of the hosts.
        jobs: The searches.
        workers: Processes; each drives ranks of its own.
        backend: Over what ranks communicate, and where their tensors are.
    """
    with TemporaryDirectory() as folder:
        executor = ProcessPoolExecutor(
            workers,
            mp_context=get_context("spawn"),
            initializer=_open,
            initargs=(addresses, backend, Path(folder)),
        )
        try:
            for done in as_completed([executor.submit(_search, job) for job in jobs]):
                yield done.result()
        except (
            BaseException
        ):  # An interrupt, mostly: nobody waits for what is still being searched.
            for process in active_children():
                process.terminate()
            raise
        finally:
            executor.shutdown(cancel_futures=True)
