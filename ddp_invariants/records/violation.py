"""A stored violation: the case, the failure and the ranks' evidence.

Each is one JSON file, `.ddp-invariants/ID.json`. A reader need not trust the writer: fields are
checked strictly, every mistake becomes one sentence, and reading executes nothing.
"""

import base64
import difflib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, case_id
from ddp_invariants.cases.fields import Strict
from ddp_invariants.cases.formats import ITEM_SIZE
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.records.evidence import (
    Incident,
    RankEvidence,
    ShardEvidence,
    Tensors,
    TrainingEvidence,
)
from ddp_invariants.records.folder import FOLDER
from ddp_invariants.records.indices import packed
from ddp_invariants.records.verdict import Failure

FORM = 2
"""The form of a file. A file of another form is refused."""
MOST_EVIDENCE = 1 << 20
"""Most bytes of evidence that a file holds, as JSON."""
MOST_READ = 16 << 20
"""Bytes of the largest file that is read: the largest written has some 2 MiB."""


@dataclass(frozen=True)
class StoredTensor(Strict):
    """One tensor at one moment.

    Attributes:
        name: Its full name.
        dtype: None if there was no tensor.
        shape: Its shape.
        bits: Its elements in row-major order, little-endian, as base64.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    bits: str = ""

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in ITEM_SIZE:
            raise CaseError(f"{self.name!r} has the unknown dtype {self.dtype!r}")
        expected = 0 if self.dtype is None else prod(self.shape) * ITEM_SIZE[self.dtype]
        if len(self.raw()) != expected:
            raise CaseError(
                f"{self.name!r} has {len(self.raw())} bytes; its dtype and shape need {expected}"
            )

    def raw(self) -> bytes:
        """Return the bits.

        Raises:
            CaseError: They are no base64.
        """
        try:
            return base64.b64decode(self.bits, validate=True)
        except (
            ValueError
        ) as error:  # Characters beyond ASCII raise a ValueError that is no `binascii.Error`.
            raise CaseError(f"the bits of {self.name!r} are not valid base64: {error}") from error


@dataclass(frozen=True)
class StoredMoment(Strict):
    """A rank's tensors at one moment of a step; `evidence.Moment` lists the moments."""

    moment: str
    step: int
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True)
class StoredRank(Strict):
    """One rank's evidence.

    Attributes:
        moments: Its tensors.
        sent: Per group, the collectives it issued (`trace.Call`, as a row); empty if groups were
            plain.
        groups: Each group's ranks.
        raised: An exception that ended its run: phase, step, type, message, traceback.
        in_flight: Withheld collectives with a defect: step, collective, defect.
        backwards: When each synchronised backward began and ended, and when its gradients were
            computed.
        surfaced: The exception that a user got for an injected one.
        left: The resources left behind by each repetition.
        driven: The calls that drove the implementation, by moment.
        scales: The loss scale after each step.
    """

    moments: tuple[StoredMoment, ...] = ()
    sent: list[Any] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)
    raised: dict[str, Any] | None = None
    in_flight: list[Any] = field(default_factory=list)
    backwards: list[Any] = field(default_factory=list)
    surfaced: str | None = None
    left: list[Any] = field(default_factory=list)
    driven: dict[str, str] = field(default_factory=dict)
    scales: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class StoredEvidence(Strict):
    """The evidence of all ranks in the run that confirmed a violation.

    Attributes:
        ranks: Of a training case.
        answers: Of a question to a sampler: each process's.
        incident: The facts about ranks that hung or died: kind, ranks, stacks, seconds, and the
            last calls of each.
    """

    ranks: tuple[StoredRank, ...] = ()
    answers: tuple[dict[str, Any], ...] = ()
    incident: dict[str, Any] | None = None


@dataclass(frozen=True)
class StoredViolation(Strict):
    """A violation that can be repeated, inspected, and exported.

    Attributes:
        case: The case that was run.
        failure: The failure.
        ddp: The DDP under test.
        sampler: The sampler under test.
        confirmed: (k, n): seen again in k of n runs in fresh processes.
        torch: Its version.
        repeat: The command line that repeats it.
        evidence: Of a run that confirmed it; None if there is none or it was left out.
        left_out: Why the evidence was left out; empty if it was not.
        form: Version of the file format.
    """

    case: TrainingCase | ShardCase
    failure: Failure
    ddp: Ddp
    sampler: Sampler
    confirmed: tuple[int, int]
    torch: str
    repeat: str = ""
    evidence: StoredEvidence | None = None
    left_out: str = ""
    form: int = FORM
    kind: Literal["violation"] = "violation"

    @property
    def id(self) -> str:
        """Its short name."""
        return identifier(self.case, self.failure.rule, self.under_test)

    @property
    def under_test(self) -> str:
        """The violating implementation's name in a report."""
        return str(self.ddp if isinstance(self.case, TrainingCase) else self.sampler)


def identifier(case: Case, rule: str, implementation: str) -> str:
    """Return six hexadecimal digits that name a violation: one case may violate several rules."""
    return case_id(case, f"{rule} {implementation}")


def of(
    case: Case,
    failure: Failure,
    ddp: Ddp,
    sampler: Sampler,
    *,
    confirmed: tuple[int, int],
    repeat: str,
    evidence: TrainingEvidence | ShardEvidence | None,
) -> StoredViolation:
    """Make a stored violation; evidence that is too long is left out."""
    bare = StoredViolation(
        case, failure, ddp, sampler, confirmed, importlib.metadata.version("torch"), repeat
    )
    if evidence is None:
        return bare
    incident = None if evidence.incident is None else _incident(evidence.incident)
    # Counted before anything is encoded: base64 takes 4 bytes for 3.
    if isinstance(evidence, TrainingEvidence):
        size = sum(
            len(tensors.bits) * 4 // 3
            for rank in evidence.ranks
            for tensors in rank.tensors.values()
        )
        stored = (
            None
            if size > MOST_EVIDENCE
            else StoredEvidence(tuple(map(_rank, evidence.ranks)), (), incident)
        )
    else:
        stored = StoredEvidence((), tuple(map(packed, evidence.answers)), incident)
    size = size if stored is None else len(json.dumps(asdict(stored)))
    if size > MOST_EVIDENCE:
        return replace(
            bare,
            left_out=f"the evidence has {size / 2**20:.1f} MiB, more than the "
            f"{MOST_EVIDENCE >> 20} MiB that "
            "are stored; a replay records it again",
        )
    return replace(bare, evidence=stored)


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "kind": incident.kind,
        "ranks": {str(rank): how for rank, how in incident.ranks.items()},
        "stacks": {str(rank): text for rank, text in incident.stacks.items()},
        "seconds": incident.seconds,
        "calls": {
            str(rank): json.loads(json.dumps(calls)) for rank, calls in incident.calls.items()
        },
    }


def _rank(evidence: RankEvidence) -> StoredRank:
    moments = tuple(
        StoredMoment(moment, step, tuple(_tensors(noted)))
        for (moment, step), noted in evidence.tensors.items()
    )
    sent, in_flight, backwards = json.loads(
        json.dumps((evidence.sent, evidence.in_flight, evidence.backwards))
    )
    return StoredRank(
        moments,
        sent,
        evidence.groups,
        None if evidence.raised is None else evidence.raised._asdict(),
        in_flight,
        backwards,
        evidence.surfaced,
        evidence.left,
        dict(evidence.driven),
        evidence.scales,
    )


def _tensors(tensors: Tensors) -> Iterator[StoredTensor]:
    start = 0
    for slot in tensors.layout.slots:
        if slot.dtype is None:
            yield StoredTensor(slot.name)
            continue
        end = start + slot.nbytes
        yield StoredTensor(
            slot.name, slot.dtype, slot.shape, base64.b64encode(tensors.bits[start:end]).decode()
        )
        start = end


def try_to_write(violation: StoredViolation, path: Path) -> str:
    """Store a violation, and return why the file could not be written; empty if it was.

    The report must not be lost with the file, since it says more than the file's absence.
    """
    try:
        write(violation, path)
    except OSError as error:
        return f"{path} could not be written: {error.strerror}"
    return ""


def write(violation: StoredViolation, path: Path) -> None:
    """Store a violation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process may be ended at any moment.
    whole = path.with_name(f"{path.name}.{os.getpid()}")
    whole.write_text(json.dumps(asdict(violation)) + "\n", encoding="utf-8")
    whole.replace(path)


def is_stored(path: Path) -> bool:
    """Return whether a file exists; False in a folder that is closed to this user."""
    try:
        return path.exists()
    except OSError:
        return False


def find(name: str) -> Path:
    """Return the file of an id or path.

    Raises:
        CaseError: There is none; the message lists close ids, or the existing ones.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return path
    stored = FOLDER / f"{name}.json"
    if "/" not in name and stored.is_file():
        return stored
    raise CaseError(
        f"{name}: there is no {stored}, and no such file; "
        f"{_instead(name, sorted(FOLDER.glob('*.json')))}"
    )


def _instead(name: str, stored: Iterable[Path]) -> str:
    ids = [path.stem for path in stored]
    close = [
        identifier for identifier in ids if identifier.startswith(name)
    ] or difflib.get_close_matches(name, ids, 3)
    if close:
        return f"did you mean {' or '.join(close[:3])}?"
    if not ids:
        return f"nothing is stored in {FOLDER.absolute()}"
    return f"these are stored: {', '.join(ids[:12])}" + (
        f" and {len(ids) - 12} more" if len(ids) > 12 else ""
    )
