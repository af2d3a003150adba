"""Numbers fixed by a case's seed, the same in every process, Python and numpy.

numpy's generators promise no stream across versions, and two torch versions must get the same bits.
So the numbers come from a counter through SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators"). The counter is keyed by a hash of the seed and a name.

Suffixes: N samples, D width of an input or result, P elements of all parameters.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.case import TrainingCase

FloatArray = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def seed(case: TrainingCase, process: int) -> int:
    """Return the seed of a process's default generators, different on each process as in user code.

    The seed is a number that no program uses by chance. A case's own seed shrinks to 0, which many
    programs seed their generators with.
    """
    return 10**9 + case.seed + process


_FAINT = np.array([0.0, 1.0, 2.0**-137, 2.0**-100])
_INTEGERS = np.array([-2.0, -1.0, 1.0, 2.0])


def words(seed: int, name: str, count: int) -> NDArray[np.uint64]:
    """Return `count` independent 64-bit words for a seed and a name. Shape (count,), uint64."""
    key = np.frombuffer(
        hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), dtype=np.uint64
    )
    state = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + key
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


def numbers(case: TrainingCase, name: str, count: int) -> FloatArray:
    """Return numbers of the case's kind: nonzero integers from -2 to 2, or fractions in (-1, 1).

    Fractions are odd multiples of 2**-12, so that float32 and float64 hold them exactly and none is
    zero. Faint numbers are fractions in one of four places. In the others they are zeros with
    the fractions' signs, numbers that are subnormal in float32, and products with 2**-100. Scarce
    numbers are fractions, but most numbers of samples are zeros.

    Returns:
        Shape (count,), float64.
    """
    drawn = words(case.seed, name, count)
    if case.values == "integer":
        return _INTEGERS[(drawn >> np.uint64(62)).astype(np.intp)]
    fractions: FloatArray = ((drawn >> np.uint64(52)).astype(np.float64) * 2 + 1) / 4096 - 1
    if case.values == "scarce" and name == "samples":
        return np.where(drawn & np.uint64(15), 0.0, fractions)
    if case.values != "faint":
        return fractions
    factors: FloatArray = _FAINT[(drawn & np.uint64(3)).astype(np.intp)]
    faint: FloatArray = fractions * factors
    return faint


def parameters(case: TrainingCase, rank: int, count: int) -> FloatArray:
    """Return the initial values of one rank's parameters and float buffers before wrapping.

    With `init="distinct"` wrapping must make them equal. Integers then differ in every element
    between any four neighbouring ranks. If they were drawn independently, a single element would
    often be equal by chance and prove nothing. With `init="rearranged"` the ranks have the same
    numbers in other places: sums and norms do not tell such starts apart. With `init="unset"` all
    ranks but the first hold NaN.

    Returns:
        Shape (P,), float64.
    """
    if case.init == "equal":
        return numbers(case, "parameters/0", count)
    if case.init == "unset" and rank:
        return np.full(count, np.nan)
    if case.init == "rearranged":
        return np.roll(numbers(case, "parameters/0", count), rank)
    if case.values != "integer":
        return numbers(case, f"parameters/{rank}", count)
    first = (words(case.seed, "parameters", count) >> np.uint64(62)).astype(np.intp)
    return _INTEGERS[(first + rank) % 4]


class Dataset:
    """The samples of a case: inputs, targets and identity tags.

    Attributes:
        inputs_ND: Shape (N, D in), float64, multiplied by 2**log2_scale.
        targets_ND: Shape (N, D out), float64.
        tags_N: Shape (N,), float64 in [0, 1) with 40 bits. A sample's tag is added to its loss. It
            changes no gradient, and makes the losses of two different batches differ except with
            probability 1e-12 (LOSS-2).
    """

    def __init__(self, case: TrainingCase) -> None:
        count, width = case.data.samples, case.model.inputs
        result = case.model.widths()[-1]
        drawn = numbers(case, "samples", count * (width + result))
        self.inputs_ND = drawn[: count * width].reshape(count, width) * 2.0**case.log2_scale
        self.targets_ND = drawn[count * width :].reshape(count, result)
        self.tags_N = (words(case.seed, "tags", count) >> np.uint64(24)).astype(
            np.float64
        ) / 2.0**40


def batches(case: TrainingCase) -> list[list[NDArray[np.intp]]]:
    """Return the sample indices of every micro-step and rank.

    `batches(case)[number][rank]` has shape (B,), or less at the tail. Micro-step k of step t has
    number t * accumulation + k.

    The harness makes the shards itself (strided, with cyclic padding), not the sampler under test:
    a faulty sampler must not make a right DDP fail. All ranks have equal batch sizes at every step.
    """
    data, world_size = case.data, case.world_size
    per_rank = data.of_a_rank(world_size)
    sharded: list[list[NDArray[np.intp]]] = []
    epoch = 0
    while len(sharded) < case.steps * case.accumulation:
        order = np.arange(data.samples)
        if data.shuffle:
            order = np.argsort(words(data.seed, f"order/{epoch}", data.samples), kind="stable")
        # Shape (per_rank, W): column r is rank r's shard.
        shards = np.resize(order, per_rank * world_size).reshape(per_rank, world_size)
        sharded += [
            list(shards[start : start + data.batch_size].T)
            for start in range(0, per_rank, data.batch_size)
        ]
        epoch += 1
    first = case.exchanged_by
    sharded = [[*ranks[first:], *ranks[:first]] for ranks in sharded]
    sharded = sharded[: case.steps * case.accumulation]
    # Every backward of a step goes through its first batch's forward.
    if case.passes == "retained":
        return [sharded[number - number % case.accumulation] for number in range(len(sharded))]
    return sharded


_DELAYS = 64


def delays(case: TrainingCase, rank: int) -> tuple[float, ...]:
    """Return the seconds by which a rank's collectives start late, to be taken in turn.

    The result is empty if they are not delayed.
    """
    plan = case.perturbation
    if plan.kind == "late":
        return (plan.milliseconds / 1000,) if rank == plan.rank else ()
    if plan.kind != "delays":
        return ()
    # About half of them are zero, so that a rank that is behind catches up.
    drawn = (words(case.seed, f"delays/{rank}", _DELAYS) >> np.uint64(32)).astype(
        np.float64
    ) / 2.0**31 - 1
    return tuple((np.maximum(drawn, 0.0) * plan.milliseconds / 1000).tolist())
