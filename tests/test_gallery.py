"""Every system of the gallery comes out with the verdict that stands beside it."""

from pathlib import Path
from typing import Any

import pytest
from gallery import VERDICTS, judged

from ddp_invariants.ranks.pool import Pool


@pytest.mark.parametrize("entry", VERDICTS.values(), ids=VERDICTS)
def test_a_system_comes_out_with_the_verdict_beside_it(pool: Pool, tmp_path: Path, entry: dict[str, Any]) -> None:
    """The rule named is violated, with its cause, and besides at most its consequences; of a right one every rule holds."""
    found = judged(entry, pool, tmp_path, cases=25)
    told = {rule: str(violation) for rule, violation in found.violations.items()}
    assert found.inconclusive == {}
    if "violated" not in entry:
        assert told == {}
        assert {rule: entry.breaches for rule, entry in found.trial.ledger.entries.items() if entry.seen} == {}
        return
    assert set(told) <= {entry["violated"], *entry["consequences"]}, told
    assert entry["cause"] in found.violations[entry["violated"]].breach.perhaps
