"""The global random generators of a process: those of Python, numpy and torch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def disturb_all(seed: int) -> None:
    """Bring all generators into the state of a seed."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is what implementations misuse
    torch.default_generator.manual_seed(seed)  # As in `rounds.Round.train`.


def states() -> dict[str, Any]:
    """Return the state of each generator, in a form that can be compared."""
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tobytes(),  # type: ignore[index]  # noqa: NPY002
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def drawn() -> tuple[int, ...]:
    """Draw a number from each generator."""
    return (
        random.getrandbits(32),
        int(np.random.randint(2**31)),  # noqa: NPY002 - as above
        int(torch.randint(2**31, ())),
    )


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore all generators at the end."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002 - as above
        torch.set_rng_state(before[2])
