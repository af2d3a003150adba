"""PARAM: after every optimizer step all ranks hold the parameters of single-process training."""

import numpy as np

from ddp_invariants.evidence import Moment
from ddp_invariants.invariants.compare import outside, parted
from ddp_invariants.invariants.diagnosis import updates
from ddp_invariants.invariants.grad import TWO_RANKS, mean_of_the_local_gradients
from ddp_invariants.invariants.hearing import Hearing, training
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.verdict import Breach


def _identical(hearing: Hearing, tally: Tally, rule: str, fact: str, moment: Moment) -> Breach | None:
    for step in hearing.steps(moment):
        records = hearing.every_rank(moment, step)
        tally.met |= {TWO_RANKS} if len(records) > 1 else set()
        for rank, tensors in enumerate(records[1:], start=1):
            tally.compared += sum(tensors.layout.sizes)
            difference = parted(records[0], tensors, "rank 0 holds")
            if difference is not None:
                breach = Breach(rule, fact, f"rank {rank} of {len(records)}, after step {step}, {difference.place}",
                                difference.words)
                return updates.of_difference(hearing, breach, step, rank, difference.name)
    return None


@training.rule("PARAM-1", "After every optimizer step all parameters are bitwise identical on all ranks.", (TWO_RANKS,))
def identical_on_all_ranks(hearing: Hearing, tally: Tally) -> Breach | None:
    """Bitwise, on every step."""
    return _identical(hearing, tally, "PARAM-1", "parameters differ between ranks after an optimizer step", "updated")


@training.rule("PARAM-2", "So is the optimizer's state.", (TWO_RANKS, "optimizer with state"))
def optimizer_state_is_identical(hearing: Hearing, tally: Tally) -> Breach | None:
    """Bitwise: momentum, moments and step counts."""
    if any(tensors.layout.slots for tensors in hearing.every_rank("state")):
        tally.met.add("optimizer with state")
    return _identical(hearing, tally, "PARAM-2", "the optimizer's state differs between ranks", "state")


def _moved_between(hearing: Hearing, tally: Tally, step: int) -> Breach | None:
    """Whether a step's forward starts from anything but what the step before left: each step is judged from its start."""
    for rank, (left, started) in enumerate(zip(hearing.every_rank("updated", step - 1), hearing.every_rank("forward", step),
                                               strict=True)):
        tally.compared += sum(started.layout.sizes)
        difference = parted(left, started, f"step {step - 1} left")
        if difference is not None:
            breach = Breach("PARAM-3", "parameters change between one step's update and the next step's forward",
                            f"rank {rank} of {hearing.case.world_size}, step {step}, {difference.place}", difference.words)
            return updates.of_a_move(hearing, breach, difference.name)
    return None


@training.rule("PARAM-3", "Every step moves the parameters as single-process training on the global batch does.",
               (TWO_RANKS, "momentum", "weight decay", "AdamW", "Adam", "Nesterov momentum", "a fused step",
                "gradients clipped"))
def trajectory_of_single_process_training(hearing: Hearing, tally: Tally) -> Breach | None:
    """Against the oracle: bitwise where the arithmetic is exact, within the derived bound elsewhere."""
    plan = hearing.case.optimizer
    met = {"AdamW": plan.kind == "adamw", "Adam": plan.kind == "adam", "Nesterov momentum": plan.nesterov,
           "a fused step": plan.way == "fused", "momentum": plan.kind == "sgd" and plan.momentum > 0,
           "weight decay": plan.weight_decay > 0, "gradients clipped": hearing.case.clip is not None,
           TWO_RANKS: hearing.case.world_size > 1}
    for step in hearing.steps("updated"):
        if step and (breach := _moved_between(hearing, tally, step)) is not None:
            return breach
        truth = hearing.truth(step).updated
        local = hearing.every_rank("local", hearing.micro_steps(step)[0])[0]
        names = [slot.name for slot in local.layout.slots if slot.dtype is not None]
        for rank, tensors in enumerate(hearing.every_rank("updated", step)):
            held_P = np.concatenate([tensors.by_name[name].ravel() for name in names if name in tensors.by_name])
            if held_P.shape != truth.centre.shape:
                raise Unjudged("the parameters after the step are not those before it")
            difference = outside(local, held_P, truth, tally)
            if difference is not None:
                breach = Breach("PARAM-3", "parameters do not move as in single-process training on the global batch",
                                f"rank {rank} of {hearing.case.world_size}, after step {step}, {difference.place}",
                                difference.words)
                return updates.of_update(hearing, breach, step, rank, difference.name)
        tally.met |= {name for name, is_met in met.items() if is_met}
    return None


def every_step(hearing: Hearing, tally: Tally) -> Breach | None:
    """Whether every step's gradients, where they are seen, and update are what they must be."""
    breach = None if hearing.declared.gradients == "hidden" else mean_of_the_local_gradients(hearing, tally)
    return breach or trajectory_of_single_process_training(hearing, tally)


@training.rule("PARAM-4", "At W = 1 training is bitwise plain training.", ("one rank",))
def one_rank_is_plain_training(hearing: Hearing, tally: Tally) -> Breach | None:
    """Against the same steps without a wrapper, in the same process."""
    if hearing.case.world_size > 1:
        raise NotAbout("more than one rank")
    if hearing.case.saved_by is not None:
        raise NotAbout("it starts from a state that is loaded")
    if any(one.kind in ("cast", "assign") for one in hearing.case.interludes):
        raise NotAbout("parameters are made anew and lie otherwise from then on, and so are added up otherwise")
    if hearing.case.sparse:
        raise NotAbout("a sparse gradient may be taken off in parts, or their sum at once")
    for step in hearing.steps("updated"):
        tally.met.add("one rank")
        plain, wrapped = hearing.every_rank("plain", step)[0], hearing.every_rank("updated", step)[0]
        tally.compared += sum(wrapped.layout.sizes)
        difference = parted(plain, wrapped, "plain training gives")
        if difference is not None:
            return Breach("PARAM-4", "a world of one rank is not plain training", f"rank 0 of 1, after step {step}, "
                          f"{difference.place}", difference.words)
    return None


@training.rule("PARAM-5", "Frozen parameters do not move, nor those frozen for a while.",
               ("frozen parameter", "frozen for a while"))
def frozen_parameters_stay(hearing: Hearing, tally: Tally) -> Breach | None:
    """Bitwise, from the first forward on, or over each step at which they are frozen."""
    always = {row[0] for row in hearing.evidence.ranks[0].structure_before if not row[3]} - hearing.case.sometimes_frozen
    start = hearing.every_rank("forward")
    for step in hearing.steps("updated"):
        for_now, now = hearing.left_frozen(step), hearing.every_rank("forward", step)
        for rank, tensors in enumerate(hearing.every_rank("updated", step)):
            for name in sorted((always | for_now) & tensors.by_name.keys()):
                tally.met.add("frozen for a while" if name in for_now else "frozen parameter")
                before, after = (now if name in for_now else start)[rank].by_name[name], tensors.by_name[name]
                tally.compared += after.size
                if before.shape != after.shape or not np.array_equal(before, after, equal_nan=True):
                    where = f"rank {rank} of {hearing.case.world_size}, after step {step}, parameter {name!r} {after.shape}"
                    return Breach("PARAM-5", "a frozen parameter moved", where,
                                  f"{after.ravel()[:4]}, expected {before.ravel()[:4]}")
    return None
