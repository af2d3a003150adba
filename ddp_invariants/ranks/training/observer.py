"""The notes of a run: tensors by moment, marks of collectives, and the times of gradients."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Self
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from ddp_invariants.implementation.declarations import SHARDED
from ddp_invariants.ranks.training import memory
from ddp_invariants.ranks.training.effect import Effect
from ddp_invariants.ranks.training.layer import Watched
from ddp_invariants.ranks.training.layout import Layout, layout_of
from ddp_invariants.ranks.training.recorder import EvidenceError, Record, Structure, plain_of
from ddp_invariants.ranks.training.setup import Position, Setup
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.ranks.training.twin import Named, Twin

_PRUNED = "_orig"
"""The end that `torch.nn.utils.prune` adds to a parameter's name."""


class Observer:
    """The notes of a run whose ranks each hold all parameters.

    Attributes:
        record: The notes.
        named: The replica's parameters, by name.
        buffers: Its buffers, by name.
        pruned: The pruned layers, by the name of their weight. Each forward computes that weight
            anew, so it lies elsewhere than the parameter.
        watching: True if the next forward is noted.
    """

    sharded: ClassVar[bool] = False

    def __init__(
        self, setup: Setup, position: Position, trained: Trained, twin: Twin, record: Record
    ) -> None:
        self.setup, self.position, self.trained, self.twin = setup, position, trained, twin
        self.record = record
        self.named: list[tuple[str, nn.Parameter]] = []
        self.buffers: list[tuple[str, Tensor]] = []
        self.pruned: dict[str, nn.Module] = {}
        self.watching = False
        self._arrived: list[tuple[str, float]] = []
        self._backward_began = 0.0

    def __deepcopy__(self, _memo: object) -> Self:
        """Return this object: a wrapper may deep-copy the replica, whose hooks refer to it."""
        return self

    # Hooks on the replica.

    def watch(self) -> None:
        """Note the tensors each forward starts from, and when each gradient is computed."""
        self.trained.replica.at_forward = self.at_forward
        self._watch_gradients()

    def _watch_gradients(self) -> None:
        """Note when each gradient is computed, by hooks that run before all others.

        torch's DDP keeps the parameters in compiled code, where no collector looks. A hook that
        kept this observer would keep the run, with the groups that the implementation has made.
        """
        arrived = WeakMethod(self._gradient_arrived)
        for name, parameter in self.trained.replica.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(_tell, arrived, name))

    def _gradient_arrived(self, name: str, _gradient: Tensor) -> None:
        self._arrived.append((name, self.setup.session.log.now()))
        self._before_gradient()

    def _before_gradient(self) -> None:
        for effect in self._effects:
            effect.before_gradient()

    @property
    def _effects(self) -> tuple[Effect, ...]:
        return self.twin.program.effects

    def _present_buffers(self) -> list[Named]:
        """Return the replica's buffers, under the names that the twin's have.

        There are more if a buffer that two modules held has become two.
        """
        return _as_built(Structure(self.trained.replica), self.twin)[1]

    def at_forward(self) -> None:
        """Note the tensors a step's first forward starts from, and have the twin start from them.

        A wrapper may move the parameters in memory before any forward.
        """
        if not self.watching:
            # A wrapper may compute while it wraps. An evaluation changes nothing for the twin, which
            # could not train with tensors that are made in inference mode.
            if self.named and torch.is_grad_enabled():
                self.twin.lie_where(self._computed_with())
            return
        self.watching = False
        if self.buffers:  # A forward may have replaced them by new tensors.
            self.buffers = self._present_buffers()
        self.record.tensors("forward", self.position.step, self.named)
        self.record.tensors("forward buffers", self.position.step, self.buffers)
        self.twin.lie_where(self._computed_with())
        self.twin.follow(self.named, self.buffers)

    def _computed_with(self) -> Sequence[Named]:
        """Return the tensors that the layers compute with; they have the parameters' values."""
        if not self.pruned:
            return self.named
        computed: dict[str, Any] = {name: layer.weight for name, layer in self.pruned.items()}
        return [(name, computed.get(name, parameter)) for name, parameter in self.named]

    def after_forwards(self) -> None:
        """Note the tensors that the layers computed with, if no other moment shows them."""

    # Moments of a run.

    def built(self) -> None:
        """Note the replica before it is wrapped."""
        structure = Structure(self.trained.replica)
        self.record.facts["structure_before"] = structure.rows
        self.record.tensors("built", 0, structure.parameters)
        self.record.tensors("built buffers", 0, structure.buffers)

    def wrapped(self) -> None:
        """Note the replica after it was wrapped."""
        structure = Structure(self.trained.replica)
        self.named, self.buffers = _as_built(structure, self.twin)
        self._require_whole()
        self.record.facts["structure_after"] = structure.rows
        self._note_whole()

    def _require_whole(self) -> None:
        """Raise if wrapping sharded the parameters although the implementation does not say so."""
        placements = [p for _, each in self.named for p in getattr(each, "placements", ())]
        if not all(placement.is_replicate() for placement in placements):
            raise TypeError(
                "wrapping turned parameters into DTensors, so it shards them: "
                'declare zero = 3 and gradients = "hidden", and init = "seed" if it broadcasts '
                "nothing"
            )

    def _note_whole(self) -> None:
        """Note the wrapped parameters and buffers, if a rank holds all of them."""
        self.record.tensors("wrapped", 0, self.named)
        self.record.tensors("wrapped buffers", 0, self.buffers)

    def renewed(self) -> None:
        """List parameters and buffers again: some are new tensors."""
        self.named, self.buffers = _as_built(Structure(self.trained.replica), self.twin)
        self.twin.moved = True

    def restored(self) -> None:
        """Note the tensors of a loaded state."""
        self.renewed()
        declared, step = self.setup.declared, self.position.step
        self.record.tensors("restored", step, self.named)
        if self.buffers:
            self.record.tensors("restored buffers", step, self.buffers)
        if not declared.zero and declared.optimizer == "replicated":
            self.record.tensors("restored state", step, self.optimizer_state())

    def joined(self) -> None:
        """Note the parameters once all ranks have run out of batches."""
        self.record.tensors("joined", 0, self.named)

    # Moments of a step.

    def backward_begins(self) -> None:
        """Note when the backward that is synchronised begins."""
        self._arrived, self._backward_began = [], self.setup.session.log.now()
        self._before_gradient()

    def synchronised(self) -> None:
        """Note when gradients were computed, and the gradients unless they are hidden."""
        backwards = self.record.facts.setdefault("backwards", [])
        backwards.append([self._backward_began, self.setup.session.log.now(), self._arrived])
        if self.setup.declared.gradients != "hidden":
            self.ready()
            present = self.trained.drive.gradients(self.trained.wrapped)
            gradients = {name.removesuffix(_PRUNED): each for name, each in present.items()}
            self.record.tensors(
                "reduced",
                self.position.step,
                ((name, gradients.get(name)) for name, _ in self.named),
            )

    def ready(self) -> None:
        """Note collectives that are still in flight when all should have ended."""
        for effect in self._effects:
            effect.when_ready(self.record, self.position.step)

    def mark(self, start: list[int]) -> None:
        """Note how many collectives each group had sent when a step began and when it ended."""
        self.record.facts.setdefault("marks", []).append([start, self.setup.session.counts()])

    def gradient_bytes(self) -> int:
        """Return the bytes of gradients held now; 0 if the implementation shards nothing."""
        if not self.setup.declared.zero:
            return 0
        return memory.gradients(self.trained.replica, self.trained.optimizer)

    def updated(self, gradient_bytes: int) -> None:
        """Note parameters, buffers and the optimizer's state after a step."""
        declared, step, trained = self.setup.declared, self.position.step, self.trained
        self._note_update()
        if self.buffers and self.twin.followed:
            self.record.tensors("twin buffers", step, self.twin.module.named_buffers())
        if declared.zero:
            held = memory.parameters_and_state(trained.replica, trained.optimizer)
            self.record.facts.setdefault("held", []).append([*held, gradient_bytes])
        elif declared.optimizer == "replicated":
            self.record.tensors("state", step, self.optimizer_state())

    def _note_update(self) -> None:
        step = self.position.step
        self.record.tensors("updated", step, self.named)
        if self.buffers:
            self.record.tensors("left buffers", step, self._present_buffers())

    def optimizer_state(self) -> Iterator[tuple[str, Tensor | None]]:
        """Yield the tensors of the optimizer's state, as parameter/key."""
        states = getattr(self.trained.optimizer, "state", {})
        for name, parameter in self.named if isinstance(states, dict) else ():
            for key, value in states.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{name}/{key}", value


class ShardObserver(Observer):
    """The notes of a run that shards parameters: they are whole only while a layer computes."""

    sharded = True

    def __init__(
        self, setup: Setup, position: Position, trained: Trained, twin: Twin, record: Record
    ) -> None:
        super().__init__(setup, position, trained, twin, record)
        self._gathered: dict[str, Tensor] = {}
        self._layouts: dict[str, Layout] = {}
        self._restored = False
        tensors = (*twin.named, *twin.module.named_buffers())
        self._elements = {name: tensor.numel() for name, tensor in tensors}
        # As they are before wrapping: afterwards, a layer may hold plain tensors, which are not listed.
        self._names = [
            [name for name, _ in (*twin.module.held(index), *layer.named_buffers())]
            for index, layer in enumerate(twin.module.stack)
        ]

    def watch(self) -> None:
        """Note the tensors that each layer computes with."""
        for index, layer in enumerate(self.trained.replica.stack):
            own, *parts = (module for module in layer.modules() if isinstance(module, Watched))
            (parts[-1] if parts else own).at_forward = partial(self._at_layer, index, own)

    def _require_whole(self) -> None:
        pass

    def _note_whole(self) -> None:
        pass

    def _note_update(self) -> None:
        pass

    def restored(self) -> None:
        """Note the buffers of a loaded state; the parameters are noted in the next forward."""
        self.renewed()
        self._restored = True
        if self.buffers:
            self.record.tensors("restored buffers", self.position.step, self.buffers)

    def _at_layer(self, index: int, layer: nn.Module) -> None:
        if not self.watching:
            return
        for name in self._names[index]:
            full = self.setup.case.model.full(index, name)
            # A tied parameter has one name in what is noted, that of its first layer.
            if full in self._elements and full not in self._gathered:
                with torch.no_grad():  # A layer may gather a parameter whenever it is asked for.
                    tensor: Tensor = attrgetter(name)(layer)
                plain = plain_of(tensor.detach())
                freed = not plain.numel() or not plain.untyped_storage().nbytes()
                if freed and self._elements[full]:
                    continue  # A call beside the wrapper gathers nothing.
                self._gathered[full] = plain.clone()
                self._layouts[full] = layout_of(tensor)

    def after_forwards(self) -> None:
        """Note the tensors that the layers computed with; the step before has left them.

        Raises:
            EvidenceError: No layer was seen to compute with the whole of a parameter or buffer.
        """
        self.watching, gathered = False, self._gathered
        self._gathered = {}
        step, twin = self.position.step, self.twin
        names = [name for name, _ in twin.named]
        buffers = [name for name, _ in twin.module.named_buffers()]
        unseen = next((name for name in (*names, *buffers) if name not in gathered), "")
        if unseen:
            raise EvidenceError(f"no layer was seen to compute with the whole {unseen!r}")
        parameters = [(name, gathered[name]) for name in names]
        if step:
            self.record.tensors("updated", step - 1, parameters)
        if self._restored:
            self._restored = False
            self.record.tensors("restored", step, parameters)
        if step == self.setup.case.steps:
            return
        self.record.tensors("forward", step, parameters)
        self.record.tensors("forward buffers", step, [(name, gathered[name]) for name in buffers])
        if step == 0:
            twin.lie_as([self._layouts[name] for name in names])
        twin.follow_gathered(gathered)


def _as_built(
    structure: Structure, twin: Twin
) -> tuple[list[tuple[str, nn.Parameter]], list[Named]]:
    """Return parameters and buffers under the names that the twin's have, and in their order.

    A wrapper may register tensors again in another order, and a buffer that two modules held may
    have become two. Without one of the names, all are listed as they are.
    """
    has = structure.by_name
    listed: list[Any] = [structure.parameters, structure.buffers]
    for place, built in enumerate((twin.named, twin.module.named_buffers())):
        names = [name for name, _ in built]
        if all(name in has for name in names) and len(listed[place]) >= len(names):
            listed[place] = [(name, has[name]) for name in names]
    return listed[0], listed[1]


def observer_of(
    setup: Setup, position: Position, trained: Trained, twin: Twin, record: Record
) -> Observer:
    """Return the observer for what the implementation declares about sharding."""
    kind = ShardObserver if setup.declared.zero == SHARDED else Observer
    return kind(setup, position, trained, twin, record)


def _tell(
    arrived: Callable[[], Callable[[str, Tensor], None] | None], name: str, gradient: Tensor
) -> None:
    """Tell an observer that a gradient has been computed, if its run has not ended."""
    method = arrived()
    if method is not None:
        method(name, gradient)
