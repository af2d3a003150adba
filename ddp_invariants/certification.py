"""Certification from Python, for properties that users write themselves.

    certify(Implementation(ddp="my_package.ddp:MyDDP"), "GRAD-2")

Importing this module imports Hypothesis. torch is imported only in the ranks that it starts.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ddp_invariants.cases.case import describe
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.discovery.unsettled import Unsettled, suspects, unsettled
from ddp_invariants.errors import UNUSABLE_INPUT, LoadFailure
from ddp_invariants.implementation.names import shipped_module
from ddp_invariants.implementation.spec import Ddp, Sampler, named
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records import reading
from ddp_invariants.records.folder import FOLDER
from ddp_invariants.records.verdict import Inconclusive, NotJudged, Violation
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.trial import Cases, Options, Trial

_REPORTS = (Violation, Inconclusive, *(kind for kind in UNUSABLE_INPUT if kind is not OSError))
"""The exceptions whose message is a whole report; an error of the system needs its stack."""


@dataclass(frozen=True)
class Implementation:
    """A DDP and a sampler under test, with the fields of the command line's options.

    Attributes:
        ddp: `reference`, `torch`, `none`, `package.module:Name`, `path/to/file.py:Name`,
            `course:FILE#KIND`, or an entry point.
        ddp_arg: Arguments passed to the DDP, each `name=value`.
        setup: Calls made first in every rank.
        start: The method of the wrapper that is called before each step's batch.
        finish: The method of the wrapper that is called after backward.
        after: A free function called after backward.
        opt: An optimizer class that shards or synchronises.
        opt_arg: Arguments passed to the optimizer.
        sampler: The sampler, named like `ddp`.
        sampler_arg: Arguments passed to the sampler, each `name=value`. A value may be one of the
            case, such as `WORLD_SIZE`.
        declare: A file of declarations.
    """

    ddp: str = "reference"
    ddp_arg: Sequence[str] = ()
    setup: Sequence[str] = ()
    start: str = ""
    finish: str = ""
    after: str = ""
    opt: str = ""
    opt_arg: Sequence[str] = ()
    sampler: str = "reference"
    sampler_arg: Sequence[str] = ()
    declare: str = ""

    @property
    def named(self) -> tuple[Ddp, Sampler]:
        """The DDP and the sampler, as the controller hands them to the ranks.

        Raises:
            NamingError: An argument cannot be read.
            DeclarationError: A declaration file cannot be read.
        """
        return named({field.name: getattr(self, field.name) for field in fields(self)})


def certify(
    implementation: Implementation,
    rules: str | Sequence[str] = (),
    cases: Cases | None = None,
    *,
    examples: int = 100,
    seed: int = 0,
    max_world_size: int = 4,
    replay: str | Path = "",
    store: Path = FOLDER,
    hosts: Hosts | None = None,
) -> Ledger:
    """Judge an implementation by some rules on drawn cases.

    Args:
        implementation: The implementation under test.
        rules: Ids, such as `GRAD-2`; empty for all rules, or for all rules about samplers if the
            implementation is only a sampler.
        cases: A strategy to draw from (`strategies`); None for the strategy of each rule's own
            property.
        examples: Cases per rule.
        seed: The seed of the search.
        max_world_size: The largest number of ranks in a case.
        replay: A file with a stored violation or a case. Only this case is judged, and none is drawn.
        store: Folder for violations.
        hosts: Fork servers to use; None for new ones, which take seconds to start.

    Returns:
        The account of each rule, requested or not, on the same evidence. Its `not_claimed` gives the
        reason if the rule does not apply to the implementation.

    Raises:
        Violation: A rule fails. The exception is about the first such rule, with the smallest case,
            confirmed in fresh processes and stored.
        Inconclusive: A rule lacks its evidence, or a probe shows a failure that no case met.
        CaseError: There is nothing to replay in the file.
        LoadFailure: The implementation cannot be tested.
        HarnessError: The harness failed.
        KeyError: A rule does not exist.
    """
    __tracebackhide__ = True  # pytest shows the line of the caller, and no line of the suite.
    rule_ids = _known(rules, implementation)
    try:
        ddp, sampler = implementation.named
        options = Options(
            cases=examples,
            seed=seed,
            store=store,
            command="",
            replay=reading.read(Path(replay)) if replay else None,
        )
        with ExitStack() as ending:
            if hosts is None:
                module = shipped_module(ddp.name, sampler.name)
                hosts = ending.enter_context(Hosts(module=module))
            pool = ending.enter_context(Pool(hosts.addresses))
            discovered = _discovered(pool, ddp, sampler, max_world_size, rule_ids)
            under_test = UnderTest(ddp, sampler, discovered.scope(max_world_size))
            options = replace(
                options,
                broken=discovered.broken,
                suspects=suspects(discovered, max_world_size),
            )
            ledger = _judged(Trial(pool, under_test, options), rule_ids, cases)
            if cases is None and not replay:
                _require_settled(ledger, [*unsettled(discovered, max_world_size)], rule_ids)
            return ledger
    except _REPORTS as report:
        # The suite's own stack would hide the message.
        raise report.with_traceback(None) from None


def _judged(trial: Trial, rules: Sequence[str], cases: Cases | None) -> Ledger:
    """Judge rules one after another, and return every rule's account."""
    for rule in rules:
        with suppress(NotJudged):  # The ledger holds the reason.
            trial.certify(rule, cases)
    return trial.ledger


def _known(rules: str | Sequence[str], implementation: Implementation) -> list[str]:
    """Return the ids of the requested rules; of all about an implementation if none was requested.

    Raises:
        KeyError: A rule does not exist.
    """
    __tracebackhide__ = True  # As above.
    # The fields of the reference: nobody asks for a judgement of that beside a sampler.
    alone = replace(implementation, sampler="reference", sampler_arg=(), declare="")
    of_sampler = implementation.sampler != "reference" and alone == Implementation()
    about = [name for name, rule in ALL_RULES.items() if rule.is_about_samplers or not of_sampler]
    rule_ids = [rules] if isinstance(rules, str) and rules else list(rules) or about
    for rule in rule_ids:
        if rule not in ALL_RULES:
            raise KeyError(f"{rule}: there is no such rule")
    return rule_ids


def _require_settled(ledger: Ledger, failures: list[Unsettled], rules: Sequence[str]) -> None:
    """Raise if a probe has shown a failure of a requested rule that no drawn case met.

    Raises:
        Inconclusive: There is such a failure.
    """
    ledger.enter_unsettled(failures)
    for _, failure, case in failures:
        if failure.rule in rules:
            raise Inconclusive(
                f"{failure.rule} was violated only outside the drawn cases, in {failure.where}: "
                f"{failure.fact}; {describe(case)}"
            )


def _discovered(
    pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int, rules: Sequence[str]
) -> Discovery:
    """Return the results of probing the sides of the implementation that some rules are about.

    Raises:
        LoadFailure: It cannot be tested.
    """
    sides = probe.sides_of(rules)
    discovered = probe.discover(pool, ddp, sampler, max_world_size, sides=sides)
    wrong = [*discovered.claims_refused(), *discovered.stale()]
    if wrong:
        raise LoadFailure(f"{ddp}: {wrong[0]}")
    return discovered
