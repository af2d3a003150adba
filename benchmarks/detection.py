"""A page on measurements of the judge, with its pictures: `docs/faults.md`, or another page.

    ddp-invariants faults --json > planted.json
    ddp-invariants faults --generated 1000 --seed 7 --json > composed.json
    python benchmarks/detection.py planted.json composed.json
    python benchmarks/detection.py benchmarks/composed/*.json.gz --page composed.md

Each file holds one measurement or one part of it, as `faults --json` prints it; gzip may have packed
it. The page has a section for each measurement: the totals, a picture, and the faults that escaped. The
pictures are `docs/faults-planted.svg` and `docs/faults-composed.svg`.
"""

import gzip
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pages import templates

from ddp_invariants.errors import MergeError
from ddp_invariants.faults.generated.choices import PARTS
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.proof.detection import Detection, Totals, totals
from ddp_invariants.proof.tables import Table, merged, read
from ddp_invariants.report.populations import choice, named

DOCS = Path(__file__).parent.parent / "docs"
CELL = (0.36, 0.2)
"""Width and height of a cell, in inches."""
MARGIN = (1.7, 1.2)
"""Inches left of the cells and above them, for the names of rows and columns."""
ESCAPED = "#e69f00"
"""The edge of a cell in which a fault escaped: a colour of Okabe and Ito's, which all eyes tell apart."""


@dataclass(frozen=True)
class Grid:
    """A table of cells, each of which stands for some searches.

    Attributes:
        rows, columns: The names.
        cells: The searches of each cell, by row and column.
        count: Returns the text of a cell.
        share: Returns how dark a cell is, between 0 and 1.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cells: dict[tuple[str, str], list[Detection]]
    count: Callable[[Sequence[Detection]], str]
    share: Callable[[str, Sequence[Detection]], float]


@dataclass(frozen=True)
class Measurement:
    """What the page says of one measurement.

    Attributes:
        kind: "planted", "composed" or "right".
        command: The command.
        table: The measurement itself.
        totals: Its sums.
        picture: The name of its picture's file; empty if it has none.
    """

    kind: str
    command: str
    table: Table
    totals: Totals
    picture: str

    @property
    def faults(self) -> list[Detection]:
        """The searches for faults."""
        return [search for search in self.table.searches if search.planted.is_fault]

    @property
    def escaped(self) -> list[Detection]:
        """The faults that no rule noticed."""
        return [search for search in self.faults if not search.is_caught]

    @property
    def accused(self) -> list[Detection]:
        """The controls that a rule accused."""
        return [s for s in self.table.searches if not s.planted.is_fault and s.is_caught]

    @property
    def otherwise(self) -> list[tuple[Detection, str]]:
        """The faults that were caught by another rule than the expected ones, and these."""
        return [
            (search, ", ".join(_expected(search)))
            for search in self.faults
            if search.is_caught and not search.is_right_rule
        ]

    @property
    def misnamed(self) -> list[Detection]:
        """The faults for which another cause was named than the planted ones."""
        return [search for search in self.faults if search.diagnosis == "wrong"]

    @property
    def operators(self) -> list[tuple[str, str, int, int, str, str]]:
        """For each operator of composed faults: its mistake, faults, those caught, cases, rules."""
        found: dict[str, list[Detection]] = {}
        for search in self.faults:
            found.setdefault(choice(search, "operator"), []).append(search)
        return [
            (
                operator,
                _mistake(operator),
                len(searches),
                sum(search.is_caught for search in searches),
                f"{median([s.cases for s in searches if s.is_caught] or [0]):.0f}",
                named(searches),
            )
            for operator, searches in sorted(found.items())
        ]


def _mistake(operator: str) -> str:
    """Return what is wrong in the faults of an operator."""
    return next(
        part.operators[operator].words for part in PARTS.values() if operator in part.operators
    )


def kind_of(table: Table) -> str:
    """Return the population of a table: "planted", "composed" or "right"."""
    if table.options["generated"] is not None:
        return "composed"
    return "planted" if table.options["right"] is None else "right"


def command_of(table: Table) -> str:
    """Return the command that makes a measurement, or its part."""
    options = table.options
    words = ["ddp-invariants faults"]
    words += [
        f"--{name.replace('_', '-')} {options[name]}"
        for name, least in (
            *(("generated", None), ("right", None)),
            *(("seed", 0), ("seeds", 1), ("cases", None)),
        )
        if options[name] != least
    ]
    words.append(f"--control-cases {options['control_cases']}")
    if options.get("real_cases") is not None:
        words.append(f"--real-cases {options['real_cases']}")
    words += [f"--shard {table.shard}"] if table.shard else []
    words += [f"--backend {options['backend']}"] if options["backend"] != "auto" else []
    return " ".join(words)


def measurement(table: Table) -> Measurement:
    """Return what the page says of a table."""
    kind = kind_of(table)
    picture = "" if kind == "right" else f"faults-{kind}.svg"
    return Measurement(kind, command_of(table), table, totals(table.searches), picture)


def by_module(faults: Sequence[Detection]) -> list[Grid]:
    """Return the modules of the catalogue and the rules that named their faults."""
    modules = sorted({fault.planted.module for fault in faults})
    rules = [rule for rule in ALL_RULES if any(fault.rule == rule for fault in faults)]
    cells: dict[tuple[str, str], list[Detection]] = {}
    for fault in faults:
        if fault.is_caught:
            cells.setdefault((fault.planted.module, fault.rule), []).append(fault)
    sizes = Counter(fault.planted.module for fault in faults)
    return [
        Grid(
            modules,
            rules,
            cells,
            lambda searches: str(len(searches)),
            lambda module, searches: len(searches) / sizes[module],
        )
    ]


def by_trigger(faults: Sequence[Detection]) -> list[Grid]:
    """Return the triggers and operators of composed wrappers, and then those of samplers."""
    grids = []
    for part, is_sampler in (("ddp", False), ("sampler", True)):
        own = [fault for fault in faults if fault.planted.is_sampler == is_sampler]
        cells: dict[tuple[str, str], list[Detection]] = {}
        for fault in own:
            cells.setdefault((choice(fault, "trigger"), choice(fault, "operator")), []).append(
                fault
            )
        if own:
            grids.append(
                Grid(
                    [name for name in PARTS[part].triggers if any(row == name for row, _ in cells)],
                    [name for name in PARTS[part].operators if any(c == name for _, c in cells)],
                    cells,
                    lambda searches: f"{sum(s.is_caught for s in searches)}/{len(searches)}",
                    lambda _, searches: sum(s.is_caught for s in searches) / len(searches),
                )
            )
    return grids


def draw(grids: Sequence[Grid], path: Path) -> None:
    """Draw tables of cells below each other."""
    rcParams.update({"svg.hashsalt": path.name, "font.family": "sans-serif", "font.size": 7})
    rcParams["svg.fonttype"] = "none"
    heights = [MARGIN[1] + CELL[1] * len(grid.rows) for grid in grids]
    whole = sum(heights) + 0.1
    width = MARGIN[0] + CELL[0] * max(len(grid.columns) for grid in grids) + 0.1
    figure = Figure(figsize=(width, whole))
    top = sum(heights)
    for grid, height in zip(grids, heights, strict=True):
        size = (CELL[0] * len(grid.columns), CELL[1] * len(grid.rows))
        axes = figure.add_axes(
            (MARGIN[0] / width, (top - height + 0.05) / whole, size[0] / width, size[1] / whole)
        )
        _draw_grid(axes, grid)
        top -= height
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


def _draw_grid(axes: Axes, grid: Grid) -> None:
    for (row, column), searches in grid.cells.items():
        corner = (grid.columns.index(column), grid.rows.index(row))
        share = grid.share(row, searches)
        escaped = any(not search.is_caught for search in searches)
        axes.add_patch(
            Rectangle(
                corner,
                1,
                1,
                facecolor=colormaps["Blues"](0.15 + 0.5 * share),
                edgecolor=ESCAPED if escaped else "white",
                linewidth=1.5 if escaped else 0.5,
                zorder=2 if escaped else 1,
            )
        )
        axes.text(
            corner[0] + 0.5,
            corner[1] + 0.5,
            grid.count(searches),
            ha="center",
            va="center",
            fontsize=6,
            zorder=3,
        )
    axes.set_xlim(0, len(grid.columns))
    axes.set_ylim(len(grid.rows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(grid.columns))], grid.columns, rotation=90)
    axes.set_yticks([y + 0.5 for y in range(len(grid.rows))], grid.rows)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _expected(search: Detection) -> Iterable[str]:
    """Return the rules of which one must notice a fault; of a composed fault, their invariants."""
    if not search.planted.fault:
        return search.planted.rules
    return dict.fromkeys(map(invariant_of, search.planted.rules))


def tables_of(files: Iterable[Path]) -> list[Table]:
    """Return the measurements in some files; the parts of one measurement are added up.

    Raises:
        MergeError: A file holds none, or a part of a measurement is missing.
    """
    tables = list(map(_table, files))
    split = defaultdict[str, list[Table]](list)
    for table in tables:
        if table.shard:
            split[table.population].append(table)
    return [*(table for table in tables if not table.shard), *map(merged, split.values())]


def _table(file: Path) -> Table:
    """Return the table in a file, which gzip may have packed."""
    if file.suffix != ".gz":
        return read(file)
    with TemporaryDirectory() as folder:
        unpacked = Path(folder) / file.stem
        unpacked.write_bytes(gzip.decompress(file.read_bytes()))
        return read(unpacked)


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--page",
    default="faults.md",
    show_default=True,
    metavar="NAME",
    help="name of the page in docs/",
)
@click.option("--remark", default="", help="what to say of the way it was measured")
def main(files: tuple[Path, ...], page: str, remark: str) -> None:
    """Write the page and its pictures."""
    try:
        measured = [measurement(table) for table in tables_of(files)]
    except MergeError as error:
        raise click.BadParameter(str(error)) from error
    grids = {"planted": by_module, "composed": by_trigger}
    for each in measured:
        if each.picture:
            draw(grids[each.kind](each.faults), DOCS / each.picture)
    text = (
        templates().get_template("faults.md.j2").render(measured=measured, page=page, remark=remark)
    )
    (DOCS / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
