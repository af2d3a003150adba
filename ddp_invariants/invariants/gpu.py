"""GPU: work on a device is queued on streams; without a wait, a result may or may not be ready."""

from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import Exclusion
from ddp_invariants.invariants.rule import SEVERAL_RUNS, NotAbout, Tally, Unjudged
from ddp_invariants.invariants.timing import same_with_unchanged_timing
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure

SLOWED = {
    "slow communication": "a slow communication stream",
    "slow computation": "a slow computation stream",
}


@training.rule(
    "GPU-1",
    "Results are bitwise the same if the communication stream is slowed, or the stream that "
    "computes the gradients.",
    needs=tuple(SLOWED.values()),
    source="the notes on CUDA semantics in torch's documentation: work on "
    "several streams has no order unless the program asks for one",
    applies="capability",
    draws=Draws(perturbed=("slow communication", "slow computation")),
    excluded=(
        Exclusion(
            "runs on the CPU, where nothing is queued",
            lambda claims: claims.backend.device == "cpu",
        ),
    ),
    after="COMM-3",
    needs_all=True,
    costs=8,
    repeats_undisturbed=lambda case: case.perturbation.on_device,
    script=SEVERAL_RUNS,
)
def same_however_slow_a_stream(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the same case on the same device, where no stream is slowed.

    A slowed stream exposes a missing wait every time.
    """
    plan = view.case.perturbation
    if not plan.on_device or view.case.world_size == 1 or view.case.injected_failure is not None:
        raise NotAbout("no stream is slowed")
    slowed = [rank.slowed for rank in view.evidence.ranks]
    if not any(slowed):
        if view.cut_short:
            raise Unjudged(view.cut_short)
        raise NotAbout("the tensors are on the CPU, where nothing is queued")
    failure = same_with_unchanged_timing(view, tally, "GPU-1")
    if failure is None:
        tally.met.add(SLOWED[plan.kind])
    return failure
