"""The choices from which wrappers and samplers are composed, as plain data.

Standard library only: the controller reads this module, and must not import torch.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

LAYOUTS = {
    "each": "one bucket per parameter",
    "capped": "buckets of at most 256 bytes",
    "whole": "one bucket per dtype",
}
"""Which gradients travel together."""
MOMENTS = {
    "ready": "sent as soon as a bucket is full",
    "end": "sent at the end of the backward",
}
"""When a bucket is sent."""
COLLECTIVES = {
    "all_reduce": "by one all-reduce",
    "gathered": "by an all-gather, summed by each rank",
    "rooted": "by a reduce to the first rank, then a broadcast",
    "scattered": "by a reduce-scatter, then an all-gather",
    "ring": "by a ring of sends and receives",
    "doubled": "by recursive doubling",
    "nodes": "within nodes of two ranks, then over the nodes",
    "trios": "within nodes of three ranks, then over the nodes",
}
"""The ways to sum a bucket."""
DIVISIONS = {
    "after": "divided after the sum",
    "before": "divided before the sum",
    "multiplied": "multiplied by 1 / W after the sum",
}
"""How a sum becomes a mean."""
PACKINGS = {
    "backward": "the last parameters first",
    "registered": "the first parameters first",
}
"""The order in which parameters fill buckets."""
WAITS = {
    "forwards": "awaited from the first bucket to the last",
    "backwards": "awaited from the last bucket to the first",
}
"""The order in which buckets are awaited."""
STARTS = {
    "together": "the start comes by one broadcast",
    "apart": "the start comes by one broadcast per tensor",
    "gathered": "the start comes by an all-gather, of which each rank takes the first part",
    "summed": "the start comes by a sum with the zeros of the other ranks",
}
"""How the first rank's parameters and buffers reach the other ranks."""
MEMORIES = {
    "kept": "parameters stay where they lie",
    "flattened": "parameters lie in one tensor per dtype",
}
"""Where the values of parameters lie."""
GRADIENTS = {
    "copied": "means are copied into gradients",
    "replaced": "means are new gradients",
    "viewed": "gradients are views of buckets",
}
"""How means become gradients."""
OWNERS = {
    "listed": "each parameter dealt to the rank that has least",
    "sorted": "each parameter dealt to the rank that has least, the largest first",
}
"""The rank that updates a parameter, where ranks share the optimizer's state."""


class Operator(NamedTuple):
    """A fault, wherever and whenever it acts.

    Attributes:
        seam: The place that it alters. In a wrapper it is `start`, `buffers`, `send`, `wait`,
            `receive` or `update`; in a sampler `order`, `pad`, `deal` or `length`.
        words: Its effect, in words.
        invariants: The invariants of which a rule must notice it on ordinary programs.
        causes: Words of the causes that are right, of which one must be named.
    """

    seam: str
    words: str
    invariants: tuple[str, ...]
    causes: tuple[str, ...]


_OF_GRADIENTS = ("GRAD", "COMM")
_LOST, _STALE = "it is zero: the gradient was lost", "gradient: stale"
_MISPLACED = ("in another order", "written to the wrong parameter")
_KEPT = ("never reduced", "not written back")
_REPLACED = "it stands at the place of another index"
OPERATORS = {
    "own start": Operator(
        "start",
        "a parameter keeps the rank's own start",
        ("INIT",),
        ("still holds its own initial value",),
    ),
    "own buffers": Operator(
        "buffers", "a buffer keeps the rank's own value", ("BUF", "INIT"), ("own value",)
    ),
    "halve": Operator(
        "send",
        "the gradients are halved before they are sent",
        _OF_GRADIENTS,
        ("halved", "with half of rank"),
    ),
    "round": Operator(
        "send", "the gradients are sent in bfloat16", _OF_GRADIENTS, ("rounded to bfloat16",)
    ),
    "zero": Operator("send", "zeros are sent", _OF_GRADIENTS, (_LOST, "left out")),
    "stale": Operator(
        "send", "the gradients of the reduction before are sent", _OF_GRADIENTS, (_STALE, _LOST)
    ),
    "leak": Operator("send", "what was sent before is added", _OF_GRADIENTS, ("not cleared",)),
    "truncate": Operator(
        "send", "the last gradient counts as zero", _OF_GRADIENTS, ("zero: lost", _LOST)
    ),
    "shift": Operator("send", "the gradients are shifted by one place", _OF_GRADIENTS, _MISPLACED),
    "reverse": Operator(
        "send", "the gradients are sent in reversed order", _OF_GRADIENTS, _MISPLACED
    ),
    "seed": Operator("send", "the random numbers start from one seed", ("RNG",), ("seeded alike",)),
    "no wait": Operator(
        "wait", "nobody waits for the result", (*_OF_GRADIENTS, "LIVE"), ("a wait is missing",)
    ),
    "keep": Operator("receive", "the result is not written back", _OF_GRADIENTS, _KEPT),
    "sum": Operator("receive", "the sum is not divided", _OF_GRADIENTS, ("never divided",)),
    "fewer": Operator(
        "receive", "the sum is divided by one rank less", _OF_GRADIENTS, ("one rank too few",)
    ),
    "twice": Operator("receive", "the sum is divided twice", _OF_GRADIENTS, ("divided twice",)),
    "late": Operator(
        "receive", "the result of the reduction before is written", _OF_GRADIENTS, (_STALE, _LOST)
    ),
    "half": Operator("receive", "only the first parameters get the result", _OF_GRADIENTS, _KEPT),
    "old": Operator(
        "update",
        "a parameter that another rank updated stays as it was",
        ("PARAM",),
        ("no update was made",),
    ),
}
"""The faults by name."""


class Trigger(NamedTuple):
    """The occasions on which a fault acts.

    Attributes:
        words: The occasions.
        invariants: Invariants whose rules may notice it besides those of the operator, since the
            occasion is theirs.
        causes: Words of causes that are right besides those of the operator.
        of_reductions: True if only a reduction can be such an occasion.
    """

    words: str
    invariants: tuple[str, ...] = ()
    of_reductions: bool = False
    causes: tuple[str, ...] = ()


TRIGGERS = {
    "always": Trigger("always"),
    "65 elements": Trigger("from 65 elements on"),
    "odd elements": Trigger("where the number of elements is odd"),
    "one element": Trigger("where there is one element"),
    "third bucket": Trigger("from the third bucket on", of_reductions=True),
    "last bucket": Trigger("in the last of several buckets", of_reductions=True),
    "second reduction": Trigger("from the second reduction on", ("PARAM",), of_reductions=True),
    "fifth reduction": Trigger("from the fifth reduction on", ("PARAM",), of_reductions=True),
    "every third": Trigger("at every third reduction", ("PARAM",), of_reductions=True),
    "last rank": Trigger("on the last of several ranks"),
    "rank two": Trigger("from rank 2 on"),
    "three ranks": Trigger("from three ranks on"),
    "odd ranks": Trigger("with an odd number of ranks above one"),
    "five ranks": Trigger("from five ranks on"),
    "float64": Trigger("in float64"),
    "16 bits": Trigger("in a format of 16 bits"),
    "complex": Trigger("for complex numbers"),
    "strided": Trigger("for tensors that are not contiguous"),
    "bias": Trigger("for a bias"),
    "tenth layer": Trigger("from layer 10 on"),
    # A gradient at the place of a parameter that no rank uses is written nowhere, so it is lost.
    "unused": Trigger("if the rank has no gradient of it", of_reductions=True, causes=(_LOST,)),
    "after evaluation": Trigger("after an evaluation", ("MOD", "CALL", "LIVE"), of_reductions=True),
    "after no_sync": Trigger("after a forward in no_sync", of_reductions=True),
    "after an error": Trigger(
        "after a backward that raised", ("LIVE",), True, ("the aborted backward left behind",)
    ),
    "second wrapper": Trigger("while another wrapper lives", ("LIVE", "COMM")),
    "after freezing": Trigger(
        "after the trainable parameters changed", ("LIVE", "MOD"), of_reductions=True
    ),
}
"""The triggers by name."""


DEALINGS = {
    "strided": "every W-th index to a rank",
    "blocks": "a block of indices to each rank",
    "mirrored": "every W-th index to a rank, from the last rank to the first",
    "rotated": "every W-th index to a rank, from the second rank on",
    "snake": "indices forwards and backwards over the ranks in turn",
}
"""Which indices a rank gets."""
GENERATORS = {"torch": "torch.randperm", "python": "random.shuffle"}
"""How indices are shuffled."""
PADDINGS = {
    "start": "filled up from the start of the order",
    "end": "filled up from the end of the order",
}
"""The indices that come twice."""
_OF_SHARDS = ("SHARD", "LIVE")
SAMPLER_OPERATORS = {
    "skip": Operator("deal", "the last index gives way to the first", _OF_SHARDS, (_REPLACED,)),
    "double": Operator("deal", "the second index gives way to the first", _OF_SHARDS, (_REPLACED,)),
    "same shard": Operator(
        "deal",
        "the rank takes the first rank's indices",
        _OF_SHARDS,
        ("the rank is ignored", "yield the same indices"),
    ),
    "next shard": Operator(
        "deal",
        "the rank takes the next rank's indices",
        _OF_SHARDS,
        ("yield the same indices", "off by one"),
    ),
    "beyond": Operator(
        "deal",
        "the last index is the length of the dataset",
        _OF_SHARDS,
        ("it is the number of samples",),
    ),
    # Where W does not divide the number of samples, that is what dropping the tail does.
    "short": Operator(
        "deal", "the last index is left out", _OF_SHARDS, ("off by one", "samples are dropped")
    ),
    "own order": Operator(
        "order", "the rank shuffles in its own way", _OF_SHARDS, ("the ranks shuffle differently",)
    ),
    "one epoch": Operator(
        "order",
        "the epoch does not count",
        _OF_SHARDS,
        (
            "the epoch is ignored",
            "set_epoch reaches only some ranks",
            "depends on the epochs before",
        ),
    ),
    "one seed": Operator(
        "order",
        "the seed does not count",
        _OF_SHARDS,
        ("the seed is ignored", "the ranks shuffle differently"),
    ),
    "unshuffled": Operator(
        "order",
        "indices are not shuffled",
        _OF_SHARDS,
        ("shuffle is ignored", "depends on the epochs before", "a rank that does not shuffle"),
    ),
    "longer": Operator("length", "the length is one too many", _OF_SHARDS, ("one too many",)),
    "always drop": Operator("pad", "the rest is dropped", _OF_SHARDS, ("samples are dropped",)),
    "never drop": Operator(
        "pad", "the rest is filled up instead of dropped", _OF_SHARDS, ("as without drop_last",)
    ),
}
"""The faults of samplers by name."""
SAMPLER_TRIGGERS = {
    "always": Trigger("always"),
    "100 samples": Trigger("from 100 samples on"),
    "3000 samples": Trigger("from 3,000 samples on"),
    "odd samples": Trigger("where the number of samples is odd"),
    "uneven": Trigger("where W does not divide the number of samples"),
    "few samples": Trigger("where there are fewer samples than ranks"),
    "last rank": Trigger("on the last of several ranks"),
    "rank two": Trigger("from rank 2 on"),
    "five ranks": Trigger("from five ranks on"),
    "no power of two": Trigger("where W is no power of two"),
    "second epoch": Trigger("from epoch 1 on"),
    "third epoch": Trigger("in epoch 3"),
    "later iteration": Trigger(
        "in every iteration but the first",
        causes=("an epoch's order depends on the epochs before it",),
    ),
    "same epoch": Trigger("where an epoch is iterated again"),
    "large seed": Trigger("from seed 100 on"),
    "shuffled": Trigger("where indices are shuffled"),
    "in order": Trigger("where indices are not shuffled"),
    "dropping": Trigger("where the rest is dropped"),
}
"""The triggers of samplers by name."""


class Part(NamedTuple):
    """Composed implementations of one kind: wrappers or samplers.

    Attributes:
        target: The name that `--ddp` or `--sampler` takes.
        words: The kind in words; empty if the choices say enough.
        host: The choices of a host, each with its words, by the name of the argument.
        operators: The faults.
        triggers: Their triggers.
    """

    target: str
    words: str
    host: dict[str, dict[str, str]]
    operators: dict[str, Operator]
    triggers: dict[str, Trigger]


_ROOM = "ddp_invariants.faults.generated"
_OF_WRAPPERS = {
    "layout": LAYOUTS,
    "moment": MOMENTS,
    "collective": COLLECTIVES,
    "division": DIVISIONS,
    "packing": PACKINGS,
    "waits": WAITS,
    "start": STARTS,
    "memory": MEMORIES,
}
_WITH_GRADIENTS = {**_OF_WRAPPERS, "gradients": GRADIENTS}
PARTS = {
    "ddp": Part(f"{_ROOM}.wrapper:Composed", "", _WITH_GRADIENTS, OPERATORS, TRIGGERS),
    "called": Part(
        f"{_ROOM}.kinds:Called",
        "finished by a call after the backward",
        _WITH_GRADIENTS,
        OPERATORS,
        TRIGGERS,
    ),
    "main": Part(
        f"{_ROOM}.kinds:Main",
        "main gradients, finished by a call after the backward",
        _OF_WRAPPERS,
        OPERATORS,
        TRIGGERS,
    ),
    "sharded": Part(
        f"{_ROOM}.kinds:Sharded",
        "ranks share the optimizer's state",
        {
            "owners": OWNERS,
            "moment": MOMENTS,
            "collective": COLLECTIVES,
            "division": DIVISIONS,
            "start": STARTS,
            "memory": MEMORIES,
            "gradients": GRADIENTS,
        },
        OPERATORS,
        TRIGGERS,
    ),
    "sampler": Part(
        f"{_ROOM}.sampler:ComposedSampler",
        "",
        {"dealing": DEALINGS, "generator": GENERATORS, "padding": PADDINGS},
        SAMPLER_OPERATORS,
        SAMPLER_TRIGGERS,
    ),
}
"""The parts by name."""
_OFFERING = ("layout", "moment", "owners")
"""The choices that decide what a wrapper can do; the others leave that as it is."""
WRAPPERS = tuple(part for part in PARTS if part != "sampler")
"""The parts that are wrappers."""


@dataclass(frozen=True, order=True)
class Composition:
    """One composed wrapper or sampler.

    Attributes:
        part: A name of `PARTS`.
        host: One name of each of the part's choices, in their order.
        operator: The name of a fault; empty if it is right.
        trigger: The name of a trigger; empty if it is right.
    """

    part: str
    host: tuple[str, ...]
    operator: str = ""
    trigger: str = ""

    @property
    def is_sampler(self) -> bool:
        """True for a sampler, False for a wrapper."""
        return self.part not in WRAPPERS

    @property
    def name(self) -> str:
        """Return the name of the composition."""
        kind = [self.part] if PARTS[self.part].words else []
        host = ", ".join([*kind, *self.host])
        return f"{host}: {self.operator}, {self.trigger}" if self.operator else host

    @property
    def words(self) -> str:
        """Return in words what the composition does."""
        part = PARTS[self.part]
        choices = [words[name] for words, name in zip(part.host.values(), self.host, strict=True)]
        host = ", ".join([*filter(None, [part.words]), *choices])
        if not self.operator:
            return host
        return f"{part.operators[self.operator].words} {part.triggers[self.trigger].words} ({host})"

    @property
    def host_arguments(self) -> tuple[tuple[str, str], ...]:
        """Return the arguments of the host, as `--ddp-arg` or `--sampler-arg` takes them."""
        return tuple(zip(PARTS[self.part].host, self.host, strict=True))

    @property
    def kin(self) -> "Composition":
        """Return the right composition that is probed for all that can do the same."""
        if self.is_sampler:
            return Composition(self.part, self.host)
        host = PARTS[self.part].host
        return Composition(
            self.part,
            tuple(
                own if name in _OFFERING else next(iter(host[name]))
                for name, own in zip(host, self.host, strict=True)
            ),
        )

    @property
    def fault_arguments(self) -> tuple[tuple[str, str], ...]:
        """Return the further arguments that make it wrong."""
        given = (("operator", self.operator), ("trigger", self.trigger))
        return given if self.operator else ()


def hosts(part: str) -> list[Composition]:
    """Return all right compositions of a part."""
    return [Composition(part, host) for host in itertools.product(*PARTS[part].host.values())]


def balanced(part: str, count: int, shuffled: random.Random) -> list[Composition]:
    """Return right compositions of a part, among which all names of a choice are about as frequent.

    Args:
        part: A name of `PARTS`.
        count: Their number; all of the part if there are fewer.
        shuffled: Decides which.
    """
    chosen: dict[tuple[str, ...], None] = {}
    while len(chosen) < min(count, len(hosts(part))):
        columns = []
        for names in PARTS[part].host.values():
            column = [*itertools.islice(itertools.cycle(names), count)]
            shuffled.shuffle(column)
            columns.append(column)
        chosen |= dict.fromkeys(zip(*columns, strict=True))
    return [Composition(part, host) for host in itertools.islice(chosen, count)]


def faulty(parts: Sequence[str], shuffled: random.Random) -> Iterator[Composition]:
    """Yield all compositions with a fault that can act, each once.

    Args:
        parts: Names of `PARTS` that have the same operators and triggers.
        shuffled: Decides the order.
    """
    rights = [right for part in parts for right in hosts(part)]
    faults = [*itertools.product(PARTS[parts[0]].operators, PARTS[parts[0]].triggers)]
    drawn: set[int] = set()
    while len(drawn) < len(rights) * len(faults):
        number = shuffled.randrange(len(rights) * len(faults))
        if number in drawn:
            continue
        drawn.add(number)
        right, (operator, trigger) = rights[number // len(faults)], faults[number % len(faults)]
        composition = replace(right, operator=operator, trigger=trigger)
        if _possible(composition):
            yield composition


def _possible(composition: Composition) -> bool:
    """Return whether a fault can act on the occasions of its trigger."""
    if composition.is_sampler:
        return True
    operator, trigger = OPERATORS[composition.operator], TRIGGERS[composition.trigger]
    if operator.seam in ("start", "buffers") and trigger.of_reductions:
        return False
    if operator.seam == "update":
        # Parameters are updated by themselves, in no bucket, and only if some rank used them.
        return composition.part == "sharded" and composition.trigger not in (
            "third bucket",
            "last bucket",
            "unused",
        )
    if composition.operator == "no wait":
        # The other collectives wait by themselves.
        return "all_reduce" in composition.host
    # Every parameter has a main gradient.
    return not (
        composition.trigger == "unused"
        and (composition.operator == "keep" or composition.part == "main")
    )
