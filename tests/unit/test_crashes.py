"""Tests of the difference between a refusal and a crash, on exceptions that are raised here."""

import io
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ddp_invariants.invariants.crashes import crash, is_crash, read
from ddp_invariants.ranks.training.origins import _is_inherited
from ddp_invariants.ranks.training.recorder import exception_data
from ddp_invariants.records.evidence import RaisedError
from ddp_invariants.reference.sampler import DistributedSampler


def _raised(function: Callable[[], object]) -> RaisedError:
    """Return the exception of a function as a rank records it."""
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - any exception is the subject
        return read(exception_data(error, "iteration", 0))
    raise AssertionError("nothing was raised")


def _refuses_an_end() -> None:
    try:
        next(iter(_NOTHING))
    except StopIteration as end:
        raise TypeError("an empty dataset is not supported") from end


def _refuses(error: BaseException) -> Callable[[], object]:
    def refuse() -> object:
        raise error

    return refuse


class _OneTensor:
    def forward(self, *inputs: Any) -> None:
        """Take no keyword."""


class _Inherits(torch.utils.data.DistributedSampler[int]):
    """A right subclass of a library's class; a test takes an attribute away from it."""


def _saved() -> None:
    class Local(torch.nn.Linear):
        """A class that nothing can save, because it has no name in its module."""

    torch.save(Local(1, 1), io.BytesIO())


def _loses_its_epoch() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    sampler = _Inherits(dataset, num_replicas=2, rank=0)
    del sampler.epoch
    next(iter(sampler))


class _Delegates:
    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Tells:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is neither in the wrapper nor in its module")


_NOTHING: Sequence[int] = ()
_NO_NAMES: dict[str, int] = {}


def _asserts() -> None:
    assert _NOTHING, "no values"


def _compares() -> None:
    assert not _NO_NAMES == {}, "2 != 3"  # noqa: SIM201 - the fault


def _requires() -> None:
    assert _NOTHING, "reducing an unsupported type: float64"


def _stops() -> Iterator[int]:
    yield next(iter(_NOTHING))


def _unpacks() -> None:
    _first, _second = (1,)  # type: ignore[misc]  # the fault


def _again() -> None:
    try:
        _NO_NAMES["absent"]
    except KeyError as error:
        raise ValueError("absent is not supported") from error


CRASHES: dict[str, Callable[[], object]] = {
    "name": lambda: undefined,  # type: ignore[name-defined]  # noqa: F821 - the fault
    "attribute": lambda: object().missing,  # type: ignore[attr-defined]  # the fault
    "attribute of a module": lambda: torch.nn.Linear(1, 1).missing,
    "attribute in a method of a base class": _loses_its_epoch,
    "index": lambda: _NOTHING[1],
    "key": lambda: _NO_NAMES["absent"],
    "key that is raised": _refuses(KeyError("absent")),
    "key of several words": _refuses(KeyError(("absent", 2))),
    "attribute that a lookup of its own tells": lambda: _Tells().missing,
    "division": lambda: 1 // 0,
    "assertion": _asserts,
    "assertion of equal lengths": _compares,
    "assertion that is raised without words": _refuses(AssertionError("values")),
    "too few arguments": lambda: DistributedSampler(range(2), rank=0, size=1),  # type: ignore[call-arg]  # the fault
    "operands": lambda: None + 1,  # type: ignore[operator]  # the fault
    "unpacking": _unpacks,
    "end of an iterator": lambda: list(_stops()),
    "number": lambda: int("x"),
    "least of nothing": lambda: min(_NOTHING),
    "place in a list": lambda: [1].index(2),
    "text": lambda: b"\xff".decode("ascii"),
}
REFUSALS: dict[str, Callable[[], object]] = {
    "value": _refuses(ValueError("not divisible")),
    "type": _refuses(TypeError("no sparse gradient")),
    "not implemented": _refuses(NotImplementedError("float64")),
    "runtime": _refuses(RuntimeError("a group is needed")),
    "of its own": _refuses(type("Unsupported", (Exception,), {})("a dtype")),
    "key": _refuses(KeyError("no codec is known for bfloat16")),
    "attribute": _refuses(AttributeError("complex numbers are not supported")),
    "a variable of the environment": lambda: os.environ["ABSENT"],
    "after a lookup": _again,
    "after an end": _refuses_an_end,
    "assertion of what is supported": _requires,
    "assertion that is raised in words": _refuses(AssertionError("too many backwards in a step")),
    "a missing file": _refuses(FileNotFoundError("no checkpoint")),
    "a file that is missing here": lambda: os.remove("/nowhere/at/all"),  # noqa: PTH107 - Path's own code would raise
    "an array": _refuses(ValueError(np.array([1, 2]))),
    "compiled code": lambda: torch.Generator().manual_seed(2**70),
    "a form of call": lambda: _OneTensor.forward(_OneTensor(), mode=1),  # type: ignore[call-arg]  # the fault
    "a dtype": lambda: torch.zeros(1, dtype=torch.bfloat16).numpy(),
}


@pytest.mark.parametrize("name", CRASHES)
def test_an_exception_that_nobody_chose_is_a_crash(name: str) -> None:
    """An exception without a `raise` statement is a crash, and the report has its traceback."""
    error = _raised(CRASHES[name])
    assert is_crash(error), error
    failure = crash("LIVE-1", {0: error}, "epoch 0")
    assert failure is not None
    assert failure.where == "iteration, epoch 0"
    assert "test_crashes.py" in failure.notes


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_raised_in_words_or_by_compiled_code_is_a_refusal(name: str) -> None:
    """A `raise` statement refuses, and so do compiled code and an assertion that names a need."""
    error = _raised(REFUSALS[name])
    assert not is_crash(error), error
    assert crash("LIVE-1", {0: error}, "epoch 0") is None


@pytest.mark.parametrize(
    ("phase", "step", "refuses"),
    [("wrap", 0, True), ("construction", 0, True), ("forward", 0, False), ("forward", 1, False)],
)
def test_an_assertion_in_words_refuses_when_it_wraps(
    phase: str, step: int, *, refuses: bool
) -> None:
    """Later it is about the implementation's own state."""
    error = _raised(_asserts)
    assert is_crash(error._replace(phase=phase, step=step)) != refuses
    assert is_crash(error._replace(phase=phase, step=step, message="values"))


def test_a_crash_without_a_message_is_told_by_its_line() -> None:
    """An assertion need not have a message."""
    failure = crash("LIVE-1", {0: _raised(_refuses(AssertionError()))}, "world size 2")
    assert failure is not None
    assert failure.got == "AssertionError: raise error"


def test_an_attribute_that_the_suite_asks_for_is_no_crash() -> None:
    """A method that looks attributes up is not the origin of an attribute that nobody has."""
    error = _raised(lambda: _Delegates().missing)
    assert error.innermost == "implementation"  # This file stands for the implementation.
    assert not is_crash(error._replace(caller="harness"))


def test_an_exception_of_an_older_file_is_no_crash() -> None:
    """An exception without an origin, as older files hold it, is no crash."""
    assert not is_crash(RaisedError("wrap", 0, "NameError", "x", ""))


@pytest.mark.parametrize(("function", "is_inherited"), [(_loses_its_epoch, True), (_saved, False)])
def test_a_function_of_a_library_is_no_inherited_method(
    function: Callable[[], object], *, is_inherited: bool
) -> None:
    """The suite itself hands objects to functions such as `torch.save`, which may refuse them."""
    with pytest.raises(AttributeError) as raised:
        function()
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    assert any(map(_is_inherited, frames[2:])) is is_inherited


def _reshapes_a_gradient() -> None:
    parameter: Any = torch.nn.Parameter(torch.ones(2))
    parameter.grad.reshape(-1)


def _reshapes_nothing() -> None:
    nothing: Any = None
    nothing.reshape(-1)


@pytest.mark.parametrize(
    ("function", "named"), [(_reshapes_a_gradient, True), (_reshapes_nothing, False)]
)
def test_a_gradient_that_is_none_is_named_as_the_cause(
    function: Callable[[], object], *, named: bool
) -> None:
    """Only if the line that crashed asks something of a gradient."""
    failure = crash("LIVE-1", {0: _raised(function)}, "world size 2")
    assert failure is not None
    assert failure.got.startswith("AttributeError: 'NoneType' object has no attribute 'reshape'")
    assert ("its .grad is None" in failure.perhaps) == named


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (MemoryError(), "(a rank may take 4 GiB)"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 bytes"),
            "(a rank may take 4 GiB)",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "(ranks share a device)"),
        (RuntimeError("NCCL error: Cuda failure 'out of memory'"), "(ranks share a device)"),
        (RuntimeError("refused"), ""),
    ],
)
def test_an_exception_for_want_of_memory_is_marked(error: BaseException, *, limit: str) -> None:
    """A rank that may take no more memory says so, since the suite sets the limit.

    The memory of a device is shared by the ranks, and perhaps by other programs.
    """
    raised = _raised(_refuses(error))
    assert raised.limited == bool(limit)
    assert raised.message.endswith(limit)
