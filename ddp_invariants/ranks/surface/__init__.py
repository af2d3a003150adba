"""The surface of an implementation, as a program meets it before it trains.

The surface is what a case does not compare: the names and defaults of calls, refused arguments, the
containers of outputs, the buckets of a large model, and the lengths of long datasets. Every fact is a
line of text under a name, so that two interpreters can be compared line by line.
"""

from ddp_invariants.ranks.driving.ddp import Driver, anywhere
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.surface.behaviour import of_samplers, of_torch
from ddp_invariants.ranks.surface.public import public
from ddp_invariants.ranks.surface.wrapped import of_wrapper


def surface(driver: Driver, make: SamplerMaker) -> dict[str, str]:
    """Return all facts of the surface, by name.

    Args:
        driver: The DDP under test.
        make: The sampler under test.
    """
    facts = {
        **public(driver.thing, make.make),
        **of_wrapper(driver),
        **of_samplers(make),
        **of_torch(),
    }
    return {name: anywhere(text) for name, text in facts.items()}
