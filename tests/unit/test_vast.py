"""Samplers over a dataset of 2^40 samples, asked in this process."""

import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import asked

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.limits import Exceeded, bounded
from ddp_invariants.ranks.shards import shards
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.asking import Vast

FAULTS = "ddp_invariants.faults"
LENGTH = 2**40 - 1
CASES = [
    ShardCase(w, Data(samples, shuffle=shuffle, drop_last=drop_last), situations=(Vast(LENGTH),))
    for w in (1, 2, 3)
    for samples in (7, 12)
    for shuffle, drop_last in ((True, False), (False, True))
]
EAGER = """
from itertools import islice

class Base:
    def __init__(self, dataset, num_replicas, rank):
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
    def __iter__(self):
        return iter(self.indices())

class FillsAList(Base):
    def indices(self):
        return list(islice(self.dataset, self.rank, None, self.num_replicas))

class Counts(Base):
    def indices(self):
        n = sum(1 for _ in self.dataset)
        return range(self.rank, n - n % self.num_replicas, self.num_replicas)

class CountsInAnyCase(Base):
    def indices(self):
        n = 0
        for _ in self.dataset:
            try:
                n += 1
            except Exception:
                pass
        return range(self.rank, n - n % self.num_replicas, self.num_replicas)
"""


def failed(sampler: str, case: ShardCase) -> tuple[dict[str, Any], Failure | None]:
    """Return the answer to the situation, and the failure of SHARD-4."""
    answer = shards(case, SamplerMaker(Sampler(sampler)), disturb=1)
    return answer["asked"][0], judge(ShardEvidence(case, (answer, answer)))["SHARD-4"].failure


@pytest.mark.parametrize(
    "sampler",
    [f"{FAULTS}.extents:LazyPermutation", f"{FAULTS}.vast:LazyBlocks"],
)
def test_a_lazy_sampler_is_judged(sampler: str) -> None:
    """Strided places and blocks are right, with and without a shuffle."""
    for case in CASES:
        answer, failure = failed(sampler, case)
        assert failure is None, (case, failure)
        assert None not in answer["got"]


@pytest.mark.parametrize("sampler", ["reference", "torch", f"{FAULTS}.extents:NumpyPermutation"])
def test_a_sampler_with_a_list_of_all_indices_is_judged_by_its_length(sampler: str) -> None:
    """It has no memory for the list."""
    for case in CASES:
        answer, failure = failed(sampler, case)
        assert failure is None
        assert {tuple(indices) for indices, *_ in answer["got"]} == {()}
        assert all(length for _, length, _ in answer["got"])
        assert set(answer["raised"]) == {""}


@pytest.mark.parametrize("name", ["FillsAList", "Counts", "CountsInAnyCase"])
def test_a_sampler_that_goes_through_the_dataset_is_stopped(name: str, tmp_path: Path) -> None:
    """It neither fills the memory nor takes time without end."""
    (tmp_path / "eager.py").write_text(EAGER)
    case = ShardCase(2, Data(8), situations=(Vast(),))
    answer, failure = failed(f"{tmp_path}/eager.py:{name}", case)
    assert failure is None
    assert answer["got"] == [None, None]
    assert answer["raised"] == ["", ""]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("BlocksIn32Bits", "8 of these indices are repetitions; 1 are padding"),
        ("LenInFloat32", "all ranks together yield 1099511627775 indices"),
    ],
)
def test_a_fault_shows_for_a_vast_dataset_alone(fault: str, reason: str) -> None:
    """The indices of a plain dataset are right."""
    name = f"{FAULTS}.vast:{fault}"
    found = [failed(name, case)[1] for case in CASES]
    failures = [failure for failure in found if failure is not None]
    assert {failure.fact for failure in failures} == {Vast.fact}
    assert any(reason in failure.got for failure in failures)
    for case in CASES:
        answer = shards(replace(case, situations=()), SamplerMaker(Sampler(name)), disturb=1)
        evidence = ShardEvidence(replace(case, situations=()), (answer, answer))
        assert [found for found in judge(evidence).values() if found.failure] == []


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        ([[[0, 2], [2**39]], [[1, 3], [2**39]]], ""),
        ([[[0, 2], []], [[1, 3], []]], ""),
        ([[[0, 2], [2**39]], [[1, 2], [2**39]]], ""),
        ([[[0, 2], [2**39]], [[0, 2], [2**39]]], "2 of these indices are repetitions"),
        ([[[0, 2], [2**39]], [[1], [2**39]]], "some ranks yield fewer indices"),
        ([[[0, 2], [2**39]], [[1, 3], [2**39 - 1]]], "len(sampler) is [549755813888, 5497558138"),
        ([[[0, 2], [5]], [[1, 3], [5]]], "len(sampler) is [5, 5]"),
        ([[[0, -1], []], [[1, 3], []]], "outside the 1099511627775 samples"),
        ([[[0, LENGTH], []], [[1, 3], []]], "outside the 1099511627775 samples"),
        ([[[], []], [[], []]], "no rank yields an index"),
        ([[[], [2**39]], [[], [2**39]]], ""),
        ([[[], [2**39 + 1]], [[], [2**39 + 1]]], "all ranks together yield 1099511627776 indices"),
    ],
)
def test_the_reason_says_what_does_not_fit(got: list[list[list[int]]], reason: str) -> None:
    """One index is padding: 2^40 - 1 samples are dealt to two ranks."""
    case = ShardCase(2, Data(4), situations=(Vast(LENGTH),))
    ended = [[*lists, []] for lists in got]
    failure = judge(asked(case, ended))["SHARD-4"].failure
    assert (failure is not None) == bool(reason)
    assert failure is None or (reason in failure.got and "vast=1099511627775" in failure.where)


def test_bounds_hold_inside_alone() -> None:
    """Afterwards the process has the limit, the handler and the timer that it had."""

    def state() -> tuple[object, ...]:
        timer, limit = signal.getitimer(signal.ITIMER_VIRTUAL), resource.RLIMIT_DATA
        return timer, resource.getrlimit(limit), signal.getsignal(signal.SIGVTALRM)

    def loop() -> None:
        while True:
            pass

    calls: list[tuple[type[BaseException], Callable[[], object]]] = [
        (Exceeded, loop),
        (MemoryError, lambda: bytearray(1 << 30)),
    ]
    before = state()
    for kind, call in calls:
        with pytest.raises(kind), bounded(0.05, 64 << 20):
            call()
        assert state() == before


def test_a_length_is_vast_and_simpler_as_a_power_of_two() -> None:
    """Shorter datasets could be in a list."""
    with pytest.raises(CaseError, match="length"):
        replace(CASES[0], situations=(Vast(1000),))
    case = ShardCase(2, Data(4), situations=(Vast(LENGTH),))
    assert replace(case, situations=(Vast(),)) in list(simpler(case))
