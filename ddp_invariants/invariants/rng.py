"""RNG: a model on one rank draws that rank's own random numbers, as its user seeded it.

[Note: chance] A layer that draws multiplies each number of its input by zero or two. One bit of
torch's default generator decides for each number. Two forwards that draw n bits from independent
streams draw the same bits with a chance of 2**-n. A case compares some pairs of forwards, so the
chance that any pair is equal is at most pairs * 2**-n. Only forwards of at least `CHANCE_FREE` +
log2(pairs) bits are compared, which keeps this chance below 2**-64 in a case. Forwards on shorter
batches are not compared. The program draws 126 bits at once.
"""

from collections.abc import Callable
from itertools import combinations
from math import log2

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.invariants.diagnosis import streams
from ddp_invariants.invariants.diagnosis.streams import Numbers, Pair
from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import lacks
from ddp_invariants.invariants.rule import NotAbout, Script, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import PROGRAM_BITS, Tensors
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.shared_stream import SHARED

CHANCE_FREE = 64
"""Number of bits that two independent streams never draw alike in practice."""
RANKS, FORWARDS = (
    "several ranks drew random numbers",
    "a rank drew random numbers in several forwards",
)


@training.rule(
    "RNG-1",
    "Ranks that were seeded differently draw different random numbers. In training no forward "
    "repeats the numbers of another rank's forward, or of an earlier forward of its rank. The "
    "numbers that the program itself draws before a step repeat none either. In evaluation no "
    "forward draws random numbers. "
    "Ranks whose program seeds Python's and numpy's generators alike draw the same numbers from them.",
    needs=(RANKS, FORWARDS, SHARED),
    source="the notes on reproducibility and torch.manual_seed in torch's documentation: "
    "a program that seeds ranks differently wants different random numbers",
    applies="capability",
    draws=Draws(
        between_steps=("evaluation", "forward only", "evaluation with gradients"),
        drawing=True,
        shared_stream=True,
        evaluated_layer=8,
    ),
    excluded=(lacks("supports no layers that draw random numbers", "dropout"),),
    after="BUF-1",
    script=Script(checks=("draws",)),
)
def random_numbers_are_each_ranks_own(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare each forward's bits with those of other ranks, and of the same rank's other forwards.

    The numbers that the program draws before each step are compared in the same way, in every case.
    A wrapper may draw random numbers for itself outside forwards (LOSS-1), and may seed each rank
    anew when it is made.
    """
    drawn = _drawn(view) if view.case.draws else []
    failure = _in_training(view, drawn) or _in_evaluation(view) or _of_shared(view, tally)
    if failure is not None:
        return failure
    failure = _of_forwards(view, drawn, tally) or of_the_program(view, tally)
    if failure is not None or any(drawn):
        return failure
    if view.case.draws:
        raise Unjudged(
            view.cut_short
            or "the random numbers of the forwards are not known: a layer was not called exactly "
            "once per forward"
        )
    if not tally.compared:
        raise NotAbout("no layer draws random numbers")
    return None


def _of_forwards(
    view: EvidenceView, drawn: list[dict[int, Tensors]], tally: Tally
) -> Failure | None:
    """Return a failure if two forwards drew the same numbers."""
    series = [
        {
            number: Numbers(tensors.bits, tensors.layout.starts[-1])
            for number, tensors in each.items()
        }
        for each in drawn
    ]
    pairs = _pairs(view.case, series, view.case.accumulation)
    compared = [pair for pair in pairs if pair.bits >= CHANCE_FREE + log2(len(pairs))]
    tally.compared += len(compared)
    tally.met |= {RANKS if pair.of_two_ranks else FORWARDS for pair in compared}
    alike = next((pair for pair in compared if pair.alike), None)
    if alike is None:
        return None
    return streams.of_forwards(view, _failure(view, alike, view.at), compared)


def of_the_program(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return a failure if the program drew the same numbers twice."""
    drawn = [
        {
            draw.step: Numbers(repr(draw.numbers).encode(), PROGRAM_BITS * len(draw.numbers))
            for draw in rank.program_draws
        }
        for rank in view.evidence.ranks
    ]
    pairs = _pairs(view.case, drawn, 1)
    tally.compared += len(pairs)
    alike = next((pair for pair in pairs if pair.alike), None)
    if alike is None:
        return None

    def at(step: int) -> str:
        """Return a draw's place in words."""
        return "after the last step" if step == view.case.steps else f"before step {step}"

    return streams.of_the_program(view, _failure(view, alike, at), pairs)


def _of_shared(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return a failure if ranks draw different numbers from streams with one seed.

    A wrapper that seeds each rank on construction seeds it again when it is rebuilt.
    """
    rebuilt = [action.step for action in view.case.between_steps if action.kind == "reload"]
    by_rank = [
        # Of a step that a rank makes twice, the first draw counts.
        {draw.step: draw.numbers for draw in reversed(rank.shared_draws)}
        for rank in view.evidence.ranks
    ]
    for step in sorted(set(by_rank[0]).intersection(*by_rank) if by_rank else ()):
        if rebuilt and step >= min(rebuilt):
            return None
        tally.meet({SHARED: len(by_rank) > 1})
        for rank, drawn in enumerate(by_rank):
            for name, got, first in zip(
                ("random", "numpy"), drawn[step], by_rank[0][step], strict=True
            ):
                tally.compared += rank > 0
                if got != first:
                    return Failure(
                        "RNG-1",
                        "ranks draw different numbers from streams with one seed",
                        f"rank {rank} of {view.case.world_size}, "
                        + (
                            "after the last step"
                            if step == view.case.steps
                            else f"before step {step}"
                        ),
                        f"{got} from the generator of {name}, rank 0 {first}",
                        "a rank drew numbers that another rank did not draw",
                    )
    return None


def _drawn(view: EvidenceView) -> list[dict[int, Tensors]]:
    """Return the recorded draws of each forward, by rank and micro-step.

    Forwards with incomplete draws are left out. If several backwards go through one forward, only
    the first micro-step counts.
    """
    case = view.case
    apart = case.accumulation if case.passes == "retained" else 1
    numbers = range(0, case.steps * case.accumulation, apart)
    recorded = [
        {number: tensors for number in numbers if (tensors := rank.at("drawn", number)) is not None}
        for rank in view.evidence.ranks
    ]
    return [
        {
            number: tensors
            for number, tensors in by_number.items()
            if all(slot.dtype is not None for slot in tensors.layout.slots)
        }
        for by_number in recorded
    ]


def _pairs(case: TrainingCase, drawn: list[dict[int, Numbers]], each: int) -> list[Pair]:
    """Return every two drawings to compare: pairs of two ranks first, each in the order of the run.

    Two drawings of one rank are compared only if they were made around the same wrapper. A wrapper
    that seeds each rank on construction seeds it again when it is rebuilt.

    Args:
        case: The case.
        drawn: The numbers of each rank's drawings, by their place in the run.
        each: The number of places in a step.
    """

    def made(number: int) -> int:
        """Return the number of times the wrapper was rebuilt before a drawing."""
        return sum(
            action.kind == "reload" and action.step * each <= number
            for action in case.between_steps
        )

    numbers = sorted({number for by_number in drawn for number in by_number})
    pairs = [
        Pair(rank, number, other_rank, number, drawn[rank][number], drawn[other_rank][number])
        for number in numbers
        for rank, other_rank in combinations(range(len(drawn)), 2)
        if number in drawn[rank] and number in drawn[other_rank]
    ]
    pairs += [
        Pair(rank, first, rank, second, by_number[first], by_number[second])
        for rank, by_number in enumerate(drawn)
        for first, second in combinations(sorted(by_number), 2)
        if made(first) == made(second)
    ]
    return [pair for pair in pairs if pair.first.bits == pair.second.bits]


def _failure(view: EvidenceView, pair: Pair, at: Callable[[int], str]) -> Failure:
    """Return the failure for two drawings of the same bits, whose places a function tells."""
    got = (
        f"{pair.bits} of {pair.bits} random bits are equal; by chance this happens once in "
        f"2**{pair.bits}"
    )
    of = f"of {view.case.world_size}, {at(pair.micro)}"
    if pair.of_two_ranks:
        return Failure(
            "RNG-1",
            "two ranks draw the same random numbers",
            f"ranks {pair.rank} and {pair.other_rank} {of}",
            got,
        )
    return Failure(
        "RNG-1",
        "a rank draws the same random numbers again",
        f"rank {pair.rank} {of} and {at(pair.other_micro)}",
        got,
    )


def _in_training(view: EvidenceView, drawn: list[dict[int, Tensors]]) -> Failure | None:
    """Return a failure if a layer drew nothing in training."""
    for rank, by_number in enumerate(drawn):
        for number, tensors in by_number.items():
            if (tensors.values_P == 1).any():
                return Failure(
                    "RNG-1",
                    "a forward in training draws no random numbers",
                    f"rank {rank} of {view.case.world_size}, {view.at(number)}",
                    "a dropout layer passes its whole input on, expected a random half to become "
                    "zero",
                    "the module was left in evaluation",
                )
    return None


def _in_evaluation(view: EvidenceView) -> Failure | None:
    """Return a failure if a layer drew random numbers in evaluation."""
    for rank, evidence in enumerate(view.evidence.ranks):
        for step in range(view.case.steps):
            tensors = evidence.at("evaluated", step)
            if tensors is not None and (tensors.values_P != 1).any():
                return Failure(
                    "RNG-1",
                    "a forward in evaluation draws random numbers",
                    f"rank {rank} of {view.case.world_size}, before step {step}",
                    "a dropout layer makes a random half of its input zero, expected none",
                    "the module was put back into training",
                )
    return None
