"""Hostile wrappers and samplers: the reference implementation plus one attack on the suite.

Each docstring says what its class does. `test_hostile.py` says which verdict the class must get.
"""

import atexit
import ctypes
import itertools
import multiprocessing
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.processes import wire
from ddp_invariants.ranks import rounds, shards
from ddp_invariants.ranks.training import recorder
from ddp_invariants.records.trace import WORDS_SIZE
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference
from ddp_invariants.reference.sampler import DistributedSampler

KEPT: list[Any] = []
"""Objects that must stay alive after their case."""


class InBackward(Reference):
    """A base class that attacks when a backward begins, on the ranks in `on` (rank 1 by default).

    Its subclasses keep the rank from giving a right answer.
    """

    on: ClassVar[tuple[int, ...]] = (1,)

    def attack(self) -> object:
        """Run the attack."""
        raise NotImplementedError

    def _backward_begins(self, gradient: Tensor) -> None:
        if dist.get_rank(self.group) in self.on:
            self.attack()
        super()._backward_begins(gradient)


class AtTheEnd(Reference):
    """A base class that attacks on every rank, in the last forward of a case with one step.

    Its subclasses leave something behind.
    """

    forwards = 0

    def attack(self) -> object:
        """Run the attack."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.forwards += 1
        if self.forwards == 2:
            self.attack()
        return result


# Wrappers that do not end.


class LoopsInPython(InBackward):
    """A wrapper that loops for ever in Python."""

    def attack(self) -> NoReturn:
        while True:
            pass


class LoopsInC(InBackward):
    """A wrapper that loops for ever in C and never releases the GIL."""

    def attack(self) -> None:
        sum(itertools.repeat(0))


class SleepsWithTheGil(InBackward):
    """A wrapper that sleeps in C and keeps the GIL, as a driver call may."""

    def attack(self) -> NoReturn:
        while True:
            ctypes.PyDLL(None).sleep(1000)


class StopsItself(InBackward):
    """A wrapper that sends SIGSTOP to its own process."""

    def attack(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class FloodsForEver(InBackward):
    """A wrapper that writes to stdout and stderr without end."""

    def attack(self) -> NoReturn:
        while True:
            sys.stdout.write("flood " * 10000 + "\n")
            os.write(2, b"flood " * 10000)


class DeafAndLooping(InBackward):
    """A wrapper that ignores every signal that can be ignored, then loops for ever."""

    def attack(self) -> NoReturn:
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGUSR1,
            signal.SIGHUP,
            signal.SIGCHLD,
        ):
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass


def _find(kind: str, name: str) -> Any:
    """Return a local variable of a function of the harness that waits for this wrapper."""
    frame = sys._getframe()
    while frame.f_code.co_name != kind or name not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals[name]


class AnswersInTheRanksPlace(InBackward):
    """A wrapper that sends an answer of the right form and number without any evidence in it."""

    facts: ClassVar[Any] = {}

    def attack(self) -> None:
        number = _find("serve", "request")["to"]
        wire.send(_find("serve", "control"), {"to": number, "facts": self.facts, "sent": 5})
        time.sleep(1000)


class AnswersWithGarbage(AnswersInTheRanksPlace):
    """A wrapper that sends an answer whose parts have other types."""

    facts: ClassVar[Any] = [None]


class AnswersNoJson(InBackward):
    """A wrapper that sends a complete frame that is not JSON."""

    def attack(self) -> None:
        control = _find("serve", "control")
        control.sendall(struct.pack("<II", 4, 2) + b"\xff{]\x00ab")
        time.sleep(1000)


class AnnouncesGigabytes(InBackward):
    """A wrapper that sends the head of a frame of 8 GiB."""

    def attack(self) -> None:
        _find("serve", "control").sendall(b"\xff" * 9)
        time.sleep(1000)


class ScramblesItsLastWords(InBackward):
    """A wrapper that fills the memory of its last calls with garbage, then ends its process."""

    def attack(self) -> None:
        words = _find("serve", "state").words
        words._memory[:] = bytes(itertools.islice(itertools.cycle(range(255, 0, -1)), WORDS_SIZE))
        words.begin(_find("serve", "request")["to"])
        os._exit(4)


class PrintsGarbage(InBackward):
    """A wrapper that prints control sequences of a terminal and bytes of no encoding, and ends."""

    def attack(self) -> None:
        os.write(2, b"\x1b[2J\x1b]0;title\x07\xff\xfe\x00\r\x9b1m half \xc3" * 50)
        os._exit(4)


class DribblesIntoTheSocket(InBackward):
    """A wrapper that finds the harness's socket and sends an endless frame, one byte at a time."""

    def attack(self) -> NoReturn:
        while True:
            for descriptor in range(3, 40):
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family == socket.AF_UNIX:
                        connection.send(b"\x01")
            time.sleep(0.02)


# Wrappers that end their process.


class EndsQuietly(InBackward):
    """A wrapper that ends its process with exit status 0, as if all were well."""

    def attack(self) -> None:
        os._exit(0)


class EndsLoudly(InBackward):
    """A wrapper that ends its process with exit status 1."""

    def attack(self) -> None:
        os._exit(1)


class EndsAndLeavesAChild(InBackward):
    """A wrapper that ends its process and leaves a child with all its descriptors.

    The harness's socket is one of these descriptors.
    """

    def attack(self) -> None:
        if not os.fork():
            time.sleep(1000)
        os._exit(3)


class SegmentationFault(InBackward):
    """A wrapper that reads from address 0."""

    def attack(self) -> None:
        ctypes.string_at(0)


class Aborts(InBackward):
    """A wrapper that aborts, as a failed assertion in C++ does."""

    def attack(self) -> None:
        os.abort()


class KillsItsHost(InBackward):
    """A wrapper that kills its parent process, the host that forks ranks."""

    def attack(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)


class KillsItsGroup(InBackward):
    """A wrapper that kills its process group, as launchers do to clean up."""

    def attack(self) -> None:
        os.killpg(0, signal.SIGKILL)


class ClosesDescriptors(InBackward):
    """A wrapper that closes every descriptor it did not open, as daemons do."""

    def attack(self) -> None:
        os.closerange(3, 256)


# Wrappers that raise.


class CallsSysExit(InBackward):
    """A wrapper that calls `sys.exit` on one rank."""

    def attack(self) -> None:
        sys.exit("enough")


class RaisesOnOneRank(InBackward):
    """A wrapper that raises on one rank while the other ranks wait for that rank."""

    def attack(self) -> None:
        raise ValueError("only here")


class Unpicklable(Exception):
    """An exception that holds an object that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled", lambda: None)


class RaisesTheUnpicklable(InBackward):
    """A wrapper that raises an exception that cannot be pickled, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        raise Unpicklable


class Unprintable(Exception):
    """An exception whose message raises `SystemExit`."""

    def __str__(self) -> str:
        raise SystemExit(5)


class RaisesTheUnprintable(InBackward):
    """A wrapper that raises an exception that cannot be printed, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        raise Unprintable


class RaisesHalfACharacter(InBackward):
    """A wrapper that raises a message that no encoding accepts, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        raise ValueError("half \ud800")


class AllocatesForEver(InBackward):
    """A wrapper that allocates 1 GiB at a time until no memory is left, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> NoReturn:
        while True:
            KEPT.append(torch.empty(1 << 30, dtype=torch.uint8))


class LiftsTheMemoryBound(AllocatesForEver):
    """A wrapper that lifts every limit on its memory, then allocates until none is left."""

    def attack(self) -> NoReturn:
        for most in (resource.getrlimit(resource.RLIMIT_DATA)[1], resource.RLIM_INFINITY):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        super().attack()


class HandsBackGigabytes(Reference):
    """A wrapper whose gradients show 2^30 elements although each stores a single one."""

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter in bucket.parameters:
            assert parameter.grad is not None
            parameter.grad.data = torch.zeros((), dtype=parameter.dtype).expand(1 << 30)


class RecursesForEver(InBackward):
    """A wrapper that calls itself until Python's stack is full, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        self.attack()


class DestroysTheGroupEarly(InBackward):
    """A wrapper that destroys the process group that was lent to it before it has reduced."""

    on = (0, 1, 2)

    def attack(self) -> None:
        dist.destroy_process_group()


# Wrappers that alter the harness.


def _no_bits(*_: Any) -> bytes:
    """Return no bits of a tensor."""
    return b""


class ReplacesTheRecorder(AtTheEnd):
    """A wrapper that replaces a method with which the harness records tensors."""

    def attack(self) -> None:
        recorder.Record.tensors = _nothing  # type: ignore[method-assign]  # the attack


class ReplacesCode(AtTheEnd):
    """A wrapper that gives a function of the harness another body."""

    def attack(self) -> None:
        recorder._bits.__code__ = _no_bits.__code__


class ReplacesAName(AtTheEnd):
    """A wrapper that replaces a function in a module of the harness."""

    def attack(self) -> None:
        rounds._seed = _nothing


class OverridesAMethod(AtTheEnd):
    """A wrapper that adds a method to a class of the harness, which inherits another one."""

    def attack(self) -> None:
        recorder.EvidenceError.__str__ = _nothing  # type: ignore[assignment,method-assign]  # the attack


class DropsAModule(AtTheEnd):
    """A wrapper that removes a module of the harness, so that the next import makes another one."""

    def attack(self) -> None:
        del sys.modules[recorder.__name__]


class BreaksTheAnswer(AtTheEnd):
    """A wrapper that breaks the function with which the harness finishes its evidence."""

    def attack(self) -> None:
        def broken(*_: Any) -> NoReturn:
            raise RuntimeError("broken by hand")

        recorder.Record.header = broken  # type: ignore[assignment,method-assign]  # the attack


class ReplacesTheReading(AtTheEnd):
    """A wrapper that replaces the method with which bits are read from every tensor."""

    def attack(self) -> None:
        Tensor.numpy = lambda self, **_: torch._C.TensorBase.numpy(self * 0, force=True)  # type: ignore[method-assign]  # the attack


# Wrappers whose ranks disagree.


class OnOneRank(Reference):
    """A base class that sends something else on rank 1."""

    def _launch(self, bucket: Bucket) -> None:
        if dist.get_rank(self.group) != 1 or bucket.work is not None:
            super()._launch(bucket)
            return
        size = sum(p.numel() for p in bucket.parameters) + len(bucket.parameters)
        bucket.flat = torch.ones(size, dtype=bucket.parameters[0].dtype)
        bucket.work = self.send(bucket.flat)

    def send(self, flat: Tensor) -> Any:
        """Start the collective that rank 1 issues instead, and return its work handle."""
        raise NotImplementedError


class OtherCollective(OnOneRank):
    """A wrapper that broadcasts on rank 1 while the other ranks reduce."""

    def send(self, flat: Tensor) -> Any:
        return dist.broadcast(flat, src=1, group=self.group, async_op=True)


class OtherDtype(OnOneRank):
    """A wrapper that reduces float16 on rank 1 while the other ranks reduce float32."""

    def send(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat.half(), group=self.group, async_op=True)


class OtherShape(OnOneRank):
    """A wrapper that reduces one element less on rank 1 than on the other ranks."""

    def send(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat[1:].clone(), group=self.group, async_op=True)


class OtherOperation(OnOneRank):
    """A wrapper that takes the maximum on rank 1 while the other ranks take the sum."""

    def send(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat, op=dist.ReduceOp.MAX, group=self.group, async_op=True)


# Wrappers that leave something behind.


class Floods(AtTheEnd):
    """A wrapper that prints 4 MB in a case, half of it to stderr."""

    def attack(self) -> None:
        print("flood " * 350000)
        os.write(2, b"flood " * 350000)


class PrintsOneLongLine(AtTheEnd):
    """A wrapper that prints 32 MB without the end of a line."""

    def attack(self) -> None:
        sys.stdout.write("flood" * 6_400_000)


class SpeaksOnEveryChannel(AtTheEnd):
    """A wrapper that sends garbage to the harness's sockets and files that it can find."""

    def attack(self) -> None:
        for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines():
            address = line.rpartition("@")[2]
            # Sockets of other sessions on this machine are none of its business.
            if address.startswith(f"ddp-invariants-{_session()}-"):
                for kind in (socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    _speak(address, kind)
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:rank"):
                    os.write(int(descriptor), b"\xff\x1b[2J" * 100_000)


def _session() -> int:
    """Return the process that started the host of this rank."""
    status = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
    return int(status.rpartition(")")[2].split()[1])


def _speak(address: str, kind: socket.SocketKind) -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(0.1)
        connection.connect("\0" + address)
        for message in (b'["gw8", {}]', b"5", b"{", b"kill 1", b"\xff" * 5000, b""):
            connection.send(message)


class StopsItsHost(AtTheEnd):
    """A wrapper that stops its parent process, the host that forks ranks."""

    def attack(self) -> None:
        os.kill(os.getppid(), signal.SIGSTOP)


class ExhaustsDescriptors(AtTheEnd):
    """A wrapper that opens files until the system allows no more."""

    def attack(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        with suppress(OSError):
            while True:
                KEPT.append(os.open("/dev/null", os.O_RDONLY))


class LowersItsLimits(AtTheEnd):
    """A wrapper that lowers the limits and the priority of its process for good."""

    def attack(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        os.nice(5)


class SetsATimer(AtTheEnd):
    """A wrapper that sets a timer whose signal would end the process during the next case."""

    def attack(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.5)


class LeavesTheDead(AtTheEnd):
    """A wrapper that starts processes and never waits for their end."""

    def attack(self) -> None:
        for _ in range(20):
            if not os.fork():
                os._exit(0)


class FillsTheStore(AtTheEnd):
    """A wrapper that fills the store of its group with keys of its own."""

    def attack(self) -> None:
        store = dist.distributed_c10d._get_default_store()
        for number in range(300):
            store.set(f"garbage {number}", "\xff" * 100)


class SlowsThreads(AtTheEnd):
    """A wrapper that changes how Python switches threads, and the timeout of new sockets."""

    def attack(self) -> None:
        sys.setswitchinterval(100.0)
        socket.setdefaulttimeout(1e-6)
        np.seterr(all="raise")


class LeavesThreads(AtTheEnd):
    """A wrapper that starts threads that never end."""

    def attack(self) -> None:
        for _ in range(3):
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


class LeavesAFork(AtTheEnd):
    """A wrapper that forks a child that ignores SIGTERM and sleeps."""

    def attack(self) -> None:
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)


class LeavesAProcess(AtTheEnd):
    """A wrapper that starts a process through multiprocessing and never ends it."""

    def attack(self) -> None:
        process = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(1000,), daemon=True
        )
        process.start()
        KEPT.append(process)


class LeavesACommand(AtTheEnd):
    """A wrapper that starts a command in a session of its own and never ends it."""

    def attack(self) -> None:
        KEPT.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))


class LeavesADaemon(AtTheEnd):
    """A wrapper that forks twice, as daemons do.

    The process that stays is no child of the rank.
    """

    def attack(self) -> None:
        child = os.fork()
        if not child:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.execvp("sleep", ["sleep", "1000"])
        os.waitpid(child, 0)


class LeavesAFamily(AtTheEnd):
    """A wrapper that starts a shell, which starts a second shell and commands in the background."""

    def attack(self) -> None:
        KEPT.append(subprocess.Popen(["sh", "-c", "sh -c 'sleep 1000 & sleep 1000' & sleep 1000"]))


class ForksAndGoesOn(AtTheEnd):
    """A wrapper that forks a child that goes on as if it were the rank.

    The child would answer in the rank's place.
    """

    def attack(self) -> None:
        if not os.fork():
            raise SystemExit("the child")
        time.sleep(0.1)


class LeaksDescriptors(AtTheEnd):
    """A wrapper that opens files and never closes them."""

    def attack(self) -> None:
        KEPT.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(20))


class LeavesACollective(AtTheEnd):
    """A wrapper that starts a collective on one rank and never waits for it."""

    def attack(self) -> None:
        if dist.get_rank(self.group) == 1:
            KEPT.append(dist.all_reduce(torch.ones(3), group=self.group, async_op=True))


class DestroysTheGroup(AtTheEnd):
    """A wrapper that destroys the process group that was lent to it."""

    def attack(self) -> None:
        dist.destroy_process_group()


class ChangesSettings(AtTheEnd):
    """A wrapper that changes settings of torch and of the process."""

    def attack(self) -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True)
        torch.set_flush_denormal(True)
        os.environ["OMP_NUM_THREADS"] = "7"
        os.chdir("/")
        sys.setrecursionlimit(123)


class LosesItsFolder(AtTheEnd):
    """A wrapper whose working directory no longer exists."""

    def attack(self) -> None:
        os.chdir(tempfile.mkdtemp())
        os.rmdir(os.getcwd())


class ReseedsGenerators(AtTheEnd):
    """A wrapper that leaves every global random generator in another state."""

    def attack(self) -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, whatever the arguments."""


class PatchesDistributed(AtTheEnd):
    """A wrapper that replaces an operation of torch.distributed for good."""

    def attack(self) -> None:
        dist.all_reduce = _nothing


class PatchesTime(AtTheEnd):
    """A wrapper that replaces the clock for good."""

    def attack(self) -> None:
        time.perf_counter = lambda: 0.0


class PatchesTheReference(AtTheEnd):
    """A wrapper that breaks its base class, which is the next implementation."""

    def attack(self) -> None:
        Reference._launch = _nothing  # type: ignore[method-assign]  # the attack


class PatchesTensor(AtTheEnd):
    """A wrapper that replaces a method of every tensor for good."""

    def attack(self) -> None:
        Tensor.backward = _nothing  # type: ignore[method-assign]  # the attack


class PatchesModule(AtTheEnd):
    """A wrapper that sets `__call__` on `nn.Linear`, which only inherited it before."""

    def attack(self) -> None:
        nn.Linear.__call__ = _nothing  # type: ignore[method-assign]  # the attack


class BreaksTheHarness(AtTheEnd):
    """A wrapper that replaces functions that the harness itself calls after a case."""

    def attack(self) -> None:
        def broken(*_: Any) -> NoReturn:
            raise RuntimeError("broken by hand")

        dist.is_initialized = broken
        torch.get_default_dtype = broken
        os.listdir = broken  # type: ignore[assignment]


class HooksEveryModule(AtTheEnd):
    """A wrapper that hooks the forward of all modules."""

    def attack(self) -> None:
        nn.modules.module.register_module_forward_hook(lambda *_: None)


class HandlesSignals(AtTheEnd):
    """A wrapper that installs signal handlers and an `atexit` function."""

    def attack(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, _nothing)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        atexit.register(time.sleep, 1000)


class LeavesItsSession(AtTheEnd):
    """A wrapper that makes a session of its own, which the terminal cannot reach."""

    def attack(self) -> None:
        os.setsid()


class Traces(AtTheEnd):
    """A wrapper that leaves a profile function and another stdout."""

    def attack(self) -> None:
        sys.setprofile(_nothing)
        sys.stdout = open(os.devnull, "w")


class KnowsTheSuite(nn.Module):
    """A wrapper that synchronises gradients only in a rank of the suite."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: nn.Module = module
        if _is_a_rank():
            self.module = Reference(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def _is_a_rank() -> bool:
    """Return whether the suite's serving loop is among the callers."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "serve":
        frame = frame.f_back
    return frame is not None


# Samplers.


class SamplerCallsSysExit(DistributedSampler):
    """A sampler that calls `sys.exit` when it is iterated."""

    def order(self) -> list[int]:
        sys.exit(3)


class SamplerLeavesACommand(DistributedSampler):
    """A sampler that starts a command and never ends it."""

    def order(self) -> list[int]:
        KEPT.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        return super().order()


class SamplerKillsItsHost(DistributedSampler):
    """A sampler that kills its parent process, in one of the two processes that are asked."""

    def order(self) -> list[int]:
        if os.environ["RANK"] == "1":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        return super().order()


class SamplerAltersTheHarness(DistributedSampler):
    """A sampler that replaces a function of the harness."""

    def order(self) -> list[int]:
        shards.shards = _nothing  # type: ignore[assignment]
        return super().order()


class SamplerPatchesTheReference(DistributedSampler):
    """A sampler that breaks its base class, which is the next sampler."""

    def order(self) -> list[int]:
        order = super().order()
        DistributedSampler.__len__ = lambda _: 1  # type: ignore[method-assign]  # the attack
        return order


class SamplerPatchesRandom(DistributedSampler):
    """A sampler that replaces a function of the `random` module for good."""

    def order(self) -> list[int]:
        random.shuffle = _nothing
        return super().order()
