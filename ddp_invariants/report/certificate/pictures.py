"""Pictures of cases on a certificate's page: shards, steps and reductions."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ddp_invariants.invariants.diagnosis.excerpts import Sent, ShardMap, Timeline
from ddp_invariants.report.certificate.svg import FAINT, INK, PAPER, drawn

_RANKS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999")
"""Okabe and Ito's palette."""
_LIGHT = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#999999")
"""The colours of the palette on which black text is easier to read than white."""


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
                    Rectangle((index, row), 1, 1, facecolor="none", edgecolor=FAINT, linewidth=0.5)
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
                            edgecolor=PAPER,
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

    return drawn(name, (max(5.0, 1.0 + 0.3 * columns), 0.9 + 0.36 * len(view.shards)), draw)


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
                    edgecolor=INK,
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
            axes.axhline(row, color=FAINT, linewidth=0.4)
        first = [lane.began for lane in view.lanes] + [
            sent.launched for lane in view.lanes for sent in lane.sent
        ]
        axes.set_xlim(min(first), end * 1.1)
        axes.set_ylim(rows, 0)
        axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
        axes.set_xlabel(f"ms; step {view.step}")

    return drawn(name, (7.5, 0.8 + 0.24 * rows), draw)


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
            edgecolor=INK,
            linewidth=0.6,
            linestyle="--" if sent.waited is None else "-",
            hatch="////" if withheld else None,
        )
    )
    if sent.waited is not None and sent.asynchronous:
        axes.plot([until, until], [row + 0.05, row + 0.95], color=INK, linewidth=2)
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
                    edgecolor=INK,
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

    return drawn(name, (7.5, 0.8 + 0.3 * len(view.buckets)), draw)
