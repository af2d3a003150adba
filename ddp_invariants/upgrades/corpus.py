"""The cases of a comparison."""

import hashlib
from contextlib import suppress
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, describe
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.probe_case import probe_case
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.search.drawing import independent
from ddp_invariants.search.search import Asked
from ddp_invariants.search.strategies import cases_for, unlike


def _dealt(
    samples: int,
    ranks: int,
    *,
    shuffle: bool = True,
    drop_last: bool = False,
    seed: int = 0,
    epochs: tuple[int, ...] = (0,),
) -> ShardCase:
    data = Data(samples=samples, shuffle=shuffle, drop_last=drop_last, seed=seed)
    return ShardCase(world_size=ranks, data=data, epochs=epochs)


LARGE_SCALES: tuple[ShardCase, ...] = (
    _dealt(101, 2),
    _dealt(16, 2, seed=2**16 - 1, epochs=(0, 1, 2**16)),
    _dealt(101, 3, shuffle=False, drop_last=True),
    _dealt(70, 65, shuffle=False),
    _dealt(1001, 4),
    _dealt(16, 2, epochs=(255, 256, 257)),
    _dealt(300, 128),
    _dealt(16, 2, seed=2**31 - 1, epochs=(0, 1)),
    _dealt(4097, 2),
    _dealt(16, 2, seed=2**32, epochs=(0, 1)),
    _dealt(520, 257, drop_last=True),
    _dealt(16, 2, epochs=(2**24, 2**24 + 1)),
    _dealt(10_007, 3, drop_last=True),
    _dealt(16, 2, seed=-1, epochs=(0, 1)),
    _dealt(65_537, 2),
    _dealt(1030, 1023, shuffle=False),
    _dealt(16, 2, epochs=(2**31 - 1, 2**31)),
    _dealt(131_101, 2, shuffle=False),
)
"""Samplers' cases just above numbers that may be limits; the frequent limits come first."""


def drawn_cases(scope: Scope, count: int, name: str) -> list[Case]:
    """Return cases of all rules' properties in turn; the name determines them.

    The first tenth are samplers' cases at a large scale. Up to half are the small cases that
    probe capabilities, so that a run of the default size has every situation, also the rare ones.
    The others are random, and every third of them is a sampler's: sampler rules are few, and their
    cases cheap. No case passes `broadcast_buffers=False`, which begins differently in some versions
    of torch, and warns in some: a comparison of `--ddp-arg broadcast_buffers=False` shows that.
    """
    scope = replace(scope, without=scope.without | {"own_buffers"})
    chosen: list[Case] = [scope.fit_shards(case) for case in LARGE_SCALES[: count // 10]]
    chosen += _probes(scope, name)[: count // 2]
    return [*chosen, *_random_cases(scope, count - len(chosen), name)]


def _probes(scope: Scope, name: str) -> list[TrainingCase]:
    """Return the cases that probe what both sides offer, in an order that the name determines."""
    cases = []
    for capability in TRAINING.keys() - scope.without:
        with suppress(CaseError):  # It needs more ranks than there are.
            case, _ = probe_case(capability, scope)
            cases += [case] if TRAINING[capability].present(case) else []
    return sorted(cases, key=lambda case: _digest(f"{name} {describe(case)}"))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _random_cases(scope: Scope, count: int, name: str) -> list[Case]:
    rules = [
        rule
        for rule in ALL_RULES.values()
        if not (scope.excluded(rule.id) or rule.draws.costly or rule.applies == "observed")
    ]
    about = {
        of_sampler: unlike(rule.id for rule in rules if rule.is_about_samplers == of_sampler)
        for of_sampler in (True, False)
    }
    examples = (
        st.sampled_from((True, False, False))
        .flatmap(lambda of_sampler: st.sampled_from(about[of_sampler]))
        .flatmap(lambda rule: cases_for(rule, scope).map(lambda case: Asked(rule, case)))
    )
    drawn: list[Case] = []

    @seed(int.from_bytes(_digest(name), "big"))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(independent(examples))
    def property_(example: Asked) -> None:
        drawn.append(example.case)

    property_()
    return drawn
