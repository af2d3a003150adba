"""The whole numbers that options take, checked alike for pytest and for the commands."""

from dataclasses import dataclass

from ddp_invariants.cases.case import LARGEST_WORLD_SIZE
from ddp_invariants.errors import NamingError

_LONGEST = 24
"""Characters of a bad value that an error repeats."""


@dataclass(frozen=True)
class WholeNumber:
    """The values of an option that takes a whole number.

    Attributes:
        least: The smallest one.
        most: The largest one.
    """

    least: int
    most: int

    def read(self, text: str) -> int:
        """Return the number that a text gives.

        Raises:
            NamingError: It gives none, or one out of range.
        """
        # A longer text is out of range, and Python refuses to read thousands of digits.
        short = len(text) <= _LONGEST
        if short and text.isascii() and text.isdigit() and self.least <= int(text) <= self.most:
            return int(text)
        shown = text if short else f"{text[:_LONGEST]}… ({len(text):,} characters)"
        raise NamingError(f"{shown}: expected a whole number from {self.least} to {self.most}")


COUNT = WholeNumber(1, 10**9)
COUNT_OR_NONE = WholeNumber(0, 10**9)
SEED = WholeNumber(0, 2**63 - 1)
WORLD_SIZE = WholeNumber(1, LARGEST_WORLD_SIZE)
WORKERS = WholeNumber(0, 1024)
SECONDS = WholeNumber(1, 86_400)
OF_SESSIONS = {
    "cases": COUNT,
    "deadline": SECONDS,
    "max_world_size": WORLD_SIZE,
    "seed": SEED,
}
"""The values of the options of a session, by the name of the option's attribute."""
