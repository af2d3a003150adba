"""The observed group: it changes no bit, sees every collective, and records who waits where."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker, composed, fault_of
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    Data,
    Exhausted,
    InjectedFailure,
    Perturbation,
    PerturbationKind,
)
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.exchange import MORTAL
from ddp_invariants.processes.pace import FIRST_IDLE
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Inconclusive
from ddp_invariants.search.strategies import cases_for, training_cases
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.uneven import UnevenInputs

GROUPS = str(Path(__file__).parents[1] / "helpers" / "groups.py")
CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3, bias=True), Layer("linear", 2))),
    world_size=3,
    steps=3,
    data=Data(samples=6, batch_size=2),
    bucket_cap=16,
)


@pytest.fixture(scope="module")
def pool(host_addresses: list[str]) -> Iterator[Pool]:
    """Yield a pool of ranks for these tests."""
    with Pool(host_addresses) as pool:
        yield pool


@pytest.mark.parametrize("kind", ["none", "withheld", "delays", "late"])
def test_every_collective_gives_the_same_bits_as_on_plain_groups(
    pool: Pool, kind: PerturbationKind
) -> None:
    """Observation changes no bit of any collective, in any dtype, on the world or on subgroups.

    The bits are the same also where timing is perturbed.
    """
    evidence = pool.train(
        CASE.with_situation(Perturbed(Perturbation(kind, rank=1))), Ddp(f"{GROUPS}:Sweep")
    )
    plain = pool.train(CASE, Ddp(f"{GROUPS}:Sweep"), observed=False)
    for observed, expected in zip(evidence.ranks, plain.ranks, strict=True):
        assert expected.raised is None
        assert observed.raised is None
        assert {key: tensors.bits for key, tensors in observed.tensors.items()} == {
            key: tensors.bits for key, tensors in expected.tensors.items()
        }
    assert judge(evidence)["COMM-1"].failure is None
    assert [len(rank.sent) for rank in evidence.ranks] == [2, 3, 3]
    assert evidence.ranks[1].groups == [[0, 1, 2], [0, 1, 2], [1, 2]]
    kinds = {call.described().partition(" ")[0] for call in evidence.ranks[1].sent[1]}
    assert kinds >= {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "broadcast",
        "gather",
        "scatter",
        "reduce",
        "recv",
        "barrier",
    }
    assert pool.train(CASE, Ddp()).incident is None


def test_delays_do_not_add_up_to_a_deadline(pool: Pool) -> None:
    """A rank is late with its first collectives, and not for longer than a case may take."""
    case = replace(CASE, model=Model(2, (*CASE.model.layers, Layer("terms", 40))), bucket_cap=1)
    began = time.monotonic()
    evidence = pool.train(
        case.with_situation(Perturbed(Perturbation("late", rank=1, milliseconds=300))), Ddp()
    )
    assert time.monotonic() - began < 20  # 43 gradients in each of 3 steps would take 38 s.
    assert all(rank.raised is None for rank in evidence.ranks)
    assert judge(evidence)["GRAD-2"].failure is None


def test_calls_are_noted_with_site_and_times(pool: Pool) -> None:
    """Each call is recorded with its site, its times, and whether it is asynchronous."""
    evidence = pool.train(CASE, Ddp()).ranks[0]
    began, ended, arrived = evidence.backwards[1]
    calls = [call for call in evidence.calls if began <= call.launched <= ended]
    assert len(calls) == 3
    assert {call.site.partition(":")[0] for call in calls} == {"ddp.py"}
    assert all(
        call.asynchronous and call.waited is not None and call.launched < call.waited < ended
        for call in calls
    )
    assert [name for name, _ in arrived] == ["layers.1.weight", "layers.0.bias", "layers.0.weight"]
    assert calls[0].launched < arrived[-1][1]
    torchs = pool.train(CASE, Ddp("torch")).ranks[0]
    # torch sends one bucket in the first step and two in each later step.
    assert [call.site for call in torchs.calls if call.kind == "allreduce"] == ["torch"] * 5


def test_a_hang_says_who_waits_where_and_where_the_others_are(pool: Pool, tmp_path: Path) -> None:
    """A hang is reported within a second after the deadline, with calls, sizes and lines.

    The deadline of the first case of an implementation is longer.
    """
    path = tmp_path / "sleeps.py"
    path.write_text("""
import time
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference
class Sleeps(Reference):
    def _launch(self, bucket):
        if bucket is self._buckets[1] and dist.get_rank() == 1:
            time.sleep(1000)
        super()._launch(bucket)
""")
    ddp = Ddp(f"{path}:Sleeps")
    pool.describe(ddp)
    pool.train(CASE, Ddp())
    before, pool.deadline = pool.deadline, 2.0
    started = time.monotonic()
    try:
        evidence = pool.train(CASE, ddp)
    finally:
        pool.deadline = before
    assert time.monotonic() - started < FIRST_IDLE * 2.0 + 1.0
    failure = judge(evidence)["LIVE-1"].failure
    assert failure is not None
    assert "rank 0 waits in all_reduce #4 (float32 x 4 SUM) at ddp.py:" in failure.got
    assert (
        "rank 1 issued 3 collectives, the last all_reduce #3 (float32 x 7 SUM) at ddp.py:"
        in failure.got
    )
    assert "and is at sleeps.py:8" in failure.got


MISMATCHES = [
    (
        "gradient.double()",
        (
            "all_reduce (float64 x 6 SUM) at odd.py:12, "
            "rank 0 issues all_reduce (float32 x 6 SUM) at odd.py:12"
        ),
    ),
    (
        "gradient.flatten()[:1]",
        "all_reduce (float32 x 1 SUM) at odd.py:12, rank 0 issues all_reduce (float32 x 6 SUM)",
    ),
]


@pytest.mark.parametrize(("gradient", "words"), MISMATCHES)
def test_collectives_that_do_not_match_are_told_apart_even_where_they_end_the_process(
    pool: Pool, tmp_path: Path, gradient: str, words: str
) -> None:
    """A mismatch is reported with each rank's call and line, even if the backend aborts.

    The backend aborts a process on another dtype or count.
    """
    path = tmp_path / "odd.py"
    path.write_text(f"""
import torch.distributed as dist
from torch import nn
class Odd(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
    def forward(self, x): return self.module(x)
    def finish_gradient_synchronization(self):
        for parameter in self.module.parameters():
            gradient = parameter.grad
            dist.all_reduce({gradient} if dist.get_rank() else gradient)
""")
    evidence = pool.train(replace(CASE, world_size=2, data=Data(samples=4)), Ddp(f"{path}:Odd"))
    failure = judge(evidence)["COMM-1"].failure
    assert failure is not None
    assert words in failure.got
    assert failure.where == "rank 1 of 2, call 1"


def test_what_goes_past_torch_distributed_is_not_observed_and_never_holds(
    make_trial: TrialMaker,
) -> None:
    """COMM-1 is inconclusive for communication that bypasses torch.distributed.

    The wrapper's values are judged, and the report says that its calls were not observed.
    """
    plain = Scope(
        3, frozenset(TRAINING), not_simulated="its connections are none of the simulation's"
    )
    trial = make_trial(ddp=f"{GROUPS}:Unseen", cases=10, scope=plain)
    trial.certify("GRAD-2", training_cases(trial.scope, world_sizes=(2, 3)))
    with pytest.raises(Inconclusive, match="not observed"):
        trial.certify("COMM-1", training_cases(trial.scope, world_sizes=(2,)))


def test_a_perturbation_shrinks_to_the_one_that_is_needed(make_trial: TrialMaker) -> None:
    """Shrinking removes a perturbation that the failure does not need."""
    trial = make_trial(ddp=fault_of("NeverDivides"), cases=20)
    with pytest.raises(AssertionError) as raised:
        trial.certify(
            "GRAD-2",
            training_cases(trial.scope, world_sizes=(2, 3), perturbed=("late", "delays", "none")),
        )
    assert "only when" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Uneven", "COMM-1"),
        ("PadsBuckets", "COMM-4"),
        ("PadsBuckets", "COMM-5"),
        ("EndsTheProcess", "LIVE-3"),
    ],
)
def test_what_is_unusual_and_right_is_not_accused(
    make_trial: TrialMaker, name: str, rule: str
) -> None:
    """Uneven exchanges and padding violate no rule, nor does a process that ends after a peer."""
    trial = make_trial(ddp=f"{GROUPS}:{name}", cases=20)
    trial.certify(rule, cases_for(rule, trial.scope))
    assert trial.ledger[rule].judged


DEATH = FailureInjection(InjectedFailure("death", step=1))


def test_ranks_that_fail_only_at_a_timeout_notice_a_death(pool: Pool) -> None:
    """Three sums are in flight, and the wrapper waits first for the one that needs no dead rank.

    gloo mostly ends that wait after a timeout alone; see [Note: deaths] in exchange.py.
    """
    wrapper = composed("each end all_reduce multiplied backward backwards together kept copied")
    layers = Layer("linear"), Layer("linear", 2, bias=True)
    case = TrainingCase(Model(1, layers), world_size=3, steps=2, situations=(DEATH,))
    evidence = pool.train(case, wrapper)
    finding = judge(evidence)["LIVE-3"]
    assert (finding.failure, finding.compared) == (None, 2)


def test_a_rank_that_waits_for_ever_after_a_death_is_told(pool: Pool) -> None:
    """No timeout ends its wait, nor any wait of gloo's, so this is known at once."""
    case = replace(CASE, world_size=2, bucket_cap=1000).with_situation(DEATH)
    evidence = pool.train(case, Ddp(f"{GROUPS}:WaitsAfterAnError"))
    assert evidence.incident is not None
    assert evidence.incident.seconds < MORTAL
    failure = judge(evidence)["LIVE-3"].failure
    assert failure is not None
    assert failure.fact == "a rank does not notice that another died"
    assert "groups.py" in failure.notes


def test_buckets_of_whole_layers_are_not_said_to_be_filled_to_the_cap(
    make_trial: TrialMaker,
) -> None:
    """COMM-4 does not judge a wrapper that is seen to follow another bucket plan."""
    trial = make_trial(ddp=f"{GROUPS}:KeepsLayersTogether", cases=20)
    assert trial.scope.excluded("COMM-4")
    assert not trial.scope.excluded("COMM-5")


def test_a_mismatch_on_a_group_of_its_own_is_told_although_the_run_did_not_end(pool: Pool) -> None:
    """A mismatch on the wrapper's own group is reported, although the run did not end.

    The ranks and the controller know the group by its members.
    """
    before, pool.deadline = pool.deadline, 2.0
    try:
        evidence = pool.train(CASE, Ddp(f"{GROUPS}:OwnGroupsDiffer"))
    finally:
        pool.deadline = before
    assert evidence.incident is not None
    failure = judge(evidence)["COMM-1"].failure
    assert failure is not None
    assert "all_reduce (float32 x 2 SUM) at groups.py" in failure.got
    assert "all_reduce (float32 x 3 SUM) at groups.py" in failure.got


@pytest.mark.parametrize("rule", ["COMM-2", "LIVE-4"])
def test_a_refusal_never_holds(make_trial: TrialMaker, rule: str) -> None:
    """A refusal is inconclusive, even if two runs refuse with different messages."""
    trial = make_trial(ddp=f"{GROUPS}:RefusesBatches", cases=8)
    with pytest.raises(Inconclusive, match="NotImplementedError"):
        trial.certify(rule, cases_for(rule, trial.scope))


def test_an_exception_is_not_blamed_for_what_is_wrong_without_it(make_trial: TrialMaker) -> None:
    """LIVE-2 is inconclusive if the wrapper is wrong without the exception, too."""
    trial = make_trial(ddp=fault_of("NeverDivides"), cases=12)
    with pytest.raises(Inconclusive, match="wrong without the exception, too"):
        trial.certify("LIVE-2", cases_for("LIVE-2", trial.scope))


def test_a_confirmed_hang_is_told_as_it_was_seen(make_trial: TrialMaker, pool: Pool) -> None:
    """The report of a confirmed hang has the records of the observed groups.

    The hang is confirmed on plain groups, which record nothing.
    """
    pool.deadline = 1.5
    trial = make_trial(ddp=fault_of("HangsOnThree"), cases=12)
    with pytest.raises(AssertionError) as raised:
        trial.certify("LIVE-1", training_cases(trial.scope, world_sizes=(3,)))
    told = " ".join(str(raised.value).split())
    assert "rank 0 waits in all_reduce #" in told
    assert "(rank 1 likewise); rank 2 went on to the end after" in told
    assert told.count("printed:") == 1, told


def test_a_gather_nobody_waits_for_is_told_though_its_result_is_not_withheld(pool: Pool) -> None:
    """COMM-3 reports a gather that nobody waits for, although its result is not withheld."""
    evidence = pool.train(
        CASE.with_situation(Perturbed(Perturbation("withheld"))), Ddp(f"{GROUPS}:GathersAndForgets")
    )
    failure = judge(evidence)["COMM-3"].failure
    assert failure is not None
    assert "all_gather (float32 x 2) at groups.py" in failure.got


ANOTHER_DIVISOR = '''
from torch.nn.parallel import DistributedDataParallel


class AnotherDivisor(DistributedDataParallel):
    """Divides by the ranks that still have batches."""

    def join(self):
        return super().join(divide_by_initial_world_size=False)
'''


def test_a_work_that_torch_alone_holds_ends(tmp_path: Path, pool: Pool) -> None:
    """A work whose C++ half alone is held, as `join` with another divisor holds one, ends."""
    (tmp_path / "divisor.py").write_text(ANOTHER_DIVISOR, encoding="utf-8")
    exhausted = UnevenInputs((Exhausted(1, 1),))
    case = TrainingCase(Model(1, (Layer("linear"),)), steps=2, situations=(exhausted,))
    ddp = Ddp(f"{tmp_path}/divisor.py:AnotherDivisor")
    for evidence in (pool.train(case, ddp), pool.simulate(case, ddp)):
        assert evidence is not None
        assert evidence.incident is None
        assert [rank.raised for rank in evidence.ranks] == [None, None]


def test_a_view_with_gaps_is_sent_alike_under_every_timing(tmp_path: Path, pool: Pool) -> None:
    """A view is taken by gloo as it lies in memory, with gaps, also where its result is withheld.

    The withheld copy had no gaps, so the result was right there, and a race was told.
    """
    path = tmp_path / "gaps.py"
    path.write_text("""
import torch
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference
class Gaps(Reference):
    def finish_gradient_synchronization(self):
        for parameter in self.parameters():
            wide = torch.zeros(2 * parameter.numel())
            view = wide[::2]
            view.copy_(parameter.grad.flatten())
            dist.all_reduce(view)
            parameter.grad = (view / dist.get_world_size()).view_as(parameter)
""")
    ddp = Ddp(f"{path}:Gaps")
    case = replace(CASE, situations=())
    withheld = replace(case, situations=(Perturbed(Perturbation("withheld")),))
    for run in (pool.train, pool.simulate):
        plain, timed = run(case, ddp), run(withheld, ddp)
        assert plain is not None
        assert timed is not None
        findings = judge(replace(timed, unperturbed=plain))
        assert findings["COMM-2"].compared
        assert findings["COMM-2"].failure is None
        assert findings["PARAM-3"].failure is not None
        calls = [call.at for call in plain.ranks[0].calls if call.gaps]
        assert calls
        assert "SUM of a view with gaps, which gloo ignores) at gaps.py:" in calls[0]


def test_a_compiled_program_calls_an_observed_group(tmp_path: Path, pool: Pool) -> None:
    """The compiler leaves the harness's code alone; it raised at its first attribute on all ranks."""
    path = tmp_path / "compiled.py"
    path.write_text("""
import torch
from torch.nn.parallel import DistributedDataParallel
class Compiled:
    def wrap(self, module, context):
        return torch.compile(DistributedDataParallel(module), backend="eager")
    def accumulate(self, wrapped):
        return wrapped._orig_mod.no_sync()
""")
    case = replace(CASE, world_size=2, steps=2, bucket_cap=None)
    evidence = pool.train(case, Ddp(f"{path}:Compiled"), fresh=True)
    assert [rank.raised for rank in evidence.ranks] == [None, None]
    assert judge(evidence)["PARAM-3"].failure is None
    assert any(call.kind == "allreduce" for call in evidence.ranks[0].calls)


def test_a_group_of_ones_own_is_gone_with_its_run_under_torchs_ddp(pool: Pool) -> None:
    """LIVE-4 counts no thread of a group of an earlier run.

    torch's DDP keeps parameters in compiled code, and with them what their hooks refer to.
    """
    evidence = pool.train(replace(CASE, rounds=4), Ddp(f"{GROUPS}:MakesAGroupUnderTorch"))
    judged = judge(evidence)["LIVE-4"]
    assert judged.failure is None
    assert judged.compared > 0


@pytest.mark.parametrize("situations", [(), (Perturbed(Perturbation("withheld")),)])
def test_the_future_of_a_collective_is_complete_after_its_wait(
    tmp_path: Path, pool: Pool, situations: tuple[Perturbed, ...]
) -> None:
    """A callback that is added after `wait` runs at once, as with gloo and NCCL.

    torchft's wrapper relies on it.
    """
    path = tmp_path / "finished.py"
    path.write_text("""
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference
class Finished(Reference):
    def finish_gradient_synchronization(self):
        for parameter in self.parameters():
            work = dist.all_reduce(parameter.grad, async_op=True)
            work.wait()
            called = []
            work.get_future().then(called.append)
            if not called:
                raise ValueError("the future is not complete")
""")
    ddp = Ddp(f"{path}:Finished")
    case = replace(CASE, situations=situations)
    for evidence in (pool.train(case, ddp), pool.simulate(case, ddp)):
        assert evidence is not None
        assert [rank.raised for rank in evidence.ranks] == [None] * 3
