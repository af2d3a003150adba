"""The ranks' answers to one request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.errors import EvidenceError
from ddp_invariants.processes.pace import Spent
from ddp_invariants.records.decoding import rank_evidence
from ddp_invariants.records.evidence import (
    Incident,
    Layout,
    RankEvidence,
    Slot,
    TrainingEvidence,
)
from ddp_invariants.records.trace import agreed


def is_readable(header: dict[str, Any]) -> bool:
    """Return whether an answer's general part has its form; the implementation may have sent it."""
    failed, altered = header.get("failed", _NO_FAILURE), header.get("altered", [])
    return (
        isinstance(header.get("facts", {}), dict)
        and isinstance(header.get("unusable", ""), str)
        and isinstance(header.get("exhausted", False), bool)
        and isinstance(failed, dict)
        and failed.keys() >= _NO_FAILURE.keys()
        and isinstance(altered, list)
        and all(isinstance(name, str) for name in altered)
    )


_NO_FAILURE = {"type": "", "message": "", "traceback": ""}
_OF_CONNECTIONS = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
"""The types of errors that torch raises if it cannot connect ranks; gloo raises the first."""


@dataclass(frozen=True)
class Answer:
    """A rank's answer to one request.

    Attributes:
        header: The plain part.
        blob: The raw bits.
    """

    header: dict[str, Any]
    blob: memoryview

    @property
    def raised(self) -> bool:
        """True if the implementation under test raised an exception."""
        return bool(self.header.get("facts", {}).get("raised"))

    @property
    def changed(self) -> bool:
        """True if the request changed global state of the process."""
        return bool(self.header.get("changed"))


@dataclass
class Answers:
    """The answers of the ranks, the incident that explains missing answers, and the time spent."""

    by_rank: dict[int, Answer] = field(default_factory=dict)
    incident: Incident | None = None
    spent: Spent = field(default_factory=Spent)

    def header(self, rank: int) -> dict[str, Any]:
        """Return the plain part of a rank's answer."""
        return self.by_rank[rank].header

    def drop_lost(self) -> None:
        """Drop the answers of ranks that could not connect; a peer has ended or is silent."""
        for rank, answer in [*self.by_rank.items()]:
            if answer.header.get("failed", _NO_FAILURE)["type"] in _OF_CONNECTIONS:
                del self.by_rank[rank]

    def altered(self) -> list[str]:
        """Return the names of the harness's own code that has been replaced in a rank.

        See [Note: fingerprint] in `ranks/fingerprint.py`.
        """
        answers = self.by_rank.values()
        return sorted({name for answer in answers for name in answer.header.get("altered", ())})


def training_evidence(
    case: TrainingCase, answers: Answers, printed: Callable[[int], str]
) -> TrainingEvidence:
    """Return the evidence of a training case; note an answer that cannot be read as an incident.

    Args:
        case: The case.
        answers: The ranks' answers.
        printed: A function that returns a rank's stacks and printed output.
    """
    ranks: list[RankEvidence] = []
    layouts: dict[tuple[Slot, ...], Layout] = {}
    for rank in case.members:
        evidence = RankEvidence({})
        if rank in answers.by_rank:
            answer = answers.by_rank[rank]
            try:
                evidence = rank_evidence(answer.header, answer.blob, layouts)
            except EvidenceError as error:
                answers.incident = Incident("died", {rank: str(error)}, {rank: printed(rank)}, 0.0)
        ranks.append(evidence)
    return TrainingEvidence(case, tuple(ranks), answers.incident)


def quiescent(ranks: list[int], answers: Answers, kept: int) -> bool:
    """Return whether the connections of the first `kept` groups may be used again.

    See [Note: quiescence] in observed.py.
    """
    if answers.incident is not None:
        return False
    every_rank = [answers.by_rank[rank] for rank in ranks]
    trained = [answer.header for answer in every_rank if answer.header.get("records")]
    return all(
        answer.header.get("quiescent") and not answer.changed and not answer.raised
        for answer in every_rank
    ) and all(_agreed(header, kept) == _agreed(trained[0], kept) for header in trained)


def _agreed(header: dict[str, Any], groups: int) -> list[list[list[Any]]]:
    """Return a rank's collectives in its first groups: the fields that all ranks must share."""
    return [[list(agreed(*row[:4])) for row in calls] for calls in header["sent"][:groups]]
