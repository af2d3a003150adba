"""The settings of an optimizer, such as its learning rate, as its maker takes them."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer

UPDATES: dict[str, type[Optimizer]] = {
    # AdamW is derived from Adam.
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}
"""The classes of torch by their updates, derived ones first."""
LEARNING_RATES = ("lr", "learning_rate")
_VARIED = ("momentum", "weight_decay", "nesterov", "betas", "eps", "amsgrad", "maximize")
"""The settings of torch's optimizers that cases vary, besides the learning rate."""
_KERNELS = ("foreach", "fused")
"""The settings that a case gives only if it chooses an implementation of a step."""
_NAMES = {
    **dict.fromkeys(LEARNING_RATES, "lr"),
    **{name: name for name in (*_VARIED, *_KERNELS)},
}
"""The names of torch's optimizers, by the names under which callables take the same."""


class Settings:
    """The settings that a callable takes: some by their names, and all others at once.

    Args:
        names: The names of the callable's arguments.
        given: The arguments that the user gave.
        remainder: The form in which the callable takes settings that it does not name: `**` as
            keywords, or the name of an argument that takes a dictionary; empty if it takes none.
    """

    def __init__(self, names: Sequence[str], given: Mapping[str, Any], remainder: str = "") -> None:
        self.names = {name: _NAMES[name] for name in names if name in _NAMES and name not in given}
        self._given = {_NAMES[name]: value for name, value in given.items() if name in _NAMES}
        self.remainder = remainder

    def rate_alone(self) -> "RateAlone":
        """Return the same with the learning rate as the only setting."""
        named = [name for name, setting in self.names.items() if setting == "lr"]
        if named or "lr" in self._given:
            return RateAlone(named, {})
        return (
            RateAlone(["lr"], {}) if self.remainder == "**" else RateAlone([], {}, self.remainder)
        )

    def of(self, kind: type, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call.

        What the callable names is always passed, because its own defaults may differ from torch's.

        Args:
            kind: The class of torch whose update is expected.
            wanted: The settings of a case; others are as torch's class has them.

        Raises:
            NotImplementedError: The callable has no argument for one of them, or the user fixed it.
        """
        usual = _usual(kind)
        known = {*self.names.values(), *self._given}
        unnamed = {name: value for name, value in wanted.items() if name not in known}
        # Without momentum, for example, is as good as with a momentum of zero.
        missing = [name for name, value in unnamed.items() if value and value != usual.get(name)]
        if missing and not self.remainder:
            raise NotImplementedError(f"it takes no {missing[0]}, and the case has one")
        whole = {**{name: usual[name] for name in _VARIED if name in usual}, **wanted}
        for name, value in self._given.items():
            if name in whole and value != whole[name]:
                raise NotImplementedError(f"its {name} is given, and the case has another one")
        named = {name: whole[setting] for name, setting in self.names.items() if setting in whole}
        if not self.remainder:
            return named
        return {**(unnamed if self.remainder == "**" else {self.remainder: unnamed}), **named}

    def require(self, optimizer: object, kind: type, wanted: Mapping[str, Any]) -> None:
        """Check that a made optimizer fixes no setting which no argument takes.

        A setting that an argument takes, and the optimizer ignores, is a fault.

        Raises:
            NotImplementedError: It fixes one, and the case has another value.
        """
        groups = getattr(optimizer, "param_groups", None)
        first = groups[0] if isinstance(groups, list) and groups else {}
        held, whole = first if isinstance(first, dict) else {}, {**_usual(kind), **wanted}
        for name in self.lacks(_VARIED):
            fixed, expected = held.get(name), whole.get(name)
            if {name} <= held.keys() & whole.keys() and fixed != expected and (fixed or expected):
                raise NotImplementedError(
                    f"it has {name} = {fixed}, which no argument sets, and the case has {expected}"
                )

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Return those of some settings that no argument takes."""
        taken = {*self.names.values(), *self._given}
        return [] if self.remainder else [name for name in names if name not in taken]

    def explained(self) -> str:
        """Describe in a line what is passed."""
        passed = [*self.names]
        if self.remainder:
            passed += ["any other" if self.remainder == "**" else f"any other in {self.remainder}"]
        return f"settings of the case's optimizer: {', '.join(passed) or 'none'}"

    def source(self) -> list[list[str]]:
        """Return the rows of `ForeignCall.source`; the expression of a setting is torch's name."""
        rows = [[name, setting, "setting"] for name, setting in self.names.items()]
        if not self.remainder:
            return rows
        passed = [*self.names.values(), *self._given]
        chosen = f"for name, value in OPTIMIZER_ARGUMENTS.items() if name not in {passed}"
        every = f"{{name: value {chosen}}}" if passed else "OPTIMIZER_ARGUMENTS"
        return [*rows, [self.remainder, every, ""]]


class RateAlone(Settings):
    """The settings of an optimizer whose update is its own: a case gives the learning rate alone.

    No class of torch says what its other settings mean, so that each keeps its default.
    """

    def of(self, kind: type, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call: none if no argument takes the rate."""
        del kind
        named = dict.fromkeys(self.names, wanted["lr"])
        return {self.remainder: {"lr": wanted["lr"]}} if self.remainder else named

    def require(self, optimizer: object, kind: type, wanted: Mapping[str, Any]) -> None:
        """Check nothing: it may fix any setting."""


@cache
def _usual(kind: type) -> dict[str, Any]:
    """Return the defaults of one of torch's optimizers."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not parameter.empty
    }
