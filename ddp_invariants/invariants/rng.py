"""RNG: random numbers. What a model draws on one rank is that rank's own, as its user seeded it.

[Note: chance] A layer that draws makes each number of its input zero or twice itself, by a bit of
its own of torch's default generator. Two forwards that draw n of them from streams that have
nothing to do with one another draw the same with a chance of 2**-n. A case compares some pairs of
forwards, so that the chance of any being equal is at most pairs * 2**-n: only forwards of at least
`CHANCE_FREE` + log2(pairs) bits are compared, which keeps it below 2**-64 in a case. One on a
shorter batch is not.
"""

from itertools import combinations
from math import log2

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.invariants.diagnosis import streams
from ddp_invariants.invariants.diagnosis.streams import Pair
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import Tensors
from ddp_invariants.records.verdict import Failure

CHANCE_FREE = 64
"""Bits that two streams do not draw alike in any machine's life."""
RANKS, FORWARDS = "several ranks drew", "a rank drew in several forwards"


@training.rule(
    "RNG-1",
    "Ranks that were seeded differently draw random numbers of their own: in training no forward draws "
    "what another rank's does, or an earlier one of its rank; in evaluation nothing is drawn.",
    (RANKS, FORWARDS),
)
def random_numbers_are_each_ranks_own(view: EvidenceView, tally: Tally) -> Failure | None:
    """On cases with layers that draw: the bits of each forward against those of the other ranks, and of its rank's other ones.

    How many numbers a wrapper draws by itself, and whether it seeds each rank anew, is its affair.
    """
    if not view.case.model.draws:
        raise NotAbout("no layer draws random numbers")
    drawn = _drawn(view)
    if not any(drawn):
        raise Unjudged(
            view.cut_short
            or "what the forwards drew is not known: a layer was not called once in each"
        )
    failure = _in_training(view, drawn) or _in_evaluation(view)
    if failure is not None:
        return failure
    pairs = _pairs(view.case, drawn)
    compared = [pair for pair in pairs if pair.bits >= CHANCE_FREE + log2(len(pairs))]
    tally.compared += len(compared)
    tally.met |= {RANKS if pair.of_two_ranks else FORWARDS for pair in compared}
    alike = next((pair for pair in compared if pair.alike), None)
    return None if alike is None else streams.of_the_generator(view, _told(view, alike), compared)


def _drawn(view: EvidenceView) -> list[dict[int, Tensors]]:
    """By rank and micro-step, what each forward drew of which that is known. Of backwards through one forward, the first."""
    case = view.case
    apart = case.accumulation if case.passes == "retained" else 1
    numbers = range(0, case.steps * case.accumulation, apart)
    found = [
        {number: tensors for number in numbers if (tensors := rank.at("drawn", number)) is not None}
        for rank in view.evidence.ranks
    ]
    return [
        {
            number: one
            for number, one in by_number.items()
            if all(slot.dtype is not None for slot in one.layout.slots)
        }
        for by_number in found
    ]


def _pairs(case: TrainingCase, drawn: list[dict[int, Tensors]]) -> list[Pair]:
    """Every two forwards that are compared, those of two ranks first, each as a run goes.

    A rank's own only by one and the same wrapper: one that seeds each rank where it is made does so
    again when it is made anew.
    """

    def made(number: int) -> int:
        """How often a wrapper was made before a micro-step."""
        return sum(
            one.kind == "reload" and one.step * case.accumulation <= number
            for one in case.between_steps
        )

    numbers = sorted({number for found in drawn for number in found})
    pairs = [
        Pair(one, number, other, number, drawn[one][number], drawn[other][number])
        for number in numbers
        for one, other in combinations(range(len(drawn)), 2)
        if number in drawn[one] and number in drawn[other]
    ]
    pairs += [
        Pair(rank, one, rank, other, found[one], found[other])
        for rank, found in enumerate(drawn)
        for one, other in combinations(sorted(found), 2)
        if made(one) == made(other)
    ]
    return [pair for pair in pairs if len(pair.one.bits) == len(pair.other.bits)]


def _told(view: EvidenceView, pair: Pair) -> Failure:
    """A breach by two forwards that drew the same."""
    got = f"{pair.bits} of {pair.bits} random bits are the same, where chance makes them so once in 2**{pair.bits}"
    of = f"of {view.case.world_size}, {view.at(pair.micro)}"
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
        f"rank {pair.rank} {of} and {view.at(pair.other_micro)}",
        got,
    )


def _in_training(view: EvidenceView, drawn: list[dict[int, Tensors]]) -> Failure | None:
    """Whether a layer drew nothing in training, which the user asked for."""
    for rank, found in enumerate(drawn):
        for number, tensors in found.items():
            if (tensors.values_P == 1).any():
                return Failure(
                    "RNG-1",
                    "a forward in training draws no random numbers",
                    f"rank {rank} of {view.case.world_size}, {view.at(number)}",
                    "what is to make a random half of its input zero passes all of it on",
                    "the module was left in evaluation",
                )
    return None


def _in_evaluation(view: EvidenceView) -> Failure | None:
    """Whether a layer drew in evaluation, after the module was told of it."""
    for rank, evidence in enumerate(view.evidence.ranks):
        for step in range(view.case.steps):
            tensors = evidence.at("evaluated", step)
            if tensors is not None and (tensors.values_P != 1).any():
                return Failure(
                    "RNG-1",
                    "a forward in evaluation draws random numbers",
                    f"rank {rank} of {view.case.world_size}, before step {step}",
                    "what is to pass all of its input on makes a random half of it zero",
                    "the module was put back into training",
                )
    return None
