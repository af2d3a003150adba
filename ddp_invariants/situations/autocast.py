"""Autocast: forwards run under `torch.autocast`, which lowers products of float32 to bfloat16.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Model
from ddp_invariants.cases.situation import Situation
from ddp_invariants.situations.capability import BASE, Capability, of_situation
from ddp_invariants.situations.draft import Draft


@dataclass(frozen=True)
class Autocast(Situation):
    """Forwards under `torch.autocast` to bfloat16. `Layer.lowered` names the dtype of each layer.

    Attributes:
        backward: True if backwards run under it, too, as in many scripts.
    """

    options: ClassVar[dict[str, Any]] = {"autocast": 0}
    moment: ClassVar[str] = "forwards"

    backward: bool = False
    kind: Literal["autocast"] = "autocast"

    def check(self, case: TrainingCase) -> None:
        """Require layers whose results can be judged in bfloat16."""
        require(
            judgeable(case.model),
            "autocast",
            True,  # noqa: FBT003 - the value that the message quotes
            "false if a layer is an attention: in bfloat16 its error has no useful bound",
        )

    @property
    def words(self) -> str:
        """The passes under autocast."""
        return "autocast=forward+backward" if self.backward else "autocast=forward"

    def simpler(self) -> Iterator["Autocast"]:
        """Yield autocast of forwards alone."""
        if self.backward:
            yield Autocast()

    def unscripted(self, case: TrainingCase) -> str:
        """Return why no script can show a backward under autocast."""
        del case
        return "backwards run under autocast" if self.backward else ""

    def scripted_forward(self, line: str) -> list[str]:
        """Return a script's line with a forward, as it runs under autocast."""
        return ['with torch.autocast("cpu", torch.bfloat16):', f"    {line}"]

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw autocast in one of `autocast` cases, an option; in no case if the option is 0."""
        one_in = draft.wanted["autocast"]
        if one_in and draft.one_in(one_in) and judgeable(draft.model):
            backward = draft.one_in(4)
            # torch.cat, with which wrappers make buckets, raises for float16 under bfloat16.
            float16 = any(layer.dtype == "float16" for layer in draft.model.layers)
            draft.add(cls(backward=backward and not float16))

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return how forwards run, as a coverage table counts it."""
        found = case.get(cls)
        if found is None:
            return {"forwards": "in their own dtypes"}
        return {"forwards": "under autocast, and backwards" if found.backward else "under autocast"}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return the capability to run forwards under autocast."""
        probe = replace(BASE, values="real", steps=3, situations=(cls(),))
        capability = of_situation(cls, probe, "a forward under autocast", after="scaler")
        varieties = {"and backwards": lambda case: (case.get(cls) or cls()).backward}
        return {"autocast": replace(capability, varieties=varieties)}


def judgeable(model: Model) -> bool:
    """Return whether the results of a model's layers can be judged in bfloat16."""
    return all(layer.kind != "attention" for layer in model.layers)
