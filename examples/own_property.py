"""A user-defined property: a rule that the package does not have, on chosen cases."""

from hypothesis.strategies import SearchStrategy

from ddp_invariants import Implementation, certify, rules, strategies
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.scope import Scope


@rules.own("COMM-100", "Gradients travel in a dtype that some parameter has.", ("several buckets",))
def no_lower_precision(view: rules.EvidenceView, tally: rules.Tally) -> rules.Failure | None:
    """Compare the dtype of every floating-point reduction with those of the parameters."""
    for rank, evidence in enumerate(view.evidence.ranks):
        dtypes = {tensor.dtype for tensor in evidence.structure_before}
        # Not every reduction carries gradients: flags travel as integers.
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
    """Draw runs of two ranks, always with a bucket cap, in float32 or float64."""
    return strategies.training_cases(
        Scope(without=frozenset({"bfloat16", "complex"})), world_sizes=(2,), capped=True
    )


def test_gradients_keep_their_dtype() -> None:
    """The DDP of torch sends gradients in the dtype of a parameter."""
    certify(Implementation(ddp="torch"), "COMM-100", small_buckets(), examples=30)
