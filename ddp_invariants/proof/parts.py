"""The part of training that an implementation is, read from its source.

The controller imports no implementation, so all that it knows of a class is its syntax tree.
"""

import ast
from collections.abc import Mapping

from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.proof.docstrings import Record, StatedPart

Definition = ast.ClassDef | ast.FunctionDef

_OF_MODULES = ("Module", "DataParallel", "DDP")
"""The ends of the names of base classes that a DDP has."""
_OF_OPTIMIZERS = (
    "Optimizer",
    "SGD",
    "Adam",
    "AdamW",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "Adafactor",
    "RMSprop",
    "Rprop",
    "LBFGS",
    "Muon",
)
"""The same for optimizers."""
_DATA = ("dataset", "data_source", "data", "sampler", "batch_sampler", "indices", "length")
"""Usual names of the first argument of a function that samples."""

_EITHER = ("LIVE-1", "RNG-1", "STATE-1")
"""Rules about DDPs that authors name for samplers, too: these hang, draw numbers and save states."""


def part_of(node: Definition, record: Record, classes: Mapping[str, ast.ClassDef]) -> StatedPart:
    """Return the part of training that an implementation is; "" if nothing decides it.

    Args:
        node: The definition of the implementation.
        record: Its record. A sentence of one word decides: `Sampler.`, `Optimizer.` or `DDP.` But
            a class derived from an optimizer is an optimizer also if the sentence is `DDP.`.
        classes: The classes of the catalogue by name, to look up bases.
    """
    named = _named(node, record, classes)
    if named != "sampler" and isinstance(node, ast.ClassDef) and _is_optimizer(node, classes):
        return "optimizer"
    return named


def _named(node: Definition, record: Record, classes: Mapping[str, ast.ClassDef]) -> StatedPart:
    """Return what the record says, or else the rules that it names, or else the definition."""
    about = {ALL_RULES[rule].is_about_samplers for rule in record.rules if rule not in _EITHER}
    if record.part:
        return record.part
    if len(about) == 1:
        return "sampler" if about.pop() else "ddp"
    return _of_class(node, classes) if isinstance(node, ast.ClassDef) else _of_function(node)


def _is_optimizer(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> bool:
    """Return whether a class is derived from an optimizer, and is no wrapper."""
    members, bases = _family(node, classes)
    return "forward" not in members and any(base.endswith(_OF_OPTIMIZERS) for base in bases)


def _of_class(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> StatedPart:
    members, bases = _family(node, classes)
    if "forward" in members or any(base.endswith(_OF_MODULES) for base in bases):
        return "ddp"
    if members & {"__iter__", "set_epoch"} or any(base.endswith("Sampler") for base in bases):
        return "sampler"
    return ""


def _of_function(node: ast.FunctionDef) -> StatedPart:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return "sampler" if names[:1] and names[0] in _DATA else ""


def _family(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> tuple[set[str], set[str]]:
    """Return the names of a class's members and bases, and of the members and bases of these."""
    members, bases, wanting = set[str](), set[str](), [node]
    while wanting:
        known = wanting.pop()
        members |= {
            each.name for each in known.body if isinstance(each, ast.FunctionDef | ast.ClassDef)
        }
        for base in known.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            if name not in bases and name in classes:
                wanting.append(classes[name])
            bases.add(name)
    return members, bases
