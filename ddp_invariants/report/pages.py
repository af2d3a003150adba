"""The addresses of the pages of the documentation that reports name."""

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

from ddp_invariants.invariants import SHIPPED

_LABEL = "Documentation, "
"""The start of the entry for the site among the project's addresses in the package's metadata."""


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
        An address on the project's site, or the file's path in a checkout if the package names no
        site. Empty for a rule that a user added.
    """
    if rule not in SHIPPED:
        return ""
    page = f"docs/rules/{rule}"
    return f"{site().rstrip('/')}/{page}.html" if site() else f"{page}.md"
