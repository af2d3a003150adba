"""Capabilities that a constructor's signature promises by the usual name of an argument.

An argument that is on by default promises work, and a capacity of buckets promises that gradients
travel in buckets while the backward runs. An implementation that no longer does the work is wrong,
unless it declares the capability as unsupported.
"""

from collections.abc import Mapping
from typing import Any

from ddp_invariants.implementation.spec import Ddp

PROMISES = {
    "broadcast_buffers": ("equal_buffers",),
    "bucket_cap_mb": ("bucketing", "overlap"),
}
"""The capabilities that an argument promises, unless it is false.

The other usual names need no row. `no_sync` and `join` are methods, and `find_unused_parameters` and
`static_graph` change which cases are right: probes of `no_sync`, `join`, `unused` and `reentrant`
run wherever the names exist, and any silent failure of such a probe is a violation.
"""

WITHDRAWN = {"equal_buffers": "forward_sync_buffers"}
"""The argument that withdraws a promised capability if it is false.

torch 2.13 deprecates `broadcast_buffers`, and lets `forward_sync_buffers` decide in its place.
"""


def promised(ddp: Ddp, described: Mapping[str, Any]) -> frozenset[str]:
    """Return the capabilities that the arguments of a DDP promise, by default or as given.

    Args:
        ddp: The DDP, with the arguments that it is given.
        described: The answer of `Pool.describe`.
    """
    values = {**described["defaults"], **dict(ddp.arguments)}
    return frozenset(
        capability
        for argument, capabilities in PROMISES.items()
        for capability in capabilities
        if values.get(argument, "False") != "False"
        and values.get(WITHDRAWN.get(capability, "")) != "False"
    )
