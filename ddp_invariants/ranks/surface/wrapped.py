"""The facts of a wrapped module in a world of one rank: its buckets, its outputs, its refusals."""

import datetime as dt
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.implementation.adapter import Context
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups import distributed
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.groups.observed import Connections, Timing
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.ranks.surface.fact import Ask, answered, fact, fact_with_warnings, facts
from ddp_invariants.records.trace import LastWords

KIBIBYTES = (256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192)
"""The sizes of the parameters of the large model, over 30 MiB in all: more than any usual bucket."""
_TIMEOUT = dt.timedelta(seconds=20)
_PLAIN = (type(None), bool, int, float, str)


class Large(nn.Module):
    """A model of many MiB whose forward and backward take little time."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(size * 256) for size in KIBIBYTES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of all parameters, scaled."""
        total: Tensor = sum((part.sum() for part in self.parts), x.sum())
        return total


class Returning(nn.Module):
    """A model whose forward returns its result in a container.

    Args:
        container: Makes the container of two tensors.
    """

    def __init__(self, container: Any) -> None:
        super().__init__()
        self.linear, self.container = nn.Linear(2, 2), container
        self.returned: Any = None

    def forward(self, x: Tensor) -> Any:
        """Return two tensors in the container, and keep the container."""
        y = self.linear(x)
        self.returned = self.container(y)
        return self.returned


CONTAINERS: dict[str, Any] = {
    "list": lambda y: [y, y * 2],
    "tuple": lambda y: (y, y * 2),
    "dict": lambda y: {"a": y, "b": y * 2},
    "nested list": lambda y: [[y], {"b": [y * 2]}],
    "named tuple": lambda y: torch.max(y, dim=1),
    "list with None": lambda y: [y, None, 3],
}


def of_wrapper(driver: Driver) -> dict[str, str]:
    """Return the facts of the implementation under test; none if it does whole training steps."""
    if driver.ddp.name == "none" or "train_step" in driver.methods:
        return {}
    words = LastWords.alone()
    try:
        with _alone(words) as groups:
            wrapper = _Wrapper(driver, groups)
            return {
                "the buckets of a large model": fact(wrapper.plan),
                **wrapper.attributes(),
                **facts(wrapper.outputs()),
                **facts(wrapper.refusals()),
                **wrapper.arguments(),
                **facts(wrapper.uses()),
            }
    finally:
        words.close()


@contextmanager
def _alone(words: LastWords) -> Iterator[CaseGroups]:
    """Make the process groups of a world of one rank, which record their collectives."""
    store = distributed._c10d.HashStore()
    connections = Connections(store, 0, 1, _TIMEOUT, RankDevice())
    groups = CaseGroups(connections, None, [0], "surface", Log(words, 0), Timing(), plain=False)
    try:
        yield groups
    finally:
        groups.close()


class _Wrapper:
    """The calls that wrap a module with the implementation under test.

    Args:
        driver: The implementation.
        groups: The groups of a world of one rank.
    """

    def __init__(self, driver: Driver, groups: CaseGroups) -> None:
        self._driver, self._groups = driver, groups
        self._context = Context(
            0, 1, None, None, 0, 0.5, torch.optim.SGD, {"lr": 0.5}, torch.device("cpu")
        )

    def wrap(self, module: Any) -> Any:
        """Return a module, wrapped with all defaults."""
        drive = self._driver.start(self._context, module)
        drive.setup(self._context)
        made = drive.wrap(module, self._context)
        made = made[0] if isinstance(made, tuple) else made
        return module if made is None else made

    def made_of(self, make: Any) -> str:
        """Return the type of a module, wrapped."""
        return type(self.wrap(make())).__name__

    def given(self, name: str, value: object) -> str:
        """Return the answer to an argument with a value."""
        self._driver.thing(nn.Linear(2, 2), **{name: value})
        return "taken"

    def plan(self) -> str:
        """Return the collectives of two steps of a large model: the sizes and order of buckets."""
        started = self._counted()
        wrapped, steps = self.wrap(Large()), []
        for _ in range(2):
            wrapped(torch.ones(1)).backward()
            ended = self._counted()
            steps.append(", ".join(str(call) for call in self._sent()[started:ended]))
            started = ended
        return "; then ".join(steps)

    def _sent(self) -> list[str]:
        return [f"{row[0]} {row[1]} x {row[2]}" for calls in self._groups.sent() for row in calls]

    def _counted(self) -> int:
        return len(self._sent())

    def attributes(self) -> dict[str, str]:
        """Return the public attributes of a wrapped module that are plain values, by name.

        Properties are among them: a program reads both alike. What differs between two wrapped
        modules, such as a time, is left out.
        """
        values: dict[str, str] = {}

        def wrap() -> str:
            # Both are kept, since Python gives the id of a freed object to the next one.
            wrapped = [self.wrap(nn.Linear(2, 2)) for _ in range(2)]
            first, second = map(_plain_values, wrapped)
            values.update(first.items() & second.items())
            return "made"

        return {
            "a wrapped module": fact(wrap),
            **{
                f"attribute {name} of a wrapped module": value
                for name, value in sorted(values.items())
            },
        }

    def outputs(self) -> dict[str, Ask]:
        """Return questions about the containers of outputs."""

        def returned(container: Any) -> str:
            module = Returning(container)
            output = self.wrap(module)(torch.ones(1, 2))
            same = "the module's own" if output is module.returned else "another"
            return f"{same} {type(output).__name__} of {_types(output)}"

        return {
            f"output in a {name}": partial(returned, container)
            for name, container in CONTAINERS.items()
        }

    def refusals(self) -> dict[str, Ask]:
        """Return questions with modules that may be refused."""
        modules: dict[str, Any] = {
            "a module without parameters": nn.ReLU,
            "a module whose parameters are all frozen": lambda: nn.Linear(2, 2).requires_grad_(
                requires_grad=False
            ),
            "a number for a module": lambda: 3,
            "None for a module": lambda: None,
            "a module without shapes": lambda: nn.LazyLinear(2),
            "a module on the meta device": lambda: nn.Linear(2, 2, device="meta"),
            "a module that is wrapped already": lambda: self.wrap(nn.Linear(2, 2)),
        }
        return {f"refusal of {name}": partial(self.made_of, make) for name, make in modules.items()}

    def arguments(self) -> dict[str, str]:
        """Return the answers to each argument with a value that it may refuse."""
        if self._driver.call is None:
            return {}
        _, usual = answered(partial(self.wrap, nn.Linear(2, 2)))
        names = list(self._driver.describe().defaults)[1:]
        return {
            f"refusal of {name}={label}": fact_with_warnings(
                partial(self.given, name, value), usual
            )
            for name in names
            for label, value in (("object()", object()), ("-1", -1))
        }

    def uses(self) -> dict[str, Ask]:
        """Return questions about other uses of a wrapped module."""

        def trained() -> Any:
            wrapped = self.wrap(nn.Linear(2, 2))
            wrapped(torch.ones(1, 2)).sum().backward()
            return wrapped

        def backward_twice() -> str:
            loss = self.wrap(nn.Linear(2, 2))(torch.ones(1, 2)).sum()
            loss.backward()
            loss.backward()
            return "done"

        def hooks() -> str:
            module, order = nn.Linear(2, 2), list[str]()
            wrapped = self.wrap(module)
            module.register_forward_hook(lambda *_: order.append("module"))
            if wrapped is not module:
                wrapped.register_forward_hook(lambda *_: order.append("wrapper"))
            for name, parameter in module.named_parameters():
                parameter.register_post_accumulate_grad_hook(
                    lambda _, name=name: order.append(name)
                )
            wrapped(torch.ones(1, 2)).sum().backward()
            return ", ".join(order)

        return {
            "the state of a wrapped module": lambda: (
                f"{type(self.wrap(nn.Linear(2, 2)).state_dict()).__name__} of "
                f"{list(self.wrap(nn.Linear(2, 2)).state_dict())}"
            ),
            "a state without names": lambda: self.wrap(nn.Linear(2, 2)).load_state_dict({}),
            "a state with another name": lambda: self.wrap(nn.Linear(2, 2)).load_state_dict(
                {**self.wrap(nn.Linear(2, 2)).state_dict(), "more": torch.ones(1)}
            ),
            "a deep copy of a wrapped module": lambda: type(deepcopy(trained())).__name__,
            "backward through one loss twice": backward_twice,
            "no_sync": lambda: type(trained().no_sync()).__name__,
            "the order of hooks": hooks,
            "a communication hook": lambda: _with_hook(self.wrap(nn.Linear(2, 2))),
            "evaluation": lambda: (
                type(self.wrap(nn.Linear(2, 2)).eval()(torch.ones(1, 2))).__name__
            ),
        }


def _with_hook(wrapped: Any) -> str:
    """Return the calls of a communication hook: the index and the elements of each bucket."""
    seen = list[str]()

    # torch's class has no type stubs, and torch checks this annotation.
    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        seen.append(
            f"bucket {bucket.index()} of {bucket.buffer().numel()}, last {bucket.is_last()}"
        )
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped.register_comm_hook(None, hook)
    for _ in range(2):
        wrapped(torch.ones(1, 2)).sum().backward()
    return "; ".join(seen)


def _plain_values(wrapped: Any) -> dict[str, str]:
    """Return the public attributes and properties of an object that are plain values, in words."""
    members = inspect.getmembers_static(type(wrapped))
    properties = [name for name, member in members if isinstance(member, property)]
    values = dict[str, str]()
    for name in (*vars(wrapped), *properties):
        with suppress(Exception):  # A property may have a value in training alone.
            value = getattr(wrapped, name)
            if not name.startswith("_") and isinstance(value, _PLAIN):
                values[name] = repr(value)
    return values


def _types(output: Any) -> str:
    values = output.values() if isinstance(output, dict) else output
    return ", ".join(type(value).__name__ for value in values)
