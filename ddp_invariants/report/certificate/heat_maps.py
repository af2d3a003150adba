"""Heat maps on a certificate's page: tables of cells whose colours show sizes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_hex
from matplotlib.patches import Rectangle

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.diagnosis.excerpts import SMALL, Mismatch
from ddp_invariants.report.accounts import RuleAccount
from ddp_invariants.report.certificate.svg import FAINT, INK, drawn
from ddp_invariants.search.ledger import TENTHS

_LONGEST = 40
"""Characters of a row's name that a picture shows."""
_MOST_SWATCHES = 6
"""Colours that a legend explains."""
_LENGTHS = (*range(9), 12, 16, 24, *(1 << power for power in range(5, 64)))
"""The longest dataset of each column."""
_LONG = 512
"""The least length whose column names no shortest length: two numbers would not fit."""
_SIZES = (*range(1, 5), *(1 << power for power in range(3, 64)))
"""The largest world size of each row."""


@dataclass(frozen=True)
class HeatMap:
    """A picture with its legend.

    Attributes:
        svg: The picture.
        legend: Colours with the sizes that they stand for, in the order of the sizes.
    """

    svg: str
    legend: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Table:
    """The contents of a heat map.

    Attributes:
        values: The sizes, by row and column; those below `least` are drawn like it.
        texts: The text of each cell; empty for a cell that is not drawn, `none` for a hatched one.
        rows: The names of the rows.
        columns: The names of the columns.
        wide: The width of a column, in inches.
        least: The least size that has a colour of its own.
    """

    values: FloatArray
    texts: Sequence[Sequence[str]]
    rows: Sequence[str]
    columns: Sequence[str]
    wide: float
    least: float

    @property
    def norm(self) -> LogNorm:
        """The scale from sizes to shares of the colours."""
        return LogNorm(self.least, max(self.values.max(), self.least * 10))


def mismatch(name: str, view: Mismatch) -> HeatMap:
    """Return a picture of each rank's largest difference, parameter by parameter."""
    values = np.array(
        [[np.nan if value is None else value for value in row] for row in view.largest],
        dtype=np.float64,
    )
    return _drawn(
        name,
        _Table(
            np.clip(np.nan_to_num(values, nan=SMALL), SMALL, None),
            [
                ["none" if value is None else f"{value:.2g}" for value in row]
                for row in view.largest
            ],
            view.names,
            [f"rank {rank}" for rank in range(values.shape[1])],
            wide=0.8,
            least=SMALL,
        ),
    )


def errors(name: str, accounts: Sequence[RuleAccount]) -> HeatMap:
    """Return a picture of the number of cases per rule and tenth of the bound."""
    counts = np.array([account.errors for account in accounts], dtype=np.float64)
    labels = ["none", *(f"to {tenth / TENTHS:.1f}" for tenth in range(1, TENTHS + 1)), "beyond"]
    return _drawn(name, _counted(counts, [account.rule for account in accounts], labels))


def sizes(name: str, counts: Mapping[str, int], kind: str) -> HeatMap:
    """Return a picture of the number of drawn cases by world size and dataset length.

    Neighbouring sizes share a row and neighbouring lengths a column: nobody reads more of them.
    """
    drawn_cases = Counter[tuple[int, int]]()
    for key, count in counts.items():
        of, ranks, samples = key.split(" ")
        if of == kind:
            drawn_cases[_edge(_SIZES, int(ranks)), _edge(_LENGTHS, int(samples))] += count
    rows = sorted({row for row, _ in drawn_cases})
    columns = sorted({column for _, column in drawn_cases})
    table = np.zeros((len(rows), len(columns)))
    for (row, column), count in drawn_cases.items():
        table[rows.index(row), columns.index(column)] = count
    names = [f"{_span(_SIZES, row)} rank{'s' if row > 1 else ''}" for row in rows]
    return _drawn(name, _counted(table, names, [_span(_LENGTHS, column) for column in columns]))


def _edge(edges: Sequence[int], value: int) -> int:
    return next(edge for edge in edges if edge >= value)


def _span(edges: Sequence[int], edge: int) -> str:
    """Return the values that share a row or column, in words."""
    before = ([-1] + [each for each in edges if each < edge])[-1]
    if edge - before == 1 or edge == edges[0]:
        return str(edge)
    return f"{before + 1}–{edge}" if edge < _LONG else f"to {edge:,}"


def _counted(counts: FloatArray, rows: Sequence[str], columns: Sequence[str]) -> _Table:
    """Return a table of counts, in which a cell that counts nothing stays empty."""
    texts = [[f"{count:.0f}" if count else "" for count in row] for row in counts]
    return _Table(np.clip(counts, 0.5, None), texts, rows, columns, wide=0.56, least=0.5)


def _drawn(name: str, table: _Table) -> HeatMap:
    """Return the picture of a table.

    The colours show sizes on a logarithmic scale, and the texts show the exact values.
    """
    names = [_shortened(row) for row in table.rows]
    label = max(map(len, names), default=0) * 0.075
    size = (label + table.wide * len(table.columns) + 0.4, 0.5 + 0.27 * len(names))

    def draw(axes: Axes) -> None:
        for row, texts in enumerate(table.texts):
            for column, text in enumerate(texts):
                if text:  # A frame without a text would look like a value.
                    _draw_cell(
                        axes, (column, row), text, float(table.norm(table.values[row, column]))
                    )
        axes.set_xlim(0, len(table.columns))
        axes.set_ylim(len(names), 0)
        axes.set_xticks(np.arange(len(table.columns)) + 0.5, list(table.columns), fontsize=8)
        axes.set_yticks(np.arange(len(names)) + 0.5, names)
        axes.spines[:].set_visible(False)

    return HeatMap(drawn(name, size, draw), tuple(_legend(table)))


def _draw_cell(axes: Axes, corner: tuple[int, int], text: str, share: float) -> None:
    """Draw a cell with a colour for its share of the scale, or hatched if it has no size."""
    nothing = text == "none"
    axes.add_patch(
        Rectangle(
            corner,
            1,
            1,
            facecolor="none" if nothing else colormaps["cividis"](share),
            edgecolor=FAINT,
            linewidth=0.5,
            hatch="////" if nothing else None,
        )
    )
    colour: Any = INK if nothing else "#000000" if share > 0.5 else "#ffffff"
    middle = (corner[0] + 0.5, corner[1] + 0.5)
    axes.text(*middle, text, ha="center", va="center", fontsize=8, color=colour)


def _legend(table: _Table) -> list[tuple[str, str]]:
    """Return a few colours of a table with their sizes: powers of ten, and the largest size."""
    largest = float(table.values.max())
    decades = range(ceil(log10(table.least)), floor(log10(largest)) + 1)
    step = ceil(len(decades) / (_MOST_SWATCHES - 1)) if decades else 1
    marked = sorted({*(10.0**decade for decade in decades[::step]), largest})
    return [
        (
            to_hex(colormaps["cividis"](float(table.norm(size)))),
            f"{size:,.2g}" if size < 1 else f"{size:,.0f}",
        )
        for size in marked
    ]


def _shortened(text: str) -> str:
    return (
        text if len(text) <= _LONGEST else text[: _LONGEST // 2 - 1] + "…" + text[-_LONGEST // 2 :]
    )
