"""Samplers that repeat an order in some epochs only, asked in this process."""

from pathlib import Path
from typing import Any

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.shards import shards
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.verdict import Failure

SAMPLERS = '''
import random


class Sampler:
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        self.length, self.ranks, self.rank, self.seed = len(dataset), num_replicas, rank, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return -(-self.length // self.ranks)

    def __iter__(self):
        order = self.order()
        order += order[: len(self) * self.ranks - len(order)]
        return iter(order[self.rank :: self.ranks])

    def shuffled(self, name):
        order = list(range(self.length))
        random.Random(name).shuffle(order)
        return order


class SkipsEpochThree(Sampler):
    def order(self):
        return self.shuffled(f"{self.seed} {0 if self.epoch == 3 else self.epoch}")


class HalvesTheEpoch(Sampler):
    def order(self):
        return self.shuffled(f"{self.seed} {self.epoch // 2}")


class RepeatsEachTenth(Sampler):
    def order(self):
        return self.shuffled(f"{self.seed} {self.epoch - (self.epoch % 10 == 3)}")


class RefusesLaterEpochs(HalvesTheEpoch):
    def set_epoch(self, epoch):
        if epoch > 8:
            raise ValueError("the run has eight epochs")
        self.epoch = epoch


class TurnsRound(Sampler):
    """Epochs choose from two orders: forwards or backwards."""

    def order(self):
        order = self.shuffled(f"{self.seed}")
        return order if random.Random(self.epoch).random() < 0.5 else order[::-1]


class HasNoSeed(Sampler):
    """The epoch alone chooses, from 100 orders."""

    def __init__(self, dataset, num_replicas, rank, shuffle=True):
        super().__init__(dataset, num_replicas, rank)

    def order(self):
        return self.shuffled(f"{random.Random(self.epoch).randrange(100)}")


class RepeatsWithoutASeed(HasNoSeed):
    """Two epochs are alike among a thousand, which one sampler in some thousands is by chance."""

    def order(self):
        return self.shuffled(f"{0 if self.epoch == 3 else self.epoch}")


class HasFewOrders(Sampler):
    """Seed and epoch choose from 100 orders."""

    def order(self):
        return self.shuffled(f"{random.Random(f'{self.seed} {self.epoch}').randrange(100)}")
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of samplers."""
    path = tmp_path_factory.mktemp("lone") / "samplers.py"
    path.write_text(SAMPLERS, encoding="utf-8")
    return path


def asked(
    sampler: str, epochs: tuple[int, ...], seed: int = 0
) -> tuple[dict[str, Any], Failure | None]:
    """Return the answer to a case of 26 samples, and the failure of SHARD-5."""
    case = ShardCase(data=Data(samples=26, shuffle=True, seed=seed), epochs=epochs)
    answer = shards(case, SamplerMaker(Sampler(sampler)), disturb=1)
    return answer, judge(ShardEvidence(case, (answer, answer)))["SHARD-5"].failure


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
def test_an_epoch_that_repeats_another_under_every_seed_is_a_violation(
    file: Path, seed: int
) -> None:
    """Epoch 3 repeats epoch 0, and no other epochs are alike."""
    _, failure = asked(f"{file}:SkipsEpochThree", (0, 1, 2, 3), seed)
    assert failure is not None
    assert failure.where.startswith("epochs 0 and 3, ")
    assert [cause.words for cause in failure.causes] == ["the epoch is ignored in one of them only"]
    assert asked(f"{file}:SkipsEpochThree", (0, 1, 2, 4), seed)[1] is None


@pytest.mark.parametrize("name", ["HalvesTheEpoch", "RepeatsEachTenth"])
def test_epochs_that_repeat_another_at_regular_intervals_are_a_violation(
    file: Path, name: str
) -> None:
    """Only a part of the epoch counts."""
    _, failure = asked(f"{file}:{name}", (0, 1, 2, 3))
    assert failure is not None
    assert [cause.words for cause in failure.causes] == ["only a part of the epoch counts"]
    every = 2 if name == "HalvesTheEpoch" else 10
    assert failure.got.endswith(f", and so on every {every} epochs")
    assert asked(f"{file}:{name}", (1, 2, 4))[1] is None


def test_a_refusal_of_later_epochs_leaves_the_answer_whole(file: Path) -> None:
    """Nothing shows then that equal orders are no chance, and nobody is accused."""
    answer, failure = asked(f"{file}:RefusesLaterEpochs", (0, 1, 2, 3))
    assert failure is None
    assert "raised" not in answer
    assert answer["equal_epochs"]


@pytest.mark.parametrize(
    ("name", "epochs"),
    [("TurnsRound", 8), ("HasNoSeed", 64), ("RepeatsWithoutASeed", 8), ("HasFewOrders", 64)],
)
def test_orders_that_are_equal_by_chance_are_no_violation(
    file: Path, name: str, epochs: int
) -> None:
    """Samplers with few orders repeat some of them, and some have no seed that could tell."""
    answer, failure = asked(f"{file}:{name}", tuple(range(epochs)))
    assert failure is None
    assert answer["equal_epochs"]
