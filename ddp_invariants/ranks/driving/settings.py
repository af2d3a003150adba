"""The settings of an optimizer, such as its learning rate, as a callable that makes one takes them."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

LEARNING_RATES = ("lr", "learning_rate")
_NAMES = {
    **dict.fromkeys(LEARNING_RATES, "lr"),
    **{
        name: name
        for name in (
            "momentum",
            "weight_decay",
            "nesterov",
            "betas",
            "eps",
            "amsgrad",
            "maximize",
            "foreach",
            "fused",
        )
    },
}
"""The names of torch's optimizers, by the names under which callables take the same."""
SETTING = "setting"
"""The condition of an argument's row of source text: the case's optimizer has the setting."""


class Settings:
    """The settings that a callable takes, each by its name or by `**arguments`.

    Args:
        names: The names of the callable's arguments.
        takes_all: True if it takes any keyword.
    """

    def __init__(self, names: Sequence[str], *, takes_all: bool) -> None:
        self.names = {name: _NAMES[name] for name in names if name in _NAMES}
        self.takes_all = takes_all

    def of(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call.

        What the callable names is always passed, because its own defaults may differ from torch's.

        Args:
            kind: The class of torch whose update is expected.
            given: The settings of a case; others are as torch's class has them.

        Raises:
            NotImplementedError: The callable has no argument for one of them.
        """
        usual = _usual(kind)
        unnamed = {name: value for name, value in given.items() if name not in self.names.values()}
        # Without momentum, for example, is as good as with a momentum of zero.
        missing = [name for name, value in unnamed.items() if value and value != usual[name]]
        if missing and not self.takes_all:
            raise NotImplementedError(f"it takes no {missing[0]}")
        whole = {**usual, **given}
        named = {name: whole[known] for name, known in self.names.items() if known in whole}
        return {**(unnamed if self.takes_all else {}), **named}

    def explained(self) -> str:
        """Describe in a line what is passed."""
        names = ", ".join([*self.names, *(["any other"] if self.takes_all else [])])
        return f"settings of the case's optimizer: {names or 'none'}"

    def source(self) -> list[list[str]]:
        """Return the rows of `ForeignCall.source`; the expression of a setting is torch's name."""
        rows = [[name, known, SETTING] for name, known in self.names.items()]
        if not self.takes_all:
            return rows
        passed = [*self.names.values()]
        others = f"for name, value in OPTIMIZER_ARGUMENTS.items() if name not in {passed}"
        every = f"{{name: value {others}}}" if passed else "OPTIMIZER_ARGUMENTS"
        return [*rows, ["**", every, ""]]


@cache
def _usual(kind: type) -> dict[str, Any]:
    """Return the defaults of one of torch's optimizers."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not parameter.empty
    }
