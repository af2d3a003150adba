"""A baseline: one side's answers to a fixed corpus of cases, in a file for a later comparison.

The file is gzip with JSON lines: a head, a line for each case, and a foot. The foot has the number
of cases and a digest of all lines before it. A reader need not trust the writer: sizes are bounded,
every mistake becomes one sentence, and nothing in the file is executed.
"""

import base64
import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, to_json
from ddp_invariants.cases.fields import Strict
from ddp_invariants.errors import BaselineError, EvidenceError
from ddp_invariants.records.decoding import rank_evidence
from ddp_invariants.records.evidence import (
    Incident,
    Layout,
    RankEvidence,
    ShardEvidence,
    Slot,
    TrainingEvidence,
)
from ddp_invariants.records.indices import packed, unpacked
from ddp_invariants.upgrades.comparison import Offer

FORM = 6
"""Version of the file format. A file of another version is refused."""
MOST = 1 << 30
"""Largest number of bytes of JSON that are read; a corpus of some thousand cases has a tenth."""
LONGEST = 64 << 20
"""Largest number of bytes of one line."""


@dataclass(frozen=True)
class Environment(Strict):
    """An interpreter, with everything that can change numbers.

    Attributes:
        python: Its path.
        torch, numpy, version: The versions of torch, numpy and Python.
        cpu: The processor's model.
        blas: torch's description of its linear algebra and of the processor features it uses.
    """

    python: str
    torch: str
    numpy: str
    version: str
    cpu: str = ""
    blas: str = ""

    def __str__(self) -> str:
        return f"torch {self.torch}, numpy {self.numpy}, Python {self.version}"


@dataclass(frozen=True)
class Head(Strict):
    """The first line of a baseline: the description of the side that answered.

    Attributes:
        suite: The version that recorded it.
        form: The version of the file format.
        environment: The interpreter.
        offer: The facts known before any case is run.
        options: The implementation under test, as options of a command line.
        seed: The seed of the corpus.
        cases: Number of cases.
    """

    suite: str
    form: int
    environment: Environment
    offer: Offer
    options: str
    seed: int
    cases: int
    kind: str = "baseline"


Answer = TrainingEvidence | ShardEvidence


def write(path: Path, head: Head, answers: Iterable[Answer]) -> None:
    """Write a complete baseline, or no file at all.

    Raises:
        OSError: It cannot be written.
    """
    digest, count = hashlib.sha256(), 0
    partial = path.with_name(f"{path.name}.partial")
    try:
        with gzip.GzipFile(partial, "wb", mtime=0) as file:
            for plain in itertools.chain([asdict(head)], map(_plain, answers)):
                line = json.dumps(plain).encode()
                digest.update(line)
                file.write(line + b"\n")
                count += 1
            file.write(
                f"{json.dumps({'cases': count - 1, 'digest': digest.hexdigest()})}\n".encode()
            )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _plain(answer: Answer) -> dict[str, Any]:
    plain: dict[str, Any] = {"case": json.loads(to_json(answer.case)), "incident": None}
    # The appearance of the incident in each process need not be kept.
    if answer.incident is not None:
        ranks = {str(rank): how for rank, how in answer.incident.ranks.items()}
        plain["incident"] = {"kind": answer.incident.kind, "ranks": ranks}
    if isinstance(answer, ShardEvidence):
        return {**plain, "answers": packed(list(answer.answers))}
    return {**plain, "ranks": [_framed(rank) for rank in answer.ranks]}


def _framed(rank: RankEvidence) -> list[Any]:
    """Return a rank's evidence in the form in which the rank sent it (`decoding.rank_evidence`)."""
    layouts: dict[tuple[Slot, ...], int] = {}
    records, blob = [], bytearray()
    for (moment, step), tensors in rank.tensors.items():
        number = layouts.setdefault(tensors.layout.slots, len(layouts))
        records.append([moment, step, number, len(blob), len(tensors.bits)])
        blob += tensors.bits
    facts = {
        "structure_before": rank.structure_before,
        "structure_after": rank.structure_after,
        "raised": None if rank.raised is None else rank.raised._asdict(),
        "in_flight": [[step, list(call), defect] for step, call, defect in rank.in_flight],
        "marks": rank.marks,
        "quiet": rank.quiet,
        "backwards": rank.backwards,
        "surfaced": rank.surfaced,
        "held": rank.held,
        "driven": dict(rank.driven),
        "saved": rank.saved,
        "scales": rank.scales,
        "warned": rank.warned,
    }
    rows = [[[slot.name, slot.dtype, list(slot.shape)] for slot in slots] for slots in layouts]
    sent = [[list(call) for call in group] for group in rank.sent]
    header = {
        "records": records,
        "layouts": rows,
        "facts": facts,
        "sent": sent,
        "groups": rank.groups,
        "changed": rank.changed,
        "left": rank.left,
    }
    return [header, base64.b64encode(bytes(blob)).decode()]


def read(path: Path) -> tuple[Head, list[Answer]]:
    """Return the head and the answers of a baseline.

    Raises:
        BaselineError: The file is no baseline, has another format version, is damaged, cut short or
            altered, or is larger than any file that is written.
    """
    try:
        with gzip.open(path, "rb") as file:
            lines = list(_lines(file, path))
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise BaselineError(f"{path}: cut short or damaged: {error}") from error
    if len(lines) < 2:
        raise BaselineError(f"{path}: it has {len(lines)} lines; a baseline has at least 3")
    plain = [_parsed(line, number, path) for number, line in enumerate(lines, start=1)]
    _require_whole(plain, lines, path)
    head = _head(lines[0], path)
    held, counted = len(plain) - 2, plain[-1]["cases"]
    if not head.cases == counted == held > 0:
        raise BaselineError(
            f"{path}: it holds {held} cases, its head says {head.cases} and its foot {counted}"
        )
    for described in (head.offer.ddp, head.offer.sampler):
        if not isinstance(described.get("defaults"), dict) or not isinstance(
            described.get("target"), str
        ):
            raise BaselineError(
                f"{path}: the implementation under test has no name or no arguments"
            )
    return head, [_answer(line, number, path) for number, line in enumerate(plain[1:-1], start=2)]


def _require_whole(plain: list[dict[str, Any]], lines: list[bytes], path: Path) -> None:
    """Check that a file is a baseline of this format version, and unaltered.

    Args:
        plain: The lines as data.
        lines: The lines.
        path: The file.

    Raises:
        BaselineError: It is none, or it was cut short or altered.
    """
    if plain[0].get("kind") != "baseline":
        raise BaselineError(f"{path}: kind is {plain[0].get('kind')!r}, expected 'baseline'")
    if plain[0].get("form") != FORM:
        raise BaselineError(
            f"{path}: its form is {plain[0].get('form')!r}, this version ({__version__}) reads "
            f"{FORM}: record the baseline again"
        )
    foot, digest = plain[-1], hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if set(foot) != {"cases", "digest"}:
        raise BaselineError(
            f"{path}: the last line is not the foot of a baseline; the file is cut short"
        )
    if foot["digest"] != digest:
        raise BaselineError(
            f"{path}: its digest does not match; the file was altered after it was written"
        )


def _head(line: bytes, path: Path) -> Head:
    """Return the head that a line holds.

    Raises:
        BaselineError: It holds none.
    """
    # Imported here: only a comparison with a file needs it.
    import pydantic

    try:
        return pydantic.TypeAdapter(Head).validate_json(line)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BaselineError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error


def _lines(file: gzip.GzipFile, path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, as long as none exceeds the limits."""
    total = 0
    while line := file.readline(LONGEST):
        total += len(line)
        if not line.endswith(b"\n"):
            why = (
                f"a line is longer than the limit of {LONGEST >> 20} MiB"
                if len(line) >= LONGEST
                else "it is cut short"
            )
            raise BaselineError(f"{path}: {why}")
        if total > MOST:
            raise BaselineError(f"{path}: unpacked it is larger than {MOST >> 20:,} MiB")
        yield line[:-1]


def _parsed(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{path}: line {number} is not valid JSON: {error}") from error
    if not isinstance(plain, dict):
        raise BaselineError(f"{path}: line {number} is no JSON object")
    return plain


def _answer(plain: Mapping[str, Any], number: int, path: Path) -> Answer:
    """Return a line's case and answer.

    Raises:
        BaselineError: The line is malformed.
    """
    # Imported here, as above.
    import pydantic

    try:
        kind = {"training": TrainingCase, "shard": ShardCase}[plain["case"]["kind"]]
        case: Case = pydantic.TypeAdapter(kind).validate_json(json.dumps(plain["case"]))
        incident = None
        if plain["incident"] is not None:
            row = plain["incident"]
            incident = Incident(
                row["kind"], {int(rank): str(how) for rank, how in row["ranks"].items()}, {}, 0.0
            )
        if isinstance(case, ShardCase):
            answers = plain["answers"]
            if not isinstance(answers, list) or not all(isinstance(row, dict) for row in answers):
                raise EvidenceError("its answers are no list of objects")
            return ShardEvidence(case, tuple(map(unpacked, answers)), incident)
        known: dict[tuple[Slot, ...], Layout] = {}
        ranks = tuple(
            rank_evidence(header, base64.b64decode(blob, validate=True), known)
            for header, blob in plain["ranks"]
        )
        if len(ranks) != case.world_size:
            raise EvidenceError(f"{len(ranks)} ranks answered, expected {case.world_size}")
        return TrainingEvidence(case, ranks, incident)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        first = str(error).partition("\n")[0]
        raise BaselineError(
            f"{path}: line {number} is no valid answer to a case: {type(error).__name__}: {first}"
        ) from error
