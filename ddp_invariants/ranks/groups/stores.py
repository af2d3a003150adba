"""The stores through which ranks meet: a file on one machine, a rank's TCP store across several.

The launcher's own store is used once.
"""

import datetime as dt
import os
import socket
import time
from typing import Any

import torch

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d
_MESSAGES = "ddp-invariants/messages"


def reached(address: str, world_size: int, timeout: dt.timedelta) -> Any:
    """Return the store at an address: a file's path, or `host:port` of a store kept elsewhere."""
    if address.startswith("/"):
        return _c10d.FileStore(address, world_size)
    host, _, port = address.rpartition(":")
    return _c10d.TCPStore(host, int(port), is_master=False, timeout=timeout)


def kept(host: str) -> tuple[Any, str]:
    """Make a new store in this process, and return it with its address.

    The store listens on the given address of this machine and on no other.
    """
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = _c10d.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, f"{host}:{port}"


def introduced(request: dict[str, Any]) -> dict[str, Any]:
    """Exchange one message between all processes of a job, through the store of their launcher.

    Args:
        request: The job's `rank`, `world_size`, `host` and `port`, the `message` of this
            process, and the seconds to wait.

    Returns:
        `messages`: in rank 0 the message of each rank, None for a rank that does not come; elsewhere an
        empty list, since other ranks wait for nothing. Or `unreachable`: why the store cannot be
        reached.
    """
    rank, patience = request["rank"], dt.timedelta(seconds=request["patience"])
    until = time.monotonic() + request["patience"]
    # torchrun's agent keeps a store; under srun rank 0 does. torch.distributed.rendezvous decides
    # it by the same test.
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = _c10d.TCPStore(
            request["host"],
            request["port"],
            is_master=keeps,
            wait_for_workers=False,
            timeout=patience,
        )
        store.set(f"{_MESSAGES}/{rank}", request["message"])
    except RuntimeError as error:
        return {"unreachable": str(error).splitlines()[0]}
    messages: list[str | None] = []
    for key in (f"{_MESSAGES}/{peer}" for peer in range(request["world_size"] if rank == 0 else 0)):
        try:
            store.wait([key], dt.timedelta(seconds=max(until - time.monotonic(), 0.1)))
            messages.append(store.get(key).decode())
            store.delete_key(key)  # Another session of the same job must not find it.
        except RuntimeError:
            messages.append(None)
    return {"messages": messages}
