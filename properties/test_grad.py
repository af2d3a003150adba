"""GRAD: identical gradients.

After synchronisation every rank holds the mean of all ranks' local gradients.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("GRAD-1"))
def test_grad1_every_rank_holds_the_same_gradients(case: TrainingCase, ranks: Ranks) -> None:
    """All ranks hold bitwise the same gradients, and the same parameters have none."""
    ranks.check("GRAD-1", case)


@given(case=cases_of("GRAD-2"))
def test_grad2_every_rank_holds_the_mean_of_the_local_gradients(
    case: TrainingCase, ranks: Ranks
) -> None:
    """The mean is bitwise right in exact arithmetic, and otherwise within the bound for W terms."""
    ranks.check("GRAD-2", case)


@given(case=cases_of("GRAD-3"))
def test_grad3_the_gradient_is_the_global_batchs(case: TrainingCase, ranks: Ranks) -> None:
    """The gradient agrees with a float64 oracle within the derived bound.

    The oracle shares no code with torch.
    """
    ranks.check("GRAD-3", case)


@given(case=cases_of("GRAD-4"))
def test_grad4_a_gradient_fits_its_parameter(case: TrainingCase, ranks: Ranks) -> None:
    """A gradient has its parameter's dtype and shape, and frozen parameters get none.

    Tied, 0-d and zero-element parameters get their gradients, too.
    """
    ranks.check("GRAD-4", case)


@given(case=cases_of("GRAD-5"))
def test_grad5_nothing_is_left_over_from_the_step_before(case: TrainingCase, ranks: Ranks) -> None:
    """No gradient holds leftovers of the step before.

    The loop sets gradients to None, sets them to zero, or leaves them in place on purpose.
    """
    ranks.check("GRAD-5", case)


@given(case=cases_of("GRAD-6"))
def test_grad6_the_bucket_cap_does_not_matter(case: TrainingCase, ranks: Ranks) -> None:
    """Gradients are right for caps below every parameter, in between, and above the model."""
    ranks.check("GRAD-6", case)


@given(case=cases_of("GRAD-7"))
def test_grad7_nonfinite_values_reach_every_rank(case: TrainingCase, ranks: Ranks) -> None:
    """NaN or infinity in one rank's batch shows in every rank's gradients."""
    ranks.check("GRAD-7", case)


@given(case=cases_of("GRAD-8"))
def test_grad8_accumulated_gradients_are_reduced_once(case: TrainingCase, ranks: Ranks) -> None:
    """Under no_sync nothing is sent; the next step yields the mean of the accumulated gradients."""
    ranks.check("GRAD-8", case)


@given(case=cases_of("GRAD-9"))
def test_grad9_unused_parameters_count_as_zero(case: TrainingCase, ranks: Ranks) -> None:
    """A rank that does not use a parameter counts as zero in the mean, which all ranks get.

    Some ranks or all ranks leave the parameter unused, at some steps or at every step.
    """
    ranks.check("GRAD-9", case)


@given(case=cases_of("GRAD-10"))
def test_grad10_gradients_of_every_kind(case: TrainingCase, ranks: Ranks) -> None:
    """Sparse gradients (returned sparse or dense), low precision and mixed dtypes are right."""
    ranks.check("GRAD-10", case)


@given(case=cases_of("GRAD-11"))
def test_grad11_ranks_may_run_out_of_batches(case: TrainingCase, ranks: Ranks) -> None:
    """Ranks that still have batches get the declared mean.

    At the end all ranks hold the parameters of the training with this mean.
    """
    ranks.check("GRAD-11", case)


@given(case=cases_of("GRAD-12"))
def test_grad12_micro_steps_are_one_large_batch(case: TrainingCase, ranks: Ranks) -> None:
    """The gradient is that of micro-batch * accumulation * world size samples at once."""
    ranks.check("GRAD-12", case)


@given(case=cases_of("GRAD-13"))
def test_grad13_any_order_of_passes(case: TrainingCase, ranks: Ranks) -> None:
    """Gradients are right for any order of passes.

    The passes are several forwards before one backward, several backwards through one forward, and
    layers recomputed in backward.
    """
    ranks.check("GRAD-13", case)
