"""The same training in PyTorch's own harnesses; throughput.py runs this script.

`python harnesses.py CLASS` prints each test's seconds as a JSON list. WAYS_WORLD_SIZE, WAYS_CASES
(a file) and WAYS_DDP stand in the environment. The reason is that these harnesses spawn processes,
which import this file again and find the class and its tests by name.
"""

import json
import os
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase
from ways import FEW, connect, train

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.situations import from_plain

WORLD_SIZE, DDP = int(os.environ["WAYS_WORLD_SIZE"]), os.environ["WAYS_DDP"]
CASES = [
    case
    for case in map(from_plain, json.loads(Path(os.environ["WAYS_CASES"]).read_text()))
    if isinstance(case, TrainingCase)
]


class Separate(MultiProcessTestCase):
    """Tests that spawn their processes one by one; each test makes its own group, as in torch."""

    @property
    def world_size(self) -> int:
        """The number of processes per test."""
        return WORLD_SIZE

    def setUp(self) -> None:
        """Spawn the processes, as every subclass in torch does."""
        super().setUp()
        self._spawn_processes()


class Continuous(MultiProcContinuousTest):
    """Tests that share processes, spawned once for the class."""

    world_size = WORLD_SIZE

    @classmethod
    def backend_str(cls) -> str:
        """Return the backend of the class's one group."""
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        """Return the device of the tests."""
        return "cpu"


def _separate(case: TrainingCase) -> Callable[[Any], None]:
    def test(self: Any) -> None:
        connect(self.file_name, self.rank, WORLD_SIZE)
        train(case, self.rank, Driver(Ddp(DDP)))
        dist.destroy_process_group()

    return test


def _continuous(case: TrainingCase) -> Callable[[Any], None]:
    def test(self: Any) -> None:
        train(case, self.rank, Driver(Ddp(DDP)))

    return test


for number, case in enumerate(CASES):
    if number < FEW:
        setattr(Separate, f"test_{number:03}", _separate(case))
    if number < 8 * FEW:
        setattr(Continuous, f"test_{number:03}", _continuous(case))


class Timing(unittest.TestResult):
    """A test result that records each test's seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def startTest(self, test: unittest.TestCase) -> None:
        """Start the clock."""
        super().startTest(test)
        self.started = time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:
        """Stop the clock."""
        self.seconds.append(time.perf_counter() - self.started)
        super().stopTest(test)


def main() -> None:
    """Run the tests of one class, and print their seconds."""
    made = {"MultiProcessTestCase": Separate, "MultiProcContinuousTest": Continuous}[sys.argv[1]]
    result = Timing()
    unittest.defaultTestLoader.loadTestsFromTestCase(made).run(result)
    if not result.wasSuccessful() or result.skipped:
        sys.exit(f"{sys.argv[1]}: {result.failures} {result.errors} {result.skipped}")
    # The continuous class starts its processes within its first test, so that time is dropped.
    print(json.dumps(result.seconds[1:] if made is Continuous else result.seconds))


if __name__ == "__main__":
    main()
