"""Capabilities that a constructor's signature promises by the usual name of an argument.

An argument that is on by default promises work. An implementation that no longer does the work is
wrong, unless it declares the capability as unsupported.
"""

from collections.abc import Mapping
from typing import Any

from ddp_invariants.implementation.spec import Ddp

PROMISES = {"broadcast_buffers": "equal_buffers"}
"""The argument that promises a capability where it is true."""


def promised(ddp: Ddp, described: Mapping[str, Any]) -> frozenset[str]:
    """Return the capabilities that the arguments of a DDP promise, by default or as given.

    Args:
        ddp: The DDP, with the arguments that it is given.
        described: The answer of `Pool.describe`.
    """
    values = {**described["defaults"], **dict(ddp.arguments)}
    return frozenset(
        capability for argument, capability in PROMISES.items() if values.get(argument) == "True"
    )
