"""A witness that owes nothing to the judge: it shows in plain torch which compositions are wrong.

`python -m ddp_invariants.faults.generated.witness` reads compositions as JSON from its input and
writes a sentence for each that is shown wrong, also as JSON. Five plain processes over gloo train
modules whose gradients are integers, and compare each gradient, start and buffer with what a single
process computes. The gradients are multiples of the number of ranks and small enough for each
format. So every sum and mean is exact in any order, and a right wrapper differs in no bit. Each rank
has a seed of its own, and no two random numbers that the ranks draw may be equal.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults.generated import sampler_witness
from ddp_invariants.faults.generated.choices import Composition
from ddp_invariants.faults.generated.kinds import Called, Main, Sharded
from ddp_invariants.faults.generated.wrapper import Composed

RANKS = 5
"""The number of ranks: the occasions of all triggers occur among five."""
_UNIT = 60
"""Each gradient is a multiple of this number, and so is each sum: five ranks divide it."""
_PATIENCE = timedelta(seconds=5)

_SHAPES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "0.weight": ((3, 3), torch.float32),
    "0.bias": ((3,), torch.float32),
    "1.weight": ((8, 8), torch.float32),
    "1.bias": ((1,), torch.float32),
    "2.weight": ((5, 14), torch.float32),
    "3.weight": ((4, 2), torch.float64),
    "3.bias": ((2,), torch.float64),
    "4.weight": ((3, 2), torch.bfloat16),
    "5.weight": ((2, 2), torch.complex64),
    "10.weight": ((2, 3), torch.float32),
    "10.bias": ((3,), torch.float32),
    "11.weight": ((4, 4), torch.float32),
}
"""The parameters by name: shape and dtype."""
_STRIDED = ("0.weight", "11.weight")
"""The parameters that lie transposed in memory."""


class _Chosen(nn.Module):
    """A module whose gradients are chosen: its result is the sum of parameters times numbers."""

    def __init__(self, names: Sequence[str], rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for name in names:
            layer, _, kind = name.partition(".")
            if layer not in self.layers:
                self.layers[layer] = nn.Module()
            shape, dtype = _SHAPES[name]
            start = torch.full(shape, float(rank + 1), dtype=dtype)
            if name in _STRIDED:
                start = start.t().contiguous().t()
            self.layers[layer].register_parameter(kind, nn.Parameter(start))
        self.register_buffer("count", torch.full((3,), float(rank + 1)))

    def forward(self, numbers: dict[str, Tensor]) -> Tensor:
        """Return the sum of all parameters times their numbers."""
        parameters = self.named()
        terms = [(parameters[name] * number).sum() for name, number in numbers.items()]
        return torch.stack([t.real.to(torch.float64) for t in terms]).sum()

    def named(self) -> dict[str, nn.Parameter]:
        """Return the parameters by name."""
        return {name.removeprefix("layers."): p for name, p in self.named_parameters()}


def _numbers(name: str, rank: int, turn: int) -> Tensor:
    """Return the gradient of a parameter on a rank in one forward."""
    shape, dtype = _SHAPES[name]
    generator = torch.Generator().manual_seed(1000 * turn + 10 * rank + len(name))
    most = 1 if dtype == torch.bfloat16 else 35
    whole = torch.randint(-most, most + 1, shape, generator=generator)
    return (_UNIT * whole).to(dtype)


_KINDS: dict[str, type[Composed]] = {
    "ddp": Composed,
    "called": Called,
    "main": Main,
    "sharded": Sharded,
}
"""The wrappers by the name of their part."""


class _Trial:
    """One composition on one rank.

    Attributes:
        turn: The number of forwards so far.
    """

    def __init__(
        self, composition: Composition, rank: int, size: int, names: Sequence[str]
    ) -> None:
        self.rank, self.size, self.turn = rank, size, 0
        self.module = _Chosen(names, rank)
        choices: dict[str, Any] = dict((*composition.host_arguments, *composition.fault_arguments))
        # The rate is a power of two, so that each update is exact but for one rounding.
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.25)
        if composition.part == "sharded":
            choices["optimizer"] = self.optimizer
        self.wrapper: Any = _KINDS[composition.part](self.module, **choices)
        self.own: dict[str, dict[int, Tensor]] = {}

    def backward(self, names: Sequence[str], *, finishes: bool = True) -> None:
        """Make one forward and backward that use some parameters.

        Args:
            names: The parameters.
            finishes: False within no_sync: the loop calls nothing after the backward.
        """
        self.turn += 1
        if self.rank == 0:
            time.sleep(0.002)  # A rank that does not wait for this one has nothing of it.
        self.wrapper({name: _numbers(name, self.rank, self.turn) for name in names}).backward()
        if finishes and isinstance(self.wrapper, Called):
            self.wrapper.finish_gradient_synchronization()
        for name in names:
            for rank in range(self.size):
                sums = self.own.setdefault(name, {})
                number = _numbers(name, rank, self.turn).conj()
                sums[rank] = sums[rank] + number if rank in sums else number

    def wrong(self, occasion: str) -> str:
        """Return a sentence on the first gradient that is no mean; empty if there is none.

        If ranks share an optimizer, then its step is compared, too.
        """
        sentences: list[str] = []
        updated: dict[str, Tensor] = {}
        for name, parameter in self.module.named().items():
            sums = self.own.get(name)
            if sums is None or not parameter.requires_grad:
                continue
            mean = torch.stack([*sums.values()]).to(_wide(parameter.dtype)).sum(0) / self.size
            got = getattr(parameter, "main_grad", parameter.grad)
            if got is None or not torch.equal(got.to(mean.dtype), mean):
                sentences.append(
                    f"{occasion}: rank {self.rank} of {self.size}, {name}: the gradient is "
                    f"{'None' if got is None else got.flatten()[:4].tolist()}, not the mean "
                    f"{mean.flatten()[:4].tolist()}"
                )
            updated[name] = parameter.detach() - (mean / 4).to(parameter.dtype)
        if isinstance(self.wrapper, Sharded):
            # In any case: the other ranks make this step, too.
            self.optimizer.step()
            sentences += self._misplaced(occasion, updated)
        self.own.clear()
        self.clear()
        return next(iter(sentences), "")

    def _misplaced(self, occasion: str, updated: dict[str, Tensor]) -> Iterator[str]:
        """Yield a sentence on each parameter that is not as a step must leave it."""
        for name, parameter in self.module.named().items():
            if name in updated and not torch.equal(parameter, updated[name]):
                yield (
                    f"{occasion}: rank {self.rank} of {self.size}, {name}: after the step the "
                    f"parameter is {parameter.flatten()[:4].tolist()}, not "
                    f"{updated[name].flatten()[:4].tolist()}"
                )

    def clear(self) -> None:
        """Clear all gradients."""
        self.wrapper.zero_grad()
        if isinstance(self.wrapper, Main):
            self.wrapper.zero_grad_buffer()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _steps(trial: _Trial) -> Iterator[str]:
    """Train through all occasions, and yield a sentence for each comparison; empty if it holds."""
    every = [*trial.module.named()]
    for name, parameter in trial.module.named().items():
        if not torch.equal(parameter, torch.ones_like(parameter)):
            yield f"at the start: rank {trial.rank} of {trial.size}, {name}: not the first rank's"
    for step in range(5):
        trial.module.get_buffer("count").fill_(float(trial.rank + 7))
        trial.backward(every)
        yield trial.wrong(f"step {step}")
        if not torch.equal(trial.module.get_buffer("count"), torch.full((3,), 7.0)):
            yield f"step {step}: rank {trial.rank} of {trial.size}: a buffer is not the first rank's"
    trial.backward([name for name in every if trial.rank or not name.endswith("bias")])
    yield _unused(trial, every)
    trial.wrapper.eval()
    with torch.no_grad():
        trial.wrapper({name: _numbers(name, 0, 0) for name in every})
    trial.wrapper.train()
    trial.backward(every)
    yield trial.wrong("after an evaluation")
    with trial.wrapper.no_sync():
        trial.backward(every, finishes=False)
    trial.backward(every)
    yield trial.wrong("with no_sync")
    trial.backward(every)
    yield trial.wrong("after no_sync")
    trial.module.named()["0.weight"].requires_grad = False
    rest = [name for name in every if name != "0.weight"]
    trial.backward(rest)
    yield trial.wrong("after freezing")
    trial.module.named()["0.weight"].requires_grad = True


def _unused(trial: _Trial, every: Sequence[str]) -> str:
    """Compare after a step in which the first rank used no bias; its share counts as zero."""
    for name in every:
        if name.endswith("bias"):
            sums = trial.own.setdefault(name, {})
            for rank in range(trial.size):
                number = _numbers(name, rank, trial.turn).conj()
                sums[rank] = number if rank else torch.zeros_like(number)
    return trial.wrong("with a parameter that one rank did not use")


def _raise(_gradient: Tensor) -> None:
    raise RuntimeError("on purpose")


def _after_an_error(trial: _Trial) -> Iterator[str]:
    """Let one backward raise on all ranks, and yield what the next one comes to."""
    every = [*trial.module.named()]
    trial.turn += 1
    handle = trial.module.named()["1.weight"].register_hook(_raise)
    try:
        trial.wrapper({name: _numbers(name, trial.rank, trial.turn) for name in every}).backward()
    except RuntimeError as error:
        if "on purpose" not in str(error):
            raise
    handle.remove()
    trial.clear()
    for _ in range(2):
        trial.backward(every)
        yield trial.wrong("after a backward that raised")


def _shown(composition: Composition, rank: int, size: int) -> str:
    """Return a sentence that shows a composition wrong; empty if it is not."""
    torch.manual_seed(5 + rank)
    small = ("0.weight", "0.bias", "1.weight", "1.bias")
    programs = (
        _steps(_Trial(composition, rank, size, [*_SHAPES])),
        _after_an_error(_Trial(composition, rank, size, small)),
        _two_wrappers(*(_Trial(composition, rank, size, small) for _ in range(2))),
    )
    # To the end in any case: the other ranks go on, too.
    every: list[str] = []
    drawn: list[int] = []
    for program in programs:
        for sentence in program:
            every.append(sentence)
            drawn += torch.empty(1, dtype=torch.int64).random_().tolist()
    drawn_W: list[list[int]] = [[]] * size
    dist.all_gather_object(drawn_W, drawn)
    numbers = [number for drawn in drawn_W for number in drawn]
    if len({*numbers}) < len(numbers):
        every.append(f"the {size} ranks drew the same random number twice")
    return next(filter(None, every), "")


def _two_wrappers(first: _Trial, second: _Trial) -> Iterator[str]:
    """Train two wrappers in turn, and yield what each comes to."""
    for trial in (first, second, first):
        trial.backward([*trial.module.named()])
        yield trial.wrong("with two wrappers")


def _rank(
    rank: int,
    size: int,
    store: str,
    compositions: Sequence[tuple[int, Composition]],
    sentences: Any,
) -> None:
    """Be one rank of one world: try all compositions, until one ends the world."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # As the ranks do ([Note: batch scheduling] in ranks/host.py), of which faults import nothing.
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=_PATIENCE
    )
    for number, composition in compositions:
        try:
            sentence = _shown(composition, rank, size)
            dist.barrier()
        except Exception as error:  # noqa: BLE001 - a fault may raise anything
            sentences.put((number, f"rank {rank} of {size} raised {type(error).__name__}: {error}"))
            os._exit(1)  # The other ranks wait for it in vain, and then raise, too.
        sentences.put((number, sentence))


def _world(size: int, compositions: Sequence[tuple[int, Composition]]) -> Iterator[tuple[int, str]]:
    """Run the ranks of one world, and yield what each tells of each composition that it tried."""
    context = multiprocessing.get_context("fork")  # Before any thread: torch is imported once.
    sentences: Any = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank, args=(rank, size, f"{folder}/store", compositions, sentences)
            )
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        while any(process.is_alive() for process in ranks) or not sentences.empty():
            if sentences.empty():
                time.sleep(0.01)  # The queue cannot be waited for together with the processes.
            else:
                yield sentences.get()


def main() -> None:
    """Read compositions, and print those that are shown wrong, each with the sentence."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    compositions = [
        Composition(**{**plain, "host": tuple(plain["host"])}) for plain in json.load(sys.stdin)
    ]
    shown = {
        number: sentence
        for number, composition in enumerate(compositions)
        if composition.is_sampler and (sentence := sampler_witness.shown(composition))
    }
    left = [each for each in enumerate(compositions) if not each[1].is_sampler]
    while left:  # If a composition ends its world, a new world runs the next compositions.
        tried = left[0][0]
        for number, sentence in _world(RANKS, left):
            tried = max(tried, number)
            if sentence:
                shown.setdefault(number, sentence)
        left = [each for each in left if each[0] > tried]
    json.dump({str(number): shown[number] for number in sorted(shown)}, sys.stdout)


if __name__ == "__main__":
    main()
