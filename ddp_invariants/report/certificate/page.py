"""A certificate as one page that opens anywhere: no network, no other file, a few lines of script that sort tables.

It holds the certificate's JSON, and a digest of itself in its last line, so that `verify` finds
what was changed in either.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_invariants.cases.case import describe
from ddp_invariants.invariants.diagnosis.excerpts import Example
from ddp_invariants.report.certificate import text as certificate_text
from ddp_invariants.report.certificate.certificate import Certificate, to_json
from ddp_invariants.report.certificate.verifying import escaped


@dataclass(frozen=True)
class Picture:
    """A picture with what it says, and the case it is of, where it is of one that is not told beside it."""

    title: str
    told: str
    svg: Markup
    case: str = ""


def render(certificate: Certificate, *, drawn: bool = True) -> str:
    """The page of a certificate; without its pictures where nobody has time to wait for them."""
    template = _environment().get_template("certificate.html.j2")
    text = template.render(
        certificate=certificate,
        text=certificate_text,
        describe=describe,
        drawn=drawn,
        pictures=list(_pictures(certificate)) if drawn else [],
        violations=[
            (one, list(_of_case(f"violation-{number}", one.shown)) if drawn else [])
            for number, one in enumerate(certificate.violations)
        ],
        # Escaped for where it stands, and compared with what it says when it is read.
        json=Markup(escaped(to_json(certificate))),
    )
    text = text.encode("utf-8", "replace").decode()  # As the JSON in it.
    return (
        f"{text}<!-- sha256 of all lines above: {hashlib.sha256(text.encode()).hexdigest()} -->\n"
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ddp_invariants.report.certificate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number"] = lambda number: f"{number:,}"
    return environment


def _picture(title: str, told: str, svg: str, case: str = "") -> Picture:
    return Picture(title, told, Markup(svg), case)


def _pictures(certificate: Certificate) -> Iterator[Picture]:
    """What is shown of the whole session."""
    # Imported here: it takes longer to import than the rest takes to be written.
    from ddp_invariants.report.certificate import pictures

    bounded = [one for one in certificate.rules if sum(one.errors[1:])]
    if bounded:
        yield _picture(
            "Errors, in tenths of their bounds",
            "How many cases of each rule had a largest error in each tenth of what rounding explains. Rules that "
            "compare bits, and allow nothing, are not here.",
            pictures.errors("errors", bounded),
        )
    for kind, what in (("training", "training"), ("shard", "samplers")):
        if any(key.startswith(f"{kind} ") for key in certificate.sizes):
            yield _picture(
                f"What was drawn: {what}",
                "Cases by world size and dataset length.",
                pictures.sizes(f"sizes-{kind}", certificate.sizes, kind),
            )
    for kind, shown in certificate.examples.items():
        for one in _of_case(f"example-{kind}", shown):
            told = next(view.case for view in (shown.shards, shown.timeline) if view is not None)
            yield replace(one, case=told)


def _of_case(name: str, shown: Example) -> Iterator[Picture]:
    """What is shown of one case."""
    # Imported here, as above.
    from ddp_invariants.report.certificate import pictures

    if shown.shards is not None:
        cut = " What goes beyond is left out." if shown.shards.cut else ""
        told = (
            "The number in a cell is the rank that got the sample. Hatched, it was dealt out before: padding, where due. "
            f"What nobody got is empty.{cut}"
        )
        yield _picture(
            "Who got which sample", told, pictures.shard_map(f"{name}-shards", shown.shards)
        )
    if shown.mismatch is not None:
        more = f" {shown.mismatch.cut} parameters more are left out." if shown.mismatch.cut else ""
        yield _picture(
            "How far each rank is off",
            f"{shown.mismatch.what}, step {shown.mismatch.step}: the largest "
            f"difference of an element, in units of the largest one expected.{more}",
            pictures.mismatch(f"{name}-mismatch", shown.mismatch),
        )
    if shown.timeline is not None:
        disturbed = f" On purpose, {shown.timeline.disturbed}." if shown.timeline.disturbed else ""
        hatched = " Hatched: withheld." if shown.timeline.withheld else ""
        yield _picture(
            "A step on every rank",
            "A tick in a backward is a gradient that is computed, upon which hooks run; a "
            "bar below is a collective, from its start to when somebody waits for it, with a thick end where that "
            f"was asked for. Those that reduce gradients are numbered.{disturbed}{hatched}",
            pictures.timeline(f"{name}-timeline", shown.timeline),
        )
        if shown.timeline.buckets:
            yield _picture(
                "What each reduction carried",
                "The same step, on rank 0.",
                pictures.buckets(f"{name}-buckets", shown.timeline),
            )


def side_by_side(certificates: Sequence[Certificate]) -> str:
    """A page that compares several implementations: rules and capabilities, a column each."""
    template = _environment().get_template("comparison.html.j2")
    rules = [
        (
            one.rule,
            one.requirement,
            [
                next(
                    (other.verdict for other in each.rules if other.rule == one.rule), "not tested"
                )
                for each in certificates
            ],
        )
        for one in certificates[0].rules
    ]
    names = list(
        dict.fromkeys(
            (one.side, one.name, one.meaning) for each in certificates for one in each.capabilities
        )
    )
    capabilities = [
        (
            name,
            meaning,
            [
                next(
                    (one.said for one in each.capabilities if (one.side, one.name) == (side, name)),
                    "not probed",
                )
                for each in certificates
            ],
        )
        for side, name, meaning in names
    ]
    return template.render(
        certificates=certificates, rules=rules, capabilities=capabilities, text=certificate_text
    )
