"""The certificate of a session: who was judged, by what, and what came of it. Plain data with one JSON form.

Made of what the ledger, the discovery and pytest know of a whole session; a page for people is made
of nothing else. Its digest says that nobody changed it since; it is no signature, and does not say
who wrote it.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ddp_invariants import __version__
from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.fields import STRICT
from ddp_invariants.discovery.probe import Discovery, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES, to_toml
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.diagnosis.excerpts import Example
from ddp_invariants.records.verdict import Failure
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.search.ledger import Entry, Ledger

INTERRUPTED = "the session was interrupted"
FORM = 2
"""Of the file. A file of another form is refused."""

Said = Literal[
    "holds",
    "violated",
    "inconclusive",
    "not claimed",
    "not tested",
    "not finished",
    "not run",
    "observed",
]
Result = Literal["certified", "violated", "inconclusive"]


@dataclass(frozen=True)
class Subject:
    """What was judged.

    Attributes:
        side: `ddp` or `sampler`.
        name: As the options named it.
        target: What that stands for.
        version: Of the distribution it comes from, or `unversioned`.
        digest: SHA-256 of its source files' names and contents; empty where they cannot be read.
        files: How many these are.
        first: The first of their names.
        declares: What it declares, as lines of TOML.
        driven: How it was driven, a line each.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    side: Literal["ddp", "sampler"]
    name: str
    target: str
    version: str
    digest: str = ""
    files: int = 0
    first: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()
    driven: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """By what, where and how it was judged.

    Attributes:
        suite, torch, numpy, hypothesis, python: Versions.
        backend: Of the process groups.
        machine: The operating system and architecture.
        processor: Its model.
        cores: How many a process of the session may use.
        command: How the session was started.
        seed: Of the search.
        cases: Per property.
        max_world_size: Largest world size drawn for training.
        isolation: Whether ranks were kept between cases.
        began: When, as ISO 8601 in UTC.
        seconds: How long it took.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    suite: str
    torch: str
    numpy: str
    hypothesis: str
    python: str
    backend: str
    machine: str
    processor: str
    cores: int
    command: str
    seed: int
    cases: int
    max_world_size: int
    isolation: str
    began: str
    seconds: float


@dataclass(frozen=True)
class RuleAccount:
    """What came of a rule.

    Attributes:
        rule: Its id.
        requirement: What must hold.
        verdict: What came of it.
        judged: Cases it was judged on.
        compared: Things compared over all of them.
        needs: Situations without which it has proved nothing, each with the cases that met it.
        without: Those among its situations that what is on trial does not offer.
        worst: The largest error in units of its bound; None where that is no number.
        errors: Cases without an error, with one in each tenth of the bound, and beyond it.
        observed: Least and largest value of what is only observed.
        seen: Cases with a breach.
        confirmed: Violations that fresh processes showed again.
        why: Why it is not claimed, or was not run, or not all of it.
        unjudged: Why some cases could not be judged, and how many.
        failures: Breaches that were seen, by case; ten at most.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rule: str
    requirement: str
    verdict: Said
    judged: int
    compared: int
    needs: dict[str, int]
    without: tuple[str, ...]
    worst: float | None
    errors: tuple[int, ...]
    observed: tuple[float, ...] = ()
    seen: int = 0
    confirmed: int = 0
    why: str = ""
    unjudged: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CapabilityAccount:
    """What became of a capability: how it stands, whether that is declared, and the deviation that is expected of it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    side: Literal["ddp", "sampler"]
    name: str
    meaning: str
    standing: Literal["right", "refused", "silently wrong", "not offered", "not probed"]
    words: str = ""
    declared: bool = False
    expected: str = ""

    @property
    def said(self) -> str:
        """How it stands, with what excuses it."""
        excuse = (
            ", expected" if self.expected else ", declared unsupported" if self.declared else ""
        )
        return self.standing + excuse


@dataclass(frozen=True)
class ViolationAccount:
    """A violation that fresh processes confirmed.

    Attributes:
        id: Its short name.
        by: Who violates the rule.
        failure: What is wrong and where; its stacks are left to the stored file.
        case: The smallest case that shows it.
        confirmed: (k, n): seen again in k of n runs.
        repeat: The command line that repeats it.
        shown: What a page shows of it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    id: str
    by: str
    failure: Failure
    case: TrainingCase | ShardCase
    confirmed: tuple[int, int]
    repeat: str
    shown: Example = field(default_factory=Example)


@dataclass(frozen=True)
class Properties:
    """Whose properties were planned, which ran to their end as the workers say, and of which pytest heard an outcome."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    planned: tuple[str, ...]
    executed: tuple[str, ...]
    reported: tuple[str, ...]


@dataclass(frozen=True)
class Certificate:
    """All of it.

    Attributes:
        outcome: What came of it all; of a partial one, of what there is.
        partial: Why this is not all of it, a reason each; empty where it is.
        subjects: Who was judged.
        setting: By what, where and how.
        cases: How many were judged.
        rules: In the order of the specification.
        capabilities: As probed before the properties.
        violations: Confirmed ones, those first that explain the others.
        deviations: Rules that are expected to be breached, and why.
        properties: Planned, executed, reported.
        sizes: Cases by kind, world size and dataset length (`drawn.Drawn`).
        dimensions: Cases by dimension and value.
        examples: Of each kind of case one that shows well what it is.
        digest: SHA-256 over all the rest.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    outcome: Result
    partial: tuple[str, ...]
    subjects: tuple[Subject, ...]
    setting: Setting
    cases: int
    rules: tuple[RuleAccount, ...]
    capabilities: tuple[CapabilityAccount, ...]
    violations: tuple[ViolationAccount, ...]
    deviations: dict[str, str]
    properties: Properties
    sizes: dict[str, int]
    dimensions: dict[str, dict[str, int]]
    examples: dict[str, Example]
    form: int = FORM
    kind: Literal["certificate"] = "certificate"
    digest: str = ""

    @property
    def exceptions(self) -> list[str]:
        """What it does not vouch for, because it is declared or expected to be wrong."""
        wrong = [
            f"{one.name} ({one.meaning}), {one.said}"
            for one in self.capabilities
            if one.standing == "silently wrong" and (one.declared or one.expected)
        ]
        return wrong + [f"{rule}, {why}" for rule, why in self.deviations.items()]

    def count(self, verdict: Said) -> int:
        """How many rules have a verdict."""
        return sum(one.verdict == verdict for one in self.rules)


def outcome(rules: Iterable[RuleAccount]) -> Result:
    """What the rules' verdicts come to. A session proves nothing of which a rule is left open."""
    verdicts = {one.verdict for one in rules}
    if "violated" in verdicts:
        return "violated"
    return (
        "certified"
        if verdicts <= {"holds", "observed", "not claimed"} and "holds" in verdicts
        else "inconclusive"
    )


def shortfall(properties: Properties) -> tuple[str, ...]:
    """Why not all that was planned was heard of, a reason each; empty where it was."""
    told = []
    for verb, there in (
        ("did not run to their end", properties.executed),
        ("were not reported", properties.reported),
    ):
        missing = [rule for rule in properties.planned if rule not in there]
        if missing:
            listed = ", ".join(missing[:8]) + (
                f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            )
            told.append(f"{len(missing)} of {len(properties.planned)} properties {verb}: {listed}")
    return tuple(told)


@dataclass(frozen=True)
class Run:
    """What is known of a session beside its ledger and its discovery: how it was started, and what came back."""

    command: str
    seed: int
    cases: int
    max_world_size: int
    isolation: str
    backend: str
    began: str
    seconds: float
    reported: frozenset[str]
    interrupted: bool = False


def make(
    ledger: Ledger, found: Discovery, run: Run, violations: Mapping[str, StoredViolation]
) -> Certificate:
    """The certificate of a session.

    Args:
        ledger: The sum of all workers'.
        found: Who is on trial, and what it can do.
        run: The session.
        violations: What is stored of those the ledger confirmed, by file.
    """
    scope = found.scope(run.max_world_size)
    rules = tuple(_rule(rule, ledger, scope.unclaimed) for rule in ALL_RULES)
    properties = Properties(
        tuple(ALL_RULES),
        *(
            tuple(rule for rule in ALL_RULES if rule in some)
            for some in (ledger.ended, run.reported)
        ),
    )
    partial = (*((INTERRUPTED,) if run.interrupted else ()), *shortfall(properties))
    order = list(ALL_RULES)
    examples, shown = (_examples(some) for some in (ledger.examples, ledger.stored))
    accounts = [_violation(stored, shown[path]) for path, stored in violations.items()]
    setting = Setting(
        __version__,
        found.torch,
        importlib.metadata.version("numpy"),
        importlib.metadata.version("hypothesis"),
        platform.python_version(),
        run.backend,
        f"{platform.system()} {platform.release()} {platform.machine()}",
        _processor(),
        len(os.sched_getaffinity(0)),
        run.command,
        run.seed,
        run.cases,
        run.max_world_size,
        run.isolation,
        run.began,
        run.seconds,
    )
    return sealed(
        Certificate(
            outcome(rules),
            partial,
            (_subject("ddp", found), _subject("sampler", found)),
            setting,
            ledger.cases,
            rules,
            tuple(_capabilities(found)),
            tuple(sorted(accounts, key=lambda one: order.index(one.failure.rule))),
            dict(found.deviating),
            properties,
            dict(ledger.drawn.sizes),
            {name: dict(counts) for name, counts in ledger.drawn.dimensions.items()},
            examples,
        )
    )


def _processor() -> str:
    """The processor's model; its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _rule(rule: str, ledger: Ledger, unclaimed: frozenset[str]) -> RuleAccount:
    entry, known = ledger.entries.get(rule, Entry()), ALL_RULES[rule]
    said: Any = ledger.said(rule)
    without = sorted(unclaimed.intersection(known.needs))
    return RuleAccount(
        rule,
        known.requirement,
        said,
        entry.judged,
        entry.compared,
        {need: entry.met[need] for need in known.needs if need not in without},
        tuple(without),
        entry.worst if math.isfinite(entry.worst) else None,
        tuple(entry.errors),
        tuple(value for value in entry.observed if math.isfinite(value)),
        entry.seen,
        entry.confirmed,
        "; ".join(why for why in (entry.not_claimed, entry.not_run) if why),
        dict(entry.unjudged.most_common(5)),
        entry.failures,
    )


def _subject(side: Literal["ddp", "sampler"], found: Discovery) -> Subject:
    described, declared = (
        (found.ddp, found.declared) if side == "ddp" else (found.sampler, found.declared_sampler)
    )
    made_of = described.get("made_of") or {}
    driven = found.driven if side == "ddp" else described["driven"]
    return Subject(
        side,
        described["name"],
        described["target"],
        described["version"],
        made_of.get("digest", ""),
        made_of.get("files", 0),
        tuple(made_of.get("first", ())),
        tuple(to_toml(side, declared).splitlines()[1:]),
        tuple(driven),
    )


def _capabilities(found: Discovery) -> Iterable[CapabilityAccount]:
    sides: tuple[tuple[Literal["ddp", "sampler"], Any], ...] = (
        ("ddp", found.probed),
        ("sampler", found.dealt),
    )
    for side, probed in sides:
        for one in probed:
            yield CapabilityAccount(
                side,
                one.capability,
                CAPABILITIES[one.capability],
                one.standing.value,
                one.words,
                one.declared,
                one.expected if one.standing is Standing.WRONG else "",
            )


def _violation(stored: StoredViolation, shown: Example) -> ViolationAccount:
    return ViolationAccount(
        stored.id,
        stored.on_trial,
        replace(stored.failure, notes=""),
        stored.case,
        stored.confirmed,
        stored.repeat,
        shown,
    )


def _examples(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Example]:
    # Imported here: it takes longer to import than a case takes to run.
    import pydantic

    adapter = pydantic.TypeAdapter(dict[str, Example])
    return adapter.validate_json(json.dumps(plain))  # In JSON, what were tuples may be lists.


def to_json(certificate: Certificate) -> str:
    """The one JSON form of a certificate."""
    text = json.dumps(asdict(certificate), indent=1, ensure_ascii=False, allow_nan=False)
    # What no file can hold, half a surrogate pair in somebody's message, is replaced.
    return text.encode("utf-8", "replace").decode() + "\n"


def digest(certificate: Certificate) -> str:
    """SHA-256 over all of it but the digest."""
    return hashlib.sha256(to_json(replace(certificate, digest="")).encode()).hexdigest()


def sealed(certificate: Certificate) -> Certificate:
    """The certificate with its digest."""
    return replace(certificate, digest=digest(certificate))


def schema() -> str:
    """The JSON schema of a certificate, as it is shipped."""
    # Imported here, as above.
    import pydantic

    made = pydantic.TypeAdapter(Certificate).json_schema()
    return (
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=1)
        + "\n"
    )
