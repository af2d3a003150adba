"""Proposed declarations, and the files that contain them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import discovery

from ddp_invariants.cases.levels import Level
from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.implementation.declarations import Declarations, declare, read
from ddp_invariants.report.card import Broken, LevelAccount
from ddp_invariants.report.proposal import file_of, proposals, text


def level(level: Level, *broken: Broken) -> LevelAccount:
    """Return a level with some violations."""
    return LevelAccount(level, "violated" if broken else "certified", 9, (), broken, (), ())


def declaring(discovered: Discovery, **declared: Any) -> Discovery:
    """Return a discovery of an implementation that declares something."""
    return replace(discovered, ddp={**discovered.ddp, "declares": declared})


STRIDED = level("extended", Broken(("strided",), ("INIT-1", "PARAM-1")))


def test_what_a_violation_needs_is_proposed_with_its_price(tmp_path: Path) -> None:
    """The file is read back, and its comment says what users must then never do."""
    discovered = discovery(probed=(Probed("strided", Standing.WRONG, "INIT-1: differ"),))
    proposed = proposals((level("core"), STRIDED), discovered)
    path = tmp_path / "declared.toml"
    path.write_text(file_of(proposed, discovered))
    assert path.read_text() == (
        "# Wrong or crashing: fix these. If they are declared unsupported, users must never:\n"
        "# - wrap a model with a parameter that is not contiguous, such as a transposed one "
        "(strided: INIT-1, PARAM-1 violated)\n"
        "[ddp]\n"
        'unsupported = ["strided"]\n'
    )
    assert declare(Declarations, read(path).ddp).unsupported == ("strided",)
    assert text(proposed, discovered).endswith('  unsupported = ["strided"]')


def test_earlier_declarations_are_kept(tmp_path: Path) -> None:
    """A file overrides the implementation's own declarations, so it repeats them."""
    discovered = declaring(discovery(), reduction="sum", unsupported=("unused",))
    path = tmp_path / "declared.toml"
    path.write_text(file_of(proposals((level("core"), STRIDED), discovered), discovered))
    declared = declare(Declarations, read(path).ddp)
    assert (declared.reduction, declared.unsupported) == ("sum", ("unused", "strided"))


@pytest.mark.parametrize(
    ("probed", "expected"),
    [
        (Probed("crossed", Standing.WRONG, "GRAD-1: differ"), ["crossed"]),
        (Probed("other_methods", Standing.REFUSED, "NotImplementedError"), ["other_methods"]),
        (Probed("crossed", Standing.WRONG, "", declared=True), []),
        (Probed("crossed", Standing.WRONG, "", expected="a known issue"), []),
        (Probed("crossed", Standing.CRASHED, "NameError"), ["crossed"]),
        (Probed("adam", Standing.CRASHED, "NameError"), []),
        (Probed("crossed", Standing.ABSENT), []),
        (Probed("adam", Standing.WRONG, "PARAM-3: off"), []),
        (Probed("adam", Standing.REFUSED, "ValueError"), ["adam"]),
    ],
)
def test_a_probe_proposes_what_is_refused_or_silently_wrong(
    probed: Probed, expected: list[str]
) -> None:
    """What ordinary programs need is not declared away."""
    discovered = discovery(probed=(probed,))
    assert [each.capability for each in proposals((level("core"),), discovered)] == expected


def test_nothing_excuses_a_violated_core() -> None:
    """Declarations come after the core is right."""
    discovered = discovery(probed=(Probed("crossed", Standing.WRONG, "GRAD-1: differ"),))
    core = level("core", Broken((), ("GRAD-2",)))
    assert proposals((core, STRIDED), discovered) == ()


def test_what_is_claimed_or_no_capability_is_not_proposed() -> None:
    """No wrapper may claim a capability and declare it unsupported."""
    discovered = declaring(discovery(), supports=("strided",))
    nodes = level("extended", Broken(("nodes",), ("LIVE-7",)), Broken((), ("COMM-4",)))
    assert proposals((level("core"), STRIDED), discovered) == ()
    assert proposals((level("core"), nodes), discovered) == ()


def test_one_declaration_suffices_for_violations_that_share_it() -> None:
    """Of several names of one group the first that many wrappers lack is taken."""
    groups = level(
        "extended",
        Broken(("unused",), ("GRAD-9",)),
        Broken(("never_zeroed", "unused"), ("LIVE-1",)),
        Broken(("mixed", "tied"), ("LIVE-5",)),
    )
    proposed = proposals((level("core"), groups), discovery())
    assert [each.capability for each in proposed] == ["unused", "tied"]


def test_a_sampler_has_a_table_of_its_own() -> None:
    """Both tables stand in one file."""
    discovered = replace(
        discovery(probed=(Probed("crossed", Standing.WRONG, "GRAD-1: differ"),)),
        sampler_probes=(Probed("no_samples", Standing.REFUSED, "ValueError"),),
    )
    written = file_of(proposals((level("core"),), discovered), discovered)
    assert '[ddp]\nunsupported = ["crossed"]\n\n[sampler]\nunsupported = ["no_samples"]' in written
    assert "# - use an empty dataset (no_samples: refused)" in written


def test_the_reference_beside_an_implementation_needs_no_declaration() -> None:
    """Only the named side is proposed for; what is wrong and what is refused have two headings."""
    discovered = replace(
        discovery(
            probed=(
                Probed("crossed", Standing.WRONG, "GRAD-1: differ"),
                Probed("sparse", Standing.REFUSED, "RuntimeError"),
            )
        ),
        sampler_probes=(Probed("no_samples", Standing.REFUSED, "ValueError"),),
    )
    named = replace(
        discovered,
        ddp={**discovered.ddp, "name": "mine:D"},
        sampler={**discovered.sampler, "name": "reference"},
    )
    written = file_of(proposals((level("core"),), named), named)
    assert "sampler" not in written
    wrong, refused = written.split("# Refused with an error. Users must never:\n")
    assert "(crossed: wrong)" in wrong
    assert wrong.startswith("# Wrong or crashing: fix these. ")
    assert refused.startswith("# - use layers with sparse gradients (sparse: refused)\n[ddp]\n")


def test_refusals_alone_are_not_printed() -> None:
    """A user whose wrapper refuses something is told when it does."""
    discovered = discovery(probed=(Probed("other_methods", Standing.REFUSED, "no"),))
    proposed = proposals((level("core"),), discovered)
    assert proposed
    assert text(proposed, discovered) == text((), discovered) == ""
