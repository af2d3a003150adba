"""Mutants as implementations under test, and the results of the searches for their failures.

A mutant is searched for like a planted fault. Its cases may contain all that the original can do:
the original is probed, never the mutant. A mutant that raises where the original works is
therefore a failure, and no refusal.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ddp_invariants.errors import NamingError
from ddp_invariants.implementation.names import misnamed
from ddp_invariants.implementation.spec import OPTIONS, Ddp, Sampler, named
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.proof.catalogue import CatalogueEntry
from ddp_invariants.proof.detection import Detection
from ddp_invariants.proof.mutants import overlay
from ddp_invariants.proof.mutants.explanations import explained
from ddp_invariants.proof.mutants.operators import Mutant, mutants

Part = Literal["ddp", "sampler", "opt"]
PARTS: tuple[Part, ...] = get_args(Part)
Result = Literal[
    "killed", "refused", "survived", "explained", "not executed", "not loaded", "failed"
]
RESULTS: tuple[Result, ...] = get_args(Result)


@dataclass(frozen=True)
class Target:
    """The implementation whose mutants are made.

    Attributes:
        part: The part of training that it is.
        name: Its name, as the option of that part takes it.
    """

    part: Part
    name: str

    def __str__(self) -> str:
        """Return the target as the command takes it."""
        return self.name if self.part == "ddp" else f"{self.part}:{self.name}"

    @property
    def under_test(self) -> tuple[Ddp, Sampler]:
        """The target, with the reference as the other parts."""
        given = {
            name.removeprefix("--").replace("-", "_"): [] if option.repeatable else option.default
            for name, option in OPTIONS.items()
        }
        return named({**given, self.part: self.name})

    def copied(self, file: Path, attribute: str) -> tuple[Ddp, Sampler]:
        """Return the same, but with a copy of the target."""
        (ddp, sampler), name = self.under_test, f"{file}:{attribute}"
        if self.part == "sampler":
            return ddp, replace(sampler, name=name)
        if self.part == "opt":
            return replace(ddp, optimizer=name), sampler
        return replace(ddp, name=name), sampler


def target(text: str) -> Target:
    """Read a target: a name, with `sampler:` or `opt:` before it if it is no DDP.

    Raises:
        NamingError: The name has no form that the option takes.
    """
    part: Part = "ddp"
    for prefix in PARTS:
        if text.startswith(f"{prefix}:"):
            part, text = prefix, text.removeprefix(f"{prefix}:")
    wrong = misnamed(text, part)
    if wrong:
        raise NamingError(wrong)
    return Target(part, text)


@dataclass(frozen=True)
class CopyEntry(CatalogueEntry):
    """A copy of an implementation as an entry of a catalogue.

    Attributes:
        of: The target that is copied.
        attribute: The qualified name of its class or function.
    """

    of: Target = Target("ddp", "reference")
    attribute: str = ""

    @property
    def target(self) -> str:
        """Return the name that `--ddp` or `--sampler` takes."""
        return f"{self.file}:{self.attribute}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """Return the target and the name of the change; each run has copies in a new folder."""
        return str(self.of), self.name

    @property
    def executed(self) -> tuple[str, ...]:
        """Return the places of its marked statements that a rank has executed."""
        return overlay.executed(Path(self.file))

    @property
    def under_test(self) -> tuple[Ddp, Sampler]:
        """Return this copy, with the reference as the other parts."""
        return self.of.copied(Path(self.file), self.attribute)

    @property
    def probed(self) -> tuple[Ddp, Sampler]:
        """Return the original, whose capabilities decide what cases may contain."""
        return self.of.under_test


@dataclass(frozen=True)
class Judged:
    """The result for one mutant.

    Attributes:
        mutant: The mutant.
        result: `killed` if a rule failed; `refused` if the mutant raises on all ranks in more cases
            than the original; `explained` if the table of survivors has it; `not executed` if no
            case reached the change; `not loaded` if the copy cannot be imported; `failed` if the
            harness could not judge it.
        rule: The rule that failed; empty unless it was killed.
        cases: The number of cases until then, or of all cases.
        words: The argument of an explained survivor, or the reason why it was not judged.
    """

    mutant: Mutant
    result: Result
    rule: str = ""
    cases: int = 0
    words: str = ""


def chosen(
    original: overlay.Original,
    *,
    whole: bool = False,
    operators: Iterable[str] = (),
    lines: tuple[int, int] | None = None,
    sample: int = 0,
    seed: int = 0,
) -> list[Mutant]:
    """Return the mutants to judge, in the order of the source.

    Args:
        original: The source.
        whole: True for the whole module; otherwise the class or function alone.
        operators: The operators to use; none for all.
        lines: The first and last line of the changes; None for all lines.
        sample: The number of mutants to draw at random; 0 for all.
        seed: Decides which are drawn.
    """
    found = [
        mutant
        for mutant in mutants(original.tree(), "" if whole else original.attribute)
        if (not operators or mutant.operator in operators)
        and (lines is None or lines[0] <= mutant.line <= lines[1])
    ]
    if sample and sample < len(found):
        numbers = random.Random(seed).sample(range(len(found)), sample)
        found = [found[number] for number in sorted(numbers)]
    return found


def entries(
    of: Target, original: overlay.Original, altered: Sequence[Mutant], folder: Path
) -> list[CatalogueEntry]:
    """Write the copies, and return each as an entry: the unaltered copy first, a control."""
    rules = tuple(
        rule.id for rule in ALL_RULES.values() if rule.is_about_samplers == (of.part == "sampler")
    )
    written: list[CatalogueEntry] = []
    for number, mutant in enumerate([None, *altered]):
        file = folder / f"mutant_{number}.py"
        overlay.write(original, mutant, file)
        written.append(
            CopyEntry(
                "mutants",
                "an unaltered copy" if mutant is None else mutant.operator,
                "unaltered" if mutant is None else mutant.name,
                f"a copy of {of}",
                str(original.file),
                () if mutant is None else rules,
                part="optimizer" if of.part == "opt" else of.part,
                file=str(file),
                of=of,
                attribute=original.attribute,
            )
        )
    return written


def is_reached(mutant: Mutant, unaltered: Detection) -> bool:
    """Return whether any case of the unaltered copy executed the statement that a mutant changes.

    If none did, the same cases cannot distinguish the mutant: it is not searched.
    """
    return mutant.statement in unaltered.executed


def judged(of: Target, mutant: Mutant, detection: Detection, unaltered: Detection) -> Judged:
    """Return the result of the search for a mutant's failure.

    Args:
        of: The target.
        mutant: The mutant.
        detection: The result of its search, or that of the unaltered copy if no case reached it.
        unaltered: The result of the search of the unaltered copy, which was given the same cases.
    """
    if detection.is_caught:
        return Judged(mutant, "killed", detection.rule, detection.cases)
    if not detection.cases:
        return Judged(
            mutant, "failed" if detection.loaded else "not loaded", words=detection.reason
        )
    if detection.refused > unaltered.refused:
        words = f"refuses {detection.refused} cases, the original {unaltered.refused}"
        return Judged(mutant, "refused", cases=detection.cases, words=words)
    arguments, is_executed = explained().get(str(of), {}), mutant.statement in detection.executed
    argument = arguments.get(mutant.name, "")
    if not is_executed:
        argument = argument or arguments.get(mutant.definition, "")
    if argument:
        return Judged(mutant, "explained", cases=detection.cases, words=argument)
    result: Result = "survived" if is_executed else "not executed"
    return Judged(mutant, result, cases=detection.cases, words=detection.reason)
