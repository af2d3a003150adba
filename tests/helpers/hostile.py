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
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

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


class PatchesTensor(AtTheEnd):
    """A wrapper that replaces a method of every tensor for good."""

    def attack(self) -> None:
        Tensor.backward = _nothing  # type: ignore[method-assign]


class PatchesModule(AtTheEnd):
    """A wrapper that sets `__call__` on `nn.Linear`, which only inherited it before."""

    def attack(self) -> None:
        nn.Linear.__call__ = _nothing  # type: ignore[method-assign]


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


class SamplerPatchesRandom(DistributedSampler):
    """A sampler that replaces a function of the `random` module for good."""

    def order(self) -> list[int]:
        random.shuffle = _nothing
        return super().order()
