"""Tests of catalogues that do not come with the package."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copy

import pytest
from click.testing import CliRunner
from readme import plain

from conftest import HELPERS, ROOT, Session
from ddp_invariants.cases.case import Case
from ddp_invariants.cli import main
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.errors import CatalogueError
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof import measure
from ddp_invariants.proof.catalogue import all_entries, read
from ddp_invariants.proof.docstrings import liberally
from ddp_invariants.proof.measure import FaultSearch, search, searches
from ddp_invariants.records.verdict import Failure, Finding, Sighting, Surveyed, Violation
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.trial import Options

ELSEWHERE = HELPERS / "elsewhere"


def test_a_copy_of_the_packages_catalogue_is_read_as_the_original(tmp_path: Path) -> None:
    """Entries, rules, causes and parts are the same; only the files' names are others."""
    for file in (ROOT / "ddp_invariants" / "faults").glob("*.py"):
        copy(file, tmp_path)
    copied = read(tmp_path)
    shipped = [entry for entry in all_entries() if entry.module != "shipped"]
    assert not copied.unread
    assert len(copied.entries) == len(shipped)
    for entry, original in zip(
        sorted(copied.entries, key=lambda entry: (entry.module, entry.name)),
        sorted(shipped, key=lambda entry: (entry.module, entry.name)),
        strict=True,
    ):
        assert {**vars(entry), "file": "", "base": ""} == vars(original)


@pytest.mark.parametrize(
    ("docstring", "rules", "causes", "trigger"),
    [
        ("Wrong (pytorch#1). GRAD-2: a cause.", ("GRAD-2",), ("a cause",), ""),
        ("GRAD-2", ("GRAD-2",), (), ""),
        ("Wrong. GRAD-2 or PARAM-3.", ("GRAD-2", "PARAM-3"), (), ""),
        ("Wrong. grad-2, or param-3: never done", ("GRAD-2", "PARAM-3"), ("never done",), ""),
        ("Wrong. GRAD2: a cause; or COMM-1: another.", ("GRAD-2", "COMM-1"), None, ""),
        ("Wrong. GRAD-2. Trigger: clipping, as of GRAD-3.", ("GRAD-2",), (), "clipping, as of GRAD-3"),
        ("Wrong.\n\nIt violates GRAD-2: a cause.\n\nTrigger: two\n  steps.", ("GRAD-2",), ("a cause",), "two steps"),
        ("Rule: GRAD-2. Cause: a sum. Triggers: none.", ("GRAD-2",), ("a sum",), "none"),
        ("Wrong since 2.13 (UTF-8, sha-1). SHARD-2, not SHARD-99.", ("SHARD-2",), (), ""),
        ("Right: as it should be", (), (), ""),
    ],
)  # fmt: skip
def test_only_the_rule_of_a_record_is_needed(
    docstring: str, rules: tuple[str, ...], causes: tuple[str, ...] | None, trigger: str
) -> None:
    """Source, cause and trigger may be missing, and a record may have several rules."""
    record = liberally(docstring)
    assert record.rules == rules
    assert record.causes == (("a cause", "another") if causes is None else causes)
    assert record.trigger == trigger


def test_what_has_no_record_is_named_and_stops_nothing(tmp_path: Path) -> None:
    """An unknown rule, a missing docstring and a file with an error each cost one sentence."""
    (tmp_path / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "fine.py").write_text(
        'from somewhere import Other\n\nclass A:\n    """Wrong. GRAD-2."""\n\n'
        "class B:\n    pass\n\nclass C:\n    '''GRAD-99.'''\n\nclass _D:\n    pass\n",
        encoding="utf-8",
    )
    catalogue = read(tmp_path)
    assert [entry.name for entry in catalogue.entries] == ["A"]
    broken, nameless, unknown = catalogue.unread
    assert broken.startswith("broken.py: it cannot be read: invalid syntax")
    assert nameless.startswith("fine.py:B: its docstring names no rule")
    assert unknown == "fine.py:C: no rule is called GRAD-99"
    assert read(tmp_path / "fine.py").entries == catalogue.entries


def test_the_part_of_an_entry_shows_in_its_class() -> None:
    """A class is a sampler if it iterates, also by a base of another file, or if it says so."""
    parts = {entry.name: entry.is_sampler for entry in read(ELSEWHERE).entries}
    assert parts == {
        "EachGradient": False,
        "TakesTurns": True,
        "TakesAll": True,
        "ForgetsToDivide": False,
        "DividesByTwo": False,
        "CannotBeBuilt": False,
    }


@pytest.mark.parametrize(
    ("source", "is_sampler"),
    [
        ('class A(DistributedSampler):\n    """Right: a sampler."""', True),
        ('class A(nn.Module):\n    """Right: a DDP."""\n    def __iter__(self): ...', False),
        ('def a(dataset, rank):\n    """Right: a function."""', True),
        ('def a(module):\n    """Right: a function."""', False),
        ('class A:\n    """Right: unclear. Sampler."""', True),
        ('class A:\n    """Sampler. Right: unclear."""', True),
        ('class A(DistributedSampler):\n    """DDP. Right: a wrapper."""', False),
        ('class A:\n    """Wrong. LIVE-1."""\n    def set_epoch(self, epoch): ...', True),
        ('class A:\n    """Wrong. RNG-1."""\n    def set_epoch(self, epoch): ...', True),
        ('class A:\n    """Wrong. STATE-1."""\n    def forward(self, x): ...', False),
        ('class A:\n    """Wrong. GRAD-2."""\n    def __iter__(self): ...', False),
    ],
)
def test_the_part_is_decided_for_each_entry(
    tmp_path: Path,
    source: str,
    is_sampler: bool,
) -> None:
    """The word decides first, then the rules, then the class or function."""
    (tmp_path / "odd.py").write_text(source, encoding="utf-8")
    (entry,) = read(tmp_path).entries
    assert entry.is_sampler is is_sampler


@pytest.mark.parametrize(
    ("source", "is_optimizer"),
    [
        ('class A(torch.optim.Optimizer):\n    """Wrong. PARAM-3."""', True),
        ('class A(ZeroRedundancyOptimizer):\n    """Right: an optimizer. DDP."""', True),
        ('class A:\n    """Right: unclear. Optimizer."""', True),
        ('class A(Optimizer):\n    """Wrong. PARAM-3."""\n    def forward(self, x): ...', False),
        ('class A:\n    """Wrong. PARAM-3."""', False),
    ],
)
def test_an_optimizer_is_tried_with_the_references_wrapper(
    tmp_path: Path, source: str, *, is_optimizer: bool
) -> None:
    """A class of optimizers is read as one, and the reference's wrapper trains with it."""
    (tmp_path / "odd.py").write_text(source, encoding="utf-8")
    (entry,) = read(tmp_path).entries
    ddp, _ = entry.under_test
    assert entry.part == ("optimizer" if is_optimizer else "ddp")
    assert (ddp.optimizer if is_optimizer else ddp.name) == f"{tmp_path / 'odd.py'}:A"


def test_a_fault_of_an_optimizer_is_caught(pool: Pool, tmp_path: Path) -> None:
    """A wrong optimizer of a catalogue violates a rule about parameters."""
    (tmp_path / "odd.py").write_text(
        "import torch\n\n\n"
        "class Forgets(torch.optim.SGD):\n"
        '    """No step is made (a note). PARAM-3."""\n\n'
        "    def step(self, closure=None):\n"
        "        return None\n",
        encoding="utf-8",
    )
    (entry,) = read(tmp_path).entries
    found = search(pool, FaultSearch(entry, seed=0, cases=20, shrinks=False), tmp_path)
    assert found.rule == "PARAM-3", found


def test_a_base_in_a_private_module_shows_the_part(tmp_path: Path) -> None:
    """The entries of a catalogue share bases in modules that hold no entries."""
    (tmp_path / "_base.py").write_text(
        "class Base:\n    def __iter__(self): ...\n\nclass _Broken:\n", encoding="utf-8"
    )
    (tmp_path / "_other.py").write_text(
        "class Base:\n    def __iter__(self): ...\n", encoding="utf-8"
    )
    (tmp_path / "odd.py").write_text(
        'from ._other import Base\n\nclass A(Base):\n    """Right: a sampler."""\n',
        encoding="utf-8",
    )
    (entry,) = read(tmp_path).entries
    assert entry.is_sampler


def test_a_path_without_a_catalogue_is_a_usage_error(tmp_path: Path) -> None:
    """A missing path, a file of another kind and an empty folder end in one sentence."""
    (tmp_path / "notes.txt").write_text("GRAD-2", encoding="utf-8")
    for path, words in (
        (tmp_path / "nowhere", "there is no such file or folder"),
        (tmp_path / "notes.txt", "expected a .py file or a folder"),
        (tmp_path, "no class or function there names a rule"),
    ):
        with pytest.raises(CatalogueError, match=words):
            read(path)
        done = CliRunner().invoke(main, ["faults", "--catalogue", str(path)])
        assert done.exit_code == 64
        assert words in done.output


def test_names_are_chosen_from_the_given_catalogue() -> None:
    """A name, a module or a rule of the given catalogue; another catalogue's name is unknown."""
    catalogue = read(ELSEWHERE)
    assert [entry.name for entry in catalogue.select(["PARAM-3"])] == ["ForgetsToDivide"]
    assert len(catalogue.select(["samplers"])) == 2
    with pytest.raises(CatalogueError, match="--only NoWait: the catalogue has no"):
        catalogue.select(["NoWait"])


def test_faults_of_another_folder_are_caught_there(pool: Pool, tmp_path: Path) -> None:
    """Modules import their siblings, relative and not; what cannot be wrapped is not judged."""
    jobs = searches(read(ELSEWHERE).entries, seeds=1, control_cases=20, cases=60)
    done = {job.planted.name: search(pool, job, tmp_path) for job in jobs}
    assert {name for name, detection in done.items() if detection.is_caught} == {
        "ForgetsToDivide",
        "DividesByTwo",
        "TakesAll",
    }
    assert done["ForgetsToDivide"].is_right_rule
    assert done["ForgetsToDivide"].diagnosis == "right"
    assert done["DividesByTwo"].diagnosis == "unstated"
    assert done["TakesAll"].rule == "SHARD-3"
    assert "is no wrapper, or it needs arguments" in done["CannotBeBuilt"].reason


DERIVED = '''
from ddp_invariants.reference.ddp import DistributedDataParallel

class Base(DistributedDataParallel):
    """Right: the reference, but it never plans again, as for parameters that were replaced."""

    def _plan(self):
        if not self._buckets:
            super()._plan()

class _Between(Base):
    pass

class Halves(_Between):
    """Half of the mean. GRAD-2."""
'''


def test_a_right_implementation_must_pass_its_probes(pool: Pool, tmp_path: Path) -> None:
    """The case of a failed probe comes first, although no drawn case contains its capability."""
    (tmp_path / "odd.py").write_text(DERIVED, encoding="utf-8")
    (base,) = (entry for entry in read(tmp_path).entries if entry.name == "Base")
    found = search(pool, FaultSearch(base, seed=0, cases=1, shrinks=False), tmp_path)
    assert found.is_caught, found
    assert found.cases == 1
    assert {"assign", "unfreeze"} & {*found.needs}


def test_a_fault_is_not_sought_where_its_right_base_is_wrong(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search would find the weakness of the base, and the fault would count as caught."""
    (tmp_path / "derived.py").write_text(DERIVED)
    base, halves = read(tmp_path).entries
    assert (base.base, halves.base) == ("", "Base")
    assert base.derived_from is None
    assert halves.derived_from == base.under_test
    sought: list[frozenset[str]] = []
    clipped, failure = TRAINING["clipping"].probe, Failure("GRAD-2", "", "", "")

    class OneWeakness:
        """A trial that finds a violation with clipping, which the base shows, too."""

        def __init__(self, _pool: Pool, under_test: UnderTest, _options: Options) -> None:
            self.without, self.ledger = under_test.scope.without, Ledger()

        def survey(self, _rules: list[str], cases: int) -> Surveyed:
            sought.append(self.without)
            if "clipping" in self.without:
                return Surveyed(cases // 2)
            sighting = Sighting(failure, clipped, 0.0, 1)
            return Surveyed(cases // 2, sighting, Violation("", failure, clipped))

        def findings(self, _case: Case, *, confirming: bool, rule: str) -> dict[str, Finding]:
            assert confirming
            return {rule: Finding(rule, failure=failure)}

    monkeypatch.setattr(measure, "Trial", OneWeakness)
    detection = search(pool, FaultSearch(halves, 0, 40), tmp_path)
    baseless_detection = search(pool, FaultSearch(replace(halves, base=""), 0, 40), tmp_path)
    assert (detection.is_caught, detection.cases) == (False, 30)
    assert (baseless_detection.is_caught, baseless_detection.cases) == (True, 20)
    first, second, baseless = sought
    assert first - baseless == {"assign", "unfreeze"}
    assert second - first == {"clipping"}


DEAD = '''"""A fault of a probe."""

from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class DropsTheDead(_Reference):
    """Parameters that no rank used in the first backward are not synchronised later. GRAD-1. DDP."""

    def _trainable(self):
        dead = self.__dict__.get("_dead") or []
        return [p for p in super()._trainable() if not any(p is each for each in dead)]

    def _finish(self):
        super()._finish()
        if self.__dict__.get("_dead") is None:
            self._dead = []
            for bucket in self._buckets:
                flags = bucket.flat[-len(bucket.parameters) :].tolist()
                self._dead += [p for p, flag in zip(bucket.parameters, flags) if not flag]
'''


def test_a_fault_that_only_its_probe_shows_is_caught_at_last(pool: Pool, tmp_path: Path) -> None:
    """A failed probe leaves out the cases that show this fault; its own case is judged after them."""
    (tmp_path / "dead.py").write_text(DEAD, encoding="utf-8")
    (entry,) = read(tmp_path).entries
    found = search(pool, FaultSearch(entry, seed=0, cases=3, shrinks=False), tmp_path)
    assert found.is_caught, found
    assert found.cases == 4


def test_a_search_draws_exactly_the_cases_that_are_asked_for(pool: Pool, tmp_path: Path) -> None:
    """A right implementation takes them all."""
    for name in ("EachGradient", "TakesTurns"):
        (control,) = read(ELSEWHERE).select([name])
        assert search(pool, FaultSearch(control, 0, 33), tmp_path).cases == 33


def test_controls_share_the_real_cases() -> None:
    """Samplers run in no simulation, and have no share."""
    entries = read(ELSEWHERE).entries
    for asked, shares in ((None, {None}), (0, {0, None}), (5, {5, None})):
        jobs = searches(entries, seeds=1, control_cases=20, real_cases=asked)
        assert {job.most_real for job in jobs if not job.planted.is_fault} == shares
        assert {job.most_real for job in jobs if job.planted.is_fault} == {None}


def test_a_search_may_run_few_cases_over_the_real_backend(pool: Pool, tmp_path: Path) -> None:
    """The others are simulated; a failure is confirmed over the real backend all the same."""
    (wrong,) = read(ELSEWHERE).select(["ForgetsToDivide"])
    reference = next(entry for entry in all_entries() if entry.target == "reference")
    judged = search(pool, FaultSearch(reference, 0, 40, most_real=3), tmp_path)
    assert (judged.cases, judged.real, judged.simulated) == (40, 3, 37)
    found = search(pool, FaultSearch(wrong, 0, 40, shrinks=False, most_real=0), tmp_path)
    assert found.is_right_rule
    assert found.real


def test_nothing_of_a_catalogue_runs_in_the_controller(tmp_path: Path) -> None:
    """A module that must not be imported is read."""
    (tmp_path / "loud.py").write_text(
        'raise SystemExit("imported")\n\nclass A:\n    """Wrong. GRAD-2."""\n', encoding="utf-8"
    )
    assert [entry.name for entry in read(tmp_path).entries] == ["A"]


def test_the_command_lists_escapes_with_their_docstrings(session: Session, tmp_path: Path) -> None:
    """A right implementation that is called wrong escapes; the status is 1."""
    (tmp_path / "calm.py").write_text(
        "from ddp_invariants.reference.ddp import DistributedDataParallel\n\n"
        "class Calm(DistributedDataParallel):\n"
        '    """Nothing is wrong. GRAD-2: it is calm."""\n',
        encoding="utf-8",
    )
    done = session(
        "ddp_invariants",
        "faults",
        "--catalogue",
        str(tmp_path),
        "--cases",
        "5",
        "--workers",
        "1",
        environment=plain(),
    )
    assert done.returncode == 1
    assert "escaped" in done.stdout
    text = " ".join(done.stdout.split())
    assert (
        "calm.py:Calm (seed 0): no violation in 5 cases; its docstring: Nothing is wrong. GRAD-2: "
        "it is calm." in text
    )


def test_json_names_the_unread(session: Session, tmp_path: Path) -> None:
    """The JSON has the rules of an entry, and a sentence for each entry that was not read."""
    source = (ELSEWHERE / "deep" / "samplers.py").read_text(encoding="utf-8")
    (tmp_path / "samplers.py").write_text(
        source + "\n\ndef loose() -> None:\n    pass\n", encoding="utf-8"
    )
    options = ("--only", "TakesAll", "--cases", "40", "--workers", "1", "--json")
    done = session("ddp_invariants", "faults", "--catalogue", str(tmp_path), *options)
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert told["searches"][0]["planted"]["rules"] == ["SHARD-3"]
    assert told["unread"] == [
        "samplers.py:loose: its docstring names no rule and does not begin with 'Right:'"
    ]
