"""GRAD: identical gradients.

After synchronisation every rank holds the mean of all ranks' local gradients.
"""

from ddp_invariants.search.trial import Trial


def test_grad1_every_rank_holds_the_same_gradients(trial: Trial) -> None:
    """All ranks hold bitwise the same gradients, and the same parameters have none."""
    trial.certify("GRAD-1")


def test_grad2_every_rank_holds_the_mean_of_the_local_gradients(trial: Trial) -> None:
    """The mean is bitwise right in exact arithmetic, and otherwise within the bound for W terms."""
    trial.certify("GRAD-2")


def test_grad3_the_gradient_is_the_global_batchs(trial: Trial) -> None:
    """The gradient agrees with a float64 oracle within the derived bound.

    The oracle shares no code with torch.
    """
    trial.certify("GRAD-3")


def test_grad4_a_gradient_fits_its_parameter(trial: Trial) -> None:
    """A gradient has its parameter's dtype and shape, and frozen parameters get none.

    Tied, 0-d and zero-element parameters get their gradients, too.
    """
    trial.certify("GRAD-4")


def test_grad5_nothing_is_left_over_from_the_step_before(trial: Trial) -> None:
    """No gradient holds leftovers of the step before.

    The loop sets gradients to None, sets them to zero, or leaves them in place on purpose.
    """
    trial.certify("GRAD-5")


def test_grad6_the_bucket_cap_does_not_matter(trial: Trial) -> None:
    """Gradients are right for caps below every parameter, in between, and above the model."""
    trial.certify("GRAD-6")


def test_grad7_nonfinite_values_reach_every_rank(trial: Trial) -> None:
    """NaN or infinity in one rank's batch shows in every rank's gradients."""
    trial.certify("GRAD-7")


def test_grad8_accumulated_gradients_are_reduced_once(trial: Trial) -> None:
    """Under no_sync nothing is sent; the next step yields the mean of the accumulated gradients."""
    trial.certify("GRAD-8")


def test_grad9_unused_parameters_count_as_zero(trial: Trial) -> None:
    """A rank that does not use a parameter counts as zero in the mean, which all ranks get.

    Some ranks or all ranks leave the parameter unused, at some steps or at every step.
    """
    trial.certify("GRAD-9")


def test_grad10_gradients_of_every_kind(trial: Trial) -> None:
    """Sparse gradients (returned sparse or dense), low precision and mixed dtypes are right."""
    trial.certify("GRAD-10")


def test_grad11_ranks_may_run_out_of_batches(trial: Trial) -> None:
    """Ranks that still have batches get the declared mean.

    At the end all ranks hold the parameters of the training with this mean.
    """
    trial.certify("GRAD-11")


def test_grad12_micro_steps_are_one_large_batch(trial: Trial) -> None:
    """The gradient is that of micro-batch * accumulation * world size samples at once."""
    trial.certify("GRAD-12")


def test_grad13_any_order_of_passes(trial: Trial) -> None:
    """Gradients are right for any order of passes.

    The passes are several forwards before one backward, several backwards through one forward, and
    layers recomputed in backward.
    """
    trial.certify("GRAD-13")
