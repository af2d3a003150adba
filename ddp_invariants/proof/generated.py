"""Populations of composed implementations: wrong ones, each shown wrong before it counts, and right ones."""

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from ddp_invariants.errors import HarnessError
from ddp_invariants.faults.generated.choices import (
    PARTS,
    WRAPPERS,
    Composition,
    balanced,
    faulty,
    hosts,
)
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.proof.catalogue import CatalogueEntry

Witness = Callable[[Sequence[Composition]], dict[Composition, str]]
"""Returns those of some compositions that are wrong, each with a sentence that shows it."""
WITNESS = "ddp_invariants.faults.generated.witness"
CASES = 300
"""Largest number of cases in a search for a composed fault."""
CONTROLS = 16
"""Right compositions of each part that serve as controls."""
_BATCH = 50
"""Compositions that a witness tries at once."""


def wrong(seed: int) -> Iterator[Composition]:
    """Yield all compositions with a fault, in an order that a seed decides.

    A quarter are samplers, as long as there are some.
    """
    samplers = faulty(("sampler",), random.Random(f"samplers {seed}"))
    for number, wrapper in enumerate(faulty(WRAPPERS, random.Random(f"wrappers {seed}"))):
        yield wrapper
        if number % 3 == 2:
            yield from itertools.islice(samplers, 1)


def witnessed(compositions: Sequence[Composition]) -> dict[Composition, str]:
    """Return the compositions that are shown wrong in plain torch, each with a sentence.

    Raises:
        HarnessError: The witness failed.
    """
    process = subprocess.run(
        [sys.executable, "-m", WITNESS],
        input=json.dumps([asdict(composition) for composition in compositions]),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise HarnessError(f"the witness failed: {process.stderr.strip().splitlines()[-1:]}")
    sentences: Mapping[str, str] = json.loads(process.stdout)
    return {compositions[int(number)]: words for number, words in sentences.items()}


def population(count: int, seed: int, witness: Witness = witnessed) -> list[CatalogueEntry]:
    """Return composed faults that are shown wrong.

    Args:
        count: Their number. There are fewer if fewer exist.
        seed: Decides which.
        witness: The witness.

    Raises:
        HarnessError: The witness failed.
    """
    entries: list[CatalogueEntry] = []
    every = wrong(seed)
    while len(entries) < count and (
        batch := [*itertools.islice(every, min(_BATCH, count - len(entries)))]
    ):
        entries += [_entry(composition, words) for composition, words in witness(batch).items()]
    return entries


def right(seed: int, count: int = CONTROLS * len(PARTS)) -> list[CatalogueEntry]:
    """Return compositions without a fault, as controls, in which all choices are about as frequent.

    Args:
        seed: Decides which.
        count: Their number; all of them if fewer exist.
    """
    shuffled = random.Random(f"controls {seed}")
    entries: list[CatalogueEntry] = []
    # The smallest part first, so that the others share what it lacks.
    for left, part in zip(
        range(len(PARTS), 0, -1), sorted(PARTS, key=lambda part: len(hosts(part))), strict=True
    ):
        share = -(-(count - len(entries)) // left)
        entries += map(_entry, balanced(part, share, shuffled))
    return entries


def _entry(composition: Composition, witness: str = "") -> CatalogueEntry:
    return CatalogueEntry(
        "generated",
        f"composed: {composition.part}",
        composition.name,
        composition.words,
        "composed",
        tuple(_rules(composition)) if composition.operator else (),
        _causes(composition),
        part="sampler" if composition.is_sampler else "ddp",
        docstring=f"{composition.words}. Witness: {witness}" if witness else composition.words,
        file=PARTS[composition.part].target,
        arguments=composition.host_arguments,
        fault=composition.fault_arguments,
        kin=composition.kin.host_arguments,
    )


def _causes(composition: Composition) -> tuple[str, ...]:
    """Return words of the causes that are right for a composed fault."""
    part = PARTS[composition.part]
    if not composition.operator:
        return ()
    return (
        *part.operators[composition.operator].causes,
        *part.triggers[composition.trigger].causes,
    )


def _rules(composition: Composition) -> Iterable[str]:
    """Return the rules of which one must notice a composed fault."""
    part = PARTS[composition.part]
    invariants = (
        *part.operators[composition.operator].invariants,
        *part.triggers[composition.trigger].invariants,
    )
    return (rule for rule in ALL_RULES if invariant_of(rule) in invariants)
