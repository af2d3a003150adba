"""The text of a comparison of two interpreters: the gate of an upgrade."""

from typing import TYPE_CHECKING

from ddp_invariants.cases.case import describe
from ddp_invariants.errors import INTERRUPTED
from ddp_invariants.search.messages import labelled
from ddp_invariants.upgrades.outcome import REPEATS
from ddp_invariants.upgrades.progress import Found, Shrunk

if TYPE_CHECKING:
    from ddp_invariants.upgrades.baseline import Environment
    from ddp_invariants.upgrades.outcome import Gated
    from ddp_invariants.upgrades.pace import Ratio
    from ddp_invariants.upgrades.progress import Event

_KINDS = {
    "rule": "rules",
    "discrete": "values that must match exactly",
    "number": "numbers beyond their bounds",
    "shift": "numbers within their bounds that all move the same way",
    "unbounded": "numbers for which no bound is known",
    "rounding": "numbers within their bounds",
}


def comparison(sides: "tuple[Environment, Environment]", outcome: "Gated") -> str:
    """Return the text of the changes from one interpreter to the other."""
    lines = [
        f"old  {sides[0]} ({sides[0].python})",
        f"new  {sides[1]} ({sides[1].python})",
        f"{outcome.cases:,} cases on both ({outcome.simulated:,} simulated), and more to shrink",
    ]
    for kind, title in _KINDS.items():
        changes = [change for change in outcome.differences if change.difference.kind == kind]
        lines += ["", f"{title}: {len(changes)} changed" if changes else f"{title}: the same"]
        for change in changes:
            lines.append(
                f"  {change.difference.name}{f' ({change.state})' if change.state else ''}"
            )
            lines += [
                labelled(name, text)
                for name, text in (
                    ("where", change.difference.where),
                    ("old", change.difference.old),
                    ("new", change.difference.new),
                    ("case", describe(change.case) if change.case is not None else ""),
                    ("script", change.script),
                )
                if text
            ]
    lines += (
        [
            "",
            "speed and memory, ratios of new to old, never judged",
            *map(_ratio_line, outcome.pace),
        ]
        if outcome.pace
        else []
    )
    lines += [
        "",
        *(
            f"not judged, because the simulation alone shows it: {name}: {describe(case)}"
            for name, case in outcome.unreal
        ),
        *(
            f"accepted but not seen: {change.change!r}; remove it from the file"
            for change in outcome.stale
        ),
    ]
    lines.append(_OUTCOMES[outcome.status])
    return "\n".join(lines)


def event(happened: "Event") -> str:
    """Return an event of a comparison as a line; empty if it is only progress."""
    match happened:
        case Found(difference, None, _):
            return f"{difference.name}: {difference.where}: {difference.old} -> {difference.new}"
        case Found(difference, _, cases):
            return (
                f"{difference.name}, in case {cases}: {difference.old} -> {difference.new}; "
                "simpler cases follow"
            )
        case Shrunk(entry):
            case = "" if entry.case is None else f" in {describe(entry.case)}"
            seen = f"seen again in {entry.seen} of {REPEATS} runs"
            return f"{entry.difference.name}: {entry.state if entry.varies else seen}{case}"
    return ""


def _ratio_line(ratio: "Ratio") -> str:
    spread = (
        ", half of {} cases from {:.2f} to {:.2f}".format(ratio.cases, *ratio.quartiles)
        if ratio.quartiles
        else ""
    )
    return (
        f"  {ratio.quantity:<29} {ratio.ratio:.2f}{spread} ({ratio.new:,.1f} {ratio.unit}, old "
        f"{ratio.old:,.1f})"
    )


_OUTCOMES = {
    0: "SAME: no judged value changed",
    1: "CHANGED: some changes are not accepted",
    2: "INCONCLUSIVE: a difference did not show again, or a side also differs from itself like this, "
    "or no bound is known for it",
    INTERRUPTED: "INTERRUPTED: the report holds the results until then",
}
