"""The capabilities that many right wrappers do without, and the price of declaring that.

A capability is here if a wrapper of a usual style may lack it by design. A wrapper that sends each
gradient as soon as it is ready needs all gradients, in one order, on all ranks, for example.
"""

from collections.abc import Iterator

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import CAPABILITIES

NEVER: dict[str, str] = {
    "unused": "leave a parameter unused, on any rank at any step",
    "unreached": "compute a loss that reaches no parameter, on any rank at any step",
    "unused_by_all": "leave a parameter unused on all ranks at a step",
    "crossed": "let gradients become ready in another order on another rank",
    "strided": "wrap a model with a parameter that is not contiguous, such as a transposed one",
    "strided_buffers": "wrap a model with a buffer that is not contiguous",
    "channels_last": "wrap a model in torch.channels_last",
    "one_storage": "wrap a model whose parameters are parts of one tensor",
    "gradient_hooks": "change gradients by hooks that are registered after wrapping",
    "faint_loss": "multiply the loss by a tiny number",
    "direct_forwards": "run the forward of a layer without calling the layer",
    "few": "wrap a model with fewer parameters than ranks",
    "tied": "use one parameter under two names",
    "scalar": "wrap a model with a 0-d parameter",
    "empty": "wrap a model with a parameter without elements",
    "sparse": "use layers with sparse gradients",
    "complex": "wrap a model with complex parameters",
    "mixed": "mix dtypes of parameters in one layer",
    "summed": "add two parameters of one shape",
    "parametrized": "wrap a model with torch's parametrizations, such as a weight norm",
    "named_module": "wrap a model that has a submodule called module",
    "alike_underscored": "wrap a model of which two names are equal with underscores for dots",
    "alike_joined": "wrap a model of which two names are equal without their dots",
    "alike_cased": "wrap a model of which two names are equal in lower case",
    "rooted": "wrap a model that holds a parameter itself, beside its layers",
    "bfloat16": "mix bfloat16 parameters with others",
    "float16": "mix float16 parameters with others",
    "extremes": "keep numbers in buffers that few formats hold",
    "shared_buffer": "wrap a model of which two modules hold one buffer",
    "nonfinite": "go on after a NaN or an infinity in a batch",
    "joint": "run two forwards before one backward",
    "retained": "run two backwards through one forward",
    "penalty": "penalise the gradients of inputs (create_graph=True)",
    "loss_only": "use a parameter in the loss alone, not in a forward",
    "weight_penalty": "penalise parameters in the loss, outside of a forward",
    "twice": "call a layer twice in one forward",
    "reentrant": "use reentrant checkpoints",
    "in_parts": "compute a gradient in parts, each in a backward of its own",
    "forward_only": "run a forward in training without a backward",
    "forward_only_quiet": "run a forward in training without a backward",
    "evaluation_with_gradients": "run a forward in evaluation with gradients enabled",
    "evaluation_mode": "train in evaluation mode",
    "no_sync_nested": "nest one no_sync in another",
    "no_sync_error": "go on after an exception that left a no_sync",
    "no_sync_interrupt": "go on after a KeyboardInterrupt that left a no_sync",
    "forward_error": "go on after an exception in a forward",
    "backward_error": "go on after an exception in a backward",
    "interrupts": "go on after a KeyboardInterrupt in a forward or a backward",
    "never_zeroed": "leave gradients in place between steps",
    "zero_mixed": "set some gradients to None before a step and zero others in place",
    "optimizer_first": "make the optimizer before wrapping the model",
    "tensor_rate": "keep the learning rate in a tensor",
    "zero_by_module": "clear gradients by the zero_grad of the wrapper",
    "wide_inputs": "give the wrapper an argument of a wider dtype than its inputs",
    "freeze": "freeze a layer after wrapping",
    "unfreeze": "train a layer that was frozen at wrapping",
    "unfreeze_in_group": "add a group of parameters to the optimizer when their layer is unfrozen",
    "cast": "cast parameters after wrapping",
    "assign": "load a state with assign=True after wrapping",
    "own_buffers": "pass broadcast_buffers=False",
    "buffers_written": "write to buffers between steps",
    "weights_written": "write to parameters between steps",
    "pruned": "prune a layer after wrapping, which gives its parameter another name",
    "param_groups": "add a group of parameters to the optimizer after wrapping",
    "resized": "load a saved state on another number of ranks",
    "join": "give a rank fewer batches than another",
    "subgroup": "hand over a process group without rank 0",
}
"""What a user of a wrapper must never do if the wrapper declares a capability as unsupported.

The wider capability comes first: a step that reaches no parameter leaves parameters unused.
"""

_NEVER_OTHERWISE: dict[str, str] = {
    "bucket_cap": "give a bucket capacity",
    "states_exchanged": "load another state into the wrapper",
    "bucketing": "rely on the bucket capacity",
    "overlap": "rely on communication during the backward",
    "equal_buffers": "rely on equal buffers on all ranks",
    "no_sync": "accumulate gradients under no_sync",
    "in_order": "ask for the dataset's order",
    "given_rank": "give a rank and a world size",
    "set_epoch": "set an epoch",
    "in_a_group": "give a process group in place of a rank and a world size",
    "from_the_group": "leave rank and world size to the process group",
    "buffers": "wrap a model with buffers",
    "bias": "wrap a model with parameters of one dimension",
    "frozen": "wrap a model with parameters that require no gradient",
    "one_rank": "train on one rank",
    "other_methods": "call other methods of the module through the wrapper",
    "module_names": "rely on the names that the wrapper lists for parameters, buffers and state",
    "module_modes": "call train(), eval() or apply() on the wrapper",
    "short": "use a dataset shorter than the world",
    "uneven": "use a dataset length that the world size does not divide",
}
"""The same for capabilities that right wrappers have, but whose names make no sentence."""


def never(capability: str) -> str:
    """Return what users must never do if a capability is declared as unsupported."""
    others = {**NEVER, **_NEVER_OTHERWISE}
    return others.get(capability, f"use {CAPABILITIES[capability]}")


def without_one(case: TrainingCase, scope: Scope) -> Iterator[tuple[str, TrainingCase]]:
    """Yield each such capability that a case contains, with the case without it.

    A claimed capability is left out, because no wrapper may claim it and declare it unsupported.
    """
    for name in NEVER:
        capability = TRAINING[name]
        if name in scope.declared.supports or not capability.present(case):
            continue
        try:
            plain = scope.fit(capability.removed(case))
        except CaseError:
            continue
        if not capability.present(plain):
            yield name, plain
