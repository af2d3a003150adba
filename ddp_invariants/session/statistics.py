"""The statistics of a property for `--hypothesis-show-statistics`.

A property makes several searches. Hypothesis' plugin shows the last one of a test, so the texts of
all are joined here, with the seconds of each stage.
"""

from collections.abc import Mapping
from typing import Any

_SHOWN = "hypothesis_statistics"
"""The attribute of a test that Hypothesis' plugin prints."""


class Statistics:
    """The statistics of one property.

    Args:
        item: The test of pytest, on which Hypothesis' plugin leaves the text of each search.
    """

    def __init__(self, item: Any) -> None:
        self._item = item
        self._texts: list[str] = []

    def add(self, name: str) -> None:
        """Take the text of the search that just ended."""
        head, _, text = getattr(self._item, _SHOWN, "").partition("\n")
        if head:
            self._texts.append(f"  search {name}:\n{text.strip(chr(10))}\n")
            delattr(self._item, _SHOWN)

    def show(self, stages: Mapping[str, float]) -> None:
        """Have Hypothesis' plugin print all texts, and the seconds of each stage.

        Args:
            stages: The seconds, by stage.
        """
        if self._texts:
            seconds = ", ".join(f"{stage} {taken:.1f}" for stage, taken in stages.items())
            texts = [f"{self._item.nodeid}:\n", *self._texts, f"  - Seconds by stage: {seconds}\n"]
            setattr(self._item, _SHOWN, "\n".join(texts))
