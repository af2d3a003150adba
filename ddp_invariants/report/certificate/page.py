"""A certificate as one page that opens anywhere.

The page needs no network and no other file; a few lines of script sort its tables. It contains the
certificate's JSON, and its last line contains a digest of the page. With these, `verify` finds a
change in either.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_invariants.cases.case import describe
from ddp_invariants.cases.python import to_python
from ddp_invariants.invariants import INVARIANTS
from ddp_invariants.invariants.diagnosis.excerpts import Example
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.report import card
from ddp_invariants.report.accounts import RuleAccount, RuleVerdict
from ddp_invariants.report.certificate import text as certificate_text
from ddp_invariants.report.certificate.certificate import Certificate, to_json
from ddp_invariants.report.certificate.verifying import escaped
from ddp_invariants.report.pages import page_of, site

if TYPE_CHECKING:
    from ddp_invariants.report.certificate.heat_maps import HeatMap


@dataclass(frozen=True)
class Picture:
    """A picture with its explanation.

    Attributes:
        title: The title.
        explanation: The explanation.
        svg: The picture.
        case: The case, if the page does not name the case beside the picture.
        legend: Colours with the sizes that they stand for.
        unit: The subject of these sizes.
    """

    title: str
    explanation: str
    svg: Markup
    case: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class Tile:
    """The result of an invariant.

    Attributes:
        name: Such as `GRAD`.
        title: The invariant in words.
        verdict: The verdict of its rules that matters most to a reader.
        result: The number of its rules by verdict.
        first: The first of its rules, to which the tile leads.
    """

    name: str
    title: str
    verdict: RuleVerdict
    result: str
    first: str


def render(certificate: Certificate, *, drawn: bool = True) -> str:
    """Return the page of a certificate, without its pictures if there is no time to draw them."""
    template = environment().get_template("certificate.html.j2")
    text = template.render(
        certificate=certificate,
        text=certificate_text,
        words=card.words,
        page_of=page_of if site() else lambda _: "",  # Other machines have no such checkout.
        tiles=tiles(certificate.rules),
        describe=describe,
        to_python=to_python,
        drawn=drawn,
        pictures=list(_pictures(certificate)) if drawn else [],
        violations=[
            (violation, list(_of_case(f"violation-{number}", violation.shown)) if drawn else [])
            for number, violation in enumerate(certificate.violations)
        ],
        # Escaped for HTML; `verify` unescapes it and compares it with the certificate's own JSON.
        json=Markup(escaped(to_json(certificate))),
    )
    text = text.encode("utf-8", "replace").decode()  # The same replacement as in the JSON.
    return (
        f"{text}<!-- sha256 of all lines above: {hashlib.sha256(text.encode()).hexdigest()} -->\n"
    )


def environment() -> Environment:
    """Return the form of all pages: HTML, where text is escaped and a missing name is an error."""
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


def tiles(accounts: Sequence[RuleAccount]) -> list[Tile]:
    """Return the result of each invariant that a rule belongs to."""
    by_invariant: dict[str, list[RuleAccount]] = {}
    for account in accounts:
        by_invariant.setdefault(invariant_of(account.rule), []).append(account)
    return [
        Tile(
            name,
            INVARIANTS.get(name, ""),
            min((each.verdict for each in rules), key=certificate_text.ORDER.index),
            certificate_text.counted(rules),
            rules[0].rule,
        )
        for name, rules in by_invariant.items()
    ]


def _picture(title: str, explanation: str, svg: str, case: str = "") -> Picture:
    return Picture(title, explanation, Markup(svg), case)


def _heat_map(title: str, explanation: str, drawn: "HeatMap", unit: str) -> Picture:
    return Picture(title, explanation, Markup(drawn.svg), legend=drawn.legend, unit=unit)


def _pictures(certificate: Certificate) -> Iterator[Picture]:
    """Yield the pictures of the whole session."""
    # Imported here: the import takes longer than writing the rest of the page.
    from ddp_invariants.report.certificate import heat_maps

    bounded = [account for account in certificate.rules if sum(account.errors[1:])]
    if bounded:
        yield _heat_map(
            "Errors, in tenths of their bounds",
            "For each rule, the number of cases by their largest error, in tenths of the bound. The "
            "bound is the largest error that rounding can cause. Rules that compare bits are left out.",
            heat_maps.errors("errors", bounded),
            "cases",
        )
    for kind, label in (("training", "training"), ("shard", "samplers")):
        if any(key.startswith(f"{kind} ") for key in certificate.sizes):
            yield _heat_map(
                f"Drawn cases: {label}",
                "Number of cases by world size and dataset length.",
                heat_maps.sizes(f"sizes-{kind}", certificate.sizes, kind),
                "cases",
            )
    for kind, shown in certificate.examples.items():
        for picture in _of_case(f"example-{kind}", shown):
            # A mismatch alone has no case to name.
            named = [view.case for view in (shown.shards, shown.timeline) if view is not None]
            yield replace(picture, case=named[0] if named else "")


def _of_case(name: str, shown: Example) -> Iterator[Picture]:
    """Yield the pictures of one case."""
    # Imported here, as above.
    from ddp_invariants.report.certificate import heat_maps, pictures

    if shown.shards is not None:
        cut = " The picture leaves out the rest." if shown.shards.cut else ""
        explanation = (
            "The number in a cell is the rank that got the sample. A hatched cell is a repetition: "
            f"padding, if padding is due. No rank got the sample of an empty cell.{cut}"
        )
        yield _picture(
            "Samples of each rank", explanation, pictures.shard_map(f"{name}-shards", shown.shards)
        )
    if shown.mismatch is not None:
        more = f" {shown.mismatch.cut} more parameters are left out." if shown.mismatch.cut else ""
        yield _heat_map(
            "The error of each rank",
            f"{shown.mismatch.label}, step {shown.mismatch.step}: the largest "
            f"difference of an element, divided by the largest expected element.{more}",
            heat_maps.mismatch(f"{name}-mismatch", shown.mismatch),
            "of the largest expected element",
        )
    if shown.timeline is not None:
        disturbed = (
            f" Set up by the case: {shown.timeline.disturbed}." if shown.timeline.disturbed else ""
        )
        hatched = (
            " The results of hatched collectives were withheld." if shown.timeline.withheld else ""
        )
        yield _picture(
            "A step on every rank",
            "A tick in a backward marks a gradient that is ready, so that its hooks run. A bar below it "
            "is a collective, from its start until the program waits for it; a thick end marks an "
            f"explicit wait. Collectives that reduce gradients are numbered.{disturbed}{hatched}",
            pictures.timeline(f"{name}-timeline", shown.timeline),
        )
        if shown.timeline.buckets:
            yield _picture(
                "Parameters in each reduction",
                "The reductions of the same step on rank 0.",
                pictures.buckets(f"{name}-buckets", shown.timeline),
            )


def side_by_side(certificates: Sequence[Certificate]) -> str:
    """Return a page that compares the rules and capabilities of several implementations."""
    template = environment().get_template("comparison.html.j2")
    rules = [
        (
            row.rule,
            row.requirement,
            [
                next(
                    (account.verdict for account in certificate.rules if account.rule == row.rule),
                    "not tested",
                )
                for certificate in certificates
            ],
        )
        for row in certificates[0].rules
    ]
    names = list(
        dict.fromkeys(
            (account.side, account.name, account.meaning)
            for certificate in certificates
            for account in certificate.capabilities
        )
    )
    capabilities = [
        (
            name,
            meaning,
            [
                next(
                    (
                        account.summary
                        for account in certificate.capabilities
                        if (account.side, account.name) == (side, name)
                    ),
                    "not probed",
                )
                for certificate in certificates
            ],
        )
        for side, name, meaning in names
    ]
    return template.render(
        certificates=certificates, rules=rules, capabilities=capabilities, text=certificate_text
    )
