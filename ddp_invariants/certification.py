"""Certify from Python: what a property written by somebody else is built on.

    certify(Implementation(ddp="my_package.ddp:MyDDP"), "GRAD-2")

Importing this module imports Hypothesis, and torch only in the ranks it starts.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.scope import OnTrial
from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.spec import Ddp, Sampler, named
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records import reading, violation
from ddp_invariants.records.verdict import NotJudged
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.trial import Options, Trial


@dataclass(frozen=True)
class Implementation:
    """A DDP and a sampler on trial, each named as the option of the command line that is called so names it.

    Attributes:
        ddp: `reference`, `torch`, `none`, `package.module:Name`, `path/to/file.py:Name`,
            `course:FILE#KIND`, or an entry point.
        ddp_arg: Arguments passed to it, each `name=value`.
        setup: Calls made first in every rank.
        start: Its method called before each step's batch.
        finish: Its method called after backward.
        after: A free function called after backward.
        opt: An optimizer class that shards or synchronises.
        opt_arg: Arguments passed to it.
        sampler: The sampler, named likewise.
        sampler_arg: Arguments passed to it.
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
        """Both, as the controller hands them to the ranks.

        Raises:
            NamingError: An argument cannot be read.
            DeclarationError: A declaration file cannot.
        """
        return named({one.name: getattr(self, one.name) for one in fields(self)})


def certify(
    implementation: Implementation,
    rules: str | Sequence[str] = (),
    cases: SearchStrategy[TrainingCase] | SearchStrategy[ShardCase] | None = None,
    *,
    examples: int = 100,
    seed: int = 0,
    max_world_size: int = 4,
    replay: str | Path = "",
    store: Path = violation.FOLDER,
    hosts: Hosts | None = None,
) -> Ledger:
    """Judge an implementation by some rules on drawn cases.

    Args:
        implementation: What is on trial.
        rules: Ids, such as `GRAD-2`; none for all.
        cases: What to draw from (`strategies`); None for what each rule's own property draws from.
        examples: Cases per rule.
        seed: Of the search.
        max_world_size: Most ranks a case may have.
        replay: A file with a stored violation or a case, which is judged instead of drawing any.
        store: Folder for violations.
        hosts: Fork servers to use; None for new ones, which take seconds to start.

    Returns:
        Every rule's account: of those that were asked for, and of the others on the same evidence.
        A rule that is not about what is on trial says so in it (`not_claimed`).

    Raises:
        Violation: Of the first rule that is breached, with the smallest case found, confirmed in
            fresh processes and stored.
        Inconclusive: A rule lacks its evidence.
        CaseError: There is nothing to replay in the file.
        LoadFailure: The implementation cannot be put on trial.
        HarnessError: The harness failed.
        KeyError: No rule is called so.
    """
    asked = [rules] if isinstance(rules, str) else list(rules) or list(ALL_RULES)
    for rule in asked:
        if rule not in ALL_RULES:
            raise KeyError(f"{rule}: no rule is called so")
    ddp, sampler = implementation.named
    with ExitStack() as ending:
        pool = ending.enter_context(Pool((hosts or ending.enter_context(Hosts())).addresses))
        found = probe.discover(pool, ddp, sampler, max_world_size)
        wrong = [*found.claims_refused(), *found.stale()]
        if wrong:
            raise LoadFailure(f"{ddp}: {wrong[0]}")
        options = Options(
            cases=examples,
            seed=seed,
            store=store,
            command="",
            replay=reading.read(Path(replay)) if replay else None,
        )
        trial = Trial(pool, OnTrial(ddp, sampler, found.scope(max_world_size)), options)
        for rule in asked:
            try:
                trial.certify(rule, cases)
            except NotJudged:
                continue  # The ledger says why.
    return trial.ledger
