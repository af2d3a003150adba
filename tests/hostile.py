"""Hostile implementations: the reference, and beside it whatever may break a suite that runs it.

Every class says what it does; `test_hostile.py` says what must become of it.
"""

import atexit
import ctypes
import itertools
import multiprocessing
import os
import random
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
"""What is to live on after its case."""


class InBackward(Reference):
    """Attacks on one rank when a backward begins; base of those that keep the rank from answering rightly."""

    on: ClassVar[tuple[int, ...]] = (1,)

    def attack(self) -> object:
        """Do it."""
        raise NotImplementedError

    def _backward_begins(self, gradient: Tensor) -> None:
        if dist.get_rank(self.group) in self.on:
            self.attack()
        super()._backward_begins(gradient)


class AtTheEnd(Reference):
    """Attacks on all ranks in the last forward of a case of one step; base of those that leave something behind."""

    forwards = 0

    def attack(self) -> object:
        """Do it."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.forwards += 1
        if self.forwards == 2:
            self.attack()
        return result


# That do not end.


class LoopsInPython(InBackward):
    """Loops for ever in Python."""

    def attack(self) -> NoReturn:
        while True:
            pass


class LoopsInC(InBackward):
    """Loops for ever in C and never lets go of the GIL."""

    def attack(self) -> None:
        sum(itertools.repeat(0))


class SleepsWithTheGil(InBackward):
    """Sleeps in C and keeps the GIL, as a driver call may."""

    def attack(self) -> NoReturn:
        while True:
            ctypes.PyDLL(None).sleep(1000)


class StopsItself(InBackward):
    """Has the kernel stop it."""

    def attack(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class FloodsForEver(InBackward):
    """Writes to stdout and stderr without end."""

    def attack(self) -> NoReturn:
        while True:
            sys.stdout.write("flood " * 10000 + "\n")
            os.write(2, b"flood " * 10000)


class DeafAndLooping(InBackward):
    """Ignores every signal that can be ignored, then loops."""

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
    """Finds the harness's socket and sends a frame that never ends, a byte at a time."""

    def attack(self) -> NoReturn:
        while True:
            for descriptor in range(3, 40):
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
                    if one.family == socket.AF_UNIX:
                        one.send(b"\x01")
            time.sleep(0.02)


# That end their process.


class EndsQuietly(InBackward):
    """Ends its process as if all were well."""

    def attack(self) -> None:
        os._exit(0)


class EndsLoudly(InBackward):
    """Ends its process with a status."""

    def attack(self) -> None:
        os._exit(1)


class EndsAndLeavesAChild(InBackward):
    """Ends its process; a child lives on with all its descriptors, the harness's socket among them."""

    def attack(self) -> None:
        if not os.fork():
            time.sleep(1000)
        os._exit(3)


class SegmentationFault(InBackward):
    """Reads where nothing is."""

    def attack(self) -> None:
        ctypes.string_at(0)


class Aborts(InBackward):
    """Aborts, as a failed assertion in C++ does."""

    def attack(self) -> None:
        os.abort()


class ClosesDescriptors(InBackward):
    """Closes every descriptor it did not open, as daemons do."""

    def attack(self) -> None:
        os.closerange(3, 256)


# That raise.


class CallsSysExit(InBackward):
    """Calls sys.exit on one rank."""

    def attack(self) -> None:
        sys.exit("enough")


class RaisesOnOneRank(InBackward):
    """Raises on one rank; the others wait for it."""

    def attack(self) -> None:
        raise ValueError("only here")


class Unpicklable(Exception):
    """An exception that holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled", lambda: None)


class RaisesTheUnpicklable(InBackward):
    """Raises what cannot be pickled, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        raise Unpicklable


class Unprintable(Exception):
    """An exception whose message raises."""

    def __str__(self) -> str:
        raise SystemExit(5)


class RaisesTheUnprintable(InBackward):
    """Raises what cannot be printed, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        raise Unprintable


class RaisesHalfACharacter(InBackward):
    """Raises a message that no encoding takes, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> None:
        raise ValueError("half \ud800")


class AllocatesForEver(InBackward):
    """Takes memory until there is none, a GiB at a time, on every rank."""

    on = (0, 1, 2)

    def attack(self) -> NoReturn:
        while True:
            KEPT.append(torch.empty(1 << 30, dtype=torch.uint8))


class HandsBackGigabytes(Reference):
    """Makes a gradient of eight bytes that says it has eight GiB."""

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter in bucket.parameters:
            assert parameter.grad is not None
            parameter.grad.data = torch.zeros((), dtype=parameter.dtype).expand(1 << 30)


# That disagree.


class OnOneRank(Reference):
    """Sends something else on rank 1; base of the next four."""

    def _launch(self, bucket: Bucket) -> None:
        if dist.get_rank(self.group) != 1 or bucket.work is not None:
            super()._launch(bucket)
            return
        size = sum(p.numel() for p in bucket.parameters) + len(bucket.parameters)
        bucket.flat = torch.ones(size, dtype=bucket.parameters[0].dtype)
        bucket.work = self.send(bucket.flat)

    def send(self, flat: Tensor) -> Any:
        """What it sends instead."""
        raise NotImplementedError


class OtherCollective(OnOneRank):
    """Rank 1 broadcasts where the others reduce."""

    def send(self, flat: Tensor) -> Any:
        return dist.broadcast(flat, src=1, group=self.group, async_op=True)


class OtherDtype(OnOneRank):
    """Rank 1 reduces float16 where the others reduce float32."""

    def send(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat.half(), group=self.group, async_op=True)


class OtherShape(OnOneRank):
    """Rank 1 reduces one element less than the others."""

    def send(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat[1:].clone(), group=self.group, async_op=True)


class OtherOperation(OnOneRank):
    """Rank 1 takes the maximum where the others take the sum."""

    def send(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat, op=dist.ReduceOp.MAX, group=self.group, async_op=True)


# That leave something behind.


class Floods(AtTheEnd):
    """Prints four MB a case, half of it to stderr."""

    def attack(self) -> None:
        print("flood " * 350000)
        os.write(2, b"flood " * 350000)


class LeavesThreads(AtTheEnd):
    """Starts threads that never end."""

    def attack(self) -> None:
        for _ in range(3):
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


class LeavesAFork(AtTheEnd):
    """Forks a child that deafens itself and stays."""

    def attack(self) -> None:
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)


class LeavesAProcess(AtTheEnd):
    """Starts a process through multiprocessing that stays."""

    def attack(self) -> None:
        process = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(1000,), daemon=True
        )
        process.start()
        KEPT.append(process)


class LeavesACommand(AtTheEnd):
    """Starts a command that stays, in a session of its own."""

    def attack(self) -> None:
        KEPT.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))


class LeavesADaemon(AtTheEnd):
    """Forks twice, as daemons do: what stays is no child of the rank."""

    def attack(self) -> None:
        child = os.fork()
        if not child:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.execvp("sleep", ["sleep", "1000"])
        os.waitpid(child, 0)


class LeavesAFamily(AtTheEnd):
    """Starts a shell that starts a shell that starts a command, each in the background."""

    def attack(self) -> None:
        KEPT.append(subprocess.Popen(["sh", "-c", "sh -c 'sleep 1000 & sleep 1000' & sleep 1000"]))


class ForksAndGoesOn(AtTheEnd):
    """Forks, and the child goes on as if it were the rank: it would answer in its place."""

    def attack(self) -> None:
        if not os.fork():
            raise SystemExit("the child")
        time.sleep(0.1)


class LeaksDescriptors(AtTheEnd):
    """Opens files and never closes them."""

    def attack(self) -> None:
        KEPT.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(20))


class LeavesACollective(AtTheEnd):
    """Starts a collective that nobody waits for, on one rank."""

    def attack(self) -> None:
        if dist.get_rank(self.group) == 1:
            KEPT.append(dist.all_reduce(torch.ones(3), group=self.group, async_op=True))


class DestroysTheGroup(AtTheEnd):
    """Destroys the process group that was lent to it."""

    def attack(self) -> None:
        dist.destroy_process_group()


class ChangesSettings(AtTheEnd):
    """Changes what torch and the process are set to."""

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
    """Works in a folder that is gone."""

    def attack(self) -> None:
        os.chdir(tempfile.mkdtemp())
        os.rmdir(os.getcwd())


class ReseedsGenerators(AtTheEnd):
    """Leaves every global random generator in another state."""

    def attack(self) -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for anything, and does nothing."""


class PatchesDistributed(AtTheEnd):
    """Replaces an operation of torch.distributed for good."""

    def attack(self) -> None:
        dist.all_reduce = _nothing


class PatchesTensor(AtTheEnd):
    """Replaces a method of every tensor for good."""

    def attack(self) -> None:
        Tensor.backward = _nothing  # type: ignore[method-assign]


class PatchesModule(AtTheEnd):
    """Gives every module a method it only inherited."""

    def attack(self) -> None:
        nn.Linear.__call__ = _nothing  # type: ignore[method-assign]


class BreaksTheHarness(AtTheEnd):
    """Replaces what the harness itself calls when a case has ended."""

    def attack(self) -> None:
        def broken(*_: Any) -> NoReturn:
            raise RuntimeError("broken by hand")

        dist.is_initialized = broken
        torch.get_default_dtype = broken
        os.listdir = broken  # type: ignore[assignment]


class HooksEveryModule(AtTheEnd):
    """Hooks the forward of all modules there are."""

    def attack(self) -> None:
        nn.modules.module.register_module_forward_hook(lambda *_: None)


class HandlesSignals(AtTheEnd):
    """Installs signal handlers and a farewell."""

    def attack(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, _nothing)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        atexit.register(time.sleep, 1000)


class LeavesItsSession(AtTheEnd):
    """Makes a session of its own, out of the terminal's reach."""

    def attack(self) -> None:
        os.setsid()


class Traces(AtTheEnd):
    """Leaves a trace function and its own stdout."""

    def attack(self) -> None:
        sys.setprofile(_nothing)
        sys.stdout = open(os.devnull, "w")


# Samplers.


class SamplerCallsSysExit(DistributedSampler):
    """Calls sys.exit when iterated."""

    def order(self) -> list[int]:
        sys.exit(3)


class SamplerLeavesACommand(DistributedSampler):
    """Starts a command that stays."""

    def order(self) -> list[int]:
        KEPT.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        return super().order()


class SamplerPatchesRandom(DistributedSampler):
    """Replaces a function of the standard library's generator for good."""

    def order(self) -> list[int]:
        random.shuffle = _nothing
        return super().order()
