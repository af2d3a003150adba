"""A training case as pieces of Python source for the templates of scripts.

The pieces are the model, the samples and the calls around a step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.extremes import EXTREMES
from ddp_invariants.cases.program import InjectedFailure
from ddp_invariants.export.layers import attribute, containers, layer_lines, sources
from ddp_invariants.situations.own_buffers import OwnBuffers


def call_text(function: str, first: str, rows: list[list[str]], case: TrainingCase) -> str:
    """Return a call as source text, with the arguments that the case needs."""
    settings = case.optimizer.settings
    wanted = {
        "": True,
        "cap": case.bucket_cap is not None,
        "group": case.outside > 0,
        "own buffers": case.get(OwnBuffers) is not None,
    }
    given = [
        f"**{text}" if name == "**" else f"{name}={text}"
        for name, text, when in rows
        if when != "setting" and wanted[when]
    ]
    given += [
        f"{name}={settings[setting]!r}"
        for name, setting, when in rows
        if when == "setting" and setting in settings
    ]
    return f"{function}({', '.join([first, *given])})"


def frozen(case: TrainingCase) -> list[str]:
    """Return the names of the parameters that must not change."""
    layers = case.model.layers
    return [
        case.model.full(index, name)
        for index, layer in enumerate(layers)
        for name in layer.used
        if (layers[layer.tied] if layer.tied is not None and name == "weight" else layer).frozen
    ]


def samples(case: TrainingCase, used: set[int], *, tagged: bool) -> dict[int, list[Any]]:
    """Return the inputs and targets (and tags) of the samples that ranks use, by sample index."""
    dataset = numbers.Dataset(case)
    return {
        index: [
            dataset.inputs_ND[index].tolist(),
            dataset.targets_ND[index].tolist(),
            *([float(dataset.tags_N[index])] if tagged else []),
        ]
        for index in sorted(used)
    }


def model(case: TrainingCase) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return a model as the values of the template for models.

    Returns:
        Each rank's initial values by name (a single entry if all ranks start equal), the lines
        that build the layers, and the lines that run them.
    """
    initial: list[dict[str, Any]] = []
    for rank in range(1 if case.init == "equal" else case.world_size):
        taken, at = numbers.parameters(case, rank, case.model.numbers), 0
        values: dict[str, Any] = {}
        for index, (layer, width) in enumerate(
            zip(case.model.layers, case.model.widths(), strict=False)
        ):
            for name, shape in layer.shapes(width).items():
                shape = (*shape, 2) if layer.complex else shape  # noqa: PLW2901 - two numbers each
                size = math.prod(shape)
                piece, at = taken[at : at + size].reshape(shape), at + size
                # The numbers of a tied weight are drawn, but not used.
                if not (name == "weight" and layer.tied is not None):
                    as_kept = {
                        "count": np.trunc(piece * 4096).astype(np.int64) * (2**39 + 1) + 1,
                        "seen": piece > 0,
                        "running_var": np.abs(piece),
                        "num_batches_tracked": np.trunc(np.abs(piece) * 8).astype(np.int64),
                        **({name: EXTREMES[name](piece)} if name in EXTREMES else {}),
                    }
                    values[f"{index}.{name}"] = as_kept.get(name, piece).tolist()
        initial.append(values)
    building = [
        line
        for index, (layer, container) in enumerate(
            zip(case.model.layers, containers(case.model), strict=True)
        )
        for line in (container, *layer_lines(case, index, layer, case.model.widths()[index]))
        if line
    ]
    calls = {"none": "{}", "relu": "torch.relu({})", "gelu": "nn.functional.gelu({})"}
    unused = {each.layer for each in case.unused}
    forward = [
        "x = "
        + (f"x if {index} in self.passed_by else " if index in unused else "")
        + calls[layer.activation].format(
            "x.to(self.factor.dtype) * self.factor"
            if index == case.model.rooted
            else f"{attribute(case.model, index)}(x)"
        )
        for index, layer in enumerate(case.model.layers)
    ]
    return initial, building, forward


@dataclass(frozen=True)
class Calls:
    """The calls around a step as source text, in the order of `ranks.training.stepper`.

    Attributes:
        case: The case.
        source: `Description.source` of the DDP.
        driven: The methods of the wrapper that a run found by name, by the moment of their call.
    """

    case: TrainingCase
    source: Mapping[str, Any]
    driven: Mapping[str, str]

    @property
    def methods(self) -> list[str]:
        """The names of the adapter's methods."""
        methods: list[str] = self.source["methods"]
        return methods

    @property
    def quiet(self) -> bool:
        """True if all backwards of a step except the last run without communication."""
        return self.case.accumulation > 1 and self.driven["accumulation"] == "no_sync"

    @property
    def needs_cap(self) -> bool:
        """True if a bucket capacity is passed."""
        return "BUCKET_CAP" in "".join(self.wrapping())

    def _by_name(self, moment: str, arguments: str = "") -> list[str]:
        """Return the call of the wrapper's method for a moment; no line if it has none."""
        named = self.driven.get(moment, "")
        return [f"wrapped.{named.removesuffix('()')}({arguments})"] if named else []

    def wrapping(self) -> list[str]:
        """Return the lines that wrap the model and make the optimizer."""
        case, source, methods = self.case, self.source, self.methods
        usual = "OPTIMIZER({}.parameters(), **OPTIMIZER_ARGUMENTS)"
        lines = [
            f"load({target!r})({', '.join(f'{name}={text}' for name, text in values.items())})"
            for target, values in source["setup"]
        ]
        lines += self._loading_adapter() if methods else []
        lines += ["adapter.setup(context)"] if "setup" in methods else []
        lines += [f"optimizer = {usual.format('model')}"] if source["takes_optimizer"] else []
        if "wrap" in methods:
            lines.append("wrapped = adapter.wrap(model, context)")
        else:
            lines.append(
                "wrapped = model"
                if source["wrap"] is None
                else f"wrapped = {call_text('load(UNDER_TEST)', 'model', source['wrap'], case)}"
            )
        brings = bool(source["takes_optimizer"])
        if not source["module"] and (source["wrap"] is not None or "wrap" in methods):
            lines += [] if brings else ["optimizer = None"]
            lines += [
                "if isinstance(wrapped, tuple):",
                "    wrapped, optimizer = wrapped[:2]",
                "wrapped = model if wrapped is None else wrapped",
            ]
            brings = True
        lines += self._by_name("after wrapping")
        made = usual.format("wrapped" if source["module"] else "model")
        if "make_optimizer" in methods:
            made = "adapter.make_optimizer(wrapped, context)"
        elif source["optimizer"] is not None:
            own = source["optimizer"]
            lines += [f"optimizer = {made}"] if own["needs"] else []
            loaded = f"load({own['target']!r})"
            return [*lines, f"optimizer = {call_text(loaded, own['first'], own['rows'], case)}"]
        return [
            *lines,
            (
                "optimizer = "
                f"{f'optimizer or {made}' if brings and 'make_optimizer' not in methods else made}"
            ),
        ]

    def _loading_adapter(self) -> list[str]:
        """Return the lines that make the adapter and the context of its methods."""
        given = ", ".join(f"{name}={text}" for name, text in self.source["adapter"].items())
        cap = "BUCKET_CAP" if self.case.bucket_cap is not None else "None"
        return [
            f"adapter = load(UNDER_TEST)({given})",
            (
                "context = types.SimpleNamespace(rank=rank, world_size=WORLD_SIZE, "
                f"bucket_cap={cap}, seed=SEED,"
            ),
            f"                                group={'group' if self.case.outside else 'None'},",
            (
                "                                own_buffers="
                f"{self.case.get(OwnBuffers) is not None}, "
                'device=torch.device("cpu"),'
            ),
            '                                lr=OPTIMIZER_ARGUMENTS["lr"],',
            (
                "                                optimizer_class=OPTIMIZER, "
                "optimizer_arguments=OPTIMIZER_ARGUMENTS,"
            ),
            "                                groups=None, grouped=lambda parameters: parameters,",
            (
                "                                optimizer=lambda trained: "
                "OPTIMIZER(trained, **OPTIMIZER_ARGUMENTS))"
            ),
        ]

    def before_step(self) -> list[str]:
        """Return the lines at the start of a step."""
        lines = (
            ["adapter.before_batch(wrapped, optimizer)"]
            if "before_batch" in self.methods
            else self._by_name("before each batch")
        )
        if self.case.zero_grad == "never":
            return lines
        set_to_none = self.case.zero_grad == "set_to_none"
        if "zero_grad" in self.methods:
            lines.append(f"adapter.zero_grad(wrapped, optimizer, {set_to_none})")
        else:
            lines.append(f"optimizer.zero_grad({'' if set_to_none else 'set_to_none=False'})")
        if self.case.zero_grad == "mixed":
            lines += [
                "for number, parameter in enumerate(model.parameters()):",
                "    if (number + step) % 2 == 0:",
                "        parameter.grad = None",
            ]
        return lines

    def forward(self) -> str:
        """Return the expression of a forward."""
        return (
            "adapter.forward(wrapped, inputs)" if "forward" in self.methods else "wrapped(inputs)"
        )

    def micro_step(self) -> list[str]:
        """Return the lines of a forward and a backward."""
        scaled = self._scaled("loss")
        backward = (
            f"adapter.backward(wrapped, optimizer, {scaled})"
            if "backward" in self.methods
            else f"wrapped.backward({scaled})"
            if "backward" in self.driven
            else self.backward("loss")
        )
        return self._quietly(
            [*self.forwarded(f"loss = loss_of({self.forward()}, *rest)"), backward]
        )

    def forwarded(self, line: str) -> list[str]:
        """Return a line that holds a forward, under autocast if the case asks for it."""
        for situation in self.case.situations:
            scripted = situation.scripted_forward(line)
            if scripted != [line]:
                return scripted
        return [line]

    def _scaled(self, loss: str) -> str:
        """Return the expression that a loss's backward starts from."""
        share = f"{loss} / MICRO_STEPS" if self.case.accumulation > 1 else loss
        for situation in self.case.situations:
            share = situation.scripted_loss(share)
        return share

    def backward(self, loss: str) -> str:
        """Return the call of a loss's own `backward()`."""
        scaled = self._scaled(loss)
        whole = f"({scaled})" if scaled == f"{loss} / MICRO_STEPS" else scaled
        return f"{whole}.backward()"

    def _quietly(self, lines: list[str]) -> list[str]:
        """Return the lines, changed to communicate in a step's last micro-step only.

        The lines stay as they are if the wrapper cannot do this, or if nothing is accumulated.
        """
        if not self.quiet:
            return lines
        last, kernels = (
            "micro == MICRO_STEPS - 1",
            self.driven.get("without communication", "no_sync"),
        )
        if kernels == "set_requires_gradient_sync":
            return [f"wrapped.set_requires_gradient_sync({last})", *lines]
        if kernels == "require_backward_grad_sync":
            return [f"wrapped.require_backward_grad_sync = {last}", *lines]
        entered = (
            "adapter.accumulate(wrapped)" if "accumulate" in self.methods else "wrapped.no_sync()"
        )
        return [
            f"with contextlib.nullcontext() if {last} else {entered}:",
            *(f"    {line}" for line in lines),
        ]

    def after_backward(self) -> list[str]:
        """Return the lines after a backward whose gradients must be synchronised."""
        if "after_backward" in self.methods:
            return ["adapter.after_backward(wrapped, optimizer)"]
        lines, after = self._by_name("after backward"), self.source["after"]
        if after is not None:
            lines.append(
                call_text(f"load({after['target']!r})", "wrapped", after["rows"], self.case)
            )
        return lines

    def gradients(self) -> str:
        """Return the expression of all names and synchronised gradients."""
        if "gradients" in self.methods:
            return "adapter.gradients(wrapped).items()"
        return "(name, parameter.grad) for name, parameter in model.named_parameters()"

    def step(self) -> list[str]:
        """Return the lines of the update."""
        scripted = [line for each in self.case.situations for line in each.scripted_step()]
        if scripted:
            return scripted
        if "step" in self.methods:
            return ["adapter.step(wrapped, optimizer)"]
        return ["wrapped.step()" if "step" in self.driven else "optimizer.step()"]

    def setup(self) -> list[str]:
        """Return the lines that prepare the situations of the case, once the model is wrapped."""
        return [line for situation in self.case.situations for line in situation.scripted_setup()]


def pieces(case: TrainingCase, calls: Calls, *, tagged: bool) -> dict[str, Any]:
    """Return a case and its calls as values of templates.

    They fill templates/setting.j2 and templates/model.j2, and the lines that every script runs in
    a step.

    Args:
        case: The case.
        calls: The calls around a step.
        tagged: True if each sample adds its own tag to the loss.
    """
    (initial, building, forward), failure = model(case), case.injected_failure
    batches = [[ranks.tolist() for ranks in micro] for micro in numbers.batches(case)]
    optimizers = {
        "sgd": "torch.optim.SGD",
        "adam": "torch.optim.Adam",
        "adamw": "torch.optim.AdamW",
    }
    return {
        "processes": case.ranks_needed,
        "adapter": bool(calls.methods),
        "needs_cap": calls.needs_cap,
        "optimizer_class": optimizers[case.optimizer.kind],
        "optimizer_arguments": case.optimizer.arguments,
        "initial": initial,
        "layer_lines": building,
        "forward": forward,
        "kinds": {layer.kind for layer in case.model.layers},
        "layers": sources(case.model.layers),
        "complex": any(layer.complex for layer in case.model.layers),
        "samples": samples(
            case, {index for micro in batches for ranks in micro for index in ranks}, tagged=tagged
        ),
        "batches": batches,
        "tags": tagged,
        "quiet": calls.quiet,
        "input_dtype": "torch.float64"
        if case.model.layers[0].dtype == "float64"
        else "torch.float32",
        "wrapping": [*calls.wrapping(), *calls.setup()],
        "twin_backward": calls.backward("twin_loss"),
        "before_step": calls.before_step(),
        "micro": calls.micro_step(),
        "twin_forward": calls.forwarded("twin_loss = loss_of(twin(inputs), *rest)"),
        "plain_forward": calls.forwarded("plain_loss = loss_of(plain(inputs), *rest)"),
        "after_backward": calls.after_backward(),
        "gradients": calls.gradients(),
        "stepping": calls.step(),
        "passed_by": [
            [
                sorted(case.passed_by(rank, *divmod(number, case.accumulation)))
                for rank in range(case.world_size)
            ]
            for number in range(len(batches))
        ]
        if case.unused
        else [],
        "injected_failure": failure,
        "failing": [] if failure is None else _injected_failure(failure, calls),
    }


def _injected_failure(plan: InjectedFailure, calls: Calls) -> list[str]:
    """Return the lines of a step in which the user's own exception is raised and caught."""
    failing, failed = [f"model.failing = {plan.kind.partition(' ')[0]!r}"], 'model.failing = ""'
    if plan.parameter is not None:
        failing = [
            "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]",
            f"handle = trained[{plan.parameter} % len(trained)].register_hook(fail)",
        ]
        failed = "handle.remove()"
    return [
        *calls.before_step(),
        *failing,
        "try:",
        "    inputs, *rest = batch(step, rank)",
        "    rest[0] = rest[0] + 1  # The failing attempt takes another batch than the step.",
        *(f"    {line}" for line in calls.micro_step()),
        "    surfaced = False",
        f"except {'BaseException' if plan.interrupts else 'Exception'}:  # The user's own.",
        "    surfaced = True",
        failed,
    ]
