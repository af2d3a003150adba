"""A training case while it is drawn.

Standard library only: the rank side imports this module under any interpreter. Hypothesis is handed
in by the search.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from ddp_invariants.cases.case import ZeroGrad
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.situation import Situation

Value = TypeVar("Value")

MOMENTS = (
    "accumulation",
    "values",
    "failures",
    "branches",
    "layers",
    "program",
    "timing",
    "forwards",
)
"""The moments at which situations are drawn, in this order.

The first three come before the data and the model, and the next two after them. `program` comes
after the draw of how gradients are cleared, and the last two come at the end.
"""


class Offer(Protocol):
    """The capabilities of the implementation under test, in the form that a draft reads.

    `discovery.scope.Scope` has this form.
    """

    @property
    def max_world_size(self) -> int:
        """The largest world size."""

    @property
    def simulated(self) -> bool:
        """True if cases may be simulated."""

    def has(self, capability: str) -> bool:
        """Return whether cases may contain a capability."""


_CHOICES: dict[tuple[Any, ...], Any] = {}
"""The strategies of `Draft.choice`. Hypothesis needs longer to make one than to draw from it."""


@dataclass
class Draft:
    """The parts of a training case that are drawn so far.

    Every situation draws its own part, and changes other parts so that it can happen. The drawn
    numbers do not depend on earlier draws; only their use does. So Hypothesis can shrink the world
    size and keep the rest.

    Attributes:
        draw: Hypothesis' `draw`.
        st: Hypothesis' module of strategies.
        offer: The capabilities of the implementation under test.
        wanted: The options of `training_cases`, by name.
        world_size, steps, outside: As in the case.
        micro_steps: Numbers of backwards per step to draw from.
        accumulation: Backwards per step.
        data: The dataset.
        model: The model.
        last_layers: Layers to put behind the model once the case is in all its situations.
        real: True if no parameter may be complex.
        clearings: Values of `zero_grad` to draw from.
        zero_grad: As in the case.
        situations: The situations.
    """

    draw: Callable[[Any], Any]
    st: Any
    offer: Offer
    wanted: dict[str, Any]
    world_size: int
    steps: int
    micro_steps: tuple[int, ...] = (1,)
    accumulation: int = 1
    outside: int = 0
    data: Data = Data()
    model: Model = Model(1, (Layer("linear"),))  # noqa: RUF009 - frozen
    last_layers: tuple[Layer, ...] = ()
    real: bool = False
    clearings: tuple[ZeroGrad, ...] = ("set_to_none", "zero", "never", "mixed")
    zero_grad: ZeroGrad = "set_to_none"
    situations: list[Situation] = field(default_factory=list)

    def choice(self, values: Sequence[Value]) -> Value:
        """Draw one of some values, the simplest first."""
        key = (*values, *map(type, values))  # 1 and True are equal.
        if key not in _CHOICES:
            _CHOICES[key] = self.st.sampled_from(values)
        chosen: Value = self.draw(_CHOICES[key])
        return chosen

    def coin(self) -> bool:
        """Draw a truth value."""
        return bool(self.draw(self.st.booleans()))

    def one_in(self, number: int) -> bool:
        """Draw a truth value that is true in one of `number` cases."""
        return self.choice((False,) * (number - 1) + (True,))

    def wants_now(self, option: str) -> bool:
        """Draw whether this is one of as many cases as an option says; False if the option is 0."""
        cases = self.wanted[option]
        return bool(cases) and self.one_in(cases)

    def small(self) -> int:
        """Draw a number from 0 to 7."""
        return int(self.draw(self.st.integers(0, 7)))

    def any_rank(self) -> int:
        """Draw a rank."""
        return self.small() % self.world_size

    def any_step(self) -> int:
        """Draw a step."""
        return self.small() % self.steps

    def add(self, situation: Situation) -> None:
        """Add a situation, in place of another of its kind."""
        self.situations = [each for each in self.situations if each.kind != situation.kind]
        self.situations.append(situation)

    def add_layers(self, *layers: Layer) -> None:
        """Put layers behind those of the model."""
        self.model = replace(self.model, layers=(*self.model.layers, *layers))

    def square(self, **fields: Any) -> Layer:
        """Return a linear layer whose result is as wide as the model's, to put behind the model."""
        dtype = self.model.layers[0].dtype
        return Layer("linear", self.model.widths()[-1], dtype=dtype, **fields)

    def clear_gradients(self) -> None:
        """Let no gradient be left in place from step to step."""
        self.zero_grad = "zero" if self.zero_grad == "never" else self.zero_grad
