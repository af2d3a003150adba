"""A store of probing results, shared by all tests of a run.

Dozens of sessions judge the same few implementations. Probing runs about seventy cases, which is
most of the time of a short session. For a file of the checkout, on the hosts that the tests share,
probing gives the same result each time. So the first test probes and stores the result, and later
tests read it. An implementation is probed each time if a test wrote it, if it runs under another
interpreter, or if it has a file of deviations. The tests of probing itself also probe each time.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ddp_invariants.discovery import probe
from ddp_invariants.discovery.result import Discovery, Side, from_plain, to_plain
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.process import HostClient

ROOT = Path(__file__).resolve().parents[2]
Discover = Callable[..., Discovery]
_probe: Discover = probe.discover  # Kept here, because sessions.py replaces the attribute.


def of_the_checkout(name: str) -> bool:
    """Return True if a name stands for a file or package that no test writes."""
    file = name.rpartition(":")[0]
    if file.endswith(".py"):
        return Path(file).resolve().is_relative_to(ROOT)
    return name in ("reference", "torch") or name.startswith("ddp_invariants.")


def remembering(folder: Path, addresses: Sequence[str], otherwise: Discover = _probe) -> Discover:
    """Return a `discover` that stores its results in a folder shared by the run's processes.

    Args:
        folder: The folder.
        addresses: The addresses of the hosts on which probing gives the same result each time.
        otherwise: A `discover` for pools on other hosts.
    """

    def discover(
        pool: Pool,
        ddp: Ddp,
        sampler: Sampler,
        max_world_size: int,
        files: Sequence[Path] = (),
        *,
        sides: Collection[Side] = probe.SIDES,
    ) -> Discovery:
        find = partial(otherwise, pool, ddp, sampler, max_world_size, files)
        on_shared_hosts = all(
            isinstance(host, HostClient) and host.address in addresses
            for host in pool.processes.hosts
        )
        if not on_shared_hosts:
            return find(sides=sides)

        def known(side: Side, implementation: Ddp | Sampler, *, lasting: bool) -> Discovery:
            key = hashlib.blake2b(
                repr((implementation, max_world_size)).encode(), digest_size=8
            ).hexdigest()
            path = folder / f"{key}.json"
            if not lasting or not of_the_checkout(implementation.name):
                return find(sides={side})
            if path.exists():
                return from_plain(json.loads(path.read_text(encoding="utf-8")))
            discovery = find(sides={side})
            written = path.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(to_plain(discovery)), encoding="utf-8")
            written.replace(path)
            return discovery

        wrapped = (
            known("ddp", ddp, lasting=not (files or ddp.setup or ddp.after or ddp.optimizer))
            if "ddp" in sides
            else find(sides=())
        )
        sharded = known("sampler", sampler, lasting=True) if "sampler" in sides else wrapped
        return replace(
            wrapped, sampler=pool.describe(sampler), sampler_probes=sharded.sampler_probes
        )

    return discover
