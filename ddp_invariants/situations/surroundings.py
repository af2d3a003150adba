"""Surroundings: a process whose settings, environment or other groups are unusual.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import GENTLE, Capability
from ddp_invariants.situations.draft import Draft

Surrounding = Literal[
    "deterministic",
    "anomaly",
    "low default dtype",
    "no gradients",
    "no environment",
    "outer environment",
    "other groups",
]


@dataclass(frozen=True)
class Surroundings(Situation):
    """Unusual surroundings, from before the model is wrapped until training ends.

    Attributes:
        unusual: `deterministic`: `torch.use_deterministic_algorithms(True)`, which also fills new
            memory with NaN. `anomaly`: autograd's anomaly mode. `low default dtype`:
            `torch.set_default_dtype(torch.bfloat16)`, as libraries do while they build a model.
            `no gradients`: the model is
            wrapped under `torch.no_grad()`. `no environment`: a launcher's variables (`RANK` and
            others) are not set. `outer environment`: they are those of an outer launcher, which
            started one process: rank 0 of 1. `other groups`: the program has made other process
            groups before.
    """

    beyond_scripts: ClassVar[str] = "the process has unusual surroundings"
    options: ClassVar[dict[str, Any]] = {"surrounded": False}
    moment: ClassVar[str] = "program"
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    unusual: tuple[Surrounding, ...]
    kind: Literal["surroundings"] = "surroundings"

    def check(self, case: TrainingCase) -> None:
        """Require known names, one environment, and all ranks where all must make a group."""
        names = self.unusual
        for name in names:
            one_of("surroundings", name, Surrounding)
        require(
            0 < len(names) == len(set(names)) and not set(ENVIRONMENTS) <= set(names),
            "surroundings",
            names,
            "different names, and at most one environment",
        )
        require(
            not case.outside or "other groups" not in names,
            "outside",
            case.outside,
            "0 if the program makes other groups",
        )

    @property
    def words(self) -> str:
        """The names."""
        return f"surroundings={'+'.join(self.unusual)}"

    def joined(self, other: "Surroundings") -> "Surroundings":
        """Return the surroundings of both."""
        return Surroundings(tuple(dict.fromkeys((*self.unusual, *other.unusual))))

    def simpler(self) -> Iterator["Surroundings"]:
        """Yield the surroundings without one of them."""
        if len(self.unusual) > 1:
            for name in self.unusual:
                yield Surroundings(tuple(kept for kept in self.unusual if kept != name))

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw one or two names in every case if the option `surrounded` asks for it."""
        if not draft.wanted["surrounded"]:
            return
        names: list[Surrounding] = [
            name
            for name in get_args(Surrounding)
            if draft.offer.has(_CAPABILITIES[name])
            and (name != "other groups" or not draft.outside)
        ]
        if not names:
            return
        first, second = draft.choice(names), draft.choice(names)
        both = first != second and {first, second} != set(ENVIRONMENTS) and draft.coin()
        draft.add(cls((first, second) if both else (first,)))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the names, as a coverage table counts them."""
        surroundings = case.get(cls)
        return {"surroundings": "usual" if surroundings is None else set(surroundings.unusual)}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability of each name."""
        after, table = "wrapped_again", {}
        for name, capability in _CAPABILITIES.items():
            table[capability] = _capability(name, after)
            after = capability
        return table


ENVIRONMENTS: tuple[Surrounding, ...] = ("no environment", "outer environment")
_CAPABILITIES: dict[Surrounding, str] = {
    "deterministic": "deterministic",
    "anomaly": "anomaly",
    "low default dtype": "low_default_dtype",
    "no gradients": "wrapped_without_gradients",
    "no environment": "no_environment",
    "outer environment": "outer_environment",
    "other groups": "other_groups",
}
CONDITIONS: dict[Surrounding, str] = {
    "deterministic": "deterministic algorithms",
    "anomaly": "anomaly mode",
    "low default dtype": "a default dtype of low precision",
    "no gradients": "wrapped without gradients",
    "no environment": "no launcher's environment",
    "outer environment": "an outer launcher's environment",
    "other groups": "other process groups",
}
"""The condition of a rule that a case with a name meets."""
_WORDS: dict[Surrounding, str] = {
    "deterministic": "torch's deterministic algorithms, which fill new memory with NaN",
    "anomaly": "autograd's anomaly mode",
    "low default dtype": "a process whose default dtype is bfloat16",
    "no gradients": "a model that is wrapped under torch.no_grad()",
    "no environment": "a process without a launcher's environment variables",
    "outer environment": "a process with the environment variables of an outer launcher",
    "other groups": "a program that has made other process groups before",
}


def _capability(name: Surrounding, after: str) -> Capability:
    """Return the capability to train in the surroundings of a name."""

    def removed(case: TrainingCase) -> TrainingCase:
        surroundings = case.get(Surroundings)
        left = tuple(kept for kept in surroundings.unusual if kept != name) if surroundings else ()
        return case.with_situation(Surroundings(left)) if left else case.without(Surroundings)

    return Capability(
        lambda case: (
            (surroundings := case.get(Surroundings)) is not None and name in surroundings.unusual
        ),
        removed,
        replace(GENTLE, situations=(Surroundings((name,)),)),
        frozenset({CONDITIONS[name]}),
        after,
        _WORDS[name],
    )
