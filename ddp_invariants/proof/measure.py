"""The judge, measured on faults and controls.

For each planted fault, the measurement says if it is caught, by which rule, how soon, and with
which cause. For controls it counts false violations. Each search draws cases as a whole session
does: from the properties of all rules in turn, each case judged by all rules.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from multiprocessing import active_children, get_context
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryDirectory

from ddp_invariants.cases.case import Case, describe
from ddp_invariants.discovery.levels import uncommon, unimplied
from ddp_invariants.discovery.probe import of_ddp
from ddp_invariants.discovery.result import Discovery, Standing
from ddp_invariants.discovery.sampler_probe import of_sampler
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.discovery.unsettled import suspects
from ddp_invariants.errors import HarnessError, LoadFailure
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.processes.pool import DEADLINE, Pool
from ddp_invariants.proof.catalogue import CatalogueEntry
from ddp_invariants.proof.detection import Detection, contents, size
from ddp_invariants.ranks.host import die_with_parent
from ddp_invariants.records.verdict import Surveyed, Violation
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.places import REAL_WORLD_SIZE, SIMULATED_WORLD_SIZE
from ddp_invariants.search.runner import HUNG_DEADLINE
from ddp_invariants.search.trial import Options, Trial

CASES = 100
"""Cases per rule in a search for a fault, as in the default profile."""
_CONTROLS = 100_000
"""More than there are controls in a measurement."""


@dataclass(frozen=True)
class FaultSearch:
    """One search to be made.

    Attributes:
        planted: The implementation under test.
        seed: The seed of the search.
        cases: The largest number of cases; 0 for as many as a session draws.
        most_samples: The length of the longest dataset of a sampler's case; None for no limit.
        shrinks: False to confirm the first failing case as it is.
        not_simulated: The reason why no case is simulated; empty if cases may be.
        most_real: The largest number of training cases that run over the real backend instead of
            the simulation; None for no limit.
    """

    planted: CatalogueEntry
    seed: int
    cases: int = 0
    most_samples: int | None = None
    shrinks: bool = True
    not_simulated: str = ""
    most_real: int | None = None


def search(pool: Pool, fault_search: FaultSearch, store: Path) -> Detection:
    """Search for a failure of an implementation.

    An implementation that cannot be tested ends its own search only.

    Args:
        pool: The ranks.
        fault_search: The implementation under test, and the size of the search.
        store: Folder for violations.
    """
    try:
        return _searched(pool, fault_search, store)
    except (LoadFailure, HarnessError) as error:
        planted, seed = fault_search.planted, fault_search.seed
        loaded = isinstance(error, HarnessError)
        return Detection(planted, seed, 0, reason=str(error), loaded=loaded)


def _searched(pool: Pool, fault_search: FaultSearch, store: Path) -> Detection:
    planted, seed = fault_search.planted, fault_search.seed
    # A fault is known to be wrong, so its hangs need no long wait; a control may only be slow.
    pool.limit(HUNG_DEADLINE if planted.is_fault else DEADLINE)
    ddp, sampler = planted.under_test
    # A copy that cannot be loaded is told here: only its original is probed.
    pool.describe(sampler if planted.is_sampler else ddp)
    scope = replace(_scope(pool, *planted.probed), most_samples=fault_search.most_samples)
    if planted.derived_from is not None:
        # Where the right implementation is wrong itself, it would hide the fault.
        scope = replace(scope, without=scope.without | _wrong(pool, *planted.derived_from))
    if fault_search.not_simulated:
        most = min(scope.max_world_size, REAL_WORLD_SIZE)
        scope = replace(scope, max_world_size=most, not_simulated=fault_search.not_simulated)
    rules = [
        rule.id
        for rule in ALL_RULES.values()
        if rule.is_about_samplers == planted.is_sampler and rule.applies != "observed"
    ]
    budget, drawn, ran = fault_search.cases or CASES * len(rules), 0, Counter[str]()
    # A session would judge these cases, too: a right implementation must pass all of its probes.
    failed = () if planted.is_fault else _failed_probes(pool, *planted.probed)
    for number in count():
        options = Options(
            seed=seed + number * _CONTROLS,
            store=store,
            shrinks=fault_search.shrinks,
            suspects=failed,
            most_real=fault_search.most_real,
        )
        trial = Trial(pool, UnderTest(ddp, sampler, scope), options)
        survey = trial.survey(rules, budget - drawn)
        drawn += survey.cases
        if survey.sighting is None and planted.is_fault:
            # A session judges the cases of failed probes first. Here they come last, so that the
            # measure is about drawn cases.
            suspected = _failed_probes(pool, *planted.probed, without=scope.without)
            if suspected:
                trial.options = replace(options, suspects=suspected)
                survey = trial.survey(rules, 0)
                drawn += survey.cases
        ran += trial.ledger.ran
        weakness = _of_the_base(pool, planted, scope, survey.violation, store)
        if not weakness:
            break
        scope = replace(scope, without=scope.without | {weakness})
        survey = Surveyed(drawn)
        if drawn >= budget:
            break
    detection = Detection(
        planted,
        seed,
        drawn,
        refused=_refused(trial.ledger),
        simulated=ran["simulated"],
        real=ran[str(pool.backend)],
        executed=planted.executed,
    )
    if survey.sighting is None:
        return detection
    detection = replace(
        detection,
        of_its_kind=survey.sighting.of_its_kind,
        seconds=survey.sighting.seconds,
        first_rule=survey.sighting.failure.rule,
    )
    if survey.violation is None:
        return replace(detection, case=describe(survey.sighting.case), reason=survey.reason)
    failure, case = survey.violation.failure, survey.violation.case
    named = "" if len({cause.words for cause in failure.causes}) > 1 else failure.perhaps
    return replace(
        detection,
        rule=failure.rule,
        failed=survey.failed,
        cause=named,
        condition=failure.condition,
        failure_words="" if failure.causes else f"{failure.fact}; {failure.got}",
        case=describe(case),
        size=size(case),
        needs=contents(case),
    )


def _refused(ledger: Ledger) -> int:
    """Return the number of cases that the implementation refused, by an exception on every rank."""
    reasons = (entry.unjudged.items() for entry in ledger.entries.values())
    return max((sum(n for text, n in each if " raised " in text) for each in reasons), default=0)


def _scope(pool: Pool, ddp: Ddp, sampler: Sampler) -> Scope:
    """Return what the cases for an implementation may contain, as in a session.

    It is the same for all seeds.
    """
    discovery = _discovery(pool, ddp, sampler)
    return discovery.scope(REAL_WORLD_SIZE if discovery.not_simulated else SIMULATED_WORLD_SIZE)


def _wrong(pool: Pool, ddp: Ddp, sampler: Sampler) -> frozenset[str]:
    """Return the capabilities that an implementation has and gets wrong."""
    discovery = _discovery(pool, ddp, sampler)
    return frozenset(
        probed.capability
        for probed in (*discovery.ddp_probes, *discovery.sampler_probes)
        if probed.standing in (Standing.WRONG, Standing.CRASHED)
    )


def _failed_probes(
    pool: Pool, ddp: Ddp, sampler: Sampler, without: frozenset[str] = frozenset()
) -> tuple[tuple[str, Case], ...]:
    """Return the cases of probes whose failure nothing explains, each with the rule that failed.

    Args:
        pool: The ranks.
        ddp: The wrapper that is probed.
        sampler: The sampler that is probed.
        without: Capabilities whose probes do not count.
    """
    return suspects(_discovery(pool, ddp, sampler), REAL_WORLD_SIZE, without)


def _of_the_base(
    pool: Pool,
    planted: CatalogueEntry,
    scope: Scope,
    violation: Violation | None,
    store: Path,
) -> str:
    """Return the capability in which a violation shows a weakness of the fault's right base.

    Probes show most of such weaknesses, but not those that only some drawn cases meet.

    Args:
        pool: The ranks.
        planted: The fault.
        scope: The limits of its cases.
        violation: What a search has found.
        store: Folder for violations.

    Returns:
        The most special capability of the smallest case if the base fails there by the same rule;
        otherwise "".

    Raises:
        HarnessError: It fails there, and the case has nothing special that can be left out.
    """
    if violation is None or planted.derived_from is None:
        return ""
    case, rule = violation.case, violation.failure.rule
    base = Trial(pool, UnderTest(*planted.derived_from, scope), Options(store=store))
    found = base.findings(case, confirming=True, rule=rule).get(rule)
    if found is None or found.failure is None:
        return ""
    special = [name for name in unimplied(uncommon(case)) if name not in scope.without]
    if not special:
        raise HarnessError(f"its right base breaks {rule}, too, on {describe(case)}")
    return special[-1]


@cache
def _discovery(pool: Pool, ddp: Ddp, sampler: Sampler) -> Discovery:
    """Discover what a DDP and a sampler can do."""
    description = pool.describe(sampler)
    return replace(
        _discovered(pool, ddp),
        sampler=description,
        sampler_probes=of_sampler(pool, sampler, description, REAL_WORLD_SIZE),
    )


@cache
def _discovered(pool: Pool, ddp: Ddp) -> Discovery:
    """Discover what a DDP can do.

    No sampler is needed here, because every planted sampler runs beside the reference DDP.
    """
    return of_ddp(pool, ddp, pool.describe(ddp), REAL_WORLD_SIZE)


def searches(
    entries: Sequence[CatalogueEntry],
    seeds: int,
    control_cases: int,
    cases: int = 0,
    not_simulated: str = "",
    seed: int = 0,
    real_cases: int | None = None,
) -> list[FaultSearch]:
    """Return the searches for faults, and those on controls.

    Args:
        entries: Entries of the catalogue.
        seeds: Searches for each fault, each with its own seed.
        control_cases: Cases of all controls together. Each control gets one search with a seed of
            its own, so that controls with the same capabilities do not meet the same cases.
        cases: The largest number of cases of a search for a fault; 0 for as many as a session
            draws.
        not_simulated: The reason why no case is simulated; empty if cases may be.
        seed: Decides the seeds of the controls.
        real_cases: The largest number of training cases of all controls together that run over the
            real backend instead of the simulation; None for no limit. Samplers have no part in it.
    """
    controls = [entry for entry in entries if not entry.is_fault]
    share = -(-control_cases // max(len(controls), 1))
    wrappers = sum(not control.is_sampler for control in controls)
    real_share = None if real_cases is None else -(-real_cases // max(wrappers, 1))
    # Seed by seed, so that an interrupted run has results for all faults.
    faults = [entry for entry in entries if entry.is_fault]
    made = partial(FaultSearch, not_simulated=not_simulated)
    return [
        *(made(entry, seed, cases) for seed in range(seeds) for entry in faults),
        *(
            made(
                control,
                seed * _CONTROLS + number,
                share,
                most_real=None if control.is_sampler else real_share,
            )
            for number, control in enumerate(controls)
            if share
        ),
    ]


class Searcher:
    """The state of a process that searches: its own ranks, and a folder for violations."""

    def __init__(self, addresses: list[str], backend: Backend, store: Path) -> None:
        self.pool, self.store = Pool(addresses, backend=backend), store

    def __call__(self, fault_search: FaultSearch) -> Detection:
        """Make a search on these ranks."""
        return search(self.pool, fault_search, self.store)


_searcher: list[Searcher] = []


def _open(parent: int, addresses: list[str], backend: Backend, store: Path) -> None:
    # A killed parent ends nobody, and a search may take minutes.
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process ends this process.
    _searcher.append(Searcher(addresses, backend, store))
    # A multiprocessing child ends without running `atexit` functions.
    Finalize(None, _searcher[0].pool.close, exitpriority=10)


def _search(fault_search: FaultSearch) -> Detection:
    return _searcher[0](fault_search)


def measure(
    addresses: list[str],
    searches: Iterable[FaultSearch],
    workers: int,
    backend: Backend = ON_THE_CPU,
) -> Iterator[Detection]:
    """Run many searches at once, in separate processes, and yield each result as its search ends.

    Args:
        addresses: The addresses of the hosts.
        searches: The searches.
        workers: The number of processes; each drives its own ranks.
        backend: The backend over which ranks communicate, and the device of their tensors.
    """
    with TemporaryDirectory() as folder:
        executor = ProcessPoolExecutor(
            workers,
            mp_context=get_context("spawn"),
            initializer=_open,
            initargs=(os.getpid(), addresses, backend, Path(folder)),
        )
        try:
            for done in as_completed(
                [executor.submit(_search, fault_search) for fault_search in searches]
            ):
                yield done.result()
        except BaseException:
            # Mostly an interrupt: nobody waits for the running searches.
            for process in active_children():
                process.terminate()
            raise
        finally:
            executor.shutdown(cancel_futures=True)
