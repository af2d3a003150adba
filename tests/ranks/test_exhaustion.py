"""All small cases of a sampler, asked for at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.errors import EvidenceError
from ddp_invariants.implementation.declarations import SamplerDeclarations
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.dealings import Dealing, from_one_row, in_one_row
from ddp_invariants.search.exhaustion import MOST_RANKS, MOST_SAMPLES, exhaust, small_cases
from ddp_invariants.search.messages import exhausted
from ddp_invariants.search.runner import Options, Runner

FEW = Scope(without=frozenset({"no_samples"}))
ALL = MOST_SAMPLES * MOST_RANKS * 4
LONG = """
from ddp_invariants.reference.sampler import DistributedSampler as Reference

class Scrambled(Reference):
    def order(self):
        order = super().order()
        return [(i & 0xFFFF) if self.shuffle else i for i in order]

class OddSteps(Reference):
    def order(self):
        n = self.length
        if not self.shuffle or n <= 4096:
            return super().order()
        step = 3 ** (1 + self.epoch)
        order = [place * step % n for place in range(n)]
        return [order[place % n] for place in range(len(self) * self.num_replicas)]

class NeverDrops(Reference):
    def __len__(self):
        self.drop_last = self.drop_last and self.length < 3000
        return super().__len__()
"""
EPOCHS = """
from ddp_invariants.reference.sampler import DistributedSampler as Reference

class TakesAnotherEpoch(Reference):
    def order(self):
        real = self.epoch
        self.epoch = self.counted(real)
        try:
            return super().order()
        finally:
            self.epoch = real

class SkipsOne(TakesAnotherEpoch):
    def counted(self, epoch):
        return 0 if epoch == 3 else epoch

class Period(TakesAnotherEpoch):
    def counted(self, epoch):
        return epoch % 100

class TurnsOnce(Reference):
    def order(self):
        order = super().order()
        return order[1:] + order[:1] if self.epoch == 17 and not self.shuffle else order

class MissesTheTenth(Reference):
    calls = 0

    def set_epoch(self, epoch):
        self.calls += 1
        if self.calls % 10:
            super().set_epoch(epoch)
"""
FAULTS = "ddp_invariants.faults.strided:"


@pytest.mark.parametrize("sampler", ["reference", "torch"])
def test_all_small_cases_of_a_right_sampler_are_right(pool: Pool, sampler: str) -> None:
    """Nothing is left out and nothing is wrong."""
    exhaustion = exhaust(pool, Sampler(sampler), FEW)
    assert (exhaustion.right, exhaustion.cases, exhaustion.wrong) == (ALL, ALL, {})
    assert exhausted([exhaustion.right, exhaustion.cases]).startswith("all 1,440 small")


def test_every_small_case_that_a_fault_breaks_is_found(pool: Pool) -> None:
    """One slice of the order is too short padding exactly if N * 2 < W."""
    exhaustion = exhaust(pool, Sampler(f"{FAULTS}PadsOnce"), FEW)
    short = [
        case
        for case in small_cases(FEW)
        if 2 * case.data.samples < case.world_size and not case.data.drop_last
    ]
    assert exhaustion.wrong == {"SHARD-1": short}
    assert exhaustion.right == ALL - len(short)


def test_a_wrong_len_is_found(pool: Pool) -> None:
    """The length is compared with the number of indices."""
    exhaustion = exhaust(pool, Sampler(f"{FAULTS}LenOfTheDataset"), FEW)
    assert ShardCase(2, Data(1, 2), (0, 1)) not in exhaustion.wrong["SHARD-1"]
    assert ShardCase(2, Data(2, 2), (0, 1)) in exhaustion.wrong["SHARD-1"]


def test_a_resumption_that_goes_wrong_at_few_places_is_found(pool: Pool) -> None:
    """A fraction of an epoch is rounded down at a few of hundreds of places."""
    scope = replace(FEW, without=FEW.without | {"drop_last"})
    exhaustion = exhaust(pool, Sampler("ddp_invariants.faults.resumable:SavesAFraction"), scope)
    assert exhaustion.wrong.keys() == {"SHARD-9"}
    places = {
        (case.world_size, case.data.samples, case.saved_after)
        for case in exhaustion.wrong["SHARD-9"]
    }
    expected = {
        (w, n, k)
        for w in (1, 2)
        for n in range(1, MOST_SAMPLES + 1)
        for k in range(-(-n // w))
        if int(k / -(-n // w) * -(-n // w)) != k
    }
    assert places == expected
    assert expected


def test_an_order_that_repeats_indices_of_long_datasets_is_found(
    pool: Pool, tmp_path: Path
) -> None:
    """Products of 16-bit numbers show first where no small case is."""
    path = tmp_path / "long.py"
    path.write_text(LONG)
    exhaustion = exhaust(pool, Sampler(f"{path}:Scrambled"), FEW)
    assert exhaustion.right == exhaustion.cases == ALL
    assert [case.data.samples for case in exhaustion.wrong["SHARD-2"]] == [100_003] * 2
    # An odd step reaches all places of a prime length, and not those of a length with odd factors.
    exhaustion = exhaust(pool, Sampler(f"{path}:OddSteps"), FEW)
    assert exhaustion.right == exhaustion.cases == ALL
    assert {case.data.samples for case in exhaustion.wrong["SHARD-2"]} == {45_045}
    exhaustion = exhaust(pool, Sampler(f"{path}:NeverDrops"), FEW)
    assert exhaustion.right == exhaustion.cases == ALL
    wrong = [case.data for case in exhaustion.wrong["SHARD-2"]]
    # Three ranks divide the other length.
    assert [(data.samples, data.drop_last) for data in wrong] == [
        *[(40_009, True)] * 2,
        *[(100_003, True)] * 2,
    ]


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("SkipsOne", [(0, 3)]),
        ("Period", [(0, 100), (0, 1000), (1, 101), (27, 127)]),
        ("TurnsOnce", [(0, 17), (1, 17), (2, 17), (3, 17)]),
        ("MissesTheTenth", [(8, 9), (18, 19), (28, 29), (38, 39)]),
    ],
)
def test_an_order_that_a_few_epochs_get_wrong_is_found(
    pool: Pool, tmp_path: Path, name: str, pairs: list[tuple[int, int]]
) -> None:
    """A row of many epochs shows pairs of equal orders, each of which is a case.

    The epochs up to the first such pair are a case, too.
    """
    path = tmp_path / "epochs.py"
    path.write_text(EPOCHS)
    sampler = Sampler(f"{path}:{name}")
    exhaustion = exhaust(pool, sampler, FEW)
    assert exhaustion.right == exhaustion.cases == ALL
    assert exhaustion.wrong.keys() == {"SHARD-4", "SHARD-5"}
    assert [case.epochs for case in exhaustion.wrong["SHARD-5"]] == pairs
    options = Options(store=tmp_path / "store")
    runner = Runner(pool, UnderTest(Ddp("reference"), sampler, FEW), options)
    failed = [
        rule
        for rule in ("SHARD-4", "SHARD-5")
        if runner.findings(exhaustion.wrong[rule][0])[rule].failure is not None
    ]
    assert failed == ["SHARD-4" if name == "MissesTheTenth" else "SHARD-5"]


def test_a_process_that_does_not_answer_leaves_nothing_said(pool: Pool) -> None:
    """A sampler that never ends is judged by drawn cases; so is one whose ranks need processes."""
    pool.deadline, deadline = 0.3, pool.deadline
    try:
        assert exhaust(pool, Sampler(f"{FAULTS}NeverEnds"), FEW).cases == 0
    finally:
        pool.deadline = deadline
    scattering = replace(FEW, sampler=SamplerDeclarations(layout="scatter"))
    assert exhaust(pool, Sampler(), scattering).cases == 0
    assert exhaust(pool, Sampler(), Scope(without=frozenset({"given_rank"}))).cases == 0


def test_a_row_holds_all_shards_and_refusals() -> None:
    """Both ends of the wire read the row alike; a short row is refused."""
    case = ShardCase(2, Data(3))
    dealing = Dealing([[[0, 2], [1, 0]]], [2, -1])
    row = in_one_row([None, dealing])
    assert from_one_row([case, case], row) == [None, dealing]
    with pytest.raises(EvidenceError, match="too few"):
        from_one_row([case, case, case], row)
