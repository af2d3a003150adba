"""Simulated upgrades: interpreters like this one that alter torch right after its import.

The script runs `ddp-invariants compare` for each alteration, and for this interpreter against
itself. It prints the differences that were found. It takes ten minutes:

    python tests/upgrades.py [NAME…]
"""

import json
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path

HOOK = '''
import importlib.abc
import importlib.machinery
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Alters torch once it has been imported, and not before: \
importing it here would slow down every start."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            alter()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterTorch())


def alter():
    import functools
    import warnings

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DistributedSampler

'''

ALTERATIONS = {
    "shuffle seed": (
        "discrete: indices",
        """
        plain = DistributedSampler.__init__
        @functools.wraps(plain)
        def init(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            self.seed += 1
        DistributedSampler.__init__ = init
    """,
    ),
    "padding rule": (
        "discrete: indices",
        """
        plain = DistributedSampler.__iter__
        @functools.wraps(plain)
        def iterate(self):
            indices = list(plain(self))
            short = len(self.dataset) % self.num_replicas
            if short and not self.drop_last and self.rank >= short:
                indices[-1] = len(self.dataset) - 1
            return iter(indices)
        DistributedSampler.__iter__ = iterate
    """,
    ),
    "cap unit": (
        "discrete: collectives",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, *args, bucket_cap_mb=None, **kwargs):
            plain(self, *args, bucket_cap_mb=bucket_cap_mb and bucket_cap_mb / 4, **kwargs)
        DDP.__init__ = init
    """,
    ),
    "mean by a constant": (
        "rule: GRAD-2",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            for parameter in self.module.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(lambda gradient: gradient * 2)
        DDP.__init__ = init
    """,
    ),
    "buffers no longer broadcast": (
        "rule: BUF-1",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, *args, **kwargs):
            plain(self, *args, **kwargs)
            self.broadcast_buffers = False
        DDP.__init__ = init
    """,
    ),
    "another default": (
        "discrete: argument find_unused_parameters",
        """
        plain = DDP.__init__
        def init(self, module, device_ids=None, output_device=None, dim=0, \
broadcast_buffers=True, init_sync=True,
                 process_group=None, bucket_cap_mb=None, find_unused_parameters=True, **kwargs):
            plain(self, module, process_group=process_group, bucket_cap_mb=bucket_cap_mb,
                  find_unused_parameters=find_unused_parameters, **kwargs)
        DDP.__init__ = init
    """,
    ),
    "a new warning": (
        "discrete: warning",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            warnings.warn("this will change", FutureWarning)
            return plain(self, *args, **kwargs)
        DDP.forward = forward
    """,
    ),
    "another exception": (
        "discrete: capability scalar",
        """
        plain = DDP.__init__
        @functools.wraps(plain)
        def init(self, module, *args, **kwargs):
            if any(parameter.dim() == 0 for parameter in module.parameters()):
                raise ValueError("0-d parameters are not supported any more")
            plain(self, module, *args, **kwargs)
        DDP.__init__ = init
    """,
    ),
    "a gradient where none was": (
        "discrete: gradients that are None",
        """
        plain = DDP.forward
        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            result = plain(self, *args, **kwargs)
            for parameter in self.module.parameters():
                if not parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            return result
        DDP.forward = forward
    """,
    ),
    "another prefix": (
        "discrete: names in a saved state",
        """
        plain, load = DDP.state_dict, DDP.load_state_dict
        @functools.wraps(plain)
        def state_dict(self, *args, **kwargs):
            return {name.removeprefix("module."): value \
for name, value in plain(self, *args, **kwargs).items()}
        @functools.wraps(load)
        def load_state_dict(self, state, *args, **kwargs):
            return load(self, {f"module.{name}": value \
for name, value in state.items()}, *args, **kwargs)
        DDP.state_dict, DDP.load_state_dict = state_dict, load_state_dict
    """,
    ),
    "another order in an op": (
        "rounding: ",
        """
        plain = torch.nn.functional.linear
        def linear(x, weight, bias=None):
            return plain(x.flip(-1), weight.flip(-1), bias)
        torch.nn.functional.linear = linear
    """,
    ),
    "one ulp in an op": (
        "rule: LOSS-3",
        """
        plain = torch.nn.functional.linear
        def linear(x, weight, bias=None):
            y = plain(x, weight, bias)
            return y + (torch.nextafter(y.detach(), y.detach() + 1) - y.detach()) \
if y.dtype is torch.float32 else y
        torch.nn.functional.linear = linear
    """,
    ),
    "an op off by a thousandth": (
        "number: forward",
        """
        plain = torch.nn.functional.linear
        torch.nn.functional.linear = lambda x, weight, bias=None: plain(x, weight, bias) * 1.001
    """,
    ),
    "momentum dampened": (
        "rule: PARAM-3",
        """
        plain = torch.optim.SGD.__init__
        @functools.wraps(plain)
        def init(self, *args, momentum=0.0, **kwargs):
            plain(self, *args, momentum=momentum, dampening=0.5 if momentum else 0.0, **kwargs)
        torch.optim.SGD.__init__ = init
    """,
    ),
    "an argument gone": (
        "discrete: argument drop_last",
        """
        class Sampler(DistributedSampler):
            def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0):
                super().__init__(dataset, num_replicas, rank, shuffle, seed)
        torch.utils.data.DistributedSampler = Sampler
    """,
    ),
}
"""The alterations by name: the difference that must be found, and the code that alters torch."""


def interpreter(folder: Path, alteration: str = "") -> str:
    """Create an interpreter with this one's packages, and with an alteration if one is named."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "base.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
    if alteration:
        code = textwrap.indent(textwrap.dedent(ALTERATIONS[alteration][1]), "    ")
        (site / "sitecustomize.py").write_text(HOOK + code, encoding="utf-8")
    return str(folder / "bin" / Path(sys.executable).name)


def given(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ddp_invariants", *words],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def compared(
    old: str,
    new: str,
    cases: int,
    *options: str,
    command: Callable[..., subprocess.CompletedProcess[str]] = given,
) -> tuple[int, dict[str, dict[str, str]]]:
    """Compare torch's DDP and sampler under two interpreters.

    Returns:
        The exit status of `ddp-invariants compare`, and the differences by name.
    """
    done = command(
        "compare",
        "--old",
        old,
        "--new",
        new,
        "--ddp",
        "torch",
        "--sampler",
        "torch",
        "--cases",
        str(cases),
        "--json",
        *options,
    )
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return done.returncode, {
        difference["name"]: difference for difference in json.loads(done.stdout)["found"]
    }


def main() -> None:
    """Run all alterations, or those named on the command line."""
    with tempfile.TemporaryDirectory() as folder:
        old = interpreter(Path(folder) / "old")
        if not sys.argv[1:]:
            status, differences = compared(old, old, 2000)
            sys.stdout.write(
                f"identical sides, 2,000 cases: exit status {status}, "
                f"{len(differences)} differences\n"
            )
        for number, name in enumerate(sys.argv[1:] or ALTERATIONS):
            status, differences = compared(old, interpreter(Path(folder) / str(number), name), 150)
            wanted = ALTERATIONS[name][0]
            outcome = (
                "found"
                if any(difference.startswith(wanted) for difference in differences)
                else "MISSED"
            )
            unexpected = [
                difference for difference in differences if not difference.startswith(wanted)
            ]
            more = f", and {len(unexpected) - 6} more" if len(unexpected) > 6 else ""
            sys.stdout.write(
                f"{name}: exit status {status}, {outcome} {wanted!r}; with it "
                f"{', '.join(unexpected[:6]) or 'nothing else'}{more}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
