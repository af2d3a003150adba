"""The common property of the wrong parameters: for example only frozen ones, or only large ones."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ddp_invariants.cases.formats import ITEM_SIZE
from ddp_invariants.invariants.view import EvidenceView

_Facts = tuple[str, str, tuple[int, ...], bool, str]
"""A parameter: name, dtype, shape, trained or not, and the name of the layer's memory layout."""


def _facts(view: EvidenceView) -> dict[str, _Facts]:
    """Return the known facts of each parameter, in registration order; tied ones count once."""
    model = view.case.model
    known: dict[str, _Facts] = {}
    for name, dtype, shape, trained, first, kind in view.evidence.ranks[0].structure_before:
        if kind == "parameter" and name == first:
            index = model.index_of(name) if name.endswith(".weight") else None
            known[name] = (
                name,
                dtype,
                tuple(shape),
                trained,
                "contiguous" if index is None else model.layers[index].layout,
            )
    return known


def _nbytes(facts: _Facts) -> int:
    size = ITEM_SIZE.get(facts[1], 0)
    for length in facts[2]:
        size *= length
    return size


def _classes(view: EvidenceView, known: dict[str, _Facts]) -> dict[str, Callable[[_Facts], bool]]:
    """Return the possible common properties of parameters, by their words."""
    tied = {
        row.first_name
        for row in view.evidence.ranks[0].structure_before
        if row.name != row.first_name
    }
    classes: dict[str, Callable[[_Facts], bool]] = {
        "frozen": lambda facts: not facts[3],
        "tied": lambda facts: facts[0] in tied,
        "0-d": lambda facts: facts[2] == (),
        "vectors": lambda facts: len(facts[2]) == 1,
    }
    for layout in {facts[4] for facts in known.values()} - {"contiguous"}:
        classes[f"{layout} in memory"] = (
            lambda facts, layout=layout: facts[4] == layout  # type: ignore[misc]  # bound here
        )
    classes["not contiguous"] = lambda facts: facts[4] != "contiguous"
    for dtype in {facts[1] for facts in known.values()}:
        classes[f"of dtype {dtype}"] = (
            lambda facts, dtype=dtype: facts[1] == dtype  # type: ignore[misc]  # bound by default
        )
    cap = view.case.bucket_cap
    if cap is not None:
        classes[f"larger than the bucket cap of {cap} bytes"] = lambda facts: _nbytes(facts) > cap
    return classes


def only(view: EvidenceView, wrong: AbstractSet[str], right: AbstractSet[str]) -> str:
    """Return the property that all wrong parameters have and no right one has; empty if none.

    Args:
        view: The evidence view of the case.
        wrong: Names of parameters with a wrong value.
        right: Names of parameters with a right value that could show the fault.
    """
    known = {name: facts for name, facts in _facts(view).items() if name in wrong | right}
    if not wrong or not right or not wrong <= known.keys():
        return ""
    common = [
        words
        for words, holds in _classes(view, known).items()
        if all(holds(facts) == (name in wrong) for name, facts in known.items())
    ]
    # The name of one layout says more than "not contiguous".
    common = [
        words
        for words in common
        if words != "not contiguous" or not any(w.endswith("in memory") for w in common)
    ]
    names, count = list(known), len(wrong)
    for place, some in (("first", names[:count]), ("last", names[-count:])):
        if set(some) == wrong:
            common.append(
                f"the {place} in registration order"
                if count == 1
                else f"the {place} {count} in registration order"
            )
    if not common:
        return ""
    wrong_names = ", ".join(repr(name) for name in names if name in wrong)
    listed = " and ".join([*([", ".join(common[:-1])] if common[:-1] else []), common[-1]])
    return f"only {count} of {len(names)} parameters, {wrong_names}: {listed}"
