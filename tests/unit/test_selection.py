"""Tests of what a session knows of the selected properties before it starts ranks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_invariants.report.rulebook import PROPERTIES
from ddp_invariants.session import selection


@pytest.mark.parametrize(
    ("paths", "expression", "expected"),
    [
        ([PROPERTIES], "", ["ddp", "sampler"]),
        ([PROPERTIES], "shard1", ["sampler"]),
        ([PROPERTIES], "shard and not shard10", ["sampler"]),
        ([PROPERTIES], "grad", ["ddp"]),
        ([PROPERTIES], "grad2 or shard1", ["ddp", "sampler"]),
        ([PROPERTIES], "live1", ["ddp", "sampler"]),
        ([PROPERTIES], "not shard", ["ddp", "sampler"]),  # LIVE-1 is about both.
        ([PROPERTIES / "test_shard.py"], "", ["sampler"]),
        ([PROPERTIES / "test_buf.py", PROPERTIES / "test_shard.py"], "buf", ["ddp"]),
        ([PROPERTIES, Path(__file__)], "shard1", ["ddp", "sampler"]),
        ([PROPERTIES], "(", ["ddp", "sampler"]),
        ([PROPERTIES], "shard1 or hypothesis", ["ddp", "sampler"]),  # A marker of every property.
    ],
)
def test_only_the_side_that_is_judged_is_probed(
    paths: list[Path], expression: str, expected: list[str]
) -> None:
    """The selected properties tell the sides to probe; a test that is not packaged may need both."""
    config = SimpleNamespace(
        args=[str(path) for path in paths],
        invocation_params=SimpleNamespace(dir=Path.cwd()),
        option=SimpleNamespace(keyword=expression),
    )
    assert list(selection.sides(cast("Any", config))) == expected
