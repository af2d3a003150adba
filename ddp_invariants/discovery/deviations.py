"""Known and expected deviations, judged strictly.

Deviations stand in one file, `deviations.toml` beside this module; `--deviations FILE` adds another
of the same form. A deviation that has expired is an error. One in a user's file that no longer shows
is an error, too. A shipped one that no longer shows is a note, since a later torch may have fixed it.

    [[deviation]]
    ddp = "torch"                    # as the option names it
    arguments = {static_graph = "True"}   # --ddp-arg it is given, if that matters
    capability = "backward_error"    # or: rule = "LIVE-2"
    torch = ">=2.0,<2.15"            # versions it is expected of; left out: all
    reason = "what happens"
    link = "https://…"
    expires = 2027-06-01             # the day to check it again
"""

import datetime as dt
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ddp_invariants.cases.fields import Strict
from ddp_invariants.discovery.capabilities import SHOWN, TRAINING
from ddp_invariants.errors import DeviationError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES

SHIPPED = Path(__file__).parent / "deviations.toml"


@dataclass(frozen=True)
class Deviation(Strict):
    """One expected deviation.

    Attributes:
        ddp: The DDP, as `--ddp` names it.
        reason: The behaviour, in a few words.
        link: A public description.
        expires: The day from which on it is an error to still expect it.
        capability: The capability that is wrong; empty if a rule is named.
        rule: The rule that is violated; empty if a capability is named.
        arguments: The arguments with which it occurs, by name and text. All other arguments may
            have any value.
        torch: The versions of torch with which it is expected.
    """

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
            raise DeviationError("it must name either a capability or a rule")
        for name, got, known in (
            ("capability", self.capability, [*TRAINING, *SHOWN]),
            ("rule", self.rule, ALL_RULES),
        ):
            if got and got not in known:
                raise DeviationError(
                    f"{name} is {got!r}, which does not exist; expected one of {', '.join(known)}"
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
    def term(self) -> tuple[str, dt.date]:
        """The deviation's name in messages, and the day on which it expires."""
        return f"the deviation of {self.ddp} in {self.about}", self.expires

    def is_of(self, ddp: Ddp, torch: str) -> bool:
        """Return whether it is expected of an implementation under a version of torch."""
        return (
            ddp.name == self.ddp
            and self.arguments.items() <= dict(ddp.arguments).items()
            and SpecifierSet(self.torch).contains(torch.partition("+")[0], prereleases=True)
        )

    def __str__(self) -> str:
        """Describe the deviation for a report."""
        return f"expected until {self.expires}: {self.reason} ({self.link})"


Table = TypeVar("Table")


def tables(path: Path, name: str, kind: type[Table]) -> tuple[Table, ...]:
    """Read the tables of one name in a TOML file that holds nothing else, as dataclasses.

    Raises:
        DeviationError: It cannot be read, or a table is malformed.
    """
    # Imported here: it takes longer to import than a case takes to run.
    import pydantic

    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        adapter = pydantic.TypeAdapter(
            dict[str, tuple[kind, ...]]  # type: ignore[valid-type]  # a class
        )
        parsed = adapter.validate_python(plain, strict=False)
    except OSError as error:
        raise DeviationError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeviationError(f"{path}: not valid TOML: {error}") from error
    except (pydantic.ValidationError, DeviationError) as error:
        first = (
            error.errors(include_url=False)[0]
            if isinstance(error, pydantic.ValidationError)
            else None
        )
        location = ".".join(map(str, first["loc"])) if first is not None else name
        message = first["msg"].removeprefix("Value error, ") if first is not None else str(error)
        raise DeviationError(f"{path}: {location}: {message}") from error
    if set(parsed) - {name}:
        raise DeviationError(
            f"{path}: {min(set(parsed) - {name})!r} is not allowed here; expected only [[{name}]] tables"
        )
    return parsed.get(name, ())


def read(path: Path) -> tuple[Deviation, ...]:
    """Read the deviations in a file.

    Raises:
        DeviationError: It cannot be read; or a deviation is malformed, matches nothing, or occurs
            twice.
    """
    deviations = tables(path, "deviation", Deviation)
    for number, deviation in enumerate(deviations):
        if deviation in deviations[:number]:
            raise DeviationError(
                f"{path}: deviation {number + 1}, of {deviation.ddp} in {deviation.about}, occurs "
                "twice"
            )
    return deviations


def current(entries: Iterable[tuple[str, dt.date]], path: Path, today: dt.date) -> None:
    """Raise if an entry has expired.

    Args:
        entries: The name of each entry in messages, and the day from which on it does not hold.
        path: The file of the entries.
        today: The day.

    Raises:
        DeviationError: An entry has expired.
    """
    for title, expires in entries:
        if expires <= today:
            raise DeviationError(
                f"{path}: {title} expired on {expires}: check if it still "
                "occurs, then set a later date or remove it"
            )


def remarks(
    deviations: Iterable[Deviation], right: Container[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what to say of deviating capabilities: what is expected, and what is fixed.

    Args:
        deviations: The deviations expected of an implementation.
        right: The capabilities whose probes are right.
    """
    shipped = read(SHIPPED)
    expects, fixed = dict[str, str](), dict[str, str]()
    for deviation in deviations:
        if deviation in shipped and deviation.capability in right:
            fixed[deviation.capability] = f"no longer deviates; the deviation was {deviation}"
        else:
            expects[deviation.capability] = str(deviation)
    return expects, fixed


def expected(ddp: Ddp, torch: str, files: Sequence[Path] = ()) -> tuple[Deviation, ...]:
    """Return the deviations expected of an implementation, from the shipped file and other files.

    Raises:
        DeviationError: One of the files cannot be used.
    """
    today = dt.datetime.now(dt.UTC).date()
    applicable: list[Deviation] = []
    for path in (SHIPPED, *files):
        deviations = read(path)
        here = [deviation for deviation in deviations if deviation.is_of(ddp, torch)]
        # The user need not maintain shipped deviations of other implementations.
        checked = here if path == SHIPPED else deviations
        current((deviation.term for deviation in checked), path, today)
        applicable += here
    return tuple(applicable)
