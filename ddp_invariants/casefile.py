"""Read a case from a file somebody else may have written: every mistake becomes one sentence, nothing is executed."""

from pathlib import Path

from ddp_invariants.case import Case, CaseError, ShardCase, TrainingCase


def read(path: Path) -> Case:
    """The case in a file.

    Raises:
        CaseError: The file cannot be read, is no JSON, or has a wrong, missing or unknown field, which is named.
    """
    # Imported here: only a replay needs it, and it takes longer to import than a case takes to run.
    import pydantic

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CaseError(f"{path}: not a text file ({error.reason} at byte {error.start})") from error
    try:
        plain = pydantic.TypeAdapter(dict[str, object]).validate_json(text)
    except pydantic.ValidationError as error:
        raise CaseError(f"{path}: not a JSON object: {error.errors()[0]['msg']}") from error
    kind = plain.get("kind")
    if kind not in ("training", "shard"):
        raise CaseError(f"{path}: kind is {kind!r}, expected 'training' or 'shard'")
    adapter: pydantic.TypeAdapter[TrainingCase] | pydantic.TypeAdapter[ShardCase]
    adapter = pydantic.TypeAdapter(TrainingCase) if kind == "training" else pydantic.TypeAdapter(ShardCase)
    try:
        return adapter.validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the case"
        message = first["msg"].removeprefix("Value error, ")
        raise CaseError(f"{path}: {place}: {message}") from error
