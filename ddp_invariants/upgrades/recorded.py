"""The comparison with a side whose interpreter is not available: its answers are in a baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddp_invariants import __version__
from ddp_invariants.cases.case import describe
from ddp_invariants.errors import BaselineError
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.implementation.spec import Ddp, Sampler, options
from ddp_invariants.processes.pool import Pool
from ddp_invariants.upgrades.accepted import Accepted
from ddp_invariants.upgrades.baseline import FORM, Answer, Environment, Head
from ddp_invariants.upgrades.comparison import before_any_case, compared, warnings_of
from ddp_invariants.upgrades.corpus import drawn_cases
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.outcome import REPEATS, Gated, ShrunkDifference, gated
from ddp_invariants.upgrades.sides import answer_of, discovered_side
from ddp_invariants.upgrades.sorts import Sorts


def record(
    pool: Pool,
    ddp: Ddp,
    sampler: Sampler,
    here: Environment,
    *,
    cases: int,
    number: int,
    max_world_size: int,
) -> tuple[Head, Iterator[Answer]]:
    """Return the head of a baseline, and a side's answers to a corpus of cases as they arrive.

    Args:
        pool: Ranks under the side's interpreter.
        ddp: The DDP.
        sampler: The sampler.
        here: The interpreter.
        cases: Number of cases.
        number: The seed.
        max_world_size: Largest W.
    """
    discovery, offer = discovered_side(pool, ddp, sampler, max_world_size)
    corpus = drawn_cases(discovery.scope(max_world_size), cases, str(number))
    head = Head(__version__, FORM, here, offer, options(ddp, sampler), number, len(corpus))
    return head, (answer_of(pool, case, ddp, sampler) for case in corpus)


def against(
    head: Head,
    answers: Sequence[Answer],
    pool: Pool,
    ddp: Ddp,
    sampler: Sampler,
    here: Environment,
    *,
    max_world_size: int,
    allowed: Sequence[Accepted] = (),
) -> Gated:
    """Compare a side with the recorded answers of a side that is no longer available.

    No case can be shrunk then. Numbers are compared only if one model of processor made both.

    Args:
        head: The head of the baseline.
        answers: The baseline's cases and answers.
        pool: Ranks under the available interpreter.
        ddp: The DDP.
        sampler: The sampler.
        here: The available interpreter.
        max_world_size: Largest W of a probe.
        allowed: The accepted changes.

    Raises:
        BaselineError: An entry of the baseline is no answer to its case.
        HarnessError: The harness failed.
    """
    why = {change.change: change.reason for change in allowed}
    discovery, offer = discovered_side(pool, ddp, sampler, max_world_size)
    at_once = before_any_case(head.offer, offer)
    side = _AvailableSide(
        pool,
        ddp,
        sampler,
        discovery.scope(max_world_size).declared,
        discovery.declared_sampler,
        comparable=head.environment.cpu == here.cpu,
    )
    shrunk = [
        ShrunkDifference(difference, None, accepted=why.get(difference.name, ""))
        for difference in at_once
    ]
    shrunk += [
        _repeated(side, answer, first, why.get(first.name, ""))
        for answer, first in _smallest(side, answers)
        if not side.moved(first)
    ]
    return gated(shrunk, len(answers), allowed)


@dataclass(frozen=True)
class _AvailableSide:
    """The side that can still be run, which answers the cases of a baseline again.

    Attributes:
        pool: Ranks under the available interpreter.
        ddp: The DDP.
        sampler: The sampler.
        declared: The DDP's declarations.
        declared_sampler: The sampler's declarations.
        comparable: True if numbers are compared.
        warned: The warnings seen so far, of the recorded side and of this one.
    """

    pool: Pool
    ddp: Ddp
    sampler: Sampler
    declared: Declarations
    declared_sampler: SamplerDeclarations
    comparable: bool
    warned: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))

    def differences(self, answer: Answer, *, fresh: bool = False) -> list[Difference]:
        """Run the case of a recorded answer, and return the differences of the two answers.

        Args:
            answer: The recorded answer.
            fresh: True for new processes.

        Raises:
            BaselineError: The entry of the baseline is no answer to its case.
        """
        return self.compared(answer, self.answered(answer, fresh=fresh))

    def answered(self, answer: Answer, *, fresh: bool) -> Answer:
        """Run the case of a recorded answer."""
        return answer_of(self.pool, answer.case, self.ddp, self.sampler, fresh=fresh)

    def compared(self, answer: Answer, here_answered: Answer) -> list[Difference]:
        """Return the differences between a recorded answer and this side's.

        Raises:
            BaselineError: The entry of the baseline is no answer to its case.
        """
        try:
            for texts, recorded in zip(self.warned, (answer, here_answered), strict=True):
                texts.update(warnings_of(recorded))
            shown = compared(answer, here_answered, self.declared, self.declared_sampler)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BaselineError(
                f"the baseline's answer to {describe(answer.case)} cannot be compared: "
                f"{type(error).__name__}: {error}"
            ) from error
        return [
            difference
            for difference in shown
            if self.comparable
            or difference.kind not in ("rounding", "number", "unbounded", "shift")
        ]

    def moved(self, difference: Difference) -> bool:
        """Return whether a warning may only have moved from one case to another.

        Both sides gave it somewhere. The old side cannot be run again to check.
        """
        recorded, here = self.warned
        return difference.moves and difference.subject in recorded & here


def _smallest(side: _AvailableSide, answers: Sequence[Answer]) -> list[tuple[Answer, Difference]]:
    """Return each sort of difference, with the smallest case that shows it."""
    shown = [(answer, each) for answer in answers for each in side.differences(answer)]
    shown.sort(key=lambda pair: (len(pair[1].condition or ()), len(describe(pair[0].case))))
    known, smallest = Sorts(), list[tuple[Answer, Difference]]()
    for answer, difference in shown:
        if not known.explain(difference):
            known.add(difference)
            smallest.append((answer, difference))
    return smallest


def _repeated(
    side: _AvailableSide, answer: Answer, first: Difference, accepted: str
) -> ShrunkDifference:
    """Run the smallest case of a difference again, and return how often the difference showed.

    Args:
        side: The available side.
        answer: The recorded answer to that case.
        first: The difference.
        accepted: The reason why it is accepted; empty if it is not.
    """
    here = [side.answered(answer, fresh=first.moves) for _ in range(REPEATS)]
    again = [
        difference
        for answered in here
        for difference in side.compared(answer, answered)[::-1]
        if difference.name == first.name
    ]
    varies = any(
        difference.sort == first.sort
        for other in here[1:]
        for difference in compared(here[0], other, side.declared, side.declared_sampler)
    )
    return ShrunkDifference(
        again[0] if again else first, answer.case, min(len(again), REPEATS), accepted, varies
    )
