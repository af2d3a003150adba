"""Documents on the faults that the rules catch: `docs/faults.md` and `docs/faults.svg`.

    ddp-invariants faults --seeds 5 --json > FILE; python benchmarks/detection.py FILE

`docs/faults.md` lists every planted fault and control, and the rule that caught it. For each
dimension of a case, it names the faults that only such a case reveals. `docs/faults.svg` shows the
rules that the smallest case of each fault violates.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from matplotlib import rcParams
from matplotlib.figure import Figure
from pages import templates

from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.proof.detection import DIMENSIONS, Detection, Summary, from_plain, summary

DOCS = Path(__file__).parent.parent / "docs"
BREACHED, NAMED = "#0072b2", "#e69f00"
"""Two of Okabe and Ito's colours, which all eyes tell apart.

The first is for a rule that is violated, and the second for the rule that the search named.
"""


def revealed(
    faults: list[tuple[CatalogueEntry, list[Detection]]],
) -> Iterator[tuple[str, list[str]]]:
    """Yield, for each dimension of a case, the faults whose smallest cases all contain it."""
    for dimension in DIMENSIONS:
        yield (
            dimension,
            [
                entry.name
                for entry, detections in faults
                if all(dimension in detection.needs for detection in detections)
            ],
        )


def picture(rows: list[tuple[CatalogueEntry, list[Detection]]], path: Path) -> None:
    """Draw the matrix of faults and rules.

    A marker shows that a fault's smallest cases violate the rule; its colour shows if the search
    named that rule.
    """
    rcParams.update({"svg.hashsalt": "faults", "font.family": "sans-serif", "svg.fonttype": "none"})
    rules = [
        rule
        for rule in ALL_RULES
        if any(rule in detection.failed for _, detections in rows for detection in detections)
    ]
    height = 0.15 * len(rows) + 1.0  # Inches; the last 1.0 is for the labels around the matrix.
    figure = Figure(figsize=(0.26 * len(rules) + 3.2, height))
    axes = figure.add_axes((0.22, 0.2 / height, 0.77, 1 - 0.8 / height))
    for y, (entry, detections) in enumerate(rows):
        share = Counter(
            rule
            for detection in detections
            for rule in {*detection.failed, detection.rule}
            if rule in rules
        )
        for rule, times in sorted(share.items()):
            named = sum(detection.rule == rule for detection in detections)
            axes.scatter(
                rules.index(rule),
                y,
                s=26 * times / len(detections),
                marker="s" if named else "o",
                color=NAMED if named else BREACHED,
                linewidths=0,
            )
        if y and rows[y - 1][0].module != entry.module:
            axes.axhline(y - 0.5, color="#999999", linewidth=0.5)
    axes.set_xticks(range(len(rules)), rules, rotation=90, fontsize=6)
    axes.set_yticks(
        range(len(rows)), [f"{entry.module}: {entry.name}" for entry, _ in rows], fontsize=5
    )
    axes.xaxis.tick_top()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.6, len(rules) - 0.4)
    axes.tick_params(length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.4)
    axes.set_axisbelow(True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


@click.command()
@click.argument("measured", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(measured: Path) -> None:
    """Write the documents."""
    try:
        plain = json.loads(measured.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.BadParameter(
            f"{measured} holds no JSON, as ddp-invariants faults --json prints it: {error}"
        ) from error
    searches: dict[CatalogueEntry, list[Detection]] = {}
    for search in map(from_plain, plain["searches"]):
        searches.setdefault(search.planted, []).append(search)
    known = [entry for entry in all_entries() if entry in searches]
    faults = [(entry, searches[entry]) for entry in known if entry.is_fault]
    picture(faults, DOCS / "faults.svg")
    hosts: dict[tuple[str, str], list[tuple[CatalogueEntry, Summary, str]]] = {}
    for entry, detections in faults:
        caught = [detection for detection in detections if detection.is_caught] or detections
        cause = max(
            (detection.cause or detection.failure_words for detection in caught),
            key=lambda words: any(cause in words for cause in entry.causes),
        )
        hosts.setdefault((entry.module, entry.style), []).append(
            (entry, summary(detections), cause)
        )
    environment = templates()
    text = environment.get_template("faults.md.j2").render(
        plain=plain,
        totals=plain["totals"],
        hosts=hosts,
        seeds=len({detection.seed for detections in searches.values() for detection in detections}),
        controls=[
            (
                entry,
                sum(detection.cases for detection in searches[entry]),
                [detection.rule for detection in searches[entry] if detection.is_caught],
            )
            for entry in known
            if not entry.is_fault
        ],
        dimensions=list(revealed(faults)),
        faults=len(faults),
    )
    (DOCS / "faults.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
