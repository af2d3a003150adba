"""The base class of all situations, with all methods that the controller calls, and their list.

Standard library only: the rank side imports this module under any interpreter.
"""

import functools
import operator
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, TypeVar

from ddp_invariants.cases.fields import Strict
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.words import brief
from ddp_invariants.errors import CaseError


class Situation(Strict):
    """Base of the classes for events of a training run besides plain training.

    A subclass is a frozen dataclass in its own module of `ddp_invariants.situations`. It has a
    field `kind` with one value, by which files name the class, and fields that describe the
    event. Its methods say all that the controller needs. In all of them `case` is a
    `TrainingCase`, whose module imports this one.
    """

    kind: str
    options: ClassVar[dict[str, Any]] = {}
    """Options of `search.strategies.training_cases` that the class reads, with their defaults."""
    moment: ClassVar[str] = ""
    """The moment of the draft at which the situation is drawn (`situations.draft.MOMENTS`).

    "" if another situation draws it.
    """
    in_whole_steps: ClassVar[bool] = False
    """True if the situation suits an implementation that trains whole steps by itself."""
    in_earlier_run: ClassVar[bool] = True
    """True if the situation also holds in an earlier run that saves a state to load."""
    part: ClassVar[type]
    """The class of the field's value, or of its items, if the JSON form has objects for them."""
    level: ClassVar[Level] = "extended"
    """How ordinary a program in the situation is."""
    beyond_scripts: ClassVar[str] = ""
    """Why no script can show a case in the situation; "" if a script can."""
    hides_nothing: ClassVar[bool] = False
    """True if a case in the situation still shows what is wrong with the rest of the case."""

    may_be_left_out: ClassVar[bool] = False
    """True if a drawn case that cannot be in the situation goes on without it."""

    @property
    def joins(self) -> bool:
        """True if a probe with the situation may contain other capabilities."""
        return self.hides_nothing

    def joined(self, other: Any) -> "Situation":
        """Return a situation that contains this one and another one of the same kind.

        Raises:
            CaseError: There is none.
        """
        if other == self:
            return self
        raise CaseError(f"{self.words} and {other.words} exclude each other")

    def check(self, case: Any) -> None:
        """Raise if the situation cannot happen in a case.

        Raises:
            CaseError: A field is out of its range, or something else in the case excludes it.
        """

    @property
    def words(self) -> str:
        """The situation as `describe` prints it: its kind and its only field, or True without one."""
        value = next((value for name, value in vars(self).items() if name != "kind"), True)
        return f"{self.kind.replace(' ', '_')}={brief(value)}"

    def simpler(self) -> Iterator["Situation"]:
        """Yield situations of the same kind that are one step simpler."""
        yield from ()

    def without_layer(self, index: int) -> "Situation | None":
        """Return the situation after a layer is removed from the model; None if it ends then."""
        del index
        return self

    def in_one_backward(self) -> "Situation | None":
        """Return the situation in a case of one backward per step; None if it cannot be there."""
        return self

    def at(self, case: Any, step: int) -> Any:
        """Return the case as the situation leaves its model and its optimizer at a step."""
        del step
        return case

    @classmethod
    def prepare(cls, draft: Any) -> None:
        """Change a draft (`situations.draft.Draft`) before any of its parts is drawn."""

    @classmethod
    def drawn(cls, draft: Any) -> None:
        """Draw the situation if a draft wants it, and change other parts to make it possible."""

    def fitted(self, case: Any) -> Any:
        """Return a drawn case with the situation, or unchanged if the situation cannot happen."""
        return self.fitted_or_left_out(case) if self.may_be_left_out else case.with_situation(self)

    def fitted_or_left_out(self, case: Any) -> Any:
        """Return a case with the situation, or unchanged if the case cannot be in the situation."""
        try:
            return case.with_situation(self)
        except CaseError:
            return case

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Situation":
        """Build the situation from the fields of its JSON form, except for `kind`."""
        return cls(**{name: cls._built(value) for name, value in plain.items()})

    @classmethod
    def _built(cls, value: Any) -> Any:
        """Return a value of the JSON form as the field holds it."""
        if isinstance(value, list):
            return tuple(map(cls._built, value))
        return cls.part(**value) if isinstance(value, dict) else value

    @classmethod
    def capabilities(cls) -> dict[str, Any]:
        """Return the capabilities to train in the situation (`situations.capability`), by name."""
        return {}

    @classmethod
    def counted(cls, case: Any) -> dict[str, str | set[str]]:  # noqa: ARG003 - for others
        """Return the entries of any case that a coverage table counts, by dimension."""
        return {}

    def unscripted(self, case: Any) -> str:  # noqa: ARG002 - for others
        """Return why no script can show a case in the situation; "" if a script can."""
        return self.beyond_scripts

    def scripted_setup(self) -> list[str]:
        """Return lines of a script that follow the wrapping of the model."""
        return []

    def scripted_forward(self, line: str) -> list[str]:
        """Return the lines of a script that run a forward in the situation."""
        return [line]

    def scripted_loss(self, loss: str) -> str:
        """Return the expression of a script from which backward starts."""
        return loss

    def scripted_step(self) -> list[str]:
        """Return lines of a script that make an update; none for the usual update."""
        return []

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return a schema by which pydantic reads any registered class for a `Situation` field."""
        if cls is not Situation:
            return handler(source)
        # Imported here: only the controller has pydantic.
        from pydantic import Field

        kinds: Any = functools.reduce(operator.or_, KINDS.values())
        return handler.generate_schema(Annotated[kinds, Field(discriminator="kind")])


AnySituation = TypeVar("AnySituation", bound=Situation)

KINDS: dict[str, type[Situation]] = {}
"""The classes of situations by kind, in the order in which a case lists, checks and prints them."""


def register(*classes: type[Situation]) -> None:
    """Make classes of situations known to cases and to readers of files."""
    KINDS.update({vars(situation)["kind"]: situation for situation in classes})
