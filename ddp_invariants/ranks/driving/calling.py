"""The ways to give a sampler its arguments."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from itertools import takewhile
from typing import Any


@dataclass(frozen=True)
class Calling:
    """A way to call a sampler's class or function. Plainly, arguments are given by name if possible.

    Attributes:
        without: Arguments that are left out.
        replaced: Other values of arguments.
        positional: True if arguments are given by position as far as possible.
    """

    without: frozenset[str] = frozenset()
    replaced: Mapping[str, Any] = field(default_factory=dict)
    positional: bool = False

    def call(
        self,
        make: Callable[..., Any],
        arguments: Mapping[str, Any],
        parameters: Mapping[str, Parameter],
    ) -> Any:
        """Call a function with arguments, given in this way."""
        given = {
            name: value
            for name, value in {**arguments, **self.replaced}.items()
            if name not in self.without
        }
        first = [
            name
            for name in leading(parameters, given)
            if self.positional or parameters[name].kind is Parameter.POSITIONAL_ONLY
        ]
        return make(*[given.pop(name) for name in first], **given)


def leading(parameters: Mapping[str, Parameter], known: Collection[str | None]) -> list[str]:
    """Return the first parameters that can be given by position, up to one that is not known."""
    return [
        name
        for name, _ in takewhile(
            lambda item: (
                item[0] in known
                and item[1].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
            ),
            parameters.items(),
        )
    ]
