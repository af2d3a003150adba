"""The help texts of the options that pytest, `certify` and other commands share."""

from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.processes.pool import DEADLINE as POOL_DEADLINE

BACKEND = defaulting(
    "communication backend of the ranks: gloo (tensors on the CPU), nccl (one GPU per rank), "
    "gloo-cuda (gloo with tensors on GPUs, which ranks may share) or nccl-shared (experimental: two "
    "ranks per GPU); auto simulates most cases and runs the others over gloo, or is nccl with --device "
    "cuda",
    "auto",
)
DEVICE = defaulting("device of the tensors", "the device of --backend")
DEVIATIONS = defaulting(
    "TOML file of known wrong behaviour that you accept, besides the shipped file; see docs/adapter.md; "
    "repeatable",
    "only the shipped file",
)
DEADLINE = defaulting(
    "seconds for which all ranks of a case may be idle before they are declared hung. Processor time "
    "of a rank, or of a program that it has started, has limits of its own. The first case gets a "
    "multiple",
    f"{POOL_DEADLINE:.0f}",
)
MAX_WORLD_SIZE = "largest number of ranks in a case"
SEED = "seed of the random draw of cases, a whole number"
