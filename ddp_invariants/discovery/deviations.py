"""Deviations that are known and expected, and judged strictly: one that no longer shows, or has expired, is an error.

They stand in one file, `deviations.toml` beside this module; `--deviations FILE` adds another of
the same form:

    [[deviation]]
    ddp = "torch"                    # as the option names it
    arguments = {static_graph = "True"}   # --ddp-arg it is given, if that matters
    capability = "backward_error"    # or: rule = "LIVE-2"
    torch = ">=2.0,<2.15"            # versions it is expected of; left out: all
    reason = "what happens"
    link = "https://…"
    expires = 2027-06-01             # when somebody should look again
"""

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ddp_invariants.cases.fields import STRICT
from ddp_invariants.discovery.capabilities import SHOWN, TRAINING
from ddp_invariants.errors import DeviationError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES

SHIPPED = Path(__file__).parent / "deviations.toml"


@dataclass(frozen=True)
class Deviation:
    """One of them.

    Attributes:
        ddp: Whose, as `--ddp` names it.
        reason: What happens, in a few words.
        link: Where it is told in public.
        expires: The day from which on it is an error to expect it still.
        capability: Where it is silently wrong; empty where a rule is named.
        rule: What it breaches; empty where a capability is named.
        arguments: The arguments with which it is, by name and text; those it does not name may be
            anything.
        torch: The versions of torch of which it is expected.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    ddp: str
    reason: str
    link: str
    expires: dt.date
    capability: str = ""
    rule: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""

    def __post_init__(self) -> None:
        if bool(self.capability) == bool(self.rule):
            raise DeviationError("it names a capability and a rule, or neither: expected one")
        for name, got, known in (
            ("capability", self.capability, [*TRAINING, *SHOWN]),
            ("rule", self.rule, ALL_RULES),
        ):
            if got and got not in known:
                raise DeviationError(
                    f"{name} is {got!r}, which matches nothing; known are {', '.join(known)}"
                )
        if not self.link.startswith("https://"):
            raise DeviationError(f"link is {self.link!r}, expected an https address")
        try:
            SpecifierSet(self.torch)
        except InvalidSpecifier as error:
            raise DeviationError(
                f"torch is {self.torch!r}, expected versions such as '>=2.0,<2.15'"
            ) from error

    @property
    def about(self) -> str:
        """The capability or rule."""
        return self.capability or self.rule

    @property
    def title(self) -> str:
        """What a message calls it."""
        return f"the deviation of {self.ddp} in {self.about}"

    def is_of(self, ddp: Ddp, torch: str) -> bool:
        """Whether it is expected of an implementation under a version of torch."""
        return (
            ddp.name == self.ddp
            and self.arguments.items() <= dict(ddp.arguments).items()
            and SpecifierSet(self.torch).contains(torch.partition("+")[0], prereleases=True)
        )

    def __str__(self) -> str:
        """How a report tells it."""
        return f"expected until {self.expires}: {self.reason} ({self.link})"


Table = TypeVar("Table")


def tables(path: Path, name: str, kind: type[Table]) -> tuple[Table, ...]:
    """The tables of one name in a TOML file that holds nothing else, as dataclasses.

    Raises:
        DeviationError: It cannot be read, or one of them is malformed.
    """
    # Imported here: it takes longer to import than a case takes to run.
    import pydantic

    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        adapter = pydantic.TypeAdapter(dict[str, tuple[kind, ...]])  # type: ignore[valid-type]  # a class
        found = adapter.validate_python(plain, strict=False)
    except OSError as error:
        raise DeviationError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeviationError(f"{path}: no TOML: {error}") from error
    except (pydantic.ValidationError, DeviationError) as error:
        first = (
            error.errors(include_url=False)[0]
            if isinstance(error, pydantic.ValidationError)
            else None
        )
        where = ".".join(map(str, first["loc"])) if first is not None else name
        message = first["msg"].removeprefix("Value error, ") if first is not None else str(error)
        raise DeviationError(f"{path}: {where}: {message}") from error
    if set(found) - {name}:
        raise DeviationError(
            f"{path}: {min(set(found) - {name})!r} is no table of it; expected [[{name}]]"
        )
    return found.get(name, ())


def read(path: Path) -> tuple[Deviation, ...]:
    """The deviations in a file.

    Raises:
        DeviationError: It cannot be read, one is malformed, matches nothing, or is there twice.
    """
    deviations = tables(path, "deviation", Deviation)
    for number, one in enumerate(deviations):
        if one in deviations[:number]:
            raise DeviationError(
                f"{path}: deviation {number + 1}, of {one.ddp} in {one.about}, is there twice"
            )
    return deviations


class Expiring(Protocol):
    """What holds until a day."""

    @property
    def title(self) -> str:
        """What a message calls it."""

    @property
    def expires(self) -> dt.date:
        """The day from which on it does not hold any more."""


def current(entries: Iterable[Expiring], path: Path, today: dt.date) -> None:
    """Insist that none has expired.

    Raises:
        DeviationError: One has.
    """
    for one in entries:
        if one.expires <= today:
            raise DeviationError(
                f"{path}: {one.title} expired on {one.expires}: look whether it still shows, and give it "
                "another day or take it out"
            )


def expected(ddp: Ddp, torch: str, files: Sequence[Path] = ()) -> tuple[Deviation, ...]:
    """What is expected of an implementation, by the file that is shipped and others.

    Raises:
        DeviationError: One of the files cannot be used.
    """
    today = dt.datetime.now(dt.UTC).date()
    found: list[Deviation] = []
    for path in (SHIPPED, *files):
        deviations = read(path)
        here = [one for one in deviations if one.is_of(ddp, torch)]
        # What is shipped and about others is not for whoever judges this one to look after.
        current(here if path == SHIPPED else deviations, path, today)
        found += here
    return tuple(found)
