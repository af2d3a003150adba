"""Tests of `merge`: certificates and detection tables of a run that was split add up."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from certificates import certified, discovery, ledger, run, violated
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ddp_invariants.cli import main
from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.proof import tables
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.proof.detection import Detection
from ddp_invariants.proof.measure import FaultSearch
from ddp_invariants.report.accounts import RuleAccount, account
from ddp_invariants.report.certificate import verifying
from ddp_invariants.report.certificate.certificate import (
    Certificate,
    sealed,
    to_json,
)
from ddp_invariants.report.certificate.from_session import make
from ddp_invariants.report.certificate.merging import added, merged
from ddp_invariants.search.ledger import Ledger


def part(
    number: int,
    count: int = 3,
    *,
    recorded: Ledger | None = None,
    discovered: Discovery | None = None,
    **changes: Any,
) -> Certificate:
    """Return the certificate of a part of a session."""
    settings = replace(run().settings, shard=f"{number}/{count}")
    made = run(settings=replace(settings, **changes), seconds=float(number))
    return make(recorded or ledger(10 + number), discovered or discovery(), made, {})


def lacking(rule: str, *conditions: str) -> Ledger:
    """Return a ledger of a session whose property of a rule did not meet conditions."""
    made = ledger(20)
    made[rule].lacking = [*conditions]
    for condition in conditions:
        made[rule].met[condition] = 0
    return made


def doubtful(rule: str) -> Ledger:
    """Return a ledger of a session in which a rule is inconclusive for another reason."""
    made = ledger(20)
    made[rule].inconclusive = True
    return made


def verdict(certificate: Certificate, rule: str) -> str:
    """Return the verdict of a rule."""
    return next(account.verdict for account in certificate.rules if account.rule == rule)


def merge(folder: Path, *parts: Certificate | str, output: str = "") -> Result:
    """Run the command on files with these contents."""
    paths = []
    for number, item in enumerate(parts):
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(item if isinstance(item, str) else to_json(item), encoding="utf-8")
    options = ["--output", str(folder / output)] if output else []
    return CliRunner().invoke(main, ["merge", *map(str, paths), *options])


def test_the_sum_counts_each_part_once_and_does_not_depend_on_their_order() -> None:
    """The counts of all parts add up, whichever part comes first, and the sum names the parts."""
    parts = [part(1), part(2), part(3)]
    total = merged(parts)
    assert all(merged(order) == total for order in permutations(parts))
    assert total.cases == sum(each.cases for each in parts) == sum(total.sizes.values())
    assert total.places == {"simulated": 24, "gloo": 12}
    assert [(each.shard, each.digest) for each in total.parts] == [
        (each.setting.shard, each.digest) for each in parts
    ]
    grad = next(account for account in total.rules if account.rule == "GRAD-2")
    assert (grad.judged, sum(grad.errors), grad.compared) == (36, 36, 30 * 36)
    assert total.outcome == "certified"
    assert not [*verifying.contradictions(total)]


def test_conditions_that_other_parts_met_make_a_rule_hold() -> None:
    """A rule holds if each of its conditions was met in any part, and only then."""
    first, second = ALL_RULES["GRAD-2"].needs[:2]
    whole = part(1, recorded=lacking("GRAD-2", first, second))
    assert verdict(whole, "GRAD-2") == "inconclusive"
    one = part(1, recorded=lacking("GRAD-2", first))
    other = part(2, recorded=lacking("GRAD-2", second))
    assert verdict(merged([one, other, part(3)]), "GRAD-2") == "holds"
    same = [part(number, recorded=lacking("GRAD-2", first)) for number in (1, 2, 3)]
    assert verdict(merged(same), "GRAD-2") == "inconclusive"


def test_no_number_of_parts_excuses_another_doubt() -> None:
    """A crash of a judge or a failure that did not repeat leaves the sum inconclusive."""
    total = merged([part(1, recorded=doubtful("GRAD-2")), part(2), part(3)])
    assert verdict(total, "GRAD-2") == "inconclusive"
    seen = ledger(20)
    seen["GRAD-2"].seen = 1
    total = merged([part(1), part(2, recorded=seen), part(3)])
    assert verdict(total, "GRAD-2") == "inconclusive"


def test_a_violation_of_one_part_violates_the_sum(tmp_path: Path) -> None:
    """The sum lists the violation of a part, and the command ends with the certificate's status."""
    wrong = violated()
    wrong = sealed(replace(wrong, setting=replace(wrong.setting, shard="2/2")))
    right = certified()
    right = sealed(replace(right, setting=replace(right.setting, shard="1/2")))
    result = merge(tmp_path, wrong, right, output="sum.html")
    assert result.exit_code == 1, result.output
    total = verifying.read(tmp_path / "sum.json")
    assert verifying.read(tmp_path / "sum.html") == total
    assert verdict(total, "GRAD-2") == "violated"
    assert [violation.id for violation in total.violations] == [
        violation.id for violation in wrong.violations
    ]


def test_a_property_that_one_part_did_not_finish_makes_the_sum_partial() -> None:
    """Every part must run every property."""
    cut = ledger(20)
    cut.ended -= {"GRAD-2"}
    total = merged([part(1), part(2, recorded=cut), part(3)])
    assert verdict(total, "GRAD-2") == "not finished"
    assert verifying.status(total) == 2
    assert "GRAD-2" in total.partial[0]


FOREIGN: dict[str, tuple[Callable[[], Certificate], str]] = {
    "seed": (lambda: part(2, seed=2), "differ in seed: 1 and 2"),
    "cases": (lambda: part(2, cases=41), "differ in cases: 40 and 41"),
    "backend": (lambda: part(2, backend="nccl"), "differ in backend: gloo and nccl"),
    "worlds": (lambda: part(2, max_world_size=5), "differ in max world size: 4 and 5"),
    "subject": (
        lambda: part(2, discovered=discovery("another:Wrapper")),
        "differ in the implementation under test",
    ),
    "capability": (
        lambda: part(2, discovered=discovery(probed=(Probed("bias", Standing.REFUSED),))),
        "differ in the capabilities that probes showed: bias",
    ),
    "deviation": (
        lambda: sealed(replace(part(2), deviations={"GRAD-3": "known"})),
        "differ in the deviations",
    ),
    "count": (lambda: part(2, 4), "of 3 and of 4 shards"),
    "twice": (lambda: part(1), "shard 1/3 is there twice"),
    "whole": (certified, "was made without --shard"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_part_is_refused_in_one_sentence(what: str, tmp_path: Path) -> None:
    """A certificate of another run, seed, version or implementation is not added."""
    make_part, words = FOREIGN[what]
    result = merge(tmp_path, part(1), make_part(), part(3))
    assert result.exit_code == 2
    assert result.output.startswith("REFUSED: ")
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_a_missing_part_an_unread_source_and_a_changed_file_are_refused(tmp_path: Path) -> None:
    """All parts are needed, and each must be unchanged and name its source."""
    assert "1 of 3 shards are missing: 2" in merge(tmp_path, part(1), part(3)).output
    changed = to_json(part(2)).replace('"judged": 12', '"judged": 13', 1)
    assert "it was changed" in merge(tmp_path, part(1), changed, part(3)).output
    bare = replace(discovery(), ddp={**discovery().ddp, "made_of": None})
    unread = [part(number, discovered=bare) for number in (1, 2, 3)]
    assert "could not be read" in merge(tmp_path, *unread).output
    assert CliRunner().invoke(main, ["merge", str(tmp_path / "none.json")]).exit_code == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda total: replace(total, parts=total.parts[:2]),
        lambda total: replace(total, parts=(*total.parts[:2], total.parts[1])),
        lambda total: replace(
            total, parts=(*total.parts[:2], replace(total.parts[2], digest=total.parts[0].digest))
        ),
        lambda total: replace(total, setting=replace(total.setting, shard="1/3")),
    ],
    ids=["a part less", "a part twice", "a digest twice", "a part of another"],
)
def test_verify_refuses_a_sum_whose_parts_do_not_add_up(
    change: Callable[[Certificate], Certificate], tmp_path: Path
) -> None:
    """A sum must name all its parts once, and count their cases."""
    total = merged([part(1), part(2), part(3)])
    path = tmp_path / "it.json"
    path.write_text(to_json(total), encoding="utf-8")
    assert CliRunner().invoke(main, ["verify", str(path)]).exit_code == 0
    path.write_text(to_json(sealed(change(total))), encoding="utf-8")
    result = CliRunner().invoke(main, ["verify", str(path)])
    assert result.exit_code == 2
    assert "contradicts itself" in result.output


@st.composite
def accounts(draw: st.DrawFn) -> RuleAccount:
    """Draw the account of one rule in a part."""
    made = Ledger()
    entry = made["GRAD-2"]
    entry.observed = draw(st.sampled_from(([], [], [0.5, 2.0], [1.0, 1.5])))
    entry.judged = draw(st.integers(0, 3))
    entry.errors = [entry.judged, *[0] * 11]
    entry.worst = draw(st.sampled_from((0.0, 0.5, float("inf"))))
    entry.seen, entry.inconclusive = draw(st.sampled_from((0, 0, 0, 1))), draw(st.booleans())
    entry.confirmed = draw(st.sampled_from((0, 0, 0, 0, 1)))
    entry.lacking = draw(st.lists(st.sampled_from("abc"), unique=True))
    entry.not_run = draw(st.sampled_from(("", "", "few ranks")))
    entry.not_claimed = draw(st.sampled_from(("", "shards nothing; or a half")))
    made.tested |= draw(st.sampled_from((set(), {"GRAD-2"})))
    made.ended |= draw(st.sampled_from((set(), {"GRAD-2"})))
    return replace(
        account("GRAD-2", made, frozenset()), failures={draw(st.sampled_from("xyz")): "a fact"}
    )


@given(accounts(), accounts(), accounts())
def test_the_sum_of_accounts_has_no_order(a: RuleAccount, b: RuleAccount, c: RuleAccount) -> None:
    """Accounts of a rule may be added in any order and any grouping."""
    assert added(a, b) == added(b, a)
    assert added(added(a, b), c) == added(a, added(b, c))


def searches() -> list[FaultSearch]:
    """Return some searches for faults."""
    return [FaultSearch(entry, seed) for seed in (0, 1) for entry in all_entries()[:4]]


def table(number: int, count: int = 2, **options: object) -> tables.Table:
    """Return the table of a part of a measurement, in which every search caught its fault."""
    own = searches()[number - 1 :: count]
    made = tables.planned(searches(), own, {"generated": None, **options}, f"{number}/{count}")
    recorded = tuple(
        Detection(each.planted, each.seed, 3, rule=each.planted.rule, cause="it") for each in own
    )
    return replace(made, searches=recorded)


def test_detection_tables_add_up_in_any_order(tmp_path: Path) -> None:
    """The sum of tables holds each search once, and is read again as it was written."""
    total = tables.merged([table(2), table(1)])
    assert total == tables.merged([table(1), table(2)])
    assert len(total.searches) == total.planned == len(searches())
    texts = [json.dumps(tables.to_plain(each)) for each in (table(1), table(2))]
    result = merge(tmp_path, *texts, output="sum.json")
    assert (
        f"{len([one for one in total.searches if one.planted.is_fault])} searches" in result.output
    )
    assert result.exit_code == tables.status(total)
    assert tables.read(tmp_path / "sum.json") == total
    earlier = replace(table(2), date="2026-01-31")
    assert tables.merged([table(1), earlier]).date == "2026-01-31"


def test_parts_fit_whatever_rank_the_witness_names() -> None:
    """Each part asks the witness anew, which says on which rank a composed fault showed first."""
    found = [
        [FaultSearch(replace(job.planted, docstring=f"{job.planted.docstring} Rank {rank}."), 0)]
        for rank, job in enumerate(2 * searches()[:1])
    ]
    digests = {tables.planned(jobs, jobs, {}, "").population for jobs in found}
    assert len(digests) == 1
    first, second, *_ = searches()
    for other in (replace(first, planted=second.planted), replace(first, most_real=5)):
        assert tables.planned([other], [other], {}, "").population not in digests


def test_the_digest_of_a_measurement_is_that_of_older_tables() -> None:
    """A limit that is not set does not count, so that stored parts go on to fit."""
    jobs = [FaultSearch(CatalogueEntry("m", "s", "n", "d", "x", docstring="d"), 3)]
    assert tables.planned(jobs, jobs, {}, "").population.startswith("bd5472e4")


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A table of other options, of another population or of a repeated search is not added."""

    def refused(*parts: tables.Table) -> str:
        result = merge(tmp_path, *[json.dumps(tables.to_plain(each)) for each in parts])
        assert result.exit_code == 2
        return result.output

    assert "is there twice" in refused(table(1), table(1))
    assert "differ in their options" in refused(table(1), table(2, cases=5))
    assert "differ in the implementations" in refused(
        table(1), replace(table(2), population="another")
    )
    assert "two shards searched" in refused(table(1), replace(table(2), searches=table(1).searches))
    assert "REFUSED" in merge(tmp_path, '{"searches": []}').output
    assert (
        "expected 'certificate'"
        in merge(tmp_path, json.dumps(tables.to_plain(table(1))), "{}").output
    )


def test_a_table_that_lacks_a_search_is_interrupted() -> None:
    """An interrupted part leaves the sum without a verdict."""
    total = tables.merged([table(1), replace(table(2), searches=table(2).searches[1:])])
    assert tables.status(total) == 130
