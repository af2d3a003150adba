"""Tests of the certificate: its contents, and how a changed or partial certificate is caught."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import (
    DEALT,
    LONG,
    SMALLEST,
    WITHHELD,
    certified,
    discovery,
    ledger,
    run,
    violated,
)
from click.testing import CliRunner, Result
from handmade import altered, right

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cli import main
from ddp_invariants.discovery.result import Probed, Standing
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.diagnosis.excerpts import (
    Example,
    mismatch,
    of_violation,
    shard_map,
    timeline,
)
from ddp_invariants.ranks.driving import imports
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.trace import Call
from ddp_invariants.records.verdict import Finding
from ddp_invariants.report.accounts import Blame, RuleAccount
from ddp_invariants.report.certificate import certificate as certificates
from ddp_invariants.report.certificate import page, pictures, verifying
from ddp_invariants.report.certificate.certificate import (
    FORM,
    MOST_NAMES,
    Certificate,
    left_out,
    sealed,
    to_json,
)
from ddp_invariants.report.certificate.from_session import make
from ddp_invariants.report.certificate.text import badge, headline, markdown
from ddp_invariants.search.coverage import Drawn
from ddp_invariants.search.ledger import Entry, Ledger


def verify(path: Path, *options: str) -> Result:
    """Run the `verify` command on a file."""
    return CliRunner().invoke(main, ["verify", str(path), *options])


def written(folder: Path, certificate: Certificate | str, name: str = "it.json") -> Path:
    """Write a certificate, or a text, to a file and return its path."""
    path = folder / name
    text = certificate if isinstance(certificate, str) else to_json(certificate)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("certificate", "status", "words"),
    [
        (certified(), 0, "CERTIFIED\n"),
        (violated(), 1, "CORE violated: GRAD-2; extended certified; robust certified\n"),
        (
            make(ledger(), discovery(), run(reported=frozenset(ALL_RULES) - {"GRAD-2"}), {}),
            2,
            f"1 of {len(ALL_RULES)} properties were not reported: GRAD-2",
        ),
        (make(ledger(), discovery(), run(interrupted=True), {}), 2, "PARTIAL: not certified"),
        (
            make(
                ledger(),
                discovery(probed=(Probed("bias", Standing.WRONG, "", declared=True),)),
                run(),
                {},
            ),
            0,
            "with exceptions",
        ),
    ],
    ids=["certified", "violated", "not reported", "interrupted", "exceptions"],
)
def test_the_status_says_what_came_of_it(
    certificate: Certificate, status: int, words: str, tmp_path: Path
) -> None:
    """`verify` reads one certificate from JSON and page, and its status gives the outcome.

    The command reports the outcome in words and as JSON.
    """
    paths = [
        written(tmp_path, certificate),
        written(tmp_path, page.render(certificate, drawn=False), "it.html"),
    ]
    for path in paths:
        assert verifying.read(path) == certificate
        result = verify(path)
        assert (result.exit_code, words in result.output) == (status, True), result.output
        answer = json.loads(verify(path, "--json").output)
        assert (answer["valid"], answer["outcome"]) == (True, certificate.outcome)


def test_what_did_not_run_or_was_never_reported_makes_it_partial() -> None:
    """A property that did not run to its end, or was not reported, makes the certificate partial.

    Either the workers or pytest may report this. A property that was cut off proves nothing.
    """
    account = ledger()
    account.ended -= {"GRAD-2"}
    made = make(account, discovery(), run(), {})
    assert made.partial == (f"1 of {len(ALL_RULES)} properties did not run to their end: GRAD-2",)
    assert {rule.rule: rule.verdict for rule in made.rules}["GRAD-2"] == "not finished"
    assert made.outcome == "inconclusive"


def _plain(certificate: Certificate, change: Callable[[Any], object]) -> str:
    plain = json.loads(to_json(certificate))
    change(plain)
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


GOOD = to_json(certified())
CHANGED: dict[str, tuple[str, str]] = {
    "a count": (
        GOOD.replace('"judged": 40', '"judged": 41', 1),
        "it was changed after it was written",
    ),
    "a digest": (GOOD.replace(certified().digest, "0" * 64), "it was changed after it was written"),
    "white space": (GOOD.replace("\n", "\r\n"), "it was changed after it was written"),
    "a key twice": (
        GOOD.replace(
            ' "outcome": "certified",', ' "outcome": "violated",\n "outcome": "certified",'
        ),
        "it was changed after it was written",
    ),
    "a verdict": (
        _plain(violated(), lambda plain: plain.update(outcome="certified")),
        "it was changed after it was written",
    ),
    "an older form": (
        _plain(certified(), lambda plain: plain.update(form=0)),
        f"its form is 0, but this version reads only form {FORM}",
    ),
    "no form": (_plain(certified(), lambda plain: plain.pop("form")), "its form is None"),
    "another kind": ('{"kind": "violation"}', "kind is 'violation', expected 'certificate'"),
    "an unknown field": (
        _plain(certified(), lambda plain: plain.update(more=1)),
        "more: Unexpected keyword argument",
    ),
    "a wrong type": (
        _plain(certified(), lambda plain: plain["setting"].update(seed="1")),
        "setting.seed: Input should be a valid integer",
    ),
    "no number": (
        GOOD.replace('"worst": 0.97', '"worst": NaN', 1),
        "it contains NaN or an infinity",
    ),
    "truncated": (GOOD[: len(GOOD) // 2], "not a complete JSON object"),
    "empty": ("", "not a complete JSON object"),
    "deep": ("[" * 100_000, "not a complete JSON object"),
    "a bad case": (
        _plain(violated(), lambda plain: plain["violations"][0]["case"].update(steps=0)),
        "steps is 0, expected an integer",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_file_that_was_changed_is_refused_with_the_reason(what: str, tmp_path: Path) -> None:
    """A changed file is refused in one sentence, with status 2 and without a traceback."""
    text, words = CHANGED[what]
    result = verify(written(tmp_path, text))
    assert result.exit_code == 2
    assert result.output.startswith("REFUSED: ")
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe without a writer, binary data and huge files are refused.

    The path of a file that cannot be read is a usage error; any other file is no whole certificate.
    """
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe{}")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(verifying.MOST_READ + 1)
    for name, words, status in (
        ("none.json", "No such file", 64),
        (".", "no regular file", 64),
        ("pipe", "no regular file", 64),
        ("binary", "not a text file", 2),
        ("long", "more than any certificate", 2),
    ):
        result = verify(tmp_path / name)
        assert result.exit_code == status
        assert words in result.output, (name, result.output)


PAGE = page.render(violated(), drawn=False)
CHANGED_PAGES: dict[str, tuple[str, str]] = {
    "what it shows": (
        PAGE.replace("<h1>CORE ", "<h1>NOT "),
        "the page was changed after it was written",
    ),
    "cut off": (PAGE[:-200], "its last line, which has the page's digest, is missing"),
    "something added": (
        PAGE + "<script>alert(1)</script>\n",
        "its last line, which has the page's digest, is missing",
    ),
    "another page": ("<!DOCTYPE html>\n<p>CERTIFIED</p>\n", "its last line"),
}


@pytest.mark.parametrize("what", CHANGED_PAGES)
def test_a_page_that_was_changed_is_refused(what: str, tmp_path: Path) -> None:
    """A changed page is refused, although the certificate in it is whole."""
    text, words = CHANGED_PAGES[what]
    assert text != PAGE
    result = verify(written(tmp_path, text, "it.html"))
    assert result.exit_code == 2
    assert words in result.output


def _with_rule(certificate: Certificate, rule: str, **changes: Any) -> Certificate:
    rules = tuple(
        replace(account, **changes) if account.rule == rule else account
        for account in certificate.rules
    )
    return replace(certificate, rules=rules)


def _needs(certificate: Certificate, rule: str) -> RuleAccount:
    return next(account for account in certificate.rules if account.rule == rule)


WHOLE, ACCUSED = certified(), violated()
CONTRADICTIONS: dict[str, Certificate] = {
    "its outcome is 'certified', but its rules give 'violated'": replace(
        ACCUSED, outcome="certified"
    ),
    "the planned properties differ from the listed rules": replace(WHOLE, rules=WHOLE.rules[1:]),
    "the reasons why it is partial are": replace(
        WHOLE, properties=replace(WHOLE.properties, executed=WHOLE.properties.executed[:-1])
    ),
    "a property that was reported was not planned": replace(
        WHOLE,
        properties=replace(WHOLE.properties, reported=(*WHOLE.properties.reported, "GRAD-99")),
    ),
    "it counts 41 cases, but the counts by size sum to 40": replace(WHOLE, cases=41),
    "GRAD-2 was judged on 39 cases, but has errors for 40": _with_rule(WHOLE, "GRAD-2", judged=39),
    "GRAD-2 has impossible counts": _with_rule(WHOLE, "GRAD-2", judged=41, errors=(41, *[0] * 11)),
    "GRAD-2 holds, but never met 'more than one rank'": _with_rule(
        WHOLE, "GRAD-2", needs={**_needs(WHOLE, "GRAD-2").needs, "more than one rank": 0}
    ),
    "GRAD-2 holds, but its property did not run or compared nothing": _with_rule(
        WHOLE, "GRAD-2", compared=0
    ),
    "GRAD-2 holds, but 3 cases violate it": _with_rule(WHOLE, "GRAD-2", seen=3),
    "GRAD-2 has a violation, but its verdict is not 'violated'": replace(
        _with_rule(ACCUSED, "GRAD-2", verdict="holds", seen=0, confirmed=0, seen_at={}, blames=()),
        outcome="certified",
    ),
    "its card differs from the card that follows from its rules": replace(ACCUSED, card=WHOLE.card),
    "GRAD-2 has 1 failures and 1 violations, but levels for 0 and 1": _with_rule(
        ACCUSED, "GRAD-2", seen_at={}
    ),
    "no level of the violations of GRAD-2 fits the case of": _with_rule(
        ACCUSED, "GRAD-2", blames=(Blame("extended", ("strided",)),)
    ),
    "GRAD-3 has impossible counts": _with_rule(WHOLE, "GRAD-3", ordinary=41),
    "GRAD-2 is violated, but no violation is listed": replace(ACCUSED, violations=()),
    "does not match its case": replace(
        ACCUSED, violations=(replace(ACCUSED.violations[0], case=replace(SMALLEST, steps=2)),)
    ),
    "GRAD-2 was confirmed in 4 of 3 runs": replace(
        ACCUSED, violations=(replace(ACCUSED.violations[0], confirmed=(4, 3)),)
    ),
    "MEM-1 is not claimed, but was judged or has no reason": _with_rule(WHOLE, "MEM-1", why=""),
    "GRAD-2 is not tested, but its property ran": replace(
        _with_rule(WHOLE, "GRAD-2", verdict="not tested"), outcome="inconclusive"
    ),
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_refused_though_its_digest_is_right(
    words: str, tmp_path: Path
) -> None:
    """A file that contradicts itself is refused, although its digest is right.

    A digest is no signature, because anybody can compute one. The counts must still add up.
    """
    result = verify(written(tmp_path, sealed(CONTRADICTIONS[words])))
    assert result.exit_code == 2
    assert "it contradicts itself: " in result.output
    assert words in result.output


def test_nothing_an_implementation_says_is_markup_or_steers_a_terminal(tmp_path: Path) -> None:
    """Text from an implementation stays text on the page and in the terminal."""
    name = '</script><script>alert(1)</script>&amp;\\u003c"\x1b[2J\x07|`'
    made = violated(name, "<b>bold</b> \ud800")
    text = page.render(made)
    assert "<script>alert" not in text
    assert "<b>bold</b>" not in text
    path = written(tmp_path, text, "it.html")
    assert verifying.read(path).subjects[0].name == name
    assert verifying.read(path).violations[0].failure.fact == "<b>bold</b> ?"
    assert all(line.isprintable() for line in verify(path).output.splitlines())
    assert "<script>" not in markdown(made)


def test_the_schema_that_is_shipped_is_that_of_the_certificate() -> None:
    """The shipped schema equals the certificate's schema, which `python tests/helpers/readme.py` writes."""
    assert (
        Path(certificates.__file__).with_name("certificate.schema.json").read_text(encoding="utf-8")
        == certificates.schema()
    )


def test_a_badge_and_a_table_say_the_same() -> None:
    """The badge for shields.io and the table for GitHub report the same outcome."""
    assert json.loads(badge(WHOLE)) == {
        "schemaVersion": 1,
        "label": "data-parallel invariants",
        "message": f"{len(ALL_RULES) - 2} rules hold",
        "color": "brightgreen",
    }
    assert json.loads(badge(ACCUSED))["message"] == (
        "core violated, extended certified, robust certified"
    )
    assert json.loads(badge(ACCUSED))["color"] == "red"
    assert headline(ACCUSED) == "CORE violated: GRAD-2; extended certified; robust certified"
    assert (
        json.loads(badge(make(ledger(), discovery(), run(interrupted=True), {})))["message"]
        == "partial"
    )
    table = markdown(ACCUSED)
    assert table.startswith(f"## {headline(ACCUSED)}\n")
    assert "- **GRAD-2** violated: the gradient is not the mean" in table
    assert "| GRAD-1 | holds | 40 | 1,200 | 0.97 of bound |" in table


def test_ledgers_add_up_also_by_way_of_json() -> None:
    """Ledgers add up, also after a round trip through JSON, and keep a worker's account whole."""
    total, plain = ledger(), json.loads(json.dumps(ledger().to_plain()))
    added = Ledger.from_plain(plain)
    assert json.loads(json.dumps(added.to_plain())) == plain
    total.merge(added)
    assert total.cases == sum(total.drawn.sizes.values()) == 80
    assert total.entries["GRAD-2"].errors == [62, 8, 0, 6, 0, 0, 0, 0, 0, 2, 2, 0]
    assert total.drawn.dimensions["optimizer"] == {"sgd": 40}
    drawn, linear = Drawn(), Layer("linear", 4)
    model = Model(
        4, (linear, replace(linear, bias=True), replace(linear, frozen=True))
    )  # The trained parameters take 64, 64 and 16 bytes.
    for cap in (None, 1, 79, 80, 4096):
        drawn.add(TrainingCase(model, bucket_cap=cap))
    assert drawn.dimensions["buckets"] == {"as its default makes": 1, "3": 2, "2": 1, "1": 1}


def test_errors_are_counted_in_tenths_of_their_bound() -> None:
    """Errors are counted as zero, by tenths of their bound, and as beyond it.

    An infinity or NaN counts as beyond the bound.
    """
    entry = Entry()
    for worst in (0.0, 0.05, 0.1, 0.11, 1.0, 1.0001, float("inf"), float("nan")):
        entry.add(Finding("GRAD-2", compared=1, worst=worst), "abcdef", {})
    assert entry.errors == [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 3]


def test_a_shard_map_is_what_the_sampler_answered() -> None:
    """A shard map shows what the sampler answered, and says whether it was cut."""
    whole = shard_map(DEALT)
    assert whole is not None
    assert whole.shards == (((4, 1, 0), (7, 2, 5), (3, 6, 4)), ((1, 3, 5), (0, 2, 4), (6, 7, 1)))
    assert not whole.cut
    long = ShardEvidence(DEALT.case, ({"shards": [[list(range(99))] * 3] * 2},))
    cut = shard_map(long)
    assert cut is not None
    assert cut.cut
    assert shard_map(replace(DEALT, answers=({"raised": {}},))) is None


def test_a_timeline_is_what_the_ranks_noted() -> None:
    """A timeline shows what the ranks recorded, in milliseconds from the first backward's start.

    It also shows which gradients each reduction carried, and whether results are withheld.
    """
    picture = timeline(WITHHELD)
    assert picture is not None
    assert picture.withheld
    assert [(bucket.elements, bucket.carried) for bucket in picture.buckets] == [
        (3, ("layers.4.factor", "layers.3.nothing", "layers.0.bias")),
        (4, ("layers.0.weight",)),
    ]
    lane = picture.lanes[1]
    assert (lane.began, lane.ended) == (0.0, 800.0)
    assert [(sent.launched, sent.waited) for sent in lane.sent] == [(400.0, 700.0), (600.0, 700.0)]
    assert (
        timeline(replace(WITHHELD, ranks=tuple(replace(rank, sent=[]) for rank in WITHHELD.ranks)))
        is None
    )
    # A step also broadcasts buffers. A broadcast is no reduction and belongs to no bucket.
    broadcast = Call(
        "broadcast", "float32", 4, "0", launched=WITHHELD.ranks[0].backwards[picture.step][0] - 0.1
    )
    marks = [
        [[*starts, 0], [*ends, int(step == picture.step)]]
        for step, (starts, ends) in enumerate(WITHHELD.ranks[0].marks)
    ]
    ranks = tuple(
        replace(rank, sent=[*rank.sent, [broadcast]], marks=marks) for rank in WITHHELD.ranks
    )
    more = timeline(replace(WITHHELD, ranks=ranks))
    assert more is not None
    assert [
        (sent.description, sent.launched, sent.of_gradients) for sent in more.lanes[0].sent[:1]
    ] == [("broadcast (float32 x 4 0)", -100.0, False)]
    assert [sent.of_gradients for sent in more.lanes[0].sent] == [False, True, True]
    assert more.buckets == picture.buckets
    assert "broadcast never waited for" in pictures.timeline("it", more)


def test_a_heat_map_shows_who_is_off_and_nothing_where_nobody_is() -> None:
    """A heat map shows which rank deviates, and right evidence gives no heat map.

    GRAD-2 compares with the mean of the local gradients. A rule about agreement compares with rank
    0.
    """
    doubled = altered(right(), 1, "reduced", 1, "layers.0.bias", lambda values: values * 2)
    heat_map = mismatch(doubled, "GRAD-2")
    assert heat_map is not None
    assert (heat_map.step, heat_map.names[0], heat_map.largest[0]) == (
        1,
        "layers.0.bias",
        (0.0, 1.0),
    )
    assert mismatch(right(), "GRAD-2") is None
    moved: TrainingEvidence = altered(
        right(), 1, "updated", 2, "layers.0.bias", lambda values: values + 1
    )
    agreement = mismatch(moved, "PARAM-1")
    assert agreement is not None
    assert agreement.step == 2
    assert "against rank 0's" in agreement.label


def test_a_heat_map_of_opposite_infinities_warns_of_nothing() -> None:
    """Infinities of both signs have no mean; the heat map shows that, and numpy does not print it."""
    opposite = right()
    for rank, infinity in enumerate((np.inf, -np.inf)):
        opposite = altered(
            opposite, rank, "local", 1, "layers.0.bias", partial(np.full_like, fill_value=infinity)
        )
    heat_map = mismatch(opposite, "GRAD-2")
    assert heat_map is not None
    assert (heat_map.step, heat_map.names[0], heat_map.largest[0][0]) == (1, "layers.0.bias", None)


def test_a_source_digest_covers_the_files_a_class_refers_to_and_no_others(tmp_path: Path) -> None:
    """A source digest covers the files that a class imports, and no other file."""
    for name, text in {
        "ddp_on_trial": "from buckets_on_trial import Bucket\nimport json\nclass Ddp:\n    pass\n",
        "buckets_on_trial": "class Bucket: pass\n",
        "beside": "",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    thing = imports.resolve(f"{tmp_path}/ddp_on_trial.py:Ddp", "ddp")
    before = imports.source_of(thing)
    assert (before.files, before.first) == (
        2,
        (f"{tmp_path.name}/buckets_on_trial.py", f"{tmp_path.name}/ddp_on_trial.py"),
    )
    (tmp_path / "beside.py").write_text("X = 2\n")
    assert imports.source_of(thing) == before
    (tmp_path / "buckets_on_trial.py").write_text("class Bucket: changed = True\n")
    assert imports.source_of(thing).digest != before.digest
    (tmp_path / "buckets_on_trial.py").unlink()
    assert imports.source_of(thing).digest == ""


LAZY = """
import sys
from types import ModuleType


class Lazy(ModuleType):
    def __getattr__(self, name):
        raise ImportError(f"{self.__name__} needs a library that is missing")


extra = sys.modules["extra_on_trial"] = Lazy("extra_on_trial")


class Ddp:
    pass
"""
"""An implementation beside a module that is imported when something asks for an attribute."""


def test_a_source_digest_imports_no_lazy_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lazy module has no file yet, and may need a library that is not installed."""
    # Others that look at all modules must not meet it after the test, which replaces this entry.
    monkeypatch.setitem(sys.modules, "extra_on_trial", sys)
    (tmp_path / "lazy_on_trial.py").write_text(LAZY)
    thing = imports.resolve(f"{tmp_path}/lazy_on_trial.py:Ddp", "ddp")
    assert imports.source_of(thing).first == (f"{tmp_path.name}/lazy_on_trial.py",)


def test_the_same_certificate_gives_the_same_page() -> None:
    """The same certificate gives the same page byte for byte, and a long name is shown in full."""
    made = violated(LONG)
    assert page.render(made) == page.render(made)
    assert LONG in page.render(made, drawn=False)
    assert asdict(made)["digest"] == made.digest


def test_a_picture_without_a_case_is_drawn_all_the_same() -> None:
    """A certificate may show a mismatch alone, which names no case."""
    wrong = altered(WITHHELD, 1, "reduced", 1, "layers.0.bias", lambda values: values * 2)
    shown = of_violation(wrong, "GRAD-2").mismatch
    assert shown is not None
    text = page.render(replace(certified(), examples={"training": Example(mismatch=shown)}))
    assert "The error of each rank" in text


def test_a_long_list_of_capabilities_is_a_number() -> None:
    """Some are named; if nothing was probed after a failing plain case, a hundred are counted."""
    standings = [("join", "not offered", ""), ("tied", "right", "")]
    many = [(f"capability {number}", "not probed", "") for number in range(MOST_NAMES + 1)]
    assert left_out(standings) == "not offered: join"
    assert left_out([*standings, *many]) == "not offered: join; not probed: 13 capabilities"
    assert left_out([("tied", "not probed", "it needs x: wrong")]) == (
        "not probed (it needs x: wrong): tied"
    )
