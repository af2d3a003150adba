"""The result of a search for a planted fault, and the sums over many searches."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Literal, get_args

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.proof.catalogue import CatalogueEntry

Diagnosis = Literal["right", "wrong", "unknown", "unstated"]
DIAGNOSES: tuple[Diagnosis, ...] = get_args(Diagnosis)


@dataclass(frozen=True)
class Detection:
    """The result of one search.

    Attributes:
        planted: The implementation under test.
        seed: The seed of the search.
        cases: Cases drawn until the first failure, its own included; all cases if nothing failed.
        of_its_kind: Of these cases, those drawn by the same property as the first failure's. That
            property alone would have drawn this number.
        seconds: Time until the first failure; 0 if nothing failed.
        first_rule: The rule that explains the first failure, before shrinking; empty if nothing
            failed.
        rule: The rule of the smallest case, confirmed in fresh processes; empty if nothing was
            confirmed.
        failed: All rules that fail on the smallest case.
        cause: The cause that the diagnosis names; empty if it names none, or cannot tell two causes
            apart.
        condition: When the fault shows, from the neighbours of the smallest case; empty if no
            condition is known.
        failure_words: The report's fact and the value it got. If no cause is named, these words may name it.
        case: The smallest case in words.
        size: The size of the smallest case: ranks, layers and steps, or ranks and samples.
        needs: The possible contents that the smallest case has (`contents`).
        reason: The reason why an observed failure is no violation, or why no case was judged.
        refused: Of these cases, those that ended in an exception on every rank.
        simulated: The number of runs in the simulation.
        real: The number of runs over the real backend, or of a sampler.
        executed: The places of the statements that a copy marks and the ranks have executed
            (`mutants.overlay`).
        loaded: False if the implementation could not be loaded. If it was, and no case was judged,
            the harness failed.
    """

    planted: CatalogueEntry
    seed: int
    cases: int
    of_its_kind: int = 0
    seconds: float = 0.0
    first_rule: str = ""
    rule: str = ""
    failed: tuple[str, ...] = ()
    cause: str = ""
    condition: str = ""
    failure_words: str = ""
    case: str = ""
    size: str = ""
    needs: tuple[str, ...] = ()
    reason: str = ""
    refused: int = 0
    simulated: int = 0
    real: int = 0
    executed: tuple[str, ...] = ()
    loaded: bool = True

    @property
    def is_caught(self) -> bool:
        """True if any rule caught the fault."""
        return bool(self.rule)

    @property
    def is_right_rule(self) -> bool:
        """True if the rule that caught the fault is one that was expected."""
        return self.is_caught and self.rule in self.planted.rules

    @property
    def is_explained(self) -> bool:
        """True if a cause or a condition is named for the fault."""
        return self.is_caught and bool(self.cause or self.condition)

    @property
    def diagnosis(self) -> Diagnosis:
        """Return how the named cause compares with the planted one, which may not be stated."""
        if not self.planted.states_causes:
            return "unstated"
        if any(words in (self.cause or self.failure_words) for words in self.planted.causes):
            return "right"
        return "wrong" if self.cause else "unknown"


def from_plain(plain: dict[str, Any]) -> Detection:
    """Return the search that `report.machine.detection` wrote."""
    stored = {field.name: plain[field.name] for field in fields(Detection)}
    # The entry of a mutant has more fields, but no result depends on them.
    planted = {field.name: plain["planted"][field.name] for field in fields(CatalogueEntry)}
    planted["rules"] = tuple(planted["rules"])
    planted["causes"] = tuple(planted["causes"])
    for name in ("arguments", "fault", "kin"):
        planted[name] = tuple((argument, text) for argument, text in planted[name])
    return Detection(
        **{
            **stored,
            "planted": CatalogueEntry(**planted),
            "failed": tuple(plain["failed"]),
            "needs": tuple(plain["needs"]),
            "executed": tuple(plain["executed"]),
        }
    )


@dataclass(frozen=True)
class Summary:
    """The searches for one fault together.

    Attributes:
        named: The rules named for the smallest cases, the most frequent first; with counts if there
            are several.
        first_rule: The same for the first failures.
        cases, own, seconds: Medians until the first failure: of all cases, of the cases of its
            kind, and of the time.
        smallest: The search with the smallest case.
        causes: How often the named cause was right, wrong or unknown, or nothing to compare with.
    """

    named: str
    first_rule: str
    cases: str
    own: str
    seconds: str
    smallest: Detection
    causes: str


def summary(searches: Sequence[Detection]) -> Summary:
    """Summarise the searches for one fault."""
    caught = [search for search in searches if search.is_caught] or searches
    causes = Counter(search.diagnosis for search in searches if search.is_caught)
    return Summary(
        _counted(search.rule for search in searches),
        _counted(search.first_rule for search in searches),
        f"{median(search.cases for search in caught):.0f}",
        f"{median(search.of_its_kind for search in caught):.0f}",
        f"{median(search.seconds for search in caught):.2f}",
        min(caught, key=lambda search: len(search.case)),
        ", ".join(
            f"{causes[diagnosis]} {diagnosis}" for diagnosis in DIAGNOSES if causes[diagnosis]
        ),
    )


def _counted(rules: Iterable[str]) -> str:
    counts = Counter(rule or "nothing" for rule in rules).most_common()
    return (
        counts[0][0]
        if len(counts) == 1
        else ", ".join(f"{rule} {times}×" for rule, times in counts)
    )


def size(case: Case) -> str:
    """Return the size of a case, in a few words."""
    if isinstance(case, ShardCase):
        return f"W={case.world_size}, N={case.data.samples}"
    return (
        f"W={case.world_size}, {_several(len(case.model.layers), 'layer')}, "
        f"{_several(case.steps, 'step')}"
    )


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
    "tiny numbers and zeros": lambda case: case.values == "faint",
    "mostly zeros": lambda case: case.values == "scarce",
    "large or small values": lambda case: case.log2_scale != 0,
    "withheld results": lambda case: case.perturbation.kind == "withheld",
    "delayed collectives": lambda case: case.perturbation.kind in ("delays", "late"),
    "a rank's death": lambda case: case.kills,
    "repeated runs": lambda case: case.rounds > 1,
}
_SHARD_CONTENTS: dict[str, Callable[[ShardCase], bool]] = {
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
    "another way to ask": lambda case: bool(case.situations),
}


def contents(case: Case) -> tuple[str, ...]:
    """Return the possible contents that a case has.

    In a smallest case, these are the contents that the fault needs to show.
    """
    if isinstance(case, ShardCase):
        return tuple(name for name, is_there in _SHARD_CONTENTS.items() if is_there(case))
    return tuple(name for name, is_there in _CONTENTS.items() if is_there(case))


DIMENSIONS = (*_CONTENTS, *(name for name in _SHARD_CONTENTS if name not in _CONTENTS))
"""All contents that a case can have beyond the simplest case, by name."""


@dataclass(frozen=True)
class Totals:
    """The sums over a set of searches.

    Attributes:
        searches: Searches for planted faults.
        caught: Of these, searches in which any rule failed.
        right_rule: Of these, searches in which the expected rule failed.
        right, wrong, unknown, unstated: Of those caught, the searches by named cause.
        explained: Of those caught, the searches that name a cause or a condition.
        median_cases: Cases drawn until the first failure, over the searches that caught a fault.
        median_seconds: The same in seconds.
        controls: Controls that were judged on any case.
        unjudged: Controls that were not, for a reason that the search gives.
        control_cases: Cases judged on them.
        control_simulated: Their runs in the simulation.
        control_real: Their runs over the real backend, and those of samplers.
        false_violations: Controls with a confirmed violation.
    """

    searches: int = 0
    caught: int = 0
    right_rule: int = 0
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    unstated: int = 0
    explained: int = 0
    median_cases: float = 0.0
    median_seconds: float = 0.0
    controls: int = 0
    unjudged: int = 0
    control_cases: int = 0
    control_simulated: int = 0
    control_real: int = 0
    false_violations: int = 0


def totals(detections: Iterable[Detection]) -> Totals:
    """Add up a set of searches."""
    detections = list(detections)
    faults = [search for search in detections if search.planted.is_fault]
    controls = [search for search in detections if not search.planted.is_fault]
    caught = [search for search in faults if search.is_caught]
    causes = Counter(search.diagnosis for search in caught)
    return Totals(
        len(faults),
        len(caught),
        sum(search.is_right_rule for search in caught),
        causes["right"],
        causes["wrong"],
        causes["unknown"],
        causes["unstated"],
        sum(search.is_explained for search in caught),
        median(search.cases for search in caught) if caught else 0.0,
        median(search.seconds for search in caught) if caught else 0.0,
        len({search.planted for search in controls if search.cases}),
        sum(not search.cases for search in controls),
        sum(search.cases for search in controls),
        sum(search.simulated for search in controls),
        sum(search.real for search in controls),
        sum(search.is_caught for search in controls),
    )
