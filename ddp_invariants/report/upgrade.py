"""The text of a comparison of two interpreters: the gate of an upgrade."""

from typing import TYPE_CHECKING

from ddp_invariants.cases.case import describe
from ddp_invariants.search.messages import labelled

if TYPE_CHECKING:
    from ddp_invariants.upgrades.baseline import Environment
    from ddp_invariants.upgrades.gate import Gated
    from ddp_invariants.upgrades.pace import Ratio

_KINDS = {
    "rule": "rules",
    "discrete": "values that must match exactly",
    "number": "numbers beyond their bounds",
    "rounding": "numbers within their bounds",
}


def comparison(sides: "tuple[Environment, Environment]", outcome: "Gated") -> str:
    """Return the text of the changes from one interpreter to the other."""
    lines = [
        f"old  {sides[0]} ({sides[0].python})",
        f"new  {sides[1]} ({sides[1].python})",
        f"{outcome.cases:,} cases on both, and more to shrink the differences",
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
            f"accepted but not seen: {change.change!r}; remove it from the file"
            for change in outcome.stale
        ),
    ]
    lines.append(_OUTCOMES[outcome.status])
    return "\n".join(lines)


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
    2: "INCONCLUSIVE: a difference was seen once, and not again",
}
