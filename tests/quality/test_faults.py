"""Tests of the catalogue of planted faults, and of the judge on a sample of it.

A command measures the whole catalogue.
"""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import caught
import psutil
import pytest
import rule_pages
from survivors import survivors

from conftest import TrialMaker, fault_of
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data
from ddp_invariants.errors import CatalogueError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof import catalogue
from ddp_invariants.proof.catalogue import Catalogue, CatalogueEntry, all_entries
from ddp_invariants.proof.measure import FaultSearch, search
from ddp_invariants.records.verdict import Inconclusive, Violation, violation_class
from ddp_invariants.search.strategies import training_cases
from ddp_invariants.search.trial import Trial
from ddp_invariants.situations.between_steps import Actions

FAULTS = [fault for fault in all_entries() if fault.is_fault]
SAMPLE = [
    fault
    for fault in FAULTS
    if fault.name
    in (
        "StopsAtALayerWithout",
        "DividesTwice",
        "ZeroOnceUsed",
        "WorkersRepeat",
        "SumsTiedTwice",
        "SavesItsWorldSize",
        "BecomesAdam",
        "DividesByThoseLeft",
    )
]
"""A sample of the faults, large enough to show that the search has become worse.

The judge is tested on recorded cases of nearly all faults; this sample tests that a search finds such
cases, in eight styles of faults. The names stand here so that a new fault does not change the sample.
"""
RECORDED = [fault for fault in FAULTS if fault.target in caught.recorded()]


@pytest.mark.parametrize("fault", SAMPLE, ids=[f"{fault.module}_{fault.name}" for fault in SAMPLE])
def test_a_planted_fault_is_caught_and_told_as_what_it_is(
    pool: Pool, tmp_path: Path, fault: CatalogueEntry
) -> None:
    """A search by all rules catches the fault by the rule that names it, with no wrong cause."""
    detection = search(pool, FaultSearch(fault, seed=1), tmp_path)
    assert detection.is_right_rule, detection
    assert detection.diagnosis != "wrong", detection


@pytest.mark.parametrize(
    "fault", RECORDED, ids=[f"{fault.module}_{fault.name}" for fault in RECORDED]
)
def test_a_recorded_case_shows_its_fault_in_the_simulation_and_over_gloo(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: CatalogueEntry
) -> None:
    """The judge catches each fault on its recorded case, by the right rule and with no wrong cause.

    No failure shows in the simulation alone. `tests/helpers/caught.py` records the cases. The pages
    of the rules show some of the failures, which `tests/helpers/rule_pages.py` records.
    """
    caught.simulate_first(monkeypatch.setattr)
    monkeypatch.setattr(pool, "deadline", caught.DEADLINE)
    trial = caught.trial_of(pool, fault, tmp_path)
    result = caught.judged(trial, fault, caught.recorded()[fault.target])
    assert result.rule in fault.rules
    assert result.unreal == ""
    assert result.diagnosis != "wrong"
    for target, shown in rule_pages.violations().values():
        if target == fault.target:
            assert result.failure is not None
            assert (result.failure.rule, result.failure.fact) == (shown.rule, shown.fact)
    assert trial.ledger.ran[str(pool.backend)]


def test_nearly_every_fault_has_a_recorded_case() -> None:
    """At most one fault in ten has no recorded case, and every recorded case has its fault."""
    faults = {fault.target for fault in FAULTS if not fault.needs_device}
    assert caught.recorded().keys() <= faults
    assert len(caught.recorded()) >= 0.9 * len(faults)


def test_the_catalogue_is_whole() -> None:
    """The catalogue has at least 100 faults, and every style of fault has a right control.

    Names are unique in their module.
    """
    assert len(FAULTS) >= 100
    hosts = {fault.module for fault in FAULTS}
    assert len(hosts) >= 11
    controlled = {entry.module for entry in all_entries() if not entry.is_fault}
    assert hosts - controlled <= {
        "starts",
        "bucketed",
        "timing",
        "programs",
    }  # The control of these is the reference.
    assert len({(entry.target, entry.is_sampler) for entry in all_entries()}) == len(all_entries())
    assert {fault.rule for fault in FAULTS} >= {
        "INIT-1",
        "SHARD-1",
        "LOSS-1",
        "GRAD-1",
        "PARAM-1",
        "COMM-1",
        "LIVE-1",
        "MEM-1",
    }


def test_every_source_is_an_address_or_says_what_it_is() -> None:
    """Every fault names its source, and an issue becomes a link."""
    assert all(fault.source for fault in FAULTS)
    linked = [fault for fault in FAULTS if fault.link]
    assert len(linked) > len(FAULTS) / 4
    assert (
        CatalogueEntry("", "", "", "", "pytorch#49172").link
        == "https://github.com/pytorch/pytorch/issues/49172"
    )
    assert CatalogueEntry("", "", "", "", "huggingface/accelerate#4122, and others").link.endswith(
        "accelerate/issues/4122"
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""A style."""\nclass A:\n    """Something."""', "expected 'Right: what it is.' or"),
        (
            '"""A style."""\ndef a():\n    """Wrong (somewhere). GRAD-99."""',
            "no rule is called GRAD-99",
        ),
        ('"""A style."""\nclass A:\n    pass', "its docstring is ''"),
    ],
)
def test_a_docstring_that_is_no_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    """A docstring that is no record is refused with the entry's name and the expected form."""
    (tmp_path / "odd.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    with pytest.raises(CatalogueError, match=re.escape(words)) as refused:
        all_entries.__wrapped__()
    assert str(refused.value).startswith("odd.py:")


def test_entries_are_chosen_by_name_module_or_rule() -> None:
    """Entries are chosen by name, module or rule; an unknown name is refused with a suggestion."""
    select = Catalogue(all_entries()).select
    assert select([]) == list(all_entries())
    assert {entry.name for entry in select(["NoWait"])} == {"NoWait"}
    assert {entry.rule for entry in select(["COMM-3"])} == {"COMM-3"}
    assert {entry.module for entry in select(["timing", "starts"])} == {"timing", "starts"}
    with pytest.raises(CatalogueError, match=r"--only timming: .* did you mean timing"):
        select(["timming"])


def violation_of(trial: Trial, rule: str) -> Violation:
    """Return the violation that a trial ends with."""
    with pytest.raises(violation_class(rule)) as raised:
        trial.certify(rule)
    violation = raised.value
    assert isinstance(violation, Violation)
    return violation


def test_a_violation_names_its_root_cause_in_the_same_case(make_trial: TrialMaker) -> None:
    """A report names the violation of the same case that explains this one.

    A sum that is never divided also moves parameters wrongly. A missing wait can make any value
    wrong.
    """
    report = violation_of(make_trial(ddp=fault_of("NeverDivides"), cases=20), "PARAM-3").report
    assert "root cause (same case) GRAD-2: the gradient is not the mean" in report
    assert (
        "root cause"
        not in violation_of(make_trial(ddp=fault_of("NeverDivides"), cases=20), "GRAD-2").report
    )
    report = violation_of(make_trial(ddp=fault_of("NoWait"), cases=20), "GRAD-2").report
    assert "root cause (same case) COMM-3: the result of a collective is not waited for" in report


NORMED = TrainingCase(
    model=Model(4, (Layer("linear", 4), Layer("batch_norm", bias=True), Layer("linear", 2))),
    steps=3,
    data=Data(samples=12, batch_size=2),
    values="real",
)


@pytest.mark.parametrize(
    ("name", "rule", "where", "perhaps"),
    [
        (
            "NeverInForward",
            "BUF-1",
            "buffer 'layers.1.running_mean' (1,)",
            "not synchronised in forward",
        ),
        ("FloatsOnly", "BUF-2", "", ""),
        (
            "LeftInEvaluation",
            "LOSS-1",
            "rank 0 of 2, step 0",
            "running statistics did not move: the module was in evaluation",
        ),
        (
            "LeftInEvaluation",
            "BUF-2",
            "buffer 'layers.1.running_mean' (1,)",
            "not moved, as in evaluation",
        ),
        ("RunsItFirst", "BUF-2", "buffer 'layers.1.running_mean' (1,)", "the forward ran twice"),
        ("CountsStartOver", "BUF-2", "buffer 'layers.1.num_batches_tracked' ()", "it is zero"),
        (
            "NeverDividesThem",
            "BUF-2",
            "buffer 'layers.1.running_mean' (1,)",
            "summed, never divided",
        ),
        ("SetBack", "BUF-2", "buffer 'layers.1.running_mean' (1,)", "set back"),
        ("RunsItOnTheFirstRank", "INIT-2", "buffer 'layers.1.running_mean' (1,)", ""),
        ("Averaged", "BUF-2", "", ""),
    ],
)
def test_what_goes_wrong_with_a_batch_norm_is_told_of_its_buffers(
    pool: Pool, name: str, rule: str, where: str, perhaps: str
) -> None:
    """A violation names the batch-norm buffer and the cause, and right buffers are not accused.

    Counts move alike on all ranks, so a fault that leaves only them out does not violate BUF-2.
    """
    failure = judge(pool.train(NORMED, Ddp(f"ddp_invariants.faults.buffers:{name}")))[rule].failure
    assert (failure is None) == (where == "")
    if failure is not None:
        assert where in failure.where
        assert perhaps in failure.perhaps


def test_what_a_program_writes_into_buffers_must_not_be_lost(pool: Pool) -> None:
    """A wrapper that restores the buffers of the last forward loses what the program wrote.

    Right wrappers keep the values that the program wrote.
    """
    case = NORMED.with_situation(Actions((BetweenSteps("buffers", 1),)))
    lost = judge(pool.train(case, Ddp("ddp_invariants.faults.buffers:LosesWhatIsWritten")))[
        "BUF-2"
    ].failure
    assert lost is not None
    assert "the program's later write is lost" in lost.perhaps
    for right in ("reference", "torch", "ddp_invariants.faults.buffers:OneByOne"):
        finding = judge(pool.train(case, Ddp(right)))["BUF-2"]
        assert finding.failure is None
        assert "buffers written to between steps" in finding.met


@pytest.mark.parametrize("fault", ["HangsOnThree", "DiesInBackward"])
def test_fault_that_does_not_end_violates_live1_with_ranks_and_stacks(
    make_trial: TrialMaker, pool: Pool, fault: str
) -> None:
    """A hang or a death violates LIVE-1, with ranks and stacks, and spares the next trial."""
    pool.limit(1.5)
    trial = make_trial(ddp=fault_of(fault), cases=20)
    violation = violation_of(trial, "LIVE-1")
    assert "rank 1" in violation.report
    assert "timing.py" in violation.report or "ddp.py" in violation.report
    assert isinstance(violation.case, TrainingCase)
    # Each attempt to shrink the case takes its whole deadline, so there are few.
    assert violation.case.world_size in ((3, 4) if fault == "HangsOnThree" else (2,))
    assert ("SIGABRT" in violation.report) == (fault == "DiesInBackward")
    trial = make_trial(cases=10)
    trial.certify("LIVE-1")


def test_a_sampler_that_does_not_end_violates_live1(make_trial: TrialMaker, pool: Pool) -> None:
    """A sampler that does not end violates LIVE-1 within a few short deadlines, for any rule.

    The next rule lacks its evidence, and does not show the hang's case as its own.
    """
    pool.limit(1.5)
    trial = make_trial(sampler=fault_of("NeverEnds"), cases=20)
    with pytest.raises(
        violation_class("LIVE-1"), match=r"NeverEnds \(seen while SHARD-3 was tested\): a rank hung"
    ):
        trial.certify("SHARD-3")
    with pytest.raises(Inconclusive, match=r"because a rank hung\. The report of LIVE-1") as second:
        trial.certify("SHARD-2")
    assert str(second.value).startswith("SHARD-2 inconclusive for ")
    assert "world_size=" not in str(second.value)  # The hang's case was drawn for SHARD-3.


WITHOUT_A_WAIT = ("NoWait", "WaitsForTheLastOnly", "ForgetsOneWait", "DividesInFlight")


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        pytest.param(fault, seed, marks=[] if seed == number % 3 else [pytest.mark.long])
        for number, fault in enumerate(WITHOUT_A_WAIT)
        for seed in range(3)
    ],
)
def test_a_missing_wait_is_caught_whatever_the_timing(
    make_trial: TrialMaker, fault: str, seed: int
) -> None:
    """A missing wait always shows if results are withheld until they are waited for.

    The report says what the withheld results showed.
    """
    trial = make_trial(ddp=fault_of(fault), cases=20, seed=seed)
    violation = violation_of(trial, "COMM-3")
    assert "confirmed in 3 of 3 runs" in violation.report
    assert isinstance(violation.case, TrainingCase)
    assert violation.case.perturbation.kind == "withheld"
    assert ("a wait is missing" in violation.report) == (fault != "DividesInFlight")


def test_a_wrapper_that_trains_a_copy_cannot_be_judged_and_is_told_so(
    make_trial: TrialMaker,
) -> None:
    """A wrapper that trains a copy is inconclusive, because the monitored module is not trained."""
    trial = make_trial(ddp=fault_of("TrainsACopy"), cases=10)
    with pytest.raises(Inconclusive, match=r"wrapper\s+trains\s+a\s+copy"):
        trial.certify("GRAD-2")


def test_a_refusal_is_neither_a_violation_nor_a_pass(make_trial: TrialMaker) -> None:
    """An implementation that raises on every rank is neither certified nor accused."""
    trial = make_trial(ddp=fault_of("RaisesOnWrap"), cases=10)
    with pytest.raises(Inconclusive, match="NotImplementedError in wrap of step 0"):
        trial.certify("GRAD-2")


@pytest.mark.parametrize("fault", ["NoWait", "WaitsForTheLastOnly"])
def test_what_comes_and_goes_is_shown_every_time_by_withholding(
    make_trial: TrialMaker, fault: str
) -> None:
    """A rule about values catches a missing wait too, and says that timing decides."""
    trial = make_trial(ddp=fault_of(fault), cases=40)
    with pytest.raises(violation_class("GRAD-2")) as raised:
        trial.certify(
            "GRAD-2",
            training_cases(
                trial.scope, world_sizes=(2, 3), perturbed=("none", "withheld"), capped=True
            ),
        )
    violation = raised.value
    assert isinstance(violation, Violation)
    assert re.search(r"confirmed in ([23]) of 3 runs", violation.report)
    assert isinstance(violation.case, TrainingCase)
    if violation.case.perturbation.kind == "withheld":
        assert "only when results are withheld until they are waited for" in violation.report


def test_timing_that_changes_an_answer_violates_comm2(make_trial: TrialMaker) -> None:
    """COMM-2 runs a case with and without its perturbation, and reports which one it needs."""
    violation = violation_of(make_trial(ddp=fault_of("NoWait"), cases=40), "COMM-2")
    assert re.search(
        r"only when (results are withheld|rank \d starts its collectives|collectives start)",
        violation.report,
    )


def test_nothing_goes_on_when_the_command_is_killed() -> None:
    """A process that searches ends with the command, however long its search would take."""
    command = [sys.executable, "-m", "ddp_invariants", "faults", "--only", "LazyBlocks"]
    with subprocess.Popen(
        [*command, "--control-cases", "1000000"], stdout=subprocess.DEVNULL
    ) as main:
        below, until = psutil.Process(main.pid), time.monotonic() + 60
        try:
            while not (searching := _searching(below)) and time.monotonic() < until:
                time.sleep(0.1)
            started = {each.pid for each in below.children(recursive=True)}
        finally:
            main.kill()
    assert searching
    assert survivors(lambda: started) == set()


def _searching(command: psutil.Process) -> list[psutil.Process]:
    """Return the processes of a command that search, and have ranks at work."""
    found = []
    for each in command.children():
        with contextlib.suppress(psutil.Error):  # It has ended since.
            if "spawn_main" in " ".join(each.cmdline()) and each.cpu_times().user > 3:
                found.append(each)
    return found
