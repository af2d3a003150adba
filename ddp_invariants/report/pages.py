"""The pages of the documentation that reports name, and the links to them."""

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from ddp_invariants.invariants import SHIPPED

_LABEL = "Documentation, "
"""The start of the entry for the site among the project's addresses in the package's metadata."""
_CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that holds the documents, if the package is imported from a checkout."""
_RULE = re.compile(r"\b[A-Z]+-\d+\b(?!\.\w)")
"""An id of a rule in a text, but not in the name of a file."""
_PROGRAMS = frozenset({"iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "rio", "WarpTerminal"})
_TERMINALS = ("xterm-kitty", "xterm-ghostty", "alacritty", "foot", "wezterm")
_FIRST_VTE = 5000
"""The version of VTE, the core of GNOME's terminal and others, that first had links."""


@cache
def site() -> str:
    """Return the address of the built documentation; empty if the package names none."""
    try:
        addresses = metadata("ddp-invariants").get_all("Project-URL") or []
    except PackageNotFoundError:  # A checkout that is not installed.
        return ""
    return next((text.removeprefix(_LABEL) for text in addresses if text.startswith(_LABEL)), "")


def page_of(rule: str) -> str:
    """Return the address of the page about a rule.

    Returns:
        An address on the project's site, or the file's path in the checkout if the package names no
        site. Empty if there is neither, and for a rule that a user added.
    """
    if rule not in SHIPPED:
        return ""
    page = f"docs/rules/{rule}"
    if site():
        return f"{site().rstrip('/')}/{page}.html"
    return f"{page}.md" if (_CHECKOUT / f"{page}.md").is_file() else ""


def link_to(rule: str) -> str:
    """Return the address that a terminal of this machine can open for a rule; empty for none."""
    page = page_of(rule)
    return page if not page or site() else (_CHECKOUT / page).as_uri()


def with_links(text: str) -> str:
    """Return a text in which each id of a rule is a link, as a terminal understands it (OSC 8)."""

    def linked(match: re.Match[str]) -> str:
        address = link_to(match[0])
        return f"\x1b]8;;{address}\x1b\\{match[0]}\x1b]8;;\x1b\\" if address else match[0]

    return _RULE.sub(linked, text)


def opens_links(environment: Mapping[str, str] = os.environ, *, terminal: bool) -> bool:
    """Return whether the output shows links as such.

    No terminal can be asked, and a few older ones print a link's address as garbage. So a
    terminal must be known, unless the user says so by `FORCE_HYPERLINK`.

    Args:
        environment: The variables of the process.
        terminal: True if the output is a terminal.
    """
    forced = environment.get("FORCE_HYPERLINK", "")
    if forced:
        return forced != "0"
    if not terminal or environment.get("CI") or environment.get("TERM", "dumb") == "dumb":
        return False
    vte = environment.get("VTE_VERSION", "")
    return (
        environment.get("TERM_PROGRAM") in _PROGRAMS
        or (vte.isdigit() and int(vte) >= _FIRST_VTE)
        or "WT_SESSION" in environment
        or "KONSOLE_VERSION" in environment
        or environment["TERM"].startswith(_TERMINALS)
    )
