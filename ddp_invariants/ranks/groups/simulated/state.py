"""The state of a process that each simulated rank has for itself: swapped as ranks hand on."""

import _random
import ctypes
import os
import random
import struct
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_invariants.ranks.groups import distributed

_c10d: Any = torch._C._distributed_c10d
_MISSING = object()
_C10D, _WARNINGS = vars(dist.distributed_c10d), vars(warnings)
_NAMES: tuple[tuple[dict[str, Any], str], ...] = (
    *(
        (_C10D, name)
        for name in (
            "_pg_map",
            "_pg_names",
            "_pg_group_ranks",
            "_pg_backend_config",
            "_group_count",
            "_tags_to_pg",
            "_pg_to_tag",
            "_default_pg_init_method",
        )
        if name in _C10D
    ),
    *((vars(_C10D["_world"]), name) for name in vars(_C10D["_world"])),
    *((_WARNINGS, name) for name in ("filters", "showwarning", "_showwarnmsg_impl")),
    (vars(sys), "excepthook"),
    *((vars(distributed), name) for name in distributed.PER_RANK),
)
"""Names in modules and objects whose values each rank has for itself."""
_torch: Any = torch._C
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (
        lambda: (
            _torch._get_deterministic_algorithms(),
            _torch._get_deterministic_algorithms_warn_only(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    (
        _torch._get_deterministic_fill_uninitialized_memory,
        _torch._set_deterministic_fill_uninitialized_memory,
    ),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.autograd.set_detect_anomaly(*value),
    ),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)
"""Functions that read and write settings of torch which are the process's."""
_numpy: Any = np.random
_inst: Any = vars(random)["_inst"]
_WORDS = id(_inst) + object.__basicsize__
_SIZE = _random.Random.__basicsize__ - object.__basicsize__
"""The place where CPython keeps the generator's state. `random.getstate` takes thirty times as long."""
_undecoded: dict[bytes, bytes] = vars(os.environ)["_data"]
"""The environment, four times as fast as decoded."""


def _place_of_gauss() -> int:
    """Return where numpy's legacy generator keeps its second normal number; 0 if not found."""
    generator: Any = np.random.RandomState(0)
    generator.standard_normal()
    kept = struct.pack("d", generator.get_state(legacy=False)["gauss"])
    content = ctypes.string_at(id(generator), type(generator).__basicsize__)
    return max(content.find(kept), 0)


_GAUSS, _GAUSS_SIZE = _place_of_gauss(), 2 * struct.calcsize("d")
_GAUSS_FLAG = id(_numpy.mtrand._rand) + _GAUSS - struct.calcsize("d")
"""The place of the flag before that number, which says if there is one.

`get_state` takes a hundred times as long.
"""
_bit_generators: list[Any] = []
"""numpy's generator of each rank; a new one takes 0.1 ms."""


class RankState:
    """One rank's part of the state of a process.

    Args:
        rank: The rank; -1 for the process itself.
        environment: The environment variables that differ from the process's.
    """

    _values: list[Any]
    _environment: dict[bytes, bytes]
    _torch: Any
    _numpy: Any

    def __init__(self, rank: int, environment: dict[str, str]) -> None:
        while len(_bit_generators) <= rank:
            _bit_generators.append(np.random.MT19937(0))
        self.take()
        self._values = [_fresh(value) for value in self._values]
        self._environment |= _encoded(environment)
        if rank >= 0:
            self._numpy, self._gauss = _bit_generators[rank], bytes(_GAUSS_SIZE)

    def take(self) -> None:
        """Take the process's state, which this rank leaves."""
        self._values = [names.get(name, _MISSING) for names, name in _NAMES]
        self._environment = _environment()
        self._torch = torch.default_generator.get_state()
        self._python = _python()
        self._numpy = _numpy.get_bit_generator()
        self._gauss = _gauss()
        self._settings = [get() for get, _ in _SETTINGS]
        self._ddp = DistributedDataParallel._active_ddp_module

    def put(self) -> None:
        """Make this the state of the process."""
        filters = _WARNINGS["filters"]
        for (names, name), value in zip(_NAMES, self._values, strict=True):
            if value is not _MISSING:
                names[name] = value
            elif name in names:
                del names[name]
        if _WARNINGS["filters"] is not filters:
            warnings._filters_mutated()  # type: ignore[attr-defined]  # no stub; its cache is native
        _set_environment(self._environment)
        torch.default_generator.set_state(self._torch)
        words, _inst.gauss_next = self._python
        ctypes.memmove(_WORDS, words, _SIZE)
        _numpy.set_bit_generator(self._numpy)
        if _GAUSS:
            ctypes.memmove(_GAUSS_FLAG, self._gauss, _GAUSS_SIZE)
        for (get, set_), value in zip(_SETTINGS, self._settings, strict=True):
            if get() != value:
                set_(value)
        DistributedDataParallel._active_ddp_module = self._ddp


def _fresh(value: Any) -> Any:
    """Return an object for a rank to begin with: its own copy of a list or dict."""
    return value.copy() if isinstance(value, list | dict) else value


def _python() -> tuple[bytes, float | None]:
    return ctypes.string_at(_WORDS, _SIZE), _inst.gauss_next


def _gauss() -> bytes:
    return ctypes.string_at(_GAUSS_FLAG, _GAUSS_SIZE) if _GAUSS else b""


def _environment() -> dict[bytes, bytes]:
    copied: dict[bytes, bytes] = _undecoded.copy()
    return copied


def _encoded(variables: dict[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def _set_environment(wanted: dict[bytes, bytes]) -> None:
    present = _undecoded
    if present == wanted:
        return
    for name in present.keys() - wanted.keys():
        os.unsetenv(name)
        del present[name]
    for name, value in wanted.items():
        if present.get(name) != value:
            os.putenv(name, value)
            present[name] = value
