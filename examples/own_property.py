"""A property of one's own: a rule that the package does not have, on cases of one's own choice."""

from hypothesis.strategies import SearchStrategy

from ddp_invariants import Implementation, certify, rules, strategies
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.scope import Scope


@rules.own("COMM-100", "Gradients travel in a dtype that some parameter has.", ("several buckets",))
def no_lower_precision(view: rules.EvidenceView, tally: rules.Tally) -> rules.Failure | None:
    """By the dtype of every reduction of floating point."""
    dtypes = {layer.dtype for layer in view.case.model.layers}
    for rank, evidence in enumerate(view.evidence.ranks):
        # Not every reduction holds gradients: flags travel as integers.
        sent = [
            call
            for calls in evidence.sent
            for call in calls
            if call.kind == "allreduce" and "float" in call.dtype
        ]
        tally.met |= {"several buckets"} if len(sent) > view.case.steps else set()
        for call in sent:
            tally.compared += 1
            if call.dtype not in dtypes:
                return rules.Failure(
                    "COMM-100",
                    "gradients travel in a dtype that no parameter has",
                    f"rank {rank}",
                    f"{call.at}, parameters are {', '.join(sorted(dtypes))}",
                )
    return None


def small_buckets() -> SearchStrategy[TrainingCase]:
    """Runs of two ranks, always with a capacity for buckets, in float32 or float64."""
    return strategies.training_cases(
        Scope(without=frozenset({"bfloat16", "complex"})), world_sizes=(2,), capped=True
    )


def test_gradients_keep_their_dtype() -> None:
    """Of the DDP that comes with torch."""
    certify(Implementation(ddp="torch"), "COMM-100", small_buckets(), examples=30)
