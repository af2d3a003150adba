"""Proposed declarations: capabilities that an implementation lacks, and limits for its users."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_invariants.cases.levels import Level
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.lacking import NEVER, never
from ddp_invariants.discovery.required import SAMPLING
from ddp_invariants.discovery.result import Discovery, Probed, Side, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES, to_toml
from ddp_invariants.report.card import Broken, LevelAccount


@dataclass(frozen=True)
class Proposed:
    """A capability that an implementation may declare as unsupported.

    Attributes:
        side: The table of the declaration file.
        capability: Its name.
        why: Why it is proposed.
    """

    side: Side
    capability: str
    why: str

    @property
    def never(self) -> str:
        """The action that users of the implementation must then avoid."""
        return never(self.capability)


def proposals(levels: Sequence[LevelAccount], discovery: Discovery) -> tuple[Proposed, ...]:
    """Return the capabilities that an implementation may declare as unsupported.

    They are those that violations need, then those that are wrong, crash or are refused. No
    declaration excuses a core that is violated, so then there are none. The reference needs no
    declarations beside an implementation of the other side.

    Args:
        levels: The results of the session's levels.
        discovery: The capabilities, as probed.
    """
    if any(each.level == "core" and each.verdict == "violated" for each in levels):
        return ()
    proposed: dict[str, Proposed] = {}
    for broken in (group for each in levels for group in each.broken):
        for name in _declarable(broken, discovery, proposed):
            rules = ", ".join(broken.rules)
            proposed[name] = Proposed(_side(name), name, f"{rules} violated")
    for probed in (*discovery.ddp_probes, *discovery.sampler_probes):
        name = probed.capability
        if name not in proposed and _is_proposed(probed) and _may_declare(name, discovery):
            proposed[name] = Proposed(_side(name), name, probed.standing.value)
    return tuple(each for each in proposed.values() if each.side in discovery.sides_under_test)


def _declarable(
    broken: Broken, discovery: Discovery, proposed: dict[str, Proposed]
) -> Iterator[str]:
    """Yield the capability whose declaration excludes a group of violations, if there is one."""
    names = [name for name in broken.names if _may_declare(name, discovery)]
    if names and not proposed.keys() & set(names):
        yield next((name for name in NEVER if name in names), names[0])


def _is_proposed(probed: Probed) -> bool:
    """Return whether a probe suggests a declaration."""
    faulty = probed.standing in (Standing.WRONG, Standing.CRASHED)
    wrong = faulty and _level(probed.capability) != "core"
    return (wrong or probed.standing is Standing.REFUSED) and not (
        probed.declared or probed.expected
    )


def _may_declare(name: str, discovery: Discovery) -> bool:
    """Return whether a name is a capability that the implementation does not claim."""
    claimed = {*discovery.declared.supports, *discovery.declared_sampler.supports}
    return name in CAPABILITIES and name not in claimed


def _level(capability: str) -> Level:
    return TRAINING[capability].level if capability in TRAINING else "extended"


def _side(capability: str) -> Side:
    return "sampler" if capability in SAMPLING else "ddp"


def file_of(proposed: Sequence[Proposed], discovery: Discovery) -> str:
    """Return a declaration file with the present declarations and the proposed ones."""
    refused = [each for each in proposed if each.why == Standing.REFUSED.value]
    wrong = [each for each in proposed if each not in refused]
    lines = []
    if wrong:
        lines.append(
            "# Wrong or crashing: fix these. If they are declared unsupported, users must never:"
        )
        lines += map(_limit, wrong)
    if refused:
        lines.append("# Refused with an error. Users must never:")
        lines += map(_limit, refused)
    tables = []
    for side, declared in (("ddp", discovery.declared), ("sampler", discovery.declared_sampler)):
        added = [each.capability for each in proposed if each.side == side]
        if added:
            unsupported = tuple(dict.fromkeys([*declared.unsupported, *added]))
            tables.append(to_toml(side, replace(declared, unsupported=unsupported)))
        elif declared != type(declared)():
            tables.append(to_toml(side, declared))
    return "\n".join([*lines, *tables])


def _limit(proposed: Proposed) -> str:
    """Return a limit as a comment of a declaration file."""
    return f"# - {proposed.never} ({proposed.capability}: {proposed.why})"


def text(proposed: Sequence[Proposed], discovery: Discovery) -> str:
    """Return the last lines of a report: the proposed declarations.

    The result is empty if the implementation only refuses: its users see each refusal anyway.
    """
    if all(each.why == Standing.REFUSED.value for each in proposed):
        return ""
    heading = (
        "fix the implementation, or declare what it does not support in a file "
        "(--propose FILE writes it, --declare FILE reads it):"
    )
    indented = [f"  {line}".rstrip() for line in file_of(proposed, discovery).splitlines()]
    return "\n".join([heading, *indented])
