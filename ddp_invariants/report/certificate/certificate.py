"""The certificate of a session: plain data with one JSON form.

It states who was judged, by which tools, and with which result. `from_session.py` makes it at the end of
a session. The page for people is made from the certificate alone. The digest shows that nobody
changed the certificate after it was written. It is no signature and does not identify the author.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.fields import Strict
from ddp_invariants.implementation.declarations import in_list
from ddp_invariants.invariants.diagnosis.excerpts import Example
from ddp_invariants.records.verdict import Failure
from ddp_invariants.report.accounts import RuleAccount, RuleVerdict
from ddp_invariants.report.card import LevelAccount, card

INTERRUPTED = "the session was interrupted"
MOST_NAMES = 12
"""Capabilities without which cases were judged that are listed by name."""
FORM = 7
"""Version of the file format. A file of another version is refused."""

Result = Literal["certified", "violated", "inconclusive"]


@dataclass(frozen=True)
class Subject(Strict):
    """The implementation under test.

    Attributes:
        side: `ddp` or `sampler`.
        name: The name given in the options.
        target: The object that the name stands for.
        version: The version of the distribution it comes from, or `unversioned`.
        digest: SHA-256 of its source files' names and contents; empty if they cannot be read.
        files: Number of these files.
        first: The first of their names.
        declares: Its declarations, as lines of TOML.
        driven: The way it was driven, one line each.
    """

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
class Setting(Strict):
    """The tools, the place and the parameters of a session.

    Attributes:
        suite, torch, numpy, hypothesis, python: Versions.
        backend: The backend of the process groups.
        machine: The operating system and architecture.
        processor: The processor's model.
        cores: Number of cores that a process of the session may use.
        command: The command that started the session.
        seed: The seed of the search.
        cases: Number of cases per property.
        max_world_size: Largest world size drawn for training.
        isolation: The isolation between cases: whether ranks are kept.
        began: Start time, as ISO 8601 in UTC.
        seconds: Duration.
        shard: The part of a session that was split, as "3/10"; empty if it is whole.
    """

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
    shard: str = ""


@dataclass(frozen=True)
class CapabilityAccount(Strict):
    """The result of a capability: its standing, its declaration, and its expected deviation."""

    side: Literal["ddp", "sampler"]
    name: str
    meaning: str
    standing: Literal["right", "refused", "wrong", "crashes", "not offered", "not probed"]
    words: str = ""
    declared: bool = False
    expected: str = ""

    @property
    def summary(self) -> str:
        """The standing, with its excuse."""
        excuse = (
            ", expected" if self.expected else ", declared unsupported" if self.declared else ""
        )
        return self.standing + excuse


@dataclass(frozen=True)
class ViolationAccount(Strict):
    """A violation that fresh processes confirmed.

    Attributes:
        id: Its short name.
        by: The implementation that violates the rule.
        failure: The failure, without its stacks, which remain in the stored file.
        case: The smallest case that shows it.
        confirmed: (k, n): seen again in k of n runs.
        repeat: The command line that repeats it.
        shown: The example that a page shows.
    """

    id: str
    by: str
    failure: Failure
    case: TrainingCase | ShardCase
    confirmed: tuple[int, int]
    repeat: str
    shown: Example = field(default_factory=Example)


@dataclass(frozen=True)
class Properties(Strict):
    """The properties of a session, by progress.

    Attributes:
        planned: All properties that were planned.
        executed: Properties that ran to their end, as the workers report.
        reported: Properties for which pytest reported an outcome.
    """

    planned: tuple[str, ...]
    executed: tuple[str, ...]
    reported: tuple[str, ...]


@dataclass(frozen=True)
class Part(Strict):
    """A certificate of a part of a session, which was merged into another certificate.

    Attributes:
        shard: The part, as "3/10".
        digest: The digest of its certificate.
        cases: Number of cases judged.
        began: Start time, as ISO 8601 in UTC.
        command: The command that started the part.
    """

    shard: str
    digest: str
    cases: int
    began: str
    command: str


@dataclass(frozen=True)
class Certificate(Strict):
    """All data of a certificate.

    Attributes:
        outcome: The result of the session; if the certificate is partial, of the finished part.
        card: The result of each level, the most ordinary one first.
        partial: The reasons why the session is incomplete; empty if it is complete.
        subjects: The implementations under test.
        setting: The tools, the place and the parameters.
        cases: Number of cases judged.
        rules: The rules, in the order of the specification.
        capabilities: The capabilities, as probed before the properties.
        violations: Confirmed violations; those that explain others come first.
        deviations: Rules that are expected to fail, with the reasons.
        properties: Properties planned, executed and reported.
        sizes: Number of cases by kind, world size and dataset length (`search.coverage.Drawn`).
        dimensions: Number of cases by dimension and value.
        examples: One typical case of each kind.
        places: Number of runs by place: `simulated`, or the backend.
        unreal: Cases that failed only in the simulation, and do not count, with the rules.
        not_simulated: Why nothing was simulated; empty if cases were.
        dealt: Of all small cases of the sampler, the number that looked right, and the number of
            all; empty if they were not asked for.
        schedules: For each small case of which all schedules were run, their number.
        parts: The certificates that were merged into this one; empty if none were.
        digest: SHA-256 over all other fields.
    """

    outcome: Result
    card: tuple[LevelAccount, ...]
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
    places: dict[str, int]
    unreal: dict[str, str]
    not_simulated: str
    dealt: tuple[int, ...]
    schedules: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    form: int = FORM
    kind: Literal["certificate"] = "certificate"
    digest: str = ""

    @property
    def exceptions(self) -> list[str]:
        """The known faults that the certificate does not vouch for: declared or expected ones."""
        wrong = [
            f"{account.name} ({account.meaning}), {account.summary}"
            for account in self.capabilities
            if account.standing in ("wrong", "crashes") and (account.declared or account.expected)
        ]
        return wrong + [f"{rule}, {why}" for rule, why in self.deviations.items()]

    @property
    def without(self) -> str:
        """The capabilities that no case contains, in words; empty for none."""
        return left_out(
            (
                account.name,
                "declared unsupported" if account.declared else account.standing,
                account.words if account.standing == "not probed" else "",
            )
            for account in self.capabilities
        )

    def count(self, verdict: RuleVerdict) -> int:
        """Return the number of rules with a verdict."""
        return sum(account.verdict == verdict for account in self.rules)


def left_out(standings: Iterable[tuple[str, str, str]]) -> str:
    """Return the capabilities that no case contains, by reason; empty for none.

    A long list becomes a number. If a plain case fails, for example, nothing else is probed.

    Args:
        standings: For each capability: its name, its standing or that it is declared, and the
            reason why it was not probed.
    """
    reasons = ("declared unsupported", "not offered", "refused", "not probed")
    names: dict[str, list[str]] = {reason: [] for reason in reasons}
    for name, standing, why in standings:
        if standing in reasons:
            reason = standing + (f" ({why})" if why else "")
            names.setdefault(reason, []).append(in_list(name))
    return "; ".join(
        f"{reason}: "
        + (", ".join(listed) if len(listed) <= MOST_NAMES else f"{len(listed)} capabilities")
        for reason, listed in names.items()
        if listed
    )


def outcome(rules: Sequence[RuleAccount]) -> Result:
    """Return the session's result from the rules' verdicts.

    An open rule leaves it inconclusive, and so does a level without a verdict.
    """
    verdicts = {account.verdict for account in rules}
    if "violated" in verdicts:
        return "violated"
    settled = verdicts <= {"holds", "observed", "not claimed"} and "holds" in verdicts
    proved = all(level.verdict in ("certified", "not claimed") for level in card(rules))
    return "certified" if settled and proved else "inconclusive"


def shortfall(properties: Properties) -> tuple[str, ...]:
    """Return the reasons why planned properties have no reported result; empty if all have one."""
    reasons = []
    for verb, present in (
        ("did not run to their end", properties.executed),
        ("were not reported", properties.reported),
    ):
        missing = [rule for rule in properties.planned if rule not in present]
        if missing:
            listed = ", ".join(missing[:8]) + (
                f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            )
            reasons.append(
                f"{len(missing)} of {len(properties.planned)} properties {verb}: {listed}"
            )
    return tuple(reasons)


def to_json(certificate: Certificate) -> str:
    """Return the one JSON form of a certificate."""
    text = json.dumps(asdict(certificate), indent=1, ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair in a message cannot be written to a file, so it is replaced.
    return text.encode("utf-8", "replace").decode() + "\n"


def digest(certificate: Certificate) -> str:
    """Return the SHA-256 over the whole certificate except its digest."""
    return hashlib.sha256(to_json(replace(certificate, digest="")).encode()).hexdigest()


def sealed(certificate: Certificate) -> Certificate:
    """Return the certificate with its digest."""
    return replace(certificate, digest=digest(certificate))


def schema() -> str:
    """Return the JSON schema of a certificate, as it is shipped."""
    # Imported here: the import takes longer than a case takes to run.
    import pydantic

    made = pydantic.TypeAdapter(Certificate).json_schema()
    return (
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=1)
        + "\n"
    )
