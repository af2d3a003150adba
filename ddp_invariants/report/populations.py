"""The text of a measurement on composed faults: how many were caught, by operator and trigger."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from string import ascii_lowercase

from ddp_invariants.faults.generated.choices import OPERATORS, TRIGGERS
from ddp_invariants.proof.detection import Detection
from ddp_invariants.report.detections import remarks
from ddp_invariants.report.terminal import table_lines


def table(detections: Sequence[Detection]) -> str:
    """Return the matrix of operators and triggers, what each operator came to, and the totals.

    A cell holds how many faults were caught, of how many. The letters on top stand for operators.
    """
    # Imported here: it is needed once, at a command's end.
    from rich.box import SIMPLE
    from rich.table import Table

    faults = [detection for detection in detections if detection.planted.is_fault]
    present = {_choice(detection, "operator") for detection in faults}
    letters = dict(zip(filter(present.__contains__, OPERATORS), ascii_lowercase, strict=False))
    matrix = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    matrix.add_column("trigger", no_wrap=True)
    for letter in letters.values():
        matrix.add_column(letter, justify="right", no_wrap=True)
    matrix.add_column("all", justify="right", no_wrap=True)
    for trigger in TRIGGERS:
        here = [each for each in faults if _choice(each, "trigger") == trigger]
        if here:
            cells = [
                _share(each for each in here if _choice(each, "operator") == operator)
                for operator in letters
            ]
            matrix.add_row(trigger, *cells, _share(here))
    rows = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("operator", "caught", "cases", "rules that named it"):
        rows.add_column(
            title, justify="left" if title in ("operator", "rules that named it") else "right"
        )
    for operator, letter in letters.items():
        here = [each for each in faults if _choice(each, "operator") == operator]
        rows.add_row(f"{letter}  {operator}", _share(here), _cases(here), _named(here))
    return "\n".join(
        [
            *(table_lines(matrix) if matrix.rows else []),
            "",
            *(table_lines(rows) if rows.rows else []),
            "",
            *remarks(detections),
        ]
    )


def _choice(detection: Detection, name: str) -> str:
    return dict(detection.planted.fault).get(name, "")


def _share(detections: Iterable[Detection]) -> str:
    """Return how many faults were caught, of how many; empty if there are none."""
    caught = [detection.is_caught for detection in detections]
    return f"{sum(caught)}/{len(caught)}" if caught else ""


def _cases(detections: Iterable[Detection]) -> str:
    """Return the median of the cases until faults were caught."""
    cases = [detection.cases for detection in detections if detection.is_caught]
    return f"{median(cases):.0f}" if cases else ""


def _named(detections: Iterable[Detection]) -> str:
    """Return the rules that named faults, the most frequent first, with their numbers."""
    counts = Counter(detection.rule for detection in detections if detection.is_caught)
    return ", ".join(f"{rule} {count}×" for rule, count in counts.most_common(4))
