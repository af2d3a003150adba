"""PARAM, continued: an update that the suite does not know still follows from the mean gradient."""

from dataclasses import replace

from ddp_invariants.invariants import param
from ddp_invariants.invariants.compare import apart
from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import Exclusion
from ddp_invariants.invariants.rule import SEVERAL_RUNS, NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.exchanged import EXCHANGED, Exchanged

_UNEQUAL = (
    "the ranks' gradients count unequally: a parameter is updated with its owner's own gradient, or "
    "some ranks' gradients are left out"
)


@training.rule(
    "PARAM-7",
    "After an update of the implementation's own (update = own), the next step's forward starts from "
    "the updated parameters. If the ranks exchange their batches, the update gives bitwise the same "
    "parameters.",
    needs=(EXCHANGED,),
    source="it follows from the mean over the ranks, which does not depend on their order",
    applies="declared",
    draws=Draws(world_sizes=(2, 4), least_steps=2, exchanged=True),
    of_reduced=("values",),
    excluded=(
        Exclusion(
            "makes the updates of torch's optimizers (see PARAM-3)",
            lambda claims: claims.declared.update != "own",
        ),
    ),
    after="PARAM-3",
    costs=2,
    repeats_undisturbed=lambda case: case.get(Exchanged) is not None,
    without=(Exchanged,),
    script=SEVERAL_RUNS,
    level="core",
)
def exchanged_batches_change_no_update(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with a run in which every rank computes its own batches, bitwise.

    Then compare what each step left with what the next one starts from. Steps of the two runs are
    compared as long as the mean gradient is exact, and thus the same number in both. A
    rounded mean depends on the order of summation, and an unknown update may enlarge that. So no
    step is compared after one whose result is not exact, such as Muon's.
    """
    if view.case.get(Exchanged) is None:
        raise NotAbout("every rank computes its own batches")
    evidence = view.without(Exchanged)
    if evidence is None:
        raise Unjudged("the case was not run with every rank's own batches")
    usual = EvidenceView(evidence, view.declared)
    for step in range(min(len(view.steps("updated")), len(usual.steps("updated")))):
        if not _is_exact(view, usual, step):
            break
        tally.met.add(EXCHANGED)
        for rank, (held, expected) in enumerate(
            zip(view.every_rank("updated", step), usual.every_rank("updated", step), strict=True)
        ):
            tally.compared += sum(held.layout.sizes)
            difference = apart(expected, held, "with every rank's own batches")
            if difference is not None:
                return Failure(
                    "PARAM-7",
                    "an update depends on which rank computes which batch",
                    f"rank {rank} of {view.case.world_size}, after step {step}, {difference.place}",
                    difference.words,
                    _UNEQUAL,
                )
    moved = param.moved(view, Tally())  # Only comparisons of the two runs prove the rule.
    if moved is not None:
        return replace(moved, rule="PARAM-7")
    if not tally.compared:
        raise NotAbout("the mean gradient is not exact")
    return None


def _is_exact(view: EvidenceView, usual: EvidenceView, step: int) -> bool:
    """Return whether the mean gradient of a step is exactly the same number in two runs."""
    means = [each.expected.truth(step).gradient for each in (view, usual)]
    return not any(mean.radius.any() for mean in means) and bool(
        (means[0].centre == means[1].centre).all()
    )
