"""The form that all pictures of a certificate share: SVG inside a page.

Text stays text, and ink and paper have the page's colours, light or dark. A number, a word or
hatching repeats every meaning of a colour. The scales are distinguishable for colour-blind readers
(cividis; Okabe and Ito 2008). The same data gives the same bytes.
"""

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT, PAPER = "#010101", "#020202", "#fefefe"
_VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", PAPER: "var(--paper)"}
"""Placeholder colours, and the page's own colours that replace them."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "hatch.color": INK,
    "hatch.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


def drawn(name: str, size: tuple[float, float], draw: Callable[[Axes], None]) -> str:
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
