"""The situations of training runs: one module for each event besides plain training.

A module says all that the controller needs: the fields of the situation, the cases that exclude
it, and how it is drawn, made simpler, probed, counted and written as a script. To add a situation,
add its module, and its class to `SITUATIONS`.

Standard library only: the rank side imports this package under any interpreter.
"""

from typing import Any

from ddp_invariants.cases.plain import from_plain
from ddp_invariants.cases.situation import Situation, register
from ddp_invariants.situations import asking  # noqa: F401 - it makes the ways to ask known
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.between_passes import BetweenPasses
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.call_shape import CallShape
from ddp_invariants.situations.clearing import ClearedByModule
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.closure import Closure
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.direct_forwards import DirectForwards
from ddp_invariants.situations.earlier import EarlierRuns
from ddp_invariants.situations.evaluated_layer import EvaluatedLayer
from ddp_invariants.situations.evaluation_mode import EvaluationMode
from ddp_invariants.situations.exchanged import Exchanged
from ddp_invariants.situations.faint_loss import FaintLoss
from ddp_invariants.situations.gradient_hooks import GradientHooks
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.nodes import Nodes
from ddp_invariants.situations.optimizer_first import OptimizerFirst
from ddp_invariants.situations.other_method import OtherMethod
from ddp_invariants.situations.own_buffers import OwnBuffers
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.schedule import RateSchedule
from ddp_invariants.situations.second import SecondWrapper
from ddp_invariants.situations.shared_stream import SharedStream
from ddp_invariants.situations.storage import OneStorage
from ddp_invariants.situations.surroundings import Surroundings
from ddp_invariants.situations.tensor_rate import TensorRate
from ddp_invariants.situations.turns import Turns
from ddp_invariants.situations.uneven import UnevenInputs
from ddp_invariants.situations.unused import UnusedLayers

__all__ = ["OPTIONS", "SITUATIONS", "from_plain"]

SITUATIONS: tuple[type[Situation], ...] = (
    Poisoned,
    Perturbed,
    FailureInjection,
    NoSyncStyle,
    UnusedLayers,
    Crossed,
    PassOrder,
    Penalty,
    Actions,
    UnevenInputs,
    Resized,
    Clipping,
    Scaler,
    Autocast,
    RateSchedule,
    EvaluationMode,
    BetweenPasses,
    ClearedByModule,
    OneStorage,
    GradientHooks,
    DirectForwards,
    OptimizerFirst,
    SharedStream,
    CallShape,
    ModuleUse,
    GroupOptions,
    Closure,
    OtherMethod,
    SecondWrapper,
    Surroundings,
    EarlierRuns,
    Nodes,
    Turns,
    EvaluatedLayer,
    OwnBuffers,
    Exchanged,
    FaintLoss,
    TensorRate,
)
"""The classes of situations, in the order in which a case lists, checks and prints them."""

OPTIONS: dict[str, Any] = {
    name: default for kind in SITUATIONS for name, default in kind.options.items()
}
"""The options of all situations by name, with their defaults.

The options belong to `search.strategies.training_cases`, and a rule's row states them (`Draws`).
"""

register(*SITUATIONS)
