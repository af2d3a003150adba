"""Cases and stored violations read from files.

Another person may have written the file: every mistake in it becomes one sentence.
"""

from pathlib import Path
from typing import Any

from ddp_invariants import situations  # noqa: F401 - it makes the kinds of situations known
from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.errors import CaseError
from ddp_invariants.records.violation import FORM, MOST_READ, StoredViolation

_KINDS: dict[object, Any] = {
    "training": TrainingCase,
    "shard": ShardCase,
    "violation": StoredViolation,
}


def read(path: Path) -> Case:
    """Read the case in a file, which holds it alone or with a violation it showed.

    Raises:
        CaseError: The file cannot be read, is no JSON, or has a wrong, missing or unknown field;
            the message names the field.
    """
    content = read_any(path)
    return content.case if isinstance(content, StoredViolation) else content


def read_any(path: Path) -> Case | StoredViolation:
    """Read a case or a stored violation from a file.

    Nothing in the file is executed.

    Raises:
        CaseError: The file cannot be read, is no JSON, or has a wrong, missing or unknown field;
            the message names the field.
    """
    # Imported here: only a replay needs it, and it takes longer to import than a case takes to run.
    import pydantic

    try:
        size = path.stat().st_size
        if size > MOST_READ:
            raise CaseError(
                f"{path}: it has {size:,} bytes; a stored violation has at most {MOST_READ:,}"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CaseError(
            f"{path}: not a text file ({error.reason} at byte {error.start})"
        ) from error
    try:
        plain = pydantic.TypeAdapter(dict[str, object]).validate_json(text)
    except pydantic.ValidationError as error:
        raise CaseError(f"{path}: not a JSON object: {error.errors()[0]['msg']}") from error
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CaseError(f"{path}: kind is {kind!r}, expected 'training', 'shard' or 'violation'")
    if kind == "violation" and plain.get("form") != FORM:
        raise CaseError(
            f"{path}: the file has format {plain.get('form')!r}; this version reads only format "
            f"{FORM}. Find the violation again, or read the file with the version that wrote it."
        )
    wrong_class = _other_case(plain, path) if kind == "violation" else ""
    adapter: pydantic.TypeAdapter[Case | StoredViolation] = pydantic.TypeAdapter(_KINDS[kind])
    try:
        return adapter.validate_json(text)
    except pydantic.ValidationError as error:
        # pydantic tries a stored case as either kind: errors of the wrong kind mean nothing.
        errors = [
            problem
            for problem in error.errors(include_url=False)
            if wrong_class not in problem["loc"]
        ]
        first = errors[0]
        place = (
            ".".join(
                str(part) for part in first["loc"] if part not in ("TrainingCase", "ShardCase")
            )
            or "the case"
        )
        message = first["msg"].removeprefix("Value error, ")
        if kind == "training" and first["type"] == "unexpected_keyword_argument":
            message += "; files of versions that had such a field are not read"
        raise CaseError(f"{path}: {place}: {message}") from error


def _other_case(plain: dict[str, object], path: Path) -> str:
    """Return the name of the class that a stored violation's case does not belong to.

    Raises:
        CaseError: The case is of no known kind.
    """
    case = plain.get("case")
    kind = case.get("kind") if isinstance(case, dict) else None
    if kind not in ("training", "shard"):
        raise CaseError(f"{path}: case.kind is {kind!r}, expected 'training' or 'shard'")
    return "ShardCase" if kind == "training" else "TrainingCase"
