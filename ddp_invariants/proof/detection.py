"""What the search for a planted fault came to, and what many such searches add up to."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Literal, get_args

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.proof.catalogue import Planted

Diagnosis = Literal["right", "wrong", "unknown"]
DIAGNOSES: tuple[Diagnosis, ...] = get_args(Diagnosis)


@dataclass(frozen=True)
class Detection:
    """What one search came to.

    Attributes:
        planted: What was on trial.
        seed: Of the search.
        cases: Drawn until the first breach, its own included; all where there was none.
        of_its_kind: Of these, those drawn as the first breach's was: what a property of their own
            would have drawn.
        seconds: Until then; 0 where there was none.
        sighted: The rule that explains the first breach, before it was shrunk; empty where there
            was none.
        rule: The one of the smallest case, confirmed in fresh processes; empty where nothing was
            confirmed.
        failed: All rules that the smallest case breaches.
        cause: What is named; empty where nothing is, or two causes cannot be told apart.
        told: What the report says is the case, and what was got: where no cause is named, this may
            say enough.
        case: The smallest case in words.
        size: What it takes: ranks, layers and steps, or ranks and samples.
        needs: What a case can contain that this one does (`contents`).
        reason: Why a breach that was seen is no violation.
    """

    planted: Planted
    seed: int
    cases: int
    of_its_kind: int = 0
    seconds: float = 0.0
    sighted: str = ""
    rule: str = ""
    failed: tuple[str, ...] = ()
    cause: str = ""
    told: str = ""
    case: str = ""
    size: str = ""
    needs: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_caught(self) -> bool:
        """By whichever rule."""
        return bool(self.rule)

    @property
    def is_right_rule(self) -> bool:
        """Whether the rule that names the fact is the one that was named."""
        return self.is_caught and self.rule in (self.planted.rule, self.planted.other_rule)

    @property
    def diagnosis(self) -> Diagnosis:
        """Whether the cause is the one that was planted."""
        if any(
            words and words in (self.cause or self.told)
            for words in (self.planted.cause, self.planted.other_cause)
        ):
            return "right"
        return "wrong" if self.cause else "unknown"


def from_plain(plain: dict[str, Any]) -> Detection:
    """A search as `answers.detected` writes it."""
    stored = {one.name: plain[one.name] for one in fields(Detection)}
    return Detection(
        **{
            **stored,
            "planted": Planted(**plain["planted"]),
            "failed": tuple(plain["failed"]),
            "needs": tuple(plain["needs"]),
        }
    )


@dataclass(frozen=True)
class Summary:
    """The searches for one fault together.

    Attributes:
        named: The rules named for the smallest cases, the most frequent first, with how often where
            there are several.
        sighted: The same of the first breaches.
        cases, own, seconds: Medians, of all cases until the first breach and of those of its kind.
        smallest: The search with the smallest case.
        causes: How often the cause was right, wrong or unknown, where it was.
    """

    named: str
    sighted: str
    cases: str
    own: str
    seconds: str
    smallest: Detection
    causes: str


def summary(searches: Sequence[Detection]) -> Summary:
    """Add up the searches for one fault."""
    caught = [one for one in searches if one.is_caught] or searches
    causes = Counter(one.diagnosis for one in searches if one.is_caught)
    return Summary(
        _counted(one.rule for one in searches),
        _counted(one.sighted for one in searches),
        f"{median(one.cases for one in caught):.0f}",
        f"{median(one.of_its_kind for one in caught):.0f}",
        f"{median(one.seconds for one in caught):.2f}",
        min(caught, key=lambda one: len(one.case)),
        ", ".join(f"{causes[one]} {one}" for one in DIAGNOSES if causes[one]),
    )


def _counted(rules: Iterable[str]) -> str:
    counts = Counter(rule or "nothing" for rule in rules).most_common()
    return (
        counts[0][0]
        if len(counts) == 1
        else ", ".join(f"{rule} {times}×" for rule, times in counts)
    )


def size(case: Case) -> str:
    """What a case takes, in a few words."""
    if isinstance(case, ShardCase):
        return f"W={case.world_size}, N={case.data.samples}"
    return f"W={case.world_size}, {_several(len(case.model.layers), 'layer')}, {_several(case.steps, 'step')}"


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


_CONTENTS: dict[str, Callable[[TrainingCase], bool]] = {
    "three ranks or more": lambda case: case.world_size > 2,
    **{
        name: capability.present
        for name, capability in TRAINING.items()
        if name not in ("sgd", "few")
    },
    "two layers or more": lambda case: len(case.model.layers) > 1,
    "two steps or more": lambda case: case.steps > 1,
    "activation": lambda case: any(layer.activation != "none" for layer in case.model.layers),
    "batch above one": lambda case: case.data.batch_size > 1,
    "fractions": lambda case: case.values == "real",
    "large or small values": lambda case: case.log2_scale != 0,
    "withheld results": lambda case: case.perturbation.kind == "withheld",
    "delayed collectives": lambda case: case.perturbation.kind in ("delays", "late"),
    "a rank's death": lambda case: case.kills,
    "repeated runs": lambda case: case.rounds > 1,
}
_DEALT: dict[str, Callable[[ShardCase], bool]] = {
    "one rank": lambda case: case.world_size == 1,
    "three ranks or more": lambda case: case.world_size > 2,
    "shuffle": lambda case: case.data.shuffle,
    "drop_last": lambda case: case.data.drop_last,
    "N not divisible by W": lambda case: case.data.samples % case.world_size != 0,
    "N < W": lambda case: case.data.samples < case.world_size,
    "no samples": lambda case: case.data.samples == 0,
    "batch above one": lambda case: case.data.batch_size > 1,
    "several epochs": lambda case: len(case.epochs) > 1,
    "an epoch above 0": lambda case: any(case.epochs),
    "a seed above 0": lambda case: case.data.seed > 0,
    "a DataLoader": lambda case: case.loader,
    "workers": lambda case: case.workers > 0,
}


def contents(case: Case) -> tuple[str, ...]:
    """What a case contains of all that can be drawn: in a smallest case, what the fault needs to show."""
    if isinstance(case, ShardCase):
        return tuple(name for name, is_there in _DEALT.items() if is_there(case))
    return tuple(name for name, is_there in _CONTENTS.items() if is_there(case))


DIMENSIONS = (*_CONTENTS, *(name for name in _DEALT if name not in _CONTENTS))
"""All that a case can contain beyond the simplest, by name."""


@dataclass(frozen=True)
class Totals:
    """What a set of searches adds up to.

    Attributes:
        searches: For planted faults.
        caught: Of these, by whichever rule.
        right_rule: By the rule that names the fact.
        right, wrong, unknown: Of those caught, by the cause named.
        median_cases: Drawn until the first breach, over what was caught.
        median_seconds: The same in seconds.
        control_cases: Cases judged of controls.
        accused: Controls with a confirmed violation.
    """

    searches: int = 0
    caught: int = 0
    right_rule: int = 0
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    median_cases: float = 0.0
    median_seconds: float = 0.0
    control_cases: int = 0
    accused: int = 0


def totals(detections: Iterable[Detection]) -> Totals:
    """Add up."""
    detections = list(detections)
    faults = [one for one in detections if one.planted.is_fault]
    controls = [one for one in detections if not one.planted.is_fault]
    caught = [one for one in faults if one.is_caught]
    causes = Counter(one.diagnosis for one in caught)
    return Totals(
        len(faults),
        len(caught),
        sum(one.is_right_rule for one in caught),
        causes["right"],
        causes["wrong"],
        causes["unknown"],
        median(one.cases for one in caught) if caught else 0.0,
        median(one.seconds for one in caught) if caught else 0.0,
        sum(one.cases for one in controls),
        sum(one.is_caught for one in controls),
    )
