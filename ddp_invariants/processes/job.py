"""A job of several processes, as torchrun and srun start them.

Rank 0 draws cases and judges them; the other processes keep ranks for it.

Every process of the job starts its own host, with the devices, cores and environment that its
launcher gave it. So a case's rank 3 runs in the place of the job's rank 3. Each process sends its
address once, through the launcher's store. From then on rank 0's pools speak to each process by TCP
(`processes/remote.py`, `processes/serving.py`), never by a collective.
"""

import contextlib
import fcntl
import ipaddress
import os
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from ddp_invariants import __version__
from ddp_invariants.errors import HarnessError
from ddp_invariants.processes import wire
from ddp_invariants.processes.hosts import HASH_SEEDS, Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.process import this_node
from ddp_invariants.processes.remote import HostAddress, connect
from ddp_invariants.processes.serving import ABANDONED, Server

COMING = 90.0
"""Seconds in which a job's processes must meet: each imports torch, and nodes start unevenly."""
_ADDRESS_OF = 0x8915
"""SIOCGIFADDR: an interface's address."""


@dataclass(frozen=True)
class Job:
    """The launcher's description of this process and its job.

    Attributes:
        launcher: The launcher that started it.
        rank: Of this process.
        world_size: The number of processes.
        host: The host of the launcher's store, or the host on which rank 0 is to keep it.
        port: Its port.
        restarts: The number of times that an elastic launcher has restarted the job.
        most_restarts: The number of restarts that it allows.
        run: The launcher's name of the job.
    """

    launcher: str
    rank: int
    world_size: int
    host: str
    port: int
    restarts: int = 0
    most_restarts: int = 0
    run: str = ""


def job(environment: Mapping[str, str] = os.environ) -> Job | None:
    """Return the job this process is part of; None for a process with ranks of its own.

    Raises:
        HarnessError: The launcher's variables make no sense.
    """
    elastic = all(
        name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    )
    # A batch script has SLURM_PROCID and SLURM_NTASKS, too. A process that srun starts there also
    # has the step's variables, and needs a meeting place.
    meets = "MASTER_ADDR" in environment and "MASTER_PORT" in environment
    step = environment.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    if elastic:
        launcher, names = "torchrun", ("RANK", "WORLD_SIZE")
    elif (
        "SLURM_PROCID" in environment
        and environment.get("SLURM_NTASKS", "1") != "1"
        and (meets or step)
    ):
        launcher, names = "srun", ("SLURM_PROCID", "SLURM_NTASKS")
        if not meets:
            raise HarnessError(
                "srun has started several processes without a meeting place: set "
                "MASTER_ADDR to the "
                "first node's name and MASTER_PORT to a free port"
            )
    else:
        return None
    rank, world_size, port = (_number(environment, name) for name in (*names, "MASTER_PORT"))
    if world_size == 1:
        return None
    if rank >= world_size:
        raise HarnessError(
            f"{names[0]} is {rank}, expected less than {names[1]}, which is {world_size}"
        )
    restarts, most = (
        _number(environment, f"TORCHELASTIC_{name}", "0")
        for name in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    return Job(
        launcher,
        rank,
        world_size,
        environment["MASTER_ADDR"],
        port,
        restarts,
        most,
        environment.get("TORCHELASTIC_RUN_ID", ""),
    )


def _number(environment: Mapping[str, str], name: str, absent: str = "") -> int:
    text = environment.get(name, absent)
    if not text.isdecimal():
        raise HarnessError(f"{name} is {text!r}, expected a number")
    return int(text)


_led: list["Cluster"] = []
"""The job that this process leads, if it does: as much process-wide state as its rank is."""


def led() -> "Cluster | None":
    """Return the job this process leads; None if it is not rank 0 of a job."""
    return _led[0] if _led else None


def enter() -> int | None:
    """Act as rank 0 or serve rank 0, if this process is in a job.

    Every process except rank 0 serves here until the end.

    Returns:
        The exit status if this process's part is over: it has served, or the job did not come
        together. None if it goes on, by itself or as rank 0, which must call `leave` later.
    """
    try:
        current = job()
        if current is None:
            return None
        if current.rank:
            return serve(current)
        # Launchers end a job by SIGTERM. The findings so far must be shown, as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _led.append(Cluster(current))
    except HarnessError as error:
        sys.stderr.write(f"ddp-invariants: {error}\n")
        return ABANDONED
    return None


def leave(status: int) -> None:
    """End the job that this process leads, if any, with this process's exit status."""
    while _led:
        cluster = _led.pop()
        cluster.end()
        cluster.release(status)


def serve(job: Job) -> int:
    """Serve rank 0 from another process until it is over or gone, and return the exit status."""
    try:
        interface, address = _network(job)
        with (
            socket.create_server((address, 0)) as listener,
            Hosts(hash_seeds=(str(1 + job.rank),), interface=interface) as hosts,
        ):
            host_address = _host_address(
                job, address, listener.getsockname()[1], secrets.token_hex(16)
            )
            _introduce(hosts, job, host_address)
            return Server(hosts.addresses[0], listener, host_address.token).serve()
    except (HarnessError, OSError) as error:
        sys.stderr.write(f"ddp-invariants: rank {job.rank} of {job.world_size}: {error}\n")
        return ABANDONED


def _host_address(job: Job, address: str, port: int, token: str) -> HostAddress:
    return HostAddress(
        job.rank,
        this_node(),
        socket.gethostname(),
        address,
        port,
        token,
        f"ddp-invariants {__version__}, torch {version('torch')}",
    )


def _introduce(hosts: Hosts, job: Job, host_address: HostAddress) -> list[str | None]:
    """Send this process's address to rank 0; in rank 0, return the addresses of all."""
    with Pool(hosts.addresses) as pool:
        return pool.processes.introduce(
            {
                "rank": job.rank,
                "world_size": job.world_size,
                "host": job.host,
                "port": job.port,
                "message": host_address.to_text(),
                "patience": COMING,
            }
        )


class Cluster:
    """Rank 0's view of its job: its own host, and the addresses of the other processes.

    Args:
        job: The job.

    Attributes:
        addresses: Of the hosts, by rank, for pools.
        host_addresses: The address of each rank's process.

    Raises:
        HarnessError: Not all processes of the job have come, or they do not fit together.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        interface, address = _network(job)
        self._hosts = Hosts(hash_seeds=HASH_SEEDS[:1], interface=interface)
        self._sessions: list[socket.socket] = []
        self.host_addresses = [_host_address(job, address, 0, "")]
        try:
            messages = _introduce(self._hosts, job, self.host_addresses[0])
            self.host_addresses += [
                HostAddress.from_text(text) for text in messages[1:] if text is not None
            ]
            self._sessions = [
                connect(host_address, "session") for host_address in self.host_addresses[1:]
            ]
            self._require_all()
        except BaseException:
            self.end()
            self.release(ABANDONED)
            raise
        self.addresses = [
            *self._hosts.addresses,
            *(host_address.to_text() for host_address in self.host_addresses[1:]),
        ]

    def _require_all(self) -> None:
        own = self.host_addresses[0]
        arrived = {host_address.rank for host_address in self.host_addresses}
        missing = [str(rank) for rank in range(self.job.world_size) if rank not in arrived]
        if missing:
            raise HarnessError(
                f"rank {' and '.join(missing)} of {self.job.world_size} did not come within "
                f"{COMING:.0f} s; "
                f"these came: {', '.join(map(str, self.host_addresses))}"
            )
        for host_address in self.host_addresses:
            if host_address.suite != own.suite:
                raise HarnessError(
                    f"{host_address} has {host_address.suite}, rank 0 has {own.suite}"
                )
            if _loopback(host_address) != _loopback(own):
                raise HarnessError(
                    f"{host_address} and {own}: one of them has a loopback address; set "
                    "GLOO_SOCKET_IFNAME to the interface that joins the nodes"
                )

    def __str__(self) -> str:
        nodes: dict[tuple[str, str], list[int]] = {}
        for host_address in self.host_addresses:
            nodes.setdefault((host_address.name, host_address.address), []).append(
                host_address.rank
            )
        where = "; ".join(
            f"{', '.join(map(str, ranks))} on {name} ({address})"
            for (name, address), ranks in nodes.items()
        )
        return f"{self.job.world_size} ranks under {self.job.launcher}: {where}"

    def close(self) -> None:
        """Do nothing: a session that uses the job's hosts ends before the job does."""

    def end(self) -> None:
        """End this process's host."""
        self._hosts.close()

    def release(self, status: int) -> None:
        """Let the other processes end, with this exit status, once this process has ended.

        They must not end earlier: a launcher ends all processes of a node when it sees one fail,
        and this process may still be writing.
        """
        for session in self._sessions:
            with contextlib.suppress(OSError):  # It is gone already.
                wire.send(session, {"status": int(status)})
            session.detach()
        self._sessions = []


def _loopback(host_address: HostAddress) -> bool:
    return ipaddress.ip_address(host_address.address).is_loopback


def _network(job: Job) -> tuple[str, str]:
    """Return the interface over which the job's nodes reach this one, and its address there.

    It is the interface that leads to the launcher's meeting place, unless GLOO_SOCKET_IFNAME names
    another one, as for any job on gloo.

    Raises:
        HarnessError: There is none.
    """
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if named:
        address = _address(named)
        if not address:
            raise HarnessError(
                f"GLOO_SOCKET_IFNAME is {named}, and no interface of that name has an IPv4 address"
            )
        return named, address
    try:
        family, kind, _, _, where = socket.getaddrinfo(job.host, job.port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            # Sends nothing: the kernel reports the source address that it would use.
            probe.connect(where)
            address = probe.getsockname()[0]
    except OSError as error:
        raise HarnessError(
            f"MASTER_ADDR is {job.host}, which cannot be reached from here ({error})"
        ) from error
    return next(
        (name for _, name in socket.if_nameindex() if _address(name) == address), ""
    ), address


def _address(interface: str) -> str:
    """Return an interface's IPv4 address; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, _ADDRESS_OF, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(reply[20:24])
