"""The form of a forward's call: how the program hands the inputs over, and takes the outputs.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, get_args

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.fields import one_of, require
from ddp_invariants.cases.situation import Situation
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import GENTLE, Capability
from ddp_invariants.situations.draft import Draft

InputForm = Literal[
    "plain",
    "keyword",
    "halves",
    "others",
    "wide",
    "number",
    "tuple",
    "list",
    "dict",
    "trained",
    "trained_dict",
    "option",
    "none",
    "namedtuple",
    "record",
    "subclass",
]
OutputForm = Literal[
    "plain",
    "tuple",
    "list",
    "dict",
    "nested",
    "halves",
    "namedtuple",
    "dataclass",
    "mixed",
    "twice",
    "deep",
    "loss",
    "parameter",
    "one_tuple",
    "one_list",
    "record",
    "subclass",
]
Form = InputForm | OutputForm
TRAINS: frozenset[Form] = frozenset({"trained", "trained_dict"})
"""The forms of inputs that a trained parameter before the wrapper has made."""

LONGEST = 24
"""The most forms that follow one another in a case."""


@dataclass(frozen=True)
class CallShape(Situation):
    """The forms in which forwards get inputs and return outputs; the arithmetic is the same.

    Attributes:
        inputs: The form of each micro-step's inputs. After the last, the first follows. `keyword`
            names the tensor; `halves` gives the batch in two tensors; `others` adds arguments that
            are no tensors; `wide` adds tensors of float64 and int64, whatever the dtype of the inputs;
            `number` adds a tensor without dimensions that requires a gradient;
            `tuple`, `list`, `dict` and `namedtuple` are containers; `record` is a dataclass with a
            field that its constructor does not take; `subclass` is a class derived from dict;
            `trained` multiplies the inputs by a parameter outside the wrapper, and lays them out by
            columns; `trained_dict` does so and puts them into a dict; `option` names a number,
            and `none` names None in its place; without either the module returns another result.
        outputs: The form of each micro-step's outputs, likewise. All but `plain`, `halves` and `loss`
            hold a second tensor that does not enter the loss, but `one_tuple` and `one_list`, which
            hold one element, and `record`; `mixed` also holds None, a string and
            a number; `twice` holds the tensor of the loss twice; `deep` holds it two levels below
            the other one; `loss` is the loss itself, which the module computes; in `parameter` the
            second tensor is a parameter of the module, such as a learned temperature.
    """

    beyond_scripts: ClassVar[str] = "forwards get inputs or return outputs in several forms"
    options: ClassVar[dict[str, Any]] = {"call_shapes": ()}
    moment: ClassVar[str] = "forwards"
    hides_nothing: ClassVar[bool] = True
    in_earlier_run: ClassVar[bool] = False

    inputs: tuple[InputForm, ...] = ("plain",)
    outputs: tuple[OutputForm, ...] = ("plain",)
    kind: Literal["call shape"] = "call shape"

    def check(self, case: TrainingCase) -> None:
        """Require forms, of which one at least is not plain, and training that allows them."""
        for name, forms, known in (
            ("inputs", self.inputs, InputForm),
            ("outputs", self.outputs, OutputForm),
        ):
            require(
                1 <= len(forms) <= LONGEST, f"call_shape.{name}", forms, f"1 to {LONGEST} forms"
            )
            for form in forms:
                one_of(f"call_shape.{name}", form, known)
        require(
            {*self.inputs, *self.outputs} != {"plain"},
            "call_shape",
            self.words,
            "at least one form that is not plain",
        )
        require(
            not self.trains_inputs
            or (case.injected_failure is None and case.model.layers[0].kind != "embedding"),
            "call_shape.inputs",
            self.inputs,
            "no trained inputs if a forward fails, or if an embedding takes the inputs",
        )
        require(
            "loss" not in self.outputs
            or (not case.penalty and case.injected_failure is None and not case.autocast),
            "call_shape.outputs",
            self.outputs,
            "no 'loss' if the program needs the outputs themselves, or if a forward fails",
        )

    @property
    def trains_inputs(self) -> bool:
        """True if a trained parameter lies before the wrapper."""
        return not TRAINS.isdisjoint(self.inputs)

    @property
    def words(self) -> str:
        """The forms of inputs and outputs."""
        return f"call_shape={'+'.join(self.inputs)}->{'+'.join(self.outputs)}"

    def joined(self, other: "CallShape") -> "CallShape":
        """Return the forms of both, if one is about inputs alone and the other about outputs.

        More forms of one side would need more micro-steps.
        """
        for inputs, outputs in ((self, other), (other, self)):
            if set(inputs.outputs) == set(outputs.inputs) == {"plain"}:
                return CallShape(inputs.inputs, outputs.outputs)
        if other != self:
            raise CaseError(f"{self.words} and {other.words} need micro-steps of their own")
        return self

    def simpler(self) -> Iterator["CallShape"]:
        """Yield plain outputs, plain inputs, and one form alone."""
        for inputs, outputs in (
            (self.inputs, ("plain",)),
            (("plain",), self.outputs),
            *(((form,), self.outputs) for form in self.inputs),
            *((self.inputs, (form,)) for form in self.outputs),
        ):
            simpler = CallShape(inputs, outputs)
            if {*inputs, *outputs} != {"plain"} and simpler != self:
                yield simpler

    def forms(self, number: int) -> tuple[InputForm, OutputForm]:
        """Return the forms of a micro-step, by its number in the run."""
        return self.inputs[number % len(self.inputs)], self.outputs[number % len(self.outputs)]

    def without_forms(self, forms: frozenset[Form]) -> "CallShape | None":
        """Return the situation with other forms than these; None if all forms are then plain."""
        inputs = tuple(form for form in self.inputs if form not in forms) or ("plain",)
        outputs = tuple(form for form in self.outputs if form not in forms) or ("plain",)
        plain = {*inputs, *outputs} == {"plain"}
        return None if plain else CallShape(inputs, outputs)

    @classmethod
    def drawn(cls, draft: Draft) -> None:
        """Draw forms in every case that the option `call_shapes` asks for.

        The option names input forms. `all` stands for all forms of inputs and outputs.
        """
        wanted = draft.wanted["call_shapes"]
        if not wanted:
            return
        st, every = draft.st, "all" in wanted
        of_inputs = get_args(InputForm) if every else wanted
        of_outputs = get_args(OutputForm)
        inputs = draft.draw(st.lists(st.sampled_from(of_inputs), min_size=1, max_size=4))
        outputs = draft.draw(st.lists(st.sampled_from(of_outputs), min_size=1, max_size=4))
        if {*inputs, *outputs} != {"plain"}:
            draft.add(cls(tuple(inputs), tuple(outputs)))
            # Each form has a step in which it happens.
            draft.steps = max(draft.steps, len(inputs), len(outputs))

    def fitted(self, case: TrainingCase) -> TrainingCase:
        """Return a drawn case with the forms that can happen in it."""
        fewer: tuple[frozenset[Form], ...] = (
            frozenset(),
            TRAINS,
            frozenset({"loss"}),
            TRAINS | {"loss"},
        )
        for forms in fewer:
            kept = self.without_forms(forms)
            if kept is None:
                continue
            try:
                return case.with_situation(kept)
            except CaseError:
                continue
        return case

    @classmethod
    def counted(cls, case: TrainingCase) -> dict[str, str | set[str]]:
        """Return the forms of inputs and outputs, as a coverage table counts them."""
        shape = case.get(cls) or _PLAIN
        return {"inputs": set(shape.inputs), "outputs": set(shape.outputs)}

    @classmethod
    def capabilities(cls) -> dict[str, Capability]:
        """Return a capability for each group of forms."""
        table: dict[str, Capability] = {}
        after = "evaluation_mode"
        for name, (inputs, outputs, condition, words) in _CAPABILITIES.items():
            table[name] = _capability(inputs, outputs, condition, after, words)
            after = name
        return table


_PLAIN = CallShape()
"""The form of a call in a case without the situation."""

TRAINED = "inputs that a trained parameter made"

_CAPABILITIES: dict[
    str, tuple[tuple[InputForm, ...], tuple[OutputForm, ...], tuple[str, ...], str]
] = {
    "keyword_inputs": (
        ("keyword", "option", "none"),
        (),
        (),
        "a forward whose input or option is given by its name",
    ),
    "several_inputs": (
        ("halves", "others", "number"),
        (),
        (),
        "a forward of several arguments, of which some are no tensors, or tensors without dimensions",
    ),
    "wide_inputs": (
        ("wide",),
        (),
        (),
        "a forward with arguments of float64 and int64 beside its inputs",
    ),
    "nested_inputs": (
        ("tuple", "list", "dict"),
        (),
        (),
        "a forward whose input lies in a tuple, a list or a dict",
    ),
    "object_inputs": (
        ("namedtuple", "record", "subclass"),
        (),
        (),
        "a forward whose input lies in a namedtuple, a dataclass or an object derived from dict",
    ),
    "input_gradients": (
        ("trained", "trained_dict"),
        (),
        (TRAINED,),
        "inputs that a trained parameter outside the wrapper made",
    ),
    "nested_outputs": (
        (),
        ("tuple", "list", "dict", "nested", "halves", "twice", "one_tuple", "one_list"),
        (),
        "a forward that returns tuples, lists or dicts, of which some tensors enter no loss",
    ),
    "object_outputs": (
        (),
        ("namedtuple", "dataclass", "record", "subclass"),
        (),
        "a forward that returns a namedtuple, a dataclass or an object derived from dict",
    ),
    "deep_outputs": (
        (),
        ("deep",),
        (),
        "a forward that returns tensors at two depths of a dict",
    ),
    "loss_outputs": (
        (),
        ("loss",),
        (),
        "a forward that returns its loss alone",
    ),
    "mixed_outputs": (
        (),
        ("mixed",),
        (),
        "a forward that returns None, a string and a number beside tensors",
    ),
    "parameter_outputs": (
        (),
        ("parameter",),
        (),
        "a forward that returns one of the module's parameters, too",
    ),
}
"""By capability: its forms of inputs and of outputs, the rules' conditions, and its meaning."""

FORMS = tuple(name for name in _CAPABILITIES if name != "input_gradients")
"""The capabilities of which each allows a call of another form."""


def _capability(
    inputs: tuple[InputForm, ...],
    outputs: tuple[OutputForm, ...],
    conditions: tuple[str, ...],
    after: str,
    words: str,
) -> Capability:
    """Return the capability to train with some forms."""
    of_inputs, of_outputs = frozenset(inputs), frozenset(outputs)
    if "dict" in inputs:  # Who takes no dict takes none with trained inputs either.
        of_inputs |= {"trained_dict"}

    def present(case: TrainingCase) -> bool:
        return _has(case, of_inputs, of_outputs)

    def removed(case: TrainingCase) -> TrainingCase:
        shape = case.get(CallShape)
        if shape is None:
            return case
        kept_inputs = tuple(form for form in shape.inputs if form not in of_inputs)
        kept_outputs = tuple(form for form in shape.outputs if form not in of_outputs)
        if {*kept_inputs, *kept_outputs} <= {"plain"}:
            return case.without(CallShape)
        return case.with_situation(CallShape(kept_inputs or ("plain",), kept_outputs or ("plain",)))

    shape = CallShape(inputs or ("plain",), outputs or ("plain",))
    probe = replace(GENTLE, steps=max(2, len(inputs), len(outputs)), situations=(shape,))
    varieties: dict[str, Callable[[TrainingCase], bool]] = {}
    if len(inputs) + len(outputs) > 1:
        varieties |= {form: partial(_has, of_inputs=frozenset({form})) for form in inputs}
        varieties |= {form: partial(_has, of_outputs=frozenset({form})) for form in outputs}
    return Capability(present, removed, probe, frozenset(conditions), after, words, varieties)


def _has(
    case: TrainingCase,
    of_inputs: frozenset[InputForm] = frozenset(),
    of_outputs: frozenset[OutputForm] = frozenset(),
) -> bool:
    """Return whether calls of a case have one of some forms."""
    shape = case.get(CallShape) or _PLAIN
    return bool(of_inputs & {*shape.inputs} or of_outputs & {*shape.outputs})
