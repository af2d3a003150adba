"""Tests of the values of arguments given as text: literals, dotted names, calls and plain text."""

import datetime as dt
import functools
import importlib
import inspect
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import ShardingStrategy

from ddp_invariants.errors import LoadError
from ddp_invariants.ranks.driving.values import spelled, value_of, values_of


def takes(**anything: Any) -> None:
    """Take any argument."""


def in_a_script(text: str) -> Any:
    """Return the value of an argument's source in an exported script."""
    return eval(  # noqa: S307 - the source is made here
        spelled(text), {"torch": torch, "importlib": importlib}
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("None", None),
        ("-1e-3", -0.001),
        ("{'a': [1]}", {"a": [1]}),
        ("'config.json'", "config.json"),
        ("gloo", "gloo"),
        ("int8-fused", "int8-fused"),
        ("./config.json", "./config.json"),
        ("torch.float32", torch.float32),
        ("torch.distributed.fsdp.ShardingStrategy.NO_SHARD", ShardingStrategy.NO_SHARD),
        ("torch.device('cpu')", torch.device("cpu")),
        ("datetime.timedelta(seconds=-5)", dt.timedelta(seconds=-5)),
        ("os.path.basename('a/b')", "b"),
    ],
)
def test_a_text_stands_for_a_value_and_a_script_says_the_same(text: str, value: object) -> None:
    """A literal, a dotted name and a call stand for what they say, and other text for itself."""
    assert value_of(text) == value
    assert in_a_script(text) == value


def test_a_call_takes_names_and_calls() -> None:
    """Arguments of a call are literals, dotted names and calls."""
    text = "functools.partial(torch.optim.SGD, lr=fractions.Fraction(1, 4))"
    made = value_of(text)
    assert isinstance(made, functools.partial)
    assert made.func is torch.optim.SGD
    assert made.keywords == {"lr": 0.25}
    again = in_a_script(text)
    assert (again.func, again.keywords) == (made.func, made.keywords)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch.flaot32", "torch has no 'flaot32'; did you mean 'float32'?"),
        (
            "torch.distributed.fsdp.ShardingStrategy.NO_SHRD",
            "ShardingStrategy has no 'NO_SHRD'; did you mean 'NO_SHARD'?",
        ),
        ("no_such_module.thing", "there is no module 'no_such_module'"),
        (
            "config.json",
            "there is no module 'config'; if text is meant, quote it: it='config.json'",
        ),
        ("torch.device(1 + 1)", "1 + 1 is no literal, no dotted name"),
        ("torch.device('nowhere')", "raised RuntimeError"),
        ("open('x', 'w')", "there is no module 'open'"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_and_never_text(text: str, words: str) -> None:
    """An enum's name used to arrive as text, and the wrapper trained with another strategy."""
    with pytest.raises(LoadError) as error:
        values_of((("it", text),), inspect.signature(takes).parameters, "--ddp x")
    assert words in str(error.value)
    assert str(error.value).startswith(f"--ddp x: it={text}: ")
