"""The templates of the pages that the scripts in this folder write."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def templates(**options: Any) -> Environment:
    """Return the templates of this folder, for pages of Markdown.

    Args:
        options: More options of Jinja's environment.
    """
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
