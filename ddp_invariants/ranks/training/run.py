"""One rank's part of a training case: train with the implementation on trial, note what was seen, judge nothing."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases import numbers as draws
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import BetweenSteps
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.declarations import SHARDED
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.distributed import Session
from ddp_invariants.ranks.training import between_steps, loss_scaler, memory
from ddp_invariants.ranks.training.layout import _lay_out, _Layout, _layout_of
from ddp_invariants.ranks.training.model import Replica, UserError, entries, loss_of
from ddp_invariants.ranks.training.recorder import Record, TooMuchEvidence, structure, told, warned
from ddp_invariants.ranks.training.warm_up import optimizer_plan


@dataclass(frozen=True)
class Saved:
    """What ranks that trained before have saved.

    Attributes:
        states: Of what is trained and of its optimizer.
        own: What this rank held then, by moment; nothing where it was none of them.
        error: What went wrong with it; None where nothing did.
    """

    states: tuple[Any, Any]
    own: Mapping[str, list[tuple[str, Tensor | None]]]
    error: BaseException | None = None


def train(
    case: TrainingCase, rank: int, driver: Driver, session: Session, saved: Saved | None = None
) -> Record:
    """Run the case on this rank.

    Whatever the implementation raises is noted in `facts["raised"]` and ends the run; what was seen
    before is kept.

    Args:
        case: The case.
        rank: Rank in the group that trains.
        driver: The implementation on trial.
        session: The process groups of the case.
        saved: What is loaded before the first step.
    """
    run = Run(case, rank, driver, session)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run.all(driver, saved)
        except TooMuchEvidence as error:
            run.record.facts["raised"] = told(error, "evidence", run.step)
        except BaseException as error:  # noqa: BLE001 - the implementation on trial may raise anything; it is evidence
            run.record.facts["raised"] = told(error, run.phase, run.step)
    run.record.facts["warned"] = warned(caught)
    if case.perturbation.on_device and session.place.on_device:
        run.record.facts["slowed"] = run.slowed or sum(session.counts())
    return run.record


class Run:
    """The state of one rank's run through a case."""

    def __init__(self, case: TrainingCase, rank: int, driver: Driver, session: Session) -> None:
        self.case, self.rank, self.session, self.declared = case, rank, session, driver.declared
        self.record = Record()
        self.phase, self.step = "wrap", 0
        values_P = draws.parameters(case, rank, case.model.numbers)
        self.place = session.place
        self.replica = Replica(case.model, values_P, self.place.device)
        self.twin = Replica(case.model, values_P, self.place.device)
        for replica in (self.replica, self.twin) if case.crossed == rank else ():
            replica.cross()
        self.twin_named = list(self.twin.named_parameters())
        self.thawed = case.sometimes_frozen
        self.dataset = draws.Dataset(case)
        kind, arguments = optimizer_plan(case)
        self.context = Context(
            rank,
            case.world_size,
            session.subgroup,
            case.bucket_cap,
            case.seed,
            case.optimizer.lr,
            kind,
            arguments,
            self.place.device,
        )
        self.driver, self.moved = driver, True
        self.scaler = loss_scaler.scaler_of(case, self.place.device)
        self.watching = False
        self.slowed = 0  # Gradients before which the device was kept busy.
        self.arrived: list[tuple[str, float]] = []
        self.backward_began = 0.0
        self.gathered: dict[str, Tensor] = {}
        self.laid_out: dict[str, _Layout] = {}
        self.layouts: list[_Layout] = []
        self.copies: list[Any] = []  # Kept: they may have hooks of their own.
        self.noticed: list[tuple[int, Tensor]] = []
        self.drawn: dict[tuple[str, int], list[Tensor] | None] = {}
        self.followed = True  # Whether the twin made each forward of the step: else its buffers are not what one leaves.
        self._watch_draws()

    def __deepcopy__(self, _memo: object) -> "Run":
        """A wrapper may deep-copy the replica, which calls back into this run: one run remains."""
        return self

    def all(self, driver: Driver, saved: Saved | None = None) -> None:
        """The whole case."""
        if saved is not None and saved.error is not None:
            self.phase = "the training before"
            raise saved.error
        self.drive = driver.start(self.context, self.replica)
        self.record.facts["structure_before"] = structure(self.replica)
        self.record.tensors("built", 0, self.replica.named_parameters())
        self.record.tensors("built buffers", 0, self.replica.named_buffers())
        if self.drive.whole_step:
            self.drive.setup(self.context)
            if "wrap" in self.drive.driver.methods:
                self.drive.wrap(self.replica, self.context)
            self._wrapped()
            self._train_by_itself()
        else:
            self._train(saved)
        self.phase = "teardown"
        self.drive.teardown(self.context)

    def _wrapped(self) -> None:
        """Note what wrapping made of the replica."""
        record, replica = self.record, self.replica
        if self.declared.zero < SHARDED and any(
            hasattr(parameter, "to_local") for parameter in replica.parameters()
        ):
            raise TypeError(
                "wrapping turned parameters into DTensors, so it shards them: declare zero = 3 and gradients = "
                '"hidden", and init = "seed" if it broadcasts nothing'
            )
        record.facts["structure_after"] = structure(replica)
        if self.declared.zero < SHARDED:
            record.tensors("wrapped", 0, replica.named_parameters())
            record.tensors("wrapped buffers", 0, replica.named_buffers())
        self.named = list(replica.named_parameters())
        self.buffers = list(replica.named_buffers())

    def _train(self, saved: Saved | None) -> None:
        """Train with a wrapper."""
        case, dealt = self.case, draws.batches(self.case)
        wrapped, optimizer = self._begin()
        if saved is not None:
            self.phase = "loading what others saved"
            self._load(wrapped, optimizer, saved)
        with self.drive.join(wrapped, optimizer) if case.exhausted else nullcontext():
            wrapped, optimizer = self._steps(wrapped, optimizer, dealt)
            self.phase = "join"
        if case.exhausted:
            self.record.tensors("joined", 0, self.named)
        self.phase, self.step = "last forward", case.steps
        # One forward more: torch DDP reports an unused parameter of the last backward only then,
        # and sharded parameters are seen whole only in a forward.
        self.watching = self.declared.zero == SHARDED
        self._forward(wrapped, self._batch(dealt[-1][self.rank], 0)[0])
        if self.declared.zero == SHARDED:
            self._note_gathered()
        if case.world_size == 1 and saved is None and case.passes == "alternate":
            self._plain_training()

    def before(self, driver: Driver) -> Saved:
        """Train and save, for ranks of another number to go on from."""
        self.drive = driver.start(self.context, self.replica)
        wrapped, optimizer = self._steps(*self._begin(), draws.batches(self.case))
        states = deepcopy(
            (between_steps.stateful(wrapped, self.replica).state_dict(), optimizer.state_dict())
        )
        own: dict[str, Any] = {
            "saved": self.named,
            "saved buffers": list(self.replica.named_buffers()),
            "saved state": list(self._optimizer_state(optimizer)),
        }
        self.drive.teardown(self.context)
        return Saved(
            states,
            {
                moment: [(name, tensor.detach().clone()) for name, tensor in tensors]
                for moment, tensors in own.items()
            },
        )

    def _begin(self) -> tuple[Any, Any]:
        """What is trained, and its optimizer."""
        self._watch_replica()
        wrapped, optimizer = self.drive.begin()
        self._wrapped()
        self.record.facts["driven"] = self.drive.found
        self._require_own_parameters(wrapped)
        return wrapped, optimizer

    def _load(self, wrapped: Any, optimizer: Any, saved: Saved) -> None:
        """Load what others saved, and note both."""
        self.record.facts.setdefault("saved", []).append(sorted(saved.states[0]))
        between_steps.stateful(wrapped, self.replica).load_state_dict(saved.states[0])
        optimizer.load_state_dict(deepcopy(saved.states[1]))
        for moment, tensors in saved.own.items():
            self.record.tensors(moment, 0, tensors)
        self._note_restored(optimizer)

    def _note_restored(self, optimizer: Any) -> None:
        """Note what a state has brought."""
        self._list_tensors()
        self.record.tensors("restored", self.step, self.named)
        if self.buffers:
            self.record.tensors("restored buffers", self.step, self.buffers)
        if not self.declared.zero and self.declared.optimizer == "replicated":
            self.record.tensors("restored state", self.step, self._optimizer_state(optimizer))

    def _steps(self, wrapped: Any, optimizer: Any, dealt: list[list[Any]]) -> tuple[Any, Any]:
        """All steps this rank has batches for. Returns what is trained in the end, and its optimizer."""
        case, steps = self.case, self.case.steps_of(self.rank)
        for self.step in range(steps):
            self._pass_by(self.replica, self.twin)
            first = self.step * case.accumulation
            batches = [ranks[self.rank] for ranks in dealt[first : first + case.accumulation]]
            for action in case.between_steps:
                if action.step == self.step:
                    self.phase = f"{action.kind} before it"
                    wrapped, optimizer = self._between_steps(action, wrapped, optimizer, batches[0])
            self._one_step(wrapped, optimizer, batches)
        return wrapped, optimizer

    def _watch_replica(self) -> None:
        """Be told what its forwards start from, and when its gradients are computed."""
        if self.declared.zero < SHARDED:
            self.replica.at_forward = self._at_forward
            self._watch_gradients()
        else:
            for layer in self.replica.layers:
                layer.at_forward = self._at_layer

    def _watch_draws(self) -> None:
        """Be told of every random number that a forward of the replica draws."""
        for place, layer in enumerate(self.replica.drawing):
            layer.at_draw = partial(self._drew, place)

    def _drew(self, place: int, factors: Tensor) -> None:
        self.noticed.append((place, factors))

    def _note_drawn(self, moment: str, *numbers: int) -> None:
        """Note what the layers drew since `noticed` was cleared; nothing where not each of them did so once."""
        layers = self.case.model.draws
        noticed, self.noticed = self.noticed, []
        found: list[Tensor] | None = None
        if [place for place, _ in noticed] == list(range(len(layers))):
            with suppress(
                RuntimeError
            ):  # Of a transformation's own tensor nothing is left when that is over.
                found = [
                    torch.from_numpy(factors.numpy(force=True).copy()) for _, factors in noticed
                ]
        for number in numbers:
            self.drawn[moment, number] = found
            if layers:
                kept = (
                    [None] * len(layers)
                    if found is None
                    else [factors.to(torch.uint8) for factors in found]
                )
                self.record.tensors(
                    moment, number, zip([f"layers.{index}" for index in layers], kept, strict=True)
                )

    def _given(self, replica: Replica, number: int, inputs: Tensor) -> bool:
        """Have the next forward of a replica draw what the micro-step's drew; whether that is known, of just these samples.

        A wrapper may hand its module more samples than it was handed, to fill a batch up.
        """
        drawn = self.drawn["drawn", number]
        if drawn is None or any(len(factors) != len(inputs) for factors in drawn):
            return False
        for layer, factors in zip(replica.drawing, drawn, strict=True):
            layer.given = factors
        return True

    def _between_steps(
        self, action: BetweenSteps, wrapped: Any, optimizer: Any, indices: Any
    ) -> tuple[Any, Any]:
        """What the program does before a step, besides training. Returns what is trained from then on, and its optimizer."""
        drive, kind = self.drive, action.kind
        if kind in ("learning rate", "decay"):
            between_steps.lower(kind, optimizer)
        elif action.freezes:
            for replica in (self.replica, self.twin):
                replica.freeze(action.layer, frozen=kind == "freeze")
        elif kind == "cast":
            drive.zero_grad(wrapped, optimizer, True)  # noqa: FBT003 - as the adapter's method takes it
            between_steps.cast_and_back(self.replica)
            self.moved = True
        elif kind == "buffers":
            between_steps.write(self.replica.buffers())
            self.record.tensors("written buffers", self.step, self.replica.named_buffers())
        elif kind == "copy":
            self.copies.append(deepcopy(wrapped))
        elif kind == "assign":
            drive.zero_grad(wrapped, optimizer, True)  # noqa: FBT003 - as above
            return wrapped, self._assigned(wrapped, optimizer)
        elif kind == "reload":
            return self._reloaded(wrapped, optimizer)
        else:
            inputs = self._batch(indices, self.step)[0]
            module = wrapped if isinstance(wrapped, nn.Module) else self.replica
            with torch.set_grad_enabled(kind != "evaluation"):
                module.train(kind == "forward only")
                told, self.noticed = self.replica.training, []
                self._forward(wrapped, inputs)
                if not told:  # Else it was not: some keep the module from what is said to them.
                    self._note_drawn("evaluated", self.step)
                module.train()
        return wrapped, optimizer

    def _assigned(self, wrapped: Any, optimizer: Any) -> Any:
        """Give what is trained its own values as new tensors; returns an optimizer of these, in the state of the old one.

        Raises:
            NotImplementedError: Wrapping brought the optimizer, which would go on with the tensors
                it knows.
        """
        if self.drive.brought is not None:
            raise NotImplementedError(
                "wrapping returned an optimizer of its own, which nothing makes anew"
            )
        between_steps.assign(between_steps.stateful(wrapped, self.replica))
        state = deepcopy(optimizer.state_dict())
        self._watch_replica()
        self._list_tensors()
        renewed = self.drive.make_optimizer(wrapped, self.context)
        renewed.load_state_dict(state)
        return renewed

    def _list_tensors(self) -> None:
        """Take note of parameters and buffers that are new ones."""
        self.named, self.buffers = (
            list(self.replica.named_parameters()),
            list(self.replica.named_buffers()),
        )
        self.moved = True

    def _reloaded(self, wrapped: Any, optimizer: Any) -> tuple[Any, Any]:
        """What is trained and its optimizer made anew, as in another process, and given the saved state of those there were."""
        saved = deepcopy(
            (between_steps.stateful(wrapped, self.replica).state_dict(), optimizer.state_dict())
        )
        self.record.facts.setdefault("saved", []).append(sorted(saved[0]))
        self.drive.teardown(self.context)
        other = (
            self.rank + self.case.world_size
        )  # Whose values nobody has: what is not loaded shows.
        self.replica = Replica(
            self.case.at(self.step).model,
            draws.parameters(self.case, other, self.case.model.numbers),
            self.place.device,
        )
        if self.case.crossed == self.rank:
            self.replica.cross()
        self._pass_by(self.replica)
        self._watch_draws()
        self._watch_replica()
        self.drive = self.driver.start(self.context, self.replica)
        wrapped, optimizer = self.drive.begin()
        between_steps.stateful(wrapped, self.replica).load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        self._note_restored(optimizer)
        return wrapped, optimizer

    def _pass_by(self, *replicas: Replica, micro_step: int = 0) -> None:
        """Have forwards of this step and micro-step pass the case's unused layers by."""
        for replica in replicas if self.case.unused else ():
            replica.passed_by = self.case.passed_by(self.rank, self.step, micro_step)

    def _watch_gradients(self) -> None:
        """Note when each gradient has been computed: hooks that run before anybody else's, and keep nothing."""
        for name, parameter in self.replica.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(self._gradient_arrived, name))

    def _gradient_arrived(self, name: str, _gradient: Tensor) -> None:
        self.arrived.append((name, self.session.log.now()))
        self._slow_down()

    def _slow_down(self) -> None:
        """Keep the device busy before what is computed next, where the case says so."""
        if self.case.perturbation.kind == "slow computation":
            self.slowed += 1
            self.place.keep_busy(self.case.perturbation.milliseconds / 1000)

    def _injected_failure(self, wrapped: Any, optimizer: Any, indices: Any) -> None:
        """What goes wrong at this step: death, or an exception of the user's own, who catches it and clears gradients."""
        plan = self.case.injected_failure
        self._die_in_time()
        if plan is None or plan.step != self.step or self.case.kills:
            return
        drive, surfaced = self.drive, ""
        drive.before_batch(wrapped, optimizer)
        drive.zero_grad(wrapped, optimizer, True)  # noqa: FBT003 - as the adapter's method takes it
        inputs, targets, tags = self._batch(indices, self.step)
        self.replica.failing = plan.kind.removesuffix(" error")
        try:
            scaled = self._loss(self._forward(wrapped, inputs), targets, tags, inputs)[1]
            drive.backward(wrapped, optimizer, scaled)
        except Exception as error:  # noqa: BLE001 - an implementation may pass it on as another
            surfaced = type(error).__name__
        finally:
            self.replica.failing = ""
        self.record.facts["surfaced"] = surfaced
        drive.zero_grad(wrapped, optimizer, True)  # noqa: FBT003 - as above

    def _die_in_time(self) -> None:
        plan = self.case.injected_failure
        if (
            plan is not None
            and self.case.kills
            and (plan.step, plan.rank) == (self.step, self.rank)
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    def _require_own_parameters(self, wrapped: Any) -> None:
        """Insist that what is watched is what is trained.

        Raises:
            TypeError: The wrapper trains a copy: nothing it does would be seen.
        """
        parameters = getattr(wrapped, "parameters", None)
        theirs = {id(p) for p in parameters()} if callable(parameters) else set()
        if theirs and not theirs & {id(p) for p in self.replica.parameters()}:
            raise TypeError(
                "the wrapper's parameters() are not those of the module it was given, so nothing it does can be "
                "seen: it trains a copy, or hides them; an adapter is needed"
            )

    def _plain_training(self) -> None:
        """The same steps without any wrapper, for the world of one rank, in which a wrapper may change nothing."""
        case = self.case
        plain = Replica(
            case.model, draws.parameters(case, self.rank, case.model.numbers), self.place.device
        )
        _lay_out(plain, self.layouts)
        optimizer = self.context.optimizer(plain.parameters())
        self.scaler = loss_scaler.scaler_of(case, self.place.device)
        for number, dealt in enumerate(draws.batches(case)):
            self.step = number // case.accumulation
            self._pass_by(plain, micro_step=number % case.accumulation)
            inputs, targets, tags = self._batch(dealt[0], self.step)
            if not self._given(plain, number, inputs):
                return
            for action in case.between_steps if number % case.accumulation == 0 else ():
                if action.step == self.step:
                    between_steps.plainly(action, plain, optimizer)
            if case.zero_grad != "never" and number % case.accumulation == 0:
                optimizer.zero_grad(set_to_none=case.zero_grad == "set_to_none")
            self._loss(self._cast(plain, inputs), targets, tags, inputs)[1].backward()
            if (number + 1) % case.accumulation == 0:
                if self.scaler is not None:
                    loss_scaler.unscale(case, self.scaler, optimizer)
                if case.clip is not None:
                    nn.utils.clip_grad_norm_(plain.parameters(), case.clip)
                if self.scaler is not None:
                    loss_scaler.step(self.scaler, optimizer)
                else:
                    optimizer.step()
                self.record.tensors("plain", number // case.accumulation, plain.named_parameters())

    def _forward(self, wrapped: Any, inputs: Tensor) -> Any:
        """A forward of what is trained, as the program calls it."""
        return self._cast(partial(self.drive.forward, wrapped), inputs)

    def _cast(self, forward: Callable[[Tensor], Any], inputs: Tensor) -> Any:
        """A forward, under autocast where the case says so."""
        with (
            torch.autocast(self.place.device.type, torch.bfloat16)
            if self.case.autocast
            else nullcontext()
        ):
            return forward(inputs)

    def _loss(
        self, outputs: Any, targets: Tensor, tags: Tensor, inputs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A micro-step's loss, and what its backward starts from: that divided by the micro-steps of a step, and scaled."""
        loss = loss_of(self.case.loss, outputs, targets, tags)
        if self.case.penalty and inputs is not None:
            (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
            loss = loss + gradient.double().square().sum()
        share = loss / self.case.accumulation if self.case.accumulation > 1 else loss
        return loss, share if self.scaler is None else self.scaler.scale(share)

    def _one_step(self, wrapped: Any, optimizer: Any, dealt: list[Any]) -> None:
        """One optimizer update: all micro-steps but the last without communication, where the wrapper can do that."""
        drive, case = self.drive, self.case
        last, each = len(dealt) - 1, drive.found["accumulation"] != "no_sync"
        self.phase, self.followed = "a caught exception", True
        self._injected_failure(wrapped, optimizer, dealt[0])
        self.phase = "before the batch"
        drive.before_batch(wrapped, optimizer)
        if case.zero_grad != "never":
            drive.zero_grad(wrapped, optimizer, case.zero_grad == "set_to_none")
        start = self.session.counts()
        quiet: list[tuple[list[int], list[int]]] = []
        if case.passes != "alternate":
            self._passes(wrapped, optimizer, dealt)
        for number, indices in enumerate(dealt if case.passes == "alternate" else ()):
            if number < last and not each:
                with drive.accumulate(wrapped):
                    if case.no_sync == "nested":
                        with drive.accumulate(wrapped):
                            pass
                    quiet.append(self._micro_step(wrapped, optimizer, number, indices))
                continue
            if case.no_sync == "error" and not each:
                self._leave_by_an_error(wrapped)
            self._micro_step(wrapped, optimizer, number, indices)
            self.phase = "synchronisation"
            drive.after_backward(wrapped, optimizer)
        backwards = self.record.facts.setdefault("backwards", [])
        backwards.append([self.backward_began, self.session.log.now(), self.arrived])
        if self.declared.gradients != "hidden":
            self._note_in_flight()
            gradients = drive.gradients(wrapped)
            self.record.tensors(
                "reduced", self.step, ((name, gradients.get(name)) for name, _ in self.named)
            )
        self._ready(wrapped, optimizer)
        gradient_bytes = memory.gradients(self.replica, optimizer) if self.declared.zero else 0
        self.phase = "optimizer step"
        self._make_step(wrapped, optimizer)
        if self.declared.gradients == "hidden":  # Its step may be what waits.
            self._note_in_flight()
        self.record.facts.setdefault("marks", []).append([start, self.session.counts()])
        self.record.facts.setdefault("quiet", []).append(quiet)
        if self.declared.zero < SHARDED:
            self.record.tensors("updated", self.step, self.named)
            if self.buffers:
                self.record.tensors("left buffers", self.step, self.replica.named_buffers())
        if self.buffers and self.followed:
            self.record.tensors("twin buffers", self.step, self.twin.named_buffers())
        if self.declared.zero:
            self.record.facts.setdefault("held", []).append(
                [*memory.parameters_and_state(self.replica, optimizer), gradient_bytes]
            )
        elif self.declared.optimizer == "replicated":
            self.record.tensors("state", self.step, self._optimizer_state(optimizer))

    def _ready(self, wrapped: Any, optimizer: Any) -> None:
        """Make of synchronised gradients what the step is made with."""
        if self.scaler is not None:
            self.phase = "unscaling"
            loss_scaler.unscale(self.case, self.scaler, optimizer)
        if self.case.clip is not None:
            self.phase = "clipping"
            self.drive.clip(wrapped, optimizer, self.case.clip)

    def _make_step(self, wrapped: Any, optimizer: Any) -> None:
        """Have the optimizer step, or the scaler have it step unless gradients overflow."""
        if self.scaler is None:
            self.drive.step(wrapped, optimizer)
        else:
            self.record.facts.setdefault("scales", []).append(
                loss_scaler.step(self.scaler, optimizer)
            )

    def _leave_by_an_error(self, wrapped: Any) -> None:
        """Leave a no_sync by an exception of the user's own, who catches it."""
        with suppress(UserError), self.drive.accumulate(wrapped):
            raise UserError

    def _note_in_flight(self) -> None:
        if self.case.perturbation.kind == "withheld":
            in_flight = self.record.facts.setdefault("in_flight", [])
            in_flight += [[self.step, *found] for found in self.session.in_flight()]

    def _micro_step(
        self, wrapped: Any, optimizer: Any, number: int, indices: Any
    ) -> tuple[list[int], list[int]]:
        """One forward and backward, and the unwrapped twin's. Returns what was sent before and after the backward."""
        inputs, targets, tags = self._batch(indices, self.step)
        self._pass_by(self.replica, self.twin, micro_step=number)
        self.phase, self.watching, self.noticed = "forward", number == 0, []
        loss, scaled = self._loss(self._forward(wrapped, inputs), targets, tags, inputs)
        self._note_drawn("drawn", self.step * self.case.accumulation + number)
        self.phase = "backward"
        start = self.session.counts()
        self.arrived, self.backward_began = [], self.session.log.now()
        self._slow_down()
        self.drive.backward(wrapped, optimizer, scaled)
        span = start, self.session.counts()
        self.phase = "twin"
        if self.declared.zero == SHARDED and number == 0:
            self._note_gathered()
        self._twin_step(number, inputs, targets, tags, loss)
        return span

    def _passes(self, wrapped: Any, optimizer: Any, dealt: list[Any]) -> None:
        """A step's forwards and backwards in another order than in turn, and the unwrapped twin's in turn."""
        retained, first = self.case.passes == "retained", self.step * self.case.accumulation
        batches = [self._batch(indices, self.step) for indices in dealt]
        self.phase, self.watching = "forward", True
        losses = []
        for number, (inputs, targets, tags) in enumerate(batches[:1] if retained else batches):
            self._pass_by(self.replica, self.twin, micro_step=number)
            self.noticed = []
            losses.append(self._loss(self._forward(wrapped, inputs), targets, tags))
            self._note_drawn(
                "drawn", *(range(first, first + len(batches)) if retained else [first + number])
            )
        self.phase = "backward"
        self.arrived, self.backward_began = [], self.session.log.now()
        self._slow_down()
        if retained:
            for number in range(len(dealt)):
                losses[0][1].backward(retain_graph=number < len(dealt) - 1)
                self.drive.after_backward(wrapped, optimizer)
        else:
            self.drive.backward(
                wrapped, optimizer, torch.stack([scaled for _, scaled in losses]).sum()
            )
            self.phase = "synchronisation"
            self.drive.after_backward(wrapped, optimizer)
        self.phase = "twin"
        if self.declared.zero == SHARDED:
            self._note_gathered()
        if retained:
            for number, batch in enumerate(batches):
                self._twin_step(number, *batch, losses[0][0])
            return
        # One backward of all, for autograd adds up what it meets in an order of its own: a sum of
        # parts may round otherwise.
        found = []
        for number, (inputs, targets, tags) in enumerate(batches):
            self._pass_by(self.twin, micro_step=number)
            if not self._given(self.twin, first + number, inputs):
                self.followed = False
                return
            found.append(self._loss(self._cast(self.twin, inputs), targets, tags))
        self._note_twin(
            0, torch.stack([scaled for _, scaled in found]).sum(), found[0][0], losses[0][0]
        )
        for number in range(1, len(batches)):
            self._note_twin(number, None, found[number][0], losses[number][0])

    def _twin_step(
        self, number: int, inputs: Tensor, targets: Tensor, tags: Tensor, loss: Tensor
    ) -> None:
        """What an unwrapped module makes of the same batch and the same random numbers, where these are known."""
        if not self._given(self.twin, self.step * self.case.accumulation + number, inputs):
            self.followed = False
            return
        twin_loss, scaled = self._loss(self._cast(self.twin, inputs), targets, tags, inputs)
        self._note_twin(number, scaled, twin_loss, loss)

    def _note_twin(
        self, number: int, scaled: Tensor | None, twin_loss: Tensor, loss: Tensor
    ) -> None:
        """Note a micro-step's losses, and the gradients that backward gives the twin; zeros where another's has given all."""
        self.twin.zero_grad(set_to_none=True)
        if scaled is not None:
            scaled.backward()
        if (
            scaled is None or self.case.unused or self.thawed
        ):  # So counts what is unused, or frozen at this step alone.
            for name, parameter in self.twin_named:
                if parameter.grad is None and (parameter.requires_grad or name in self.thawed):
                    parameter.grad = torch.zeros_like(parameter)
        micro = self.step * self.case.accumulation + number
        self.record.tensors("local", micro, ((name, p.grad) for name, p in self.twin_named))
        if self.case.sparse:
            self.record.tensors(
                "entries",
                micro,
                (
                    (name, p.grad if p.grad is None else entries(p.grad))
                    for name, p in self.twin_named
                ),
            )
        self.record.tensors("loss", micro, (("loss", loss), ("twin", twin_loss)))

    def _train_by_itself(self) -> None:
        """Train with an implementation that does whole steps."""
        parameters = dict(self.named)
        for step, dealt in enumerate(draws.batches(self.case)):
            self.step = step
            self._die_in_time()
            inputs, targets, tags = self._batch(dealt[self.rank], self.step)
            self.watching = True
            self._at_forward()
            self.phase, self.noticed = "train_step", []
            start = self.session.counts()
            self._slow_down()
            loss = self.drive.train_step(parameters, inputs, targets, self.context)
            self._note_in_flight()
            self.record.facts.setdefault("marks", []).append([start, self.session.counts()])
            self.record.tensors("updated", self.step, self.named)
            self._note_drawn("drawn", self.step)
            self.phase = "twin"
            reported = (
                loss.detach()
                if isinstance(loss, Tensor)
                else torch.tensor(loss, dtype=torch.float64)
            )
            self._twin_step(0, inputs, targets, tags, reported)

    def _at_forward(self) -> None:
        """Note what the forward starts from, and have the twin start from the same."""
        if not self.watching:
            return
        self.watching = False
        if self.buffers:  # Forwards may have assigned them anew.
            self.buffers = list(self.replica.named_buffers())
        self.record.tensors("forward", self.step, self.named)
        self.record.tensors("forward buffers", self.step, self.buffers)
        if self.moved:
            self.moved = False
            self.layouts = [_layout_of(parameter) for _, parameter in self.named]
            _lay_out(self.twin, self.layouts)
        with torch.no_grad():
            for ours, theirs in zip(self._twin_state(), [*self.named, *self.buffers], strict=True):
                ours.copy_(theirs[1])

    def _twin_state(self) -> list[Tensor]:
        """The twin's parameters and buffers."""
        return [*(p for _, p in self.twin_named), *(self.twin.buffers() if self.buffers else ())]

    def _at_layer(self, layer: nn.Module) -> None:
        """Note what a layer computes with: where parameters are sharded, the one moment they are whole."""
        if not self.watching:
            return
        index = next(number for number, one in enumerate(self.replica.layers) if one is layer)
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            full = f"layers.{index}.{name}"
            if full not in self.gathered:
                self.gathered[full] = tensor.detach().clone()
                self.laid_out[full] = _layout_of(tensor)

    def _note_gathered(self) -> None:
        """Note what the forward computed with, which is also what the step before left."""
        self.watching, gathered = False, self.gathered
        self.gathered = {}
        names, buffers = (
            [name for name, _ in self.twin_named],
            [name for name, _ in self.twin.named_buffers()],
        )
        parameters = [(name, gathered.get(name)) for name in names]
        if self.step:
            self.record.tensors("updated", self.step - 1, parameters)
        if self.step == self.case.steps:
            return
        self.record.tensors("forward", self.step, parameters)
        self.record.tensors(
            "forward buffers", self.step, ((name, gathered.get(name)) for name in buffers)
        )
        if self.step == 0 and self.laid_out.keys() >= set(names):
            self.layouts = [self.laid_out[name] for name in names]
            _lay_out(self.twin, self.layouts)
        with torch.no_grad():
            for ours, name in zip(self._twin_state(), [*names, *buffers], strict=True):
                if name in gathered and gathered[name].shape == ours.shape:
                    ours.copy_(gathered[name])

    def _batch(self, indices: Any, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (B, D in) in the first dtype of the model, targets (B, D out) and tags (B,) in float64."""
        inputs_BD = self.dataset.inputs_ND[indices]
        poison = self.case.poison
        if poison is not None and (poison.rank, poison.step) == (self.rank, step):
            inputs_BD[0, 0] = float(poison.value)
        inputs = torch.from_numpy(inputs_BD)
        if self.case.model.layers[0].dtype != "float64":
            inputs = inputs.float()
        targets, tags = (
            torch.from_numpy(values[indices])
            for values in (self.dataset.targets_ND, self.dataset.tags_N)
        )
        inputs, targets, tags = (
            self.place.put(inputs),
            self.place.put(targets),
            self.place.put(tags),
        )
        return inputs.requires_grad_(self.case.penalty), targets, tags

    def _optimizer_state(self, optimizer: Any) -> Iterator[tuple[str, Tensor | None]]:
        states = getattr(optimizer, "state", {})
        for name, parameter in self.named if isinstance(states, dict) else ():
            for key, value in states.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{name}/{key}", value
