"""The store of simulated ranks: a dict, in which a rank that waits for a key hands on."""

import datetime as dt
from typing import Any

import torch

from ddp_invariants.ranks.groups.simulated.turns import Turns

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d


class SimulatedStore(_c10d.Store):  # type: ignore[misc]  # the base class has no type stubs
    """A store for the ranks of one simulated case. torch's C++ code calls the same methods.

    Attributes:
        added: The last key to which something was added, with all its prefixes.
    """

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns, self._values = turns, dict[str, bytes]()
        self.added = ""

    def set(self, key: str, value: Any) -> None:
        """Store a value."""
        self._values[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value, once there is one."""
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return the sum."""
        self.added = key
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Store a value if the present one is as expected, and return the one stored then."""
        present = self._values.get(key)
        if (present is None and not _bytes(expected)) or present == _bytes(expected):
            self._values[key] = _bytes(desired)
        return self._values.get(key, _bytes(expected))

    def append(self, key: str, value: Any) -> None:
        """Append to a value."""
        self._values[key] = self._values.get(key, b"") + _bytes(value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return several values, once all are there."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Store several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Return False, as the store of ranks over gloo does, which is a file."""
        return False

    def delete_key(self, key: str) -> bool:
        """Delete a key; return True, as a file store does also if there was none."""
        self._values.pop(key, None)
        return True

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    # The names by which C++ code calls these methods.
    deleteKey, getNumKeys = delete_key, num_keys

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there; a rank that polls lets other ranks run."""
        self._turns.give_way()
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: dt.timedelta | None = None) -> None:
        """Hand on until all keys are there.

        No virtual clock ends it: a wait that would time out is a deadlock.
        """
        del timeout
        missing = ", ".join(key for key in keys if key not in self._values)
        self._turns.wait(
            lambda: all(key in self._values for key in keys), f"the store's key {missing}"
        )

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """Do nothing; see `wait`."""


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value)
