"""The text of a measurement on mutants: the results by operator, and the survivors."""

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.proof.mutants.judging import RESULTS, Judged
from ddp_invariants.proof.mutants.operators import OPERATORS
from ddp_invariants.report.terminal import table_lines

NOTICED = ("killed", "refused", "explained")
"""The results of mutants that leave no question."""


def table(judged: Sequence[Judged], file: str) -> str:
    """Return a row for each operator and the totals, then the mutants that nothing noticed.

    Args:
        judged: The results.
        file: The file of the original.
    """
    # Imported here: it is needed once, at a command's end.
    from rich.box import SIMPLE
    from rich.table import Table

    rows = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    rows.add_column("operator", no_wrap=True)
    for title in ("mutants", *RESULTS):
        rows.add_column(title, justify="right")
    for operator in OPERATORS:
        here = [each for each in judged if each.mutant.operator == operator]
        if here:
            rows.add_row(operator, *_counts(here))
    rows.add_row("all", *_counts(judged))
    left = [each for each in judged if each.result not in NOTICED]
    return "\n".join([*table_lines(rows), "", *_share(judged), *(line(e, file) for e in left)])


def line(judged: Judged, file: str) -> str:
    """Describe one mutant in a line: the result, the place, and the source before and after."""
    mutant = judged.mutant
    result = f"{judged.result} ({judged.rule})" if judged.rule else judged.result
    words = f" ({judged.words})" if judged.words else ""
    return f"{result}: {file}:{mutant.line}:{mutant.column} {mutant.name}{words}"


def document(judged: Sequence[Judged], target: str, file: str) -> dict[str, Any]:
    """Return the results as JSON-ready data, with all details.

    Args:
        judged: The results.
        target: The implementation, as the command takes it.
        file: The file of the original.
    """
    totals = Counter(each.result for each in judged)
    return {
        "suite": __version__,
        "torch": version("torch"),
        "target": target,
        "file": file,
        "totals": {result: totals[result] for result in RESULTS},
        "mutants": [_plain(each) for each in judged],
    }


def _plain(judged: Judged) -> dict[str, Any]:
    mutant = judged.mutant
    return {
        "operator": mutant.operator,
        "name": mutant.name,
        "line": mutant.line,
        "column": mutant.column,
        "before": mutant.before,
        "after": mutant.after,
        "result": judged.result,
        "rule": judged.rule,
        "cases": judged.cases,
        "words": judged.words,
    }


def _counts(judged: Iterable[Judged]) -> list[str]:
    counts = Counter(each.result for each in judged)
    return [str(counts.total()), *(str(counts[result] or "") for result in RESULTS)]


def _share(judged: Sequence[Judged]) -> list[str]:
    """Return the share of noticed mutants; explained mutants and copies without a test count not."""
    tested = [each for each in judged if each.result in ("killed", "refused", "survived")]
    if not tested:
        return []
    noticed = sum(each.result != "survived" for each in tested)
    return [f"noticed: {noticed} of {len(tested)} mutants that differ from the original"]
