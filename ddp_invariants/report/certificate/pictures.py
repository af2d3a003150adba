"""Pictures of a certificate, as SVG inside a page.

Text stays text, and ink and paper have the page's colours, light or dark. A number, a word or
hatching repeats every meaning of a colour. The scales are distinguishable for colour-blind readers
(cividis; Okabe and Ito 2008). The same data gives the same bytes.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.diagnosis.excerpts import SMALL, Mismatch, Sent, ShardMap, Timeline
from ddp_invariants.report.accounts import RuleAccount
from ddp_invariants.search.ledger import TENTHS

_INK, _FAINT, _PAPER = "#010101", "#020202", "#fefefe"
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--faint)", _PAPER: "var(--paper)"}
"""Placeholder colours, and the page's own colours that replace them."""
_RANKS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999")
"""Okabe and Ito's palette."""
_LIGHT = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#999999")
"""The colours of the palette on which black text is easier to read than white."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "hatch.color": _INK,
    "hatch.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


def _drawn(name: str, size: tuple[float, float], draw: Callable[[Axes], None]) -> str:
    """Return an SVG element of a size in inches."""
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        text = StringIO()
        figure.savefig(
            text,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids are shared by the whole page: those of two pictures must differ.
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def shard_map(name: str, view: ShardMap) -> str:
    """Return a picture of which rank got which sample.

    It has a row per epoch and a column per sample; each cell contains the ranks that got the
    sample. A sample that an earlier rank or position already got is hatched: it is padding. A
    sample that no rank got is empty.
    """
    indices = [index for of_epoch in view.shards for shard in of_epoch for index in shard]
    columns = min(view.samples, 1 + max(indices, default=0))

    def draw(axes: Axes) -> None:
        for row, of_epoch in enumerate(view.shards):
            got: dict[int, list[int]] = {}
            longest = max(map(len, of_epoch), default=0)
            for position in range(longest):
                for rank, shard in enumerate(of_epoch):
                    if position < len(shard):
                        got.setdefault(shard[position], []).append(rank)
            for index in range(columns):
                ranks = got.get(index, [])
                axes.add_patch(
                    Rectangle((index, row), 1, 1, facecolor="none", edgecolor=_FAINT, linewidth=0.5)
                )
                for number, rank in enumerate(ranks):
                    width = 1 / len(ranks)
                    colour = _RANKS[rank % len(_RANKS)]
                    axes.add_patch(
                        Rectangle(
                            (index + number * width, row),
                            width,
                            1,
                            facecolor=colour,
                            edgecolor=_PAPER,
                            linewidth=0.8,
                            hatch="////" if number else None,
                        )
                    )
                    axes.text(
                        index + (number + 0.5) * width,
                        row + 0.5,
                        str(rank),
                        ha="center",
                        va="center",
                        color="#000000" if colour in _LIGHT else "#ffffff",
                        fontsize=8,
                        bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
                    )
        axes.set_xlim(0, max(columns, 1))
        axes.set_ylim(len(view.shards), 0)
        axes.set_yticks(
            np.arange(len(view.shards)) + 0.5, [f"epoch {epoch}" for epoch in view.epochs]
        )
        step = max(1, columns // 24)
        axes.set_xticks(
            np.arange(0, columns, step) + 0.5, [str(index) for index in range(0, columns, step)]
        )
        axes.set_xlabel("sample")
        axes.spines[:].set_visible(False)

    return _drawn(name, (max(5.0, 1.0 + 0.3 * columns), 0.9 + 0.36 * len(view.shards)), draw)


def timeline(name: str, view: Timeline) -> str:
    """Return a picture of a step, with a lane per rank.

    A lane shows the backward with a tick for each gradient. Below it are the collectives, each
    until the program waits for it.
    """
    end = max(
        [lane.ended for lane in view.lanes]
        + [sent.waited or sent.launched for lane in view.lanes for sent in lane.sent]
    )
    rows = sum(1 + max(1, len(lane.sent)) for lane in view.lanes)

    def draw(axes: Axes) -> None:
        row, ticks = 0.0, []
        for rank, lane in enumerate(view.lanes):
            axes.add_patch(
                Rectangle(
                    (lane.began, row + 0.15),
                    lane.ended - lane.began,
                    0.7,
                    facecolor=_RANKS[1],
                    edgecolor=_INK,
                    linewidth=0.6,
                )
            )
            for _, at in lane.ready:
                axes.plot([at, at], [row + 0.15, row + 0.85], color="#000000", linewidth=1.2)
            late = " (late)" if rank in view.late else ""
            ticks.append((row + 0.5, f"rank {rank}{late}: backward"))
            row += 1
            number = 0
            for sent in lane.sent:
                number += sent.of_gradients
                label = f"{number}" if sent.of_gradients else sent.description.partition(" ")[0]
                _draw_collective(axes, row, sent, label, end, withheld=view.withheld)
                ticks.append((row + 0.5, f"reduction {label}" if sent.of_gradients else label))
                row += 1
            if not lane.sent:
                ticks.append((row + 0.5, "no collective"))
                row += 1
            axes.axhline(row, color=_FAINT, linewidth=0.4)
        first = [lane.began for lane in view.lanes] + [
            sent.launched for lane in view.lanes for sent in lane.sent
        ]
        axes.set_xlim(min(first), end * 1.1)
        axes.set_ylim(rows, 0)
        axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
        axes.set_xlabel(f"ms; step {view.step}")

    return _drawn(name, (7.5, 0.8 + 0.24 * rows), draw)


def _draw_collective(
    axes: Axes, row: float, sent: Sent, label: str, end: float, *, withheld: bool
) -> None:
    """Draw a collective as a bar from its start until the program waits for it.

    Args:
        axes: The picture.
        row: The top of the bar's row.
        sent: The collective.
        label: The text behind the bar.
        end: The time of the last event, in ms.
        withheld: True if the harness withheld the result.
    """
    until = end * 1.04 if sent.waited is None else sent.waited
    axes.add_patch(
        Rectangle(
            (sent.launched, row + 0.2),
            max(until - sent.launched, end * 0.004),
            0.6,
            facecolor=_RANKS[0 if sent.of_gradients else 2],
            edgecolor=_INK,
            linewidth=0.6,
            linestyle="--" if sent.waited is None else "-",
            hatch="////" if withheld else None,
        )
    )
    if sent.waited is not None and sent.asynchronous:
        axes.plot([until, until], [row + 0.05, row + 0.95], color=_INK, linewidth=2)
    axes.text(
        until + end * 0.008,
        row + 0.5,
        label + (" never waited for" if sent.waited is None else ""),
        va="center",
        fontsize=8,
    )


def buckets(name: str, view: Timeline) -> str:
    """Return a picture of a step's reductions on the first rank, with their parameters."""

    def draw(axes: Axes) -> None:
        largest = max((bucket.elements for bucket in view.buckets), default=1) or 1
        for row, bucket in enumerate(view.buckets):
            axes.add_patch(
                Rectangle(
                    (0, row + 0.15),
                    bucket.elements,
                    0.7,
                    facecolor=_RANKS[row % len(_RANKS)],
                    edgecolor=_INK,
                    linewidth=0.6,
                )
            )
            carried = ", ".join(bucket.carried[:4]) + (
                f" and {len(bucket.carried) - 4} more" if len(bucket.carried) > 4 else ""
            )
            axes.text(
                bucket.elements + largest * 0.01,
                row + 0.5,
                carried or "unknown parameters",
                va="center",
                fontsize=8,
            )
        axes.set_xlim(0, largest * 2.2)
        axes.set_ylim(len(view.buckets), 0)
        axes.set_yticks(
            np.arange(len(view.buckets)) + 0.5,
            [
                f"{number}: {bucket.elements} x {bucket.dtype}"
                for number, bucket in enumerate(view.buckets, start=1)
            ],
        )
        axes.set_xticks([0, largest])
        axes.set_xlabel("elements")

    return _drawn(name, (7.5, 0.8 + 0.3 * len(view.buckets)), draw)


def mismatch(name: str, view: Mismatch) -> str:
    """Return a picture of each rank's largest difference, parameter by parameter."""
    values = np.array(
        [[np.nan if value is None else value for value in row] for row in view.largest],
        dtype=np.float64,
    )
    shown = np.clip(np.nan_to_num(values, nan=SMALL), SMALL, None)
    cells = [["none" if value is None else f"{value:.2g}" for value in row] for row in view.largest]
    return _cells(
        name,
        shown,
        cells,
        view.names,
        [f"rank {rank}" for rank in range(values.shape[1])],
        wide=0.8,
        least=SMALL,
    )


def errors(name: str, accounts: Sequence[RuleAccount]) -> str:
    """Return a picture of the number of cases per rule and tenth of the bound."""
    counts = np.array([account.errors for account in accounts], dtype=np.float64)
    labels = ["none", *(f"to {tenth / TENTHS:.1f}" for tenth in range(1, TENTHS + 1)), "beyond"]
    return _cells(
        name,
        np.clip(counts, 0.5, None),
        [[f"{count:.0f}" if count else "" for count in row] for row in counts],
        [account.rule for account in accounts],
        labels,
        wide=0.56,
    )


def sizes(name: str, counts: Mapping[str, int], kind: str) -> str:
    """Return a picture of the number of drawn cases by world size and dataset length."""
    drawn = {
        (int(ranks), int(samples)): count
        for (of, ranks, samples), count in (
            (key.split(" "), count) for key, count in counts.items()
        )
        if of == kind
    }
    ranks = sorted({ranks for ranks, _ in drawn})
    # Neighbouring lengths share a column, named by the longest: nobody reads more columns.
    column = {samples: next(edge for edge in _EDGES if edge >= samples) for _, samples in drawn}
    columns = sorted(set(column.values()))
    table = np.zeros((len(ranks), len(columns)))
    for (size, samples), count in drawn.items():
        table[ranks.index(size), columns.index(column[samples])] += count
    labels = [
        str(edge) if edge - before == 1 else f"{before + 1}–{edge}"
        for before, edge in zip((-1, *_EDGES), _EDGES, strict=False)
        if edge in columns
    ]
    return _cells(
        name,
        np.clip(table, 0.5, None),
        [[f"{count:.0f}" if count else "" for count in row] for row in table],
        [f"{size} rank{'s' if size > 1 else ''}" for size in ranks],
        labels,
        wide=0.56,
    )


_EDGES = (*range(9), 12, 16, 24, *(1 << power for power in range(5, 64)))


def _cells(
    name: str,
    values: FloatArray,
    texts: Sequence[Sequence[str]],
    rows: Iterable[str],
    columns: Sequence[str],
    *,
    wide: float,
    least: float = 0.5,
) -> str:
    """Return a table of cells with colours and texts.

    The colours show sizes on a logarithmic scale, and the texts show the exact values.
    """
    norm, colours = LogNorm(least, max(values.max(), least * 10)), colormaps["cividis"]
    names = [_shortened(row) for row in rows]

    def draw(axes: Axes) -> None:
        for row, texts_of_row in enumerate(texts):
            for column, text in enumerate(texts_of_row):
                share = float(norm(values[row, column]))
                nothing = text in ("", "none")
                axes.add_patch(
                    Rectangle(
                        (column, row),
                        1,
                        1,
                        facecolor="none" if nothing else colours(share),
                        edgecolor=_FAINT,
                        linewidth=0.5,
                        hatch="////" if text == "none" else None,
                    )
                )
                colour: Any = _INK if nothing else "#000000" if share > 0.5 else "#ffffff"
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    text,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=colour,
                )
        axes.set_xlim(0, len(columns))
        axes.set_ylim(len(names), 0)
        axes.set_xticks(np.arange(len(columns)) + 0.5, list(columns), fontsize=8)
        axes.set_yticks(np.arange(len(names)) + 0.5, names)
        axes.spines[:].set_visible(False)

    label = max(map(len, names), default=0) * 0.075
    return _drawn(name, (label + wide * len(columns) + 0.4, 0.5 + 0.27 * len(names)), draw)


_LONGEST = 40


def _shortened(text: str) -> str:
    return (
        text if len(text) <= _LONGEST else text[: _LONGEST // 2 - 1] + "…" + text[-_LONGEST // 2 :]
    )
