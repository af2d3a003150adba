"""The layers of a case as source text: their classes, and the lines that build them.

The classes are those of `ranks/training/layers/`, read as text: the controller never imports torch.
"""

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.formats import PARTS
from ddp_invariants.cases.layers import Layer, LayerKind, Model


def layer_lines(case: TrainingCase, index: int, layer: Layer, width: int) -> list[str]:
    """Return the lines that add a layer to the model."""
    given = _arguments(case, index, layer, width)
    if index == case.model.rooted:
        return [f"self.factor = {given[0]}", "self.layers.append(nn.Identity())"]
    built = f"{_class(layer)}({', '.join(given)})"
    container, _, name = case.model.path(index).rpartition(".")
    if name.isdigit():
        return [f"self.{container}.append({built})"]
    return [f"{attribute(case.model, index)} = {built}"]


def _arguments(case: TrainingCase, index: int, layer: Layer, width: int) -> list[str]:
    """Return the arguments of a layer's class."""

    def tensor(name: str, dtype: str) -> str:
        text = (
            f"torch.tensor(initial[{f'{index}.{name}'!r}], dtype=torch.{PARTS.get(dtype, dtype)})"
        )
        return f"torch.view_as_complex({text})" if layer.complex else text

    def parameter(text: str) -> str:
        return f"nn.Parameter({text}{', requires_grad=False' if layer.frozen else ''})"

    def values(name: str) -> str:
        if name == "weight" and layer.kind == "linear":
            return _laid_out(tensor(name, layer.dtype), layer, width)
        text = tensor(name, layer.dtype_of(name))
        last = name == "kernel" and layer.layout == "channels_last"
        return f"{text}.contiguous(memory_format=torch.channels_last)" if last else text

    if layer.kind == "empty":
        given = [parameter(f"torch.zeros(0, {width}, dtype=torch.{layer.dtype})")]
    else:
        given = [parameter(values(name)) for name in layer.parameters]
    if layer.tied is not None:
        given.insert(0, f"{attribute(case.model, layer.tied)}.weight")
    if "bias" in layer.of_kind.parameters(layer, width) and not layer.bias:
        given.append("None")
    dtypes = layer.of_kind.buffer_dtypes
    given += [tensor(name, dtypes.get(name, layer.dtype)) for name in layer.buffers]
    if layer.kind == "statistics" and layer.layout == "strided":
        given[-1] += ".repeat_interleave(2)[::2]"
    given += _SWITCHES[layer.kind](case, layer) if layer.kind in _SWITCHES else []
    if given and given[-1] == "None":
        given.pop()
    return given


def containers(model: Model) -> list[str]:
    """Return the lines that make the modules in which the layers are, each before its first layer.

    The result has an entry for each layer, which is empty if the layer needs no new container.
    """
    lines: list[str] = []
    for index in range(len(model.layers)):
        container, _, name = model.path(index).rpartition(".")
        kind = "ModuleList" if name.isdigit() else "Module"
        line = f"self.{container} = nn.{kind}()" if container else ""
        lines.append("" if line in lines else line)
    return lines


def attribute(model: Model, index: int) -> str:
    """Return the expression of a layer in a method of its model, such as `self.layers[0]`."""
    return "self." + re.sub(r"\.(\d+)$", r"[\1]", model.path(index))


_SWITCHES: dict[LayerKind, Callable[[TrainingCase, Layer], list[str]]] = {
    "branches": lambda case, _layer: (
        [] if case.crossed is None else [f"crossed=rank == {case.crossed}"]
    ),
    "embedding": lambda _case, layer: ["sparse=True"] if layer.sparse else [],
    "convolution": lambda _case, layer: [
        f"torch.{'channels_last' if layer.layout == 'channels_last' else 'contiguous_format'}"
    ],
}
"""The arguments of a layer's class beside its tensors."""


def _class(layer: Layer) -> str:
    """Return the name of a layer's class in a script."""
    name = layer.kind.title().replace("_", "")
    if layer.kind == "dropout":
        return "Repeatable"
    return f"Complex{name}" if layer.complex else name


def _laid_out(text: str, layer: Layer, width: int) -> str:
    """Return the text of a linear weight in its memory layout."""
    layouts = {
        "contiguous": text,
        "transposed": f"{text}.t().contiguous().t()",
        # Every second element of a tensor twice as wide.
        "strided": f"{text}.repeat_interleave(2, 1)[:, ::2]",
        "channels_last": f"{text}.reshape({layer.outputs}, {width // 4}, 2, 2)"
        ".contiguous(memory_format=torch.channels_last)",
    }
    return layouts[layer.layout]


def sources(layers: Iterable[Layer]) -> list[str]:
    """Return the source of the classes of some layers, as the ranks have them."""
    kinds = {layer.kind: layer for layer in sorted(layers, key=lambda layer: layer.complex)}
    folder = Path(__file__).parent.parent / "ranks" / "training" / "layers"
    classes = []
    for kind in sorted(kinds):
        text = (folder / f"{kind}.py").read_text(encoding="utf-8")
        name, lines = kind.title().replace("_", ""), text.splitlines()
        wanted = {name, f"Complex{name}"} if kinds[kind].complex else {name}
        classes += [
            re.sub(r"  # type: .*", "", "\n".join(lines[node.lineno - 1 : node.end_lineno]))
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef) and node.name in wanted
        ]
    return classes
