"""The choices from which wrappers are composed, as plain data.

Standard library only: the controller reads this module, and must not import torch.
"""

from dataclasses import dataclass
from typing import NamedTuple

LAYOUTS = {
    "each": "one bucket per parameter",
    "capped": "buckets of at most 256 bytes",
    "whole": "one bucket per dtype",
}
"""Which gradients travel together."""
MOMENTS = {
    "ready": "as soon as a bucket is full",
    "end": "at the end of the backward",
}
"""When a bucket is sent."""
COLLECTIVES = {
    "all_reduce": "one all-reduce",
    "gathered": "an all-gather, summed by each rank",
    "rooted": "a reduce to the first rank, then a broadcast",
    "scattered": "a reduce-scatter, then an all-gather",
}
"""How a bucket is summed."""


class Operator(NamedTuple):
    """A fault, wherever and whenever it acts.

    Attributes:
        seam: The part of the wrapper that it alters: `start`, `buffers`, `send`, `wait`, `receive`.
        words: What it does.
        invariants: The invariants of which a rule must notice it on ordinary programs.
    """

    seam: str
    words: str
    invariants: tuple[str, ...]


_OF_GRADIENTS = ("GRAD", "COMM")
OPERATORS = {
    "own start": Operator("start", "a parameter keeps the rank's own start", ("INIT",)),
    "own buffers": Operator("buffers", "a buffer keeps the rank's own value", ("BUF", "INIT")),
    "halve": Operator("send", "the gradients are halved before they are sent", _OF_GRADIENTS),
    "round": Operator("send", "the gradients are sent in bfloat16", _OF_GRADIENTS),
    "zero": Operator("send", "zeros are sent", _OF_GRADIENTS),
    "stale": Operator("send", "the gradients of the reduction before are sent", _OF_GRADIENTS),
    "leak": Operator("send", "what was sent before is added", _OF_GRADIENTS),
    "truncate": Operator("send", "the last gradient counts as zero", _OF_GRADIENTS),
    "shift": Operator("send", "the gradients are shifted by one place", _OF_GRADIENTS),
    "reverse": Operator("send", "the gradients are sent in reversed order", _OF_GRADIENTS),
    "draw": Operator("send", "a random number is drawn", ("RNG",)),
    "no wait": Operator("wait", "nobody waits for the result", (*_OF_GRADIENTS, "LIVE")),
    "keep": Operator("receive", "the result is not written back", _OF_GRADIENTS),
    "sum": Operator("receive", "the sum is not divided", _OF_GRADIENTS),
    "fewer": Operator("receive", "the sum is divided by one rank less", _OF_GRADIENTS),
    "twice": Operator("receive", "the sum is divided twice", _OF_GRADIENTS),
    "late": Operator("receive", "the result of the reduction before is written", _OF_GRADIENTS),
    "half": Operator("receive", "only the first parameters get the result", _OF_GRADIENTS),
}
"""The faults by name."""


class Trigger(NamedTuple):
    """The occasions on which a fault acts.

    Attributes:
        words: The occasions.
        invariants: Invariants whose rules may notice it besides those of the operator, since the
            occasion is theirs.
        of_reductions: True if only a reduction can be such an occasion.
    """

    words: str
    invariants: tuple[str, ...] = ()
    of_reductions: bool = False


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
    "unused": Trigger("if the rank has no gradient of it", of_reductions=True),
    "after evaluation": Trigger("after an evaluation", ("MOD", "CALL", "LIVE"), of_reductions=True),
    "after no_sync": Trigger("after a forward in no_sync", of_reductions=True),
    "after an error": Trigger("after a backward that raised", ("LIVE",), of_reductions=True),
    "second wrapper": Trigger("while another wrapper lives", ("LIVE", "COMM")),
    "after freezing": Trigger(
        "after the trainable parameters changed", ("MOD",), of_reductions=True
    ),
}
"""The triggers by name."""


@dataclass(frozen=True, order=True)
class Composition:
    """One composed wrapper.

    Attributes:
        layout: A name of `LAYOUTS`.
        moment: A name of `MOMENTS`.
        collective: A name of `COLLECTIVES`.
        operator: A name of `OPERATORS`; empty for a right wrapper.
        trigger: A name of `TRIGGERS`; empty for a right wrapper.
    """

    layout: str
    moment: str
    collective: str
    operator: str = ""
    trigger: str = ""

    @property
    def name(self) -> str:
        """Return the name of the composition."""
        host = f"{self.layout}, {self.moment}, {self.collective}"
        return f"{host}: {self.operator}, {self.trigger}" if self.operator else host

    @property
    def words(self) -> str:
        """Return in words what the composition does."""
        host = (
            f"{LAYOUTS[self.layout]}, sent {MOMENTS[self.moment]}, by "
            f"{COLLECTIVES[self.collective]}"
        )
        if not self.operator:
            return host
        return f"{OPERATORS[self.operator].words} {TRIGGERS[self.trigger].words} ({host})"

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """Return the arguments of `wrapper.Composed`, as `--ddp-arg` takes them."""
        return tuple((name, text) for name, text in vars(self).items() if text)


def possible(composition: Composition) -> bool:
    """Return whether a fault can act on the occasions of its trigger."""
    operator, trigger = OPERATORS[composition.operator], TRIGGERS[composition.trigger]
    if operator.seam in ("start", "buffers") and trigger.of_reductions:
        return False
    if composition.operator == "no wait":
        # The other collectives wait by themselves.
        return composition.collective == "all_reduce"
    return not (composition.trigger == "unused" and composition.operator == "keep")
