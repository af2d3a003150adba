"""GRAD: identical gradients. After synchronisation every rank holds the mean of all ranks' local gradients."""

from ddp_invariants.search.trial import Trial


def test_grad1_every_rank_holds_the_same_gradients(trial: Trial) -> None:
    """Bitwise, including which parameters have none."""
    trial.certify("GRAD-1")


def test_grad2_every_rank_holds_the_mean_of_the_local_gradients(trial: Trial) -> None:
    """To the last bit where the arithmetic is exact, otherwise within the rounding bound for W terms."""
    trial.certify("GRAD-2")


def test_grad3_the_gradient_is_the_global_batchs(trial: Trial) -> None:
    """Against a float64 oracle that shares no code with torch, within the derived bound."""
    trial.certify("GRAD-3")


def test_grad4_a_gradient_fits_its_parameter(trial: Trial) -> None:
    """Dtype and shape are the parameter's; frozen ones get none; tied, 0-d and zero-element ones work."""
    trial.certify("GRAD-4")


def test_grad5_nothing_is_left_over_from_the_step_before(trial: Trial) -> None:
    """Whether gradients are set to None, to zero, or left in place on purpose."""
    trial.certify("GRAD-5")


def test_grad6_the_bucket_cap_does_not_matter(trial: Trial) -> None:
    """Smaller than any parameter, between, larger than the model."""
    trial.certify("GRAD-6")


def test_grad7_what_is_not_finite_reaches_every_rank(trial: Trial) -> None:
    """NaN or infinity in one rank's batch shows in every rank's gradients."""
    trial.certify("GRAD-7")


def test_grad8_what_is_accumulated_is_reduced_once(trial: Trial) -> None:
    """Under no_sync nothing is sent; the step that follows yields the mean of the ranks' accumulated gradients."""
    trial.certify("GRAD-8")


def test_grad9_what_is_unused_counts_as_zero(trial: Trial) -> None:
    """On some ranks or on all, at some steps or at every one: the others' mean is divided by all ranks, and reaches all."""
    trial.certify("GRAD-9")


def test_grad10_gradients_of_every_kind(trial: Trial) -> None:
    """Sparse ones, as sparse or dense, those of low precision, and those of several dtypes beside one another."""
    trial.certify("GRAD-10")


def test_grad11_ranks_may_run_out_of_batches(trial: Trial) -> None:
    """Under the implementation's own way to bear it: those that are left get the mean, and all end with its parameters."""
    trial.certify("GRAD-11")


def test_grad12_micro_steps_are_one_large_batch(trial: Trial) -> None:
    """Global batch = micro-batch * accumulation * world size: the gradient is that of all those samples at once."""
    trial.certify("GRAD-12")


def test_grad13_any_order_of_passes(trial: Trial) -> None:
    """All forwards before one backward, several backwards through one forward, layers computed again in backward."""
    trial.certify("GRAD-13")
