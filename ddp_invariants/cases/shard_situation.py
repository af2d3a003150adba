"""The base class of the ways in which a program asks a sampler, and their list.

Standard library only: the rank side imports this module under any interpreter.
"""

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar

from ddp_invariants.cases.fields import Strict
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.words import brief


class ShardSituation(Strict):
    """Base of the classes for another way to ask a sampler for the same indices.

    A subclass is a frozen dataclass in its own module of `ddp_invariants.situations.asking`, and
    has a field `kind` with one value. The module of that name in `ddp_invariants.ranks.asking` says
    what a rank does. In all methods `case` is a `ShardCase`, whose module imports this one.
    """

    kind: str
    rule: ClassVar[str] = "SHARD-4"
    """The rule that judges the indices."""
    fact: ClassVar[str]
    """The failure, if the indices differ from those that the sampler yields otherwise."""
    capability: ClassVar[str]
    """The capability to be asked so."""
    means: ClassVar[str]
    """The meaning of the capability."""
    may_crash: ClassVar[bool] = False
    """True if no document says that a sampler must expect a program that asks so."""
    level: ClassVar[Level] = "extended"
    """How ordinary a program is that asks so."""
    beyond_scripts: ClassVar[str] = "the program asks the sampler in another way"
    """Why no script can show a case in the situation."""

    def check(self, case: Any) -> None:
        """Raise if the situation cannot happen in a case.

        Raises:
            CaseError: A field is out of its range, or something else in the case excludes it.
        """

    @property
    def words(self) -> str:
        """The situation as `describe` prints it."""
        values = [value for name, value in vars(self).items() if name != "kind"]
        return f"{self.kind}={brief(values[0])}" if values else self.kind

    def simpler(self) -> Iterator["ShardSituation"]:
        """Yield situations of the same kind that are one step simpler."""
        yield from ()

    def samples(self, case: Any) -> int:
        """Return the length of the dataset in the end."""
        samples: int = case.data.samples
        return samples

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return the place in `case.epochs` whose indices each iteration must repeat.

        The result is empty if no epoch fixes them. Then the shards of all ranks must cover the dataset,
        without overlap beyond the padding.
        """
        return (len(case.epochs) - 1,)

    @classmethod
    def drawn(cls, choice: Callable[[tuple[Any, ...]], Any]) -> "ShardSituation":
        """Draw a situation with the function that chooses one of several values."""
        del choice
        return cls()

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "ShardSituation":
        """Build the situation from the fields of its JSON form, except for `kind`."""
        return cls(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in plain.items()
            }
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return a schema by which pydantic reads any registered class for a field of the base."""
        if cls is not ShardSituation:
            return handler(source)
        # Imported here: only the controller has pydantic.
        from pydantic import Field

        kinds: Any = functools.reduce(operator.or_, ASKING.values())
        return handler.generate_schema(Annotated[kinds, Field(discriminator="kind")])


ASKING: dict[str, type[ShardSituation]] = {}
"""The classes by kind, in the order in which a case lists them."""


def register(*classes: type[ShardSituation]) -> None:
    """Make classes known to cases and to readers of files."""
    ASKING.update({vars(situation)["kind"]: situation for situation in classes})
