"""Records in docstrings: what an implementation of a catalogue says about itself.

`faults/__init__.py` fixes one form for the package's own catalogue, and `strictly` insists on it.
`liberally` reads the catalogues of others. It needs only the id of a rule, or the word `Right:`.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from ddp_invariants.errors import CatalogueError
from ddp_invariants.invariants import ALL_RULES

Part = Literal["ddp", "sampler", "optimizer"]
"""The part of training that an implementation is."""
StatedPart = Part | Literal[""]
"""The part that a record or a definition states; "" if it states none."""

_CONTROL = re.compile(r"Right: (?P<description>.+)\.")
_NOTICED = r"[A-Z]+-\d+(?:: [^;]+)?"
_FAULT = re.compile(
    r"(?P<description>.+) \((?P<source>(?:[^()]|\([^()]*\))+)\)\. "
    rf"(?P<noticed>{_NOTICED}(?:; or {_NOTICED})*)\."
)
_INVARIANTS = "|".join(sorted({rule.invariant for rule in ALL_RULES.values()}))
_RULE = re.compile(rf"\b(?:({_INVARIANTS})[-_]?|((?i:{_INVARIANTS}))-)(\d+)\b")
_WORDS = re.compile(r"\s*:\s*(?P<words>.+?)(?:;|\.(?=\s|$)|,?\s+or$|$)")
_LABEL = re.compile(r"(?i)(?:^|(?<=[.;\n])|(?<=[.;)] ))\s*(trigger|triggers|cause)\s*:\s*")
_RIGHT = re.compile(
    r"(?i)(?:(?:ddp|wrapper|sampler|optimizer)\.\s+)?right\s*:\s*(?P<description>.*)", re.DOTALL
)
_PART = re.compile(
    r"(?im)(?:^|[.;:]\s)\s*(?:part:\s*)?(ddp|wrapper|sampler|optimizer)\s*(?:\.(?=\s|$)|$)"
)
_PARTS: dict[str, Part] = {
    "ddp": "ddp",
    "wrapper": "ddp",
    "sampler": "sampler",
    "optimizer": "optimizer",
}
"""The part that each of these words names."""
_SOURCE = re.compile(r"\((?P<source>(?:[^()]|\([^()]*\))+)\)\s*(?:[.:]|$)")


@dataclass(frozen=True)
class Record:
    """The record of one implementation.

    Attributes:
        description: For a fault, the error; for a control, what the implementation is.
        source: The place where the error really happened; empty if the record does not say so.
        rules: The rules of which one must notice the fault; none for a control.
        causes: Words of the causes that must be named, of any of the rules.
        trigger: The situation in which the fault shows; empty if the record does not say so.
        part: The part of training that the record names; "" if it names none.
    """

    description: str
    source: str = ""
    rules: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    trigger: str = ""
    part: StatedPart = ""


def strictly(docstring: str) -> Record:
    """Read a docstring of the package's own form.

    Raises:
        CatalogueError: The docstring has another form, or names a rule that does not exist.
    """
    text = " ".join(docstring.split())
    control, fault = _CONTROL.fullmatch(text), _FAULT.fullmatch(text)
    if control is not None:
        return Record(control["description"])
    if fault is None:
        raise CatalogueError(
            f"its docstring is {text!r}, expected 'Right: what it is.' or 'What is wrong (where it "
            "happened). RULE: words of the cause.'"
        )
    noticed = [each.partition(": ") for each in fault["noticed"].split("; or ")]
    for rule, _, _ in noticed:
        if rule not in ALL_RULES:
            raise CatalogueError(f"no rule is called {rule}")
    return Record(
        fault["description"],
        fault["source"],
        tuple(dict.fromkeys(rule for rule, _, _ in noticed)),
        tuple(cause for _, _, cause in noticed if cause),
    )


def liberally(docstring: str) -> Record:
    """Read a docstring of any form that says `Right:` first, or names a rule.

    Raises:
        CatalogueError: The docstring does neither.
    """
    if not _LABEL.search(docstring):
        try:
            return replace(strictly(docstring), part=_part_of(docstring))
        except CatalogueError:
            pass  # Another form, which the rest reads.
    part = _part_of(docstring)
    right = _RIGHT.match(docstring.strip())
    if right is not None:
        return Record(" ".join(right["description"].split()).rstrip("."), part=part)
    text, labelled = _without_labels(docstring)
    found = list(_RULE.finditer(text)) or list(_RULE.finditer(docstring))
    named = [_id(match) for match in found]
    rules = tuple(dict.fromkeys(rule for rule in named if rule in ALL_RULES))
    if not rules:
        raise CatalogueError(
            f"no rule is called {named[0]}"
            if named
            else "its docstring names no rule and does not begin with 'Right:'"
        )
    words = (_WORDS.match(text, match.end()) for match in found)
    causes = [match["words"].strip() for match in words if match is not None]
    source = _SOURCE.search(text)
    return Record(
        _description(text),
        source["source"] if source is not None and not _RULE.search(source["source"]) else "",
        rules,
        tuple(filter(None, [*causes, labelled.get("cause", "")])),
        labelled.get("trigger", ""),
        part,
    )


def _id(match: re.Match[str]) -> str:
    """Return the id of a matched rule, in the spelling of the table of rules."""
    return f"{(match[1] or match[2]).upper()}-{int(match[3])}"


def _part_of(docstring: str) -> StatedPart:
    """Return the part of training that a sentence of one word names."""
    named = _PART.search(docstring)
    if named is None:
        return ""
    return _PARTS[named[1].lower()]


def _without_labels(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and the text of its labelled sentences by their labels.

    A labelled sentence such as `Trigger: …` ends with its paragraph, or before the next label.
    """
    rest: list[str] = []
    labelled: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", docstring):
        text, *pieces = _LABEL.split(" ".join(paragraph.split()))
        rest.append(text)
        for label, words in zip(pieces[::2], pieces[1::2], strict=True):
            labelled[label.lower().removesuffix("s")] = words.strip().rstrip(".")
    return "\n".join(rest).strip(), labelled


def _description(text: str) -> str:
    """Return the part of a text before the first rule, or the text after the rule if it is first."""
    rule = _RULE.search(text)
    before = text[: rule.start()] if rule is not None else text
    if not before.strip(" (:.-"):
        before = text[rule.end() :] if rule is not None else text
    return " ".join(before.split()).strip(" (:.-;")
