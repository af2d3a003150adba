"""Where ranks meet: a file on one machine, a rank's TCP store across several; and the launcher's own, once."""

import datetime as dt
import os
import socket
import time
from typing import Any

import torch

_c10d: Any = (
    torch._C._distributed_c10d
)  # Its classes are public names of torch.distributed without type stubs.
_SAID = "ddp-invariants/said"


def reached(address: str, world_size: int, timeout: dt.timedelta) -> Any:
    """The store of that address: a file's path, or `host:port` of one that somebody keeps."""
    if address.startswith("/"):
        return _c10d.FileStore(address, world_size)
    host, _, port = address.rpartition(":")
    return _c10d.TCPStore(host, int(port), is_master=False, timeout=timeout)


def kept(host: str) -> tuple[Any, str]:
    """A new store, kept by this process on one of this machine's addresses and on no other; and its address."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = _c10d.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, f"{host}:{port}"


def introduced(request: dict[str, Any]) -> dict[str, Any]:
    """What all processes of a job say of themselves, through the store that their launcher gives them.

    Args:
        request: The job's `rank`, `world_size`, `host` and `port`, what this process `says`, and
            for how many seconds to wait.

    Returns:
        `said`: in rank 0 what each rank says, None for one that does not come; elsewhere nothing,
        since nothing is waited for. Or `unreachable`: why the store cannot be reached.
    """
    rank, patience = request["rank"], dt.timedelta(seconds=request["patience"])
    until = time.monotonic() + request["patience"]
    # torchrun's agent keeps a store; under srun rank 0 does. The same question as
    # torch.distributed.rendezvous asks.
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = _c10d.TCPStore(
            request["host"],
            request["port"],
            is_master=keeps,
            wait_for_workers=False,
            timeout=patience,
        )
        store.set(f"{_SAID}/{rank}", request["says"])
    except RuntimeError as error:
        return {"unreachable": str(error).splitlines()[0]}
    said: list[str | None] = []
    for key in (f"{_SAID}/{other}" for other in range(request["world_size"] if rank == 0 else 0)):
        try:
            store.wait([key], dt.timedelta(seconds=max(until - time.monotonic(), 0.1)))
            said.append(store.get(key).decode())
            store.delete_key(key)  # Another session of the same job must not find it.
        except RuntimeError:
            said.append(None)
    return {"said": said}
