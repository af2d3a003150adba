"""Detection tables: the results of `faults`, as JSON that is read again, and sums of their parts.

The parts of a measurement that is split (`--shard 3/10`) deal out its searches among themselves. A
search is never split, so that each counts as many cases until its failure as it does alone.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.errors import INCONCLUSIVE, INTERRUPTED, MergeError
from ddp_invariants.proof.detection import Detection, from_plain, totals
from ddp_invariants.proof.measure import FaultSearch
from ddp_invariants.search.split import in_order


@dataclass(frozen=True)
class Table:
    """The results of a measurement, or of one part of a measurement.

    Attributes:
        suite: The version of this package.
        torch: The version of torch.
        date: The day on which the measurement began, in UTC, as 2026-11-30.
        options: The options that decide which searches are made.
        population: A digest of all searches, those of other parts included.
        planned: The number of searches that were to be made.
        shard: The part of a measurement that was split, as "3/10"; empty if it is whole.
        searches: The results.
        unread: A sentence for each entry of a catalogue that could not be read.
        beyond: The faults that were not run, because they need a device.
    """

    suite: str
    torch: str
    date: str
    options: Mapping[str, Any]
    population: str
    planned: int
    shard: str
    searches: tuple[Detection, ...]
    unread: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()


def planned(
    jobs: Sequence[FaultSearch], own: Sequence[FaultSearch], options: Mapping[str, Any], shard: str
) -> Table:
    """Return the table of a measurement before its first search.

    Args:
        jobs: All searches.
        own: The searches of this part.
        options: The options that decide which searches are made.
        shard: The part; empty if the measurement is whole.
    """
    every = [_comparable(job) for job in jobs]
    digest = hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()
    today = dt.datetime.now(dt.UTC).date().isoformat()
    return Table(__version__, version("torch"), today, options, digest, len(own), shard, ())


def _comparable(job: FaultSearch) -> dict[str, Any]:
    """Return a search as data without what differs between two runs of a measurement.

    A catalogue may lie elsewhere. Of a composed fault, the docstring says on which rank the witness
    saw it first, and these ranks run side by side. A limit that is not set is left out, because
    tables from before it existed have none.
    """
    entry = replace(job.planted, file="", docstring=job.planted.description)
    plain = asdict(replace(job, planted=entry))
    return {name: value for name, value in plain.items() if (name, value) != ("most_real", None)}


def to_plain(table: Table) -> dict[str, Any]:
    """Return a table as data for JSON, with the sums."""
    rows = [
        {
            **asdict(detection),
            "diagnosis": detection.diagnosis,
            "caught": detection.is_caught,
            "right_rule": detection.is_right_rule,
        }
        for detection in table.searches
    ]
    return {
        "suite": table.suite,
        "torch": table.torch,
        "date": table.date,
        "options": dict(table.options),
        "population": table.population,
        "planned": table.planned,
        "shard": table.shard,
        "totals": asdict(totals(table.searches)),
        "searches": rows,
        "unread": list(table.unread),
        "beyond": list(table.beyond),
    }


def read(path: Path) -> Table:
    """Return the table in a file.

    Raises:
        MergeError: The file holds none.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return Table(
            **{
                name: plain[name]
                for name in (
                    "suite",
                    "torch",
                    "date",
                    "options",
                    "population",
                    "planned",
                    "shard",
                )
            },
            searches=tuple(map(from_plain, plain["searches"])),
            unread=tuple(plain["unread"]),
            beyond=tuple(plain["beyond"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise MergeError(f"{path}: no table of this version of faults --json ({reason})") from None


def merged(tables: Sequence[Table]) -> Table:
    """Return the sum of the tables of all parts of a measurement.

    Raises:
        MergeError: A part is missing or repeated, or belongs to another measurement.
    """
    parts = in_order([table.shard for table in tables], tables)
    first = parts[0]
    for table in parts[1:]:
        for name in ("suite", "torch", "options", "population"):
            if getattr(table, name) != getattr(first, name):
                raise MergeError(
                    f"shards {first.shard} and {table.shard} differ in {_DIFFERENCES[name]}"
                )
    return replace(
        first,
        date=min(table.date for table in parts),
        planned=sum(table.planned for table in parts),
        shard="",
        searches=_each_once(search for table in parts for search in table.searches),
        unread=tuple(sorted({sentence for table in parts for sentence in table.unread})),
        beyond=tuple(sorted({name for table in parts for name in table.beyond})),
    )


_DIFFERENCES = {
    "suite": "the version of this package",
    "torch": "the version of torch",
    "options": "their options",
    "population": "the implementations that they search",
}


def _each_once(searches: Iterable[Detection]) -> tuple[Detection, ...]:
    """Return all searches in an order of their own.

    Raises:
        MergeError: A search was made twice.
    """
    made = dict[tuple[Any, int], Detection]()
    for search in searches:
        made_before = made.setdefault((search.planted.identity, search.seed), search)
        if made_before is not search:
            raise MergeError(f"two shards searched {search.planted.name} with seed {search.seed}")
    return tuple(
        sorted(made.values(), key=lambda each: (each.planted.module, each.planted.name, each.seed))
    )


def status(table: Table) -> int:
    """Return the exit status of a measurement.

    It is that of an interrupt if a search is missing.
    """
    if table.beyond and not table.planned:
        return INCONCLUSIVE
    if len(table.searches) < table.planned:
        return INTERRUPTED
    total = totals(table.searches)
    return int(
        total.caught < total.searches
        or total.wrong > 0
        or total.false_violations > 0
        or total.unjudged > 0
    )
