"""The difference between a refusal and a crash.

A refusal is deliberate. It is a `raise` statement (an `AssertionError`, too), or an assertion whose
message says what is required; while a module is wrapped, an assertion with any message. A crash is
an exception that no author chose: a name that does not exist, an index out of range, any other
assertion that fails. Errors that a library raises on its own count as refusals, because torch refuses
many arguments in its C++ code. So do all errors outside the implementation's code, and a variable
that the environment lacks.
"""

import re
from typing import Any

from ddp_invariants.records.evidence import DESTROYED, RaisedError, TrainingEvidence
from ddp_invariants.records.verdict import Failure

RARELY_MEANT = frozenset(
    {
        "NameError",
        "AttributeError",
        "LookupError",
        "ZeroDivisionError",
        "RecursionError",
        DESTROYED,
    }
)
"""Bases of the exceptions that are no refusal, unless a `raise` statement says why in words."""
CRASHES = "the implementation crashes, which is no refusal"
"""The fact of a crash."""
_REMEDY = (
    "An implementation refuses what it does not take by a `raise` statement, or by an assertion that "
    "names it;\nor it declares it as unsupported. The traceback ends:"
)
_RAISED = "RAISE_VARARGS"
_BY_MISTAKE = frozenset({"UnicodeError", "EOFError", "BufferError"})
"""Bases of exceptions that are no refusal without a `raise` statement."""
_PYTHONS = (
    "invalid literal for int()",
    "could not convert string to float",
    "is not in list",
    "x not in list",
    "is an empty sequence",
    "argument is empty",
    "substring not found",
    "math domain error",
)
"""Words of ValueErrors that Python's own functions raise, which know of nothing to refuse."""
_REQUIRING = (
    "support",
    "require",
    "must",
    "allowed",
    "cannot",
    "can't",
    "please",
)
"""Words of assertions that tell a user what is taken. DeepSpeed refuses by such assertions alone."""
_CONSTRUCTING = ("wrap", "construction")
"""The phases in which an assertion in words is about what the caller gave."""
_OF_THE_ENVIRONMENT = re.compile(r'(<frozen os>|[^"]*/os\.py)", line \d+, in __getitem__')
"""The last entry of a traceback from `os.environ[name]`."""
_STOPPED = "generator raised StopIteration"
"""The message of the RuntimeError that Python makes of a StopIteration in a generator."""
_REFUSING = (
    "unsupported ScalarType",
    "can't convert",
    "forward() got an unexpected keyword argument",
    "forward() takes",
)
"""Words of TypeErrors that refuse: torch's C++ a dtype or a layout, a signature a form of call."""


def is_deliberate(error: RaisedError) -> bool:
    """Return whether a `raise` statement of the implementation made an exception."""
    return error.innermost == "implementation" and error.instruction == _RAISED


def is_crash(error: RaisedError) -> bool:
    """Return whether an exception is a crash of the implementation and no refusal."""
    kinds = set(error.kinds)
    if error.caller != "implementation" or _lacks_a_variable(error):
        return False
    deliberate, has_words = is_deliberate(error), len(error.message.split()) > 1
    if kinds & RARELY_MEANT:
        # The message of a KeyError is the text of its argument, which may be any object.
        is_text = "KeyError" not in kinds or error.message[:1] in ("'", '"')
        return DESTROYED in kinds or not (deliberate and has_words and is_text)
    if error.innermost != "implementation":
        return False
    if error.message == _STOPPED:
        return True
    if "AssertionError" in kinds:
        requires = any(words in error.message for words in _REQUIRING)
        stated = error.phase in _CONSTRUCTING or _raises(_last_line(error))
        return not (requires or (stated and has_words))
    if deliberate:
        return False
    if kinds & _BY_MISTAKE:
        return True
    if "TypeError" in kinds:
        return not any(words in error.message for words in _REFUSING)
    # Other ValueErrors without a `raise` statement come from compiled code, which may refuse.
    return "ValueError" in kinds and (
        error.instruction.startswith("UNPACK_") or any(words in error.message for words in _PYTHONS)
    )


def _lacks_a_variable(error: RaisedError) -> bool:
    last = error.traceback.rpartition('File "')[2]
    return "KeyError" in error.kinds and _OF_THE_ENVIRONMENT.match(last) is not None


def crash(rule: str, raised: dict[int, RaisedError], where: str) -> Failure | None:
    """Return the failure of the first of some exceptions that is a crash; None if all are refusals.

    Args:
        rule: The rule that fails.
        raised: The exceptions by rank.
        where: The place in the case.
    """
    for rank, error in raised.items():
        who = f"rank {rank}, " if len(raised) > 1 else ""
        if is_crash(error):
            return Failure(
                rule,
                CRASHES,
                f"{who}{error.phase}, {where}",
                f"{error.type}: {error.message}"
                if error.message
                else f"{error.type}: {_last_line(error)}",
                _cause(error),
                notes=f"{_REMEDY}\n{error.traceback}",
            )
    return None


def _last_line(error: RaisedError) -> str:
    """Return the line of code that raised an exception; empty if its source is not known."""
    # More lines of the statement may follow, marks of a part of it, and a message.
    code = error.traceback.rpartition('File "')[2].splitlines()[1:]
    return code[0].strip() if code and code[0].startswith("    ") else ""


def _raises(line: str) -> bool:
    """Return whether a line of code has a `raise` statement, and is no assertion."""
    return "raise " in line and not line.startswith("assert")


def _cause(error: RaisedError) -> str:
    """Return the cause of a crash, if its last line asks something of a gradient that is None."""
    asked = ".grad." in _last_line(error)
    if asked and error.message.startswith("'NoneType' object has no attribute"):
        return (
            "backward gives no gradient to a parameter that it does not reach, or that is frozen: "
            "its .grad is None; count it as zero, or leave it out on all ranks"
        )
    return ""


def crash_of(evidence: TrainingEvidence) -> Failure | None:
    """Return the failure if a rank's run ended in a crash; None if it did not.

    The program catches an injected exception, so a crash that follows is the implementation's own.
    An implementation may assert that values are finite, and it may end in any way if a rank dies.
    """
    case = evidence.case
    if case.poison is not None or case.kills:
        return None
    ranks = enumerate(evidence.ranks)
    raised = {rank: each.raised for rank, each in ranks if each.raised is not None}
    return crash("LIVE-1", raised, f"world size {case.world_size}")


def read(plain: dict[str, Any]) -> RaisedError:
    """Return the exception that an answer of a sampler holds as plain data."""
    return RaisedError(**plain)
