"""What probing came to, kept for a run of the tests: dozens of sessions put the same few implementations on trial.

Probing runs some seventy cases, which is most of what a short session does. Of what lies in the
checkout, on the hosts the tests share, it comes to the same each time, so the first who asks
probes, and all others read what was found. Whatever a test wrote, whatever is under another
interpreter, and whatever has a file of deviations is probed each time, as are those that the tests
of probing itself ask for.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ddp_invariants.discovery import probe
from ddp_invariants.discovery.probe import Discovery
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.process import HostClient

ROOT = Path(__file__).resolve().parent.parent
_probe = probe.discover  # Which a session's is replaced by.
Discover = Callable[..., Discovery]


def of_the_checkout(name: str) -> bool:
    """Whether a name stands for what no test writes."""
    file = name.rpartition(":")[0]
    if file.endswith(".py"):
        return Path(file).resolve().is_relative_to(ROOT)
    return name in ("reference", "torch") or name.startswith("ddp_invariants.")


def remembering(folder: Path, addresses: Sequence[str]) -> Discover:
    """`discover`, which keeps what it found in a folder that the run's processes share.

    Args:
        folder: The folder.
        addresses: Of the hosts on which it comes to the same.
    """

    def discover(
        pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int, files: Sequence[Path] = ()
    ) -> Discovery:
        ours = all(
            isinstance(host, HostClient)
            and host.connection.getpeername().decode().lstrip("\0") in addresses
            for host in pool._hosts
        )
        if not ours:
            return _probe(pool, ddp, sampler, max_world_size, files)

        def known(one: Ddp | Sampler, find: Callable[[], Discovery], *, lasting: bool) -> Discovery:
            asked = hashlib.blake2b(repr((one, max_world_size)).encode(), digest_size=8).hexdigest()
            path = folder / f"{asked}.json"
            if not lasting or not of_the_checkout(one.name):
                return find()
            if path.exists():
                return probe.from_plain(json.loads(path.read_text(encoding="utf-8")))
            found = find()
            written = path.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(probe.to_plain(found)), encoding="utf-8")
            written.replace(path)
            return found

        dealing = pool.describe(sampler)
        found = known(
            ddp,
            lambda: probe.of_ddp(pool, ddp, pool.describe(ddp), max_world_size, files),
            lasting=not (files or ddp.setup or ddp.after or ddp.optimizer),
        )
        dealt = known(
            sampler,
            lambda: Discovery(
                {}, dealing, dealt=probe.of_sampler(pool, sampler, dealing, max_world_size)
            ),
            lasting=True,
        )
        return replace(found, sampler=dealing, dealt=dealt.dealt)

    return discover
