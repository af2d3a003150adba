"""The folder of all files that a session leaves without being asked for them."""

from pathlib import Path

FOLDER = Path(".ddp-invariants")
"""It lies in the folder in which the session was started."""
EXAMPLES = FOLDER / "hypothesis"
"""The folder in which Hypothesis keeps the cases that failed, and its caches."""
