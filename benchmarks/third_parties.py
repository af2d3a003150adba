"""Judge other projects' implementations, and write docs/third-parties.md.

    python benchmarks/third_parties.py [--page] [NAME]...

Each library is installed into an environment of its own, in a temporary folder. `certify` judges each
implementation as a user would call it. The results are kept in `third_parties.json`, with their date,
so a run of some rows keeps the others. `--page` runs nothing, and writes the page anew.
"""

import datetime as dt
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import LIBRARIES, installed
from pages import templates

from ddp_invariants.implementation.names import ADAPTERS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "third_parties.json"
PAGE = HERE.parent / "docs" / "third-parties.md"
BUDGET = ("--cases", "12", "--max-world-size", "3", "-n", "0")


@dataclass(frozen=True)
class Row:
    """An implementation, and how a user names it.

    Attributes:
        library: The key of its library in `LIBRARIES`.
        options: The options that name it.
        declared: The declarations that it needs, in TOML.
        report: The name of the report on what it does wrong.
    """

    library: str
    options: str
    declared: str = ""
    report: str = ""

    @property
    def kind(self) -> str:
        """The kind of the implementation: sampler or ddp."""
        return "sampler" if "--sampler" in self.options else "ddp"


_LIGHTNING = "lightning.fabric.utilities.distributed:DistributedSamplerWrapper"
ROWS = {
    "torch DDP": Row("torch", "--ddp torch"),
    "torch DDP, find_unused_parameters": Row(
        "torch", "--ddp torch --ddp-arg find_unused_parameters=True", report="torch_ddp_unreached"
    ),
    "torch DDP, static_graph": Row(
        "torch",
        "--ddp torch --ddp-arg static_graph=True",
        report="torch_static_graph_caught_error",
    ),
    "torch DDP, gradient_as_bucket_view": Row(
        "torch",
        "--ddp torch --ddp-arg gradient_as_bucket_view=True",
        report="torch_ddp_unreached",
    ),
    "torch replicate": Row(
        "torch",
        "--ddp torch.distributed._composable.replicate:replicate",
        report="torch_replicate_buffers",
    ),
    "torch ZeroRedundancyOptimizer": Row(
        "torch",
        "--ddp torch --opt torch.distributed.optim:ZeroRedundancyOptimizer",
        report="torch_zero_strided",
    ),
    "torch FSDP2": Row("fsdp2", "--ddp fsdp2", report="torch_fsdp2_caught_error"),
    "accelerate": Row("accelerate", "--ddp accelerate"),
    "Lightning Fabric": Row("fabric", "--ddp fabric"),
    "ignite": Row("ignite", "--ddp ignite"),
    "opacus": Row(
        "opacus",
        "--ddp opacus.distributed:DifferentiallyPrivateDistributedDataParallel "
        "--after opacus.distributed:average_gradients",
        report="opacus_strided",
    ),
    "fairscale OSS": Row(
        "fairscale",
        "--ddp torch --opt fairscale.optim.oss:OSS",
        report="fairscale_oss_transposed",
    ),
    "fairscale ShardedDataParallel": Row(
        "fairscale",
        "--ddp fairscale.nn.data_parallel:ShardedDataParallel --opt fairscale.optim.oss:OSS",
        '[ddp]\ngradients = "hidden"\n',
        "fairscale_sharded_zero_grad",
    ),
    "torch DistributedSampler": Row("torch", "--sampler torch"),
    "torchdata StatefulDistributedSampler": Row(
        "torchdata",
        "--sampler torchdata.stateful_dataloader.sampler:StatefulDistributedSampler",
        report="torchdata_resume_epoch",
    ),
    "accelerate BatchSamplerShard": Row(
        "accelerate",
        "--sampler accelerate.data_loader:BatchSamplerShard",
        '[sampler]\npadding = "batch"\n',
        "accelerate_shard_rank",
    ),
    "accelerate IterableDatasetShard": Row(
        "accelerate",
        "--sampler accelerate.data_loader:IterableDatasetShard",
        '[sampler]\npadding = "batch"\n',
        "accelerate_shard_rank",
    ),
    "transformers ShardSampler": Row(
        "transformers",
        "--sampler transformers.trainer_pt_utils:ShardSampler",
        '[sampler]\npadding = "batch"\n',
        "transformers_shard_rank",
    ),
    "transformers IterableDatasetShard": Row(
        "transformers",
        "--sampler transformers.trainer_pt_utils:IterableDatasetShard",
        '[sampler]\npadding = "batch"\n',
        "transformers_shard_rank",
    ),
    "transformers DistributedSamplerWithLoop": Row(
        "transformers",
        "--sampler transformers.trainer_pt_utils:DistributedSamplerWithLoop",
        report="transformers_loop_length",
    ),
    "Lightning DistributedSamplerWrapper": Row("lightning", f"--sampler {_LIGHTNING}"),
    "Lightning UnrepeatedDistributedSampler": Row(
        "lightning",
        "--sampler lightning.pytorch.overrides.distributed:UnrepeatedDistributedSampler",
        '[sampler]\npadding = "none"\n',
        "lightning_unrepeated_short",
    ),
    "ignite DistributedProxySampler": Row(
        "ignite",
        "--sampler ignite.distributed.auto:DistributedProxySampler",
        report="ignite_sampler_seed",
    ),
    "catalyst DistributedSamplerWrapper": Row(
        "catalyst",
        "--sampler catalyst.data.sampler:DistributedSamplerWrapper",
        report="catalyst_short_dataset",
    ),
    "mmengine DefaultSampler": Row(
        "mmengine", "--sampler mmengine.dataset:DefaultSampler", report="mmengine_empty"
    ),
    "mmengine InfiniteSampler": Row(
        "mmengine",
        "--sampler mmengine.dataset:InfiniteSampler",
        '[sampler]\npadding = "endless"\n',
        "mmengine_infinite_left",
    ),
    "webdataset split_by_node": Row(
        "webdataset", "--sampler webdataset:split_by_node", '[sampler]\npadding = "none"\n'
    ),
    "MONAI DistributedSampler": Row("monai", "--sampler monai.data:DistributedSampler"),
}
"""The implementations by name."""


def version(python: Path, library: str) -> str:
    """Return the name and version of a library's distribution in an environment."""
    name = (LIBRARIES[library] or "torch").split()[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return f"{name} {done.stdout.strip()}"


def judged(python: Path, row: Row, folder: Path) -> dict[str, Any]:
    """Judge an implementation, and return its result, ready for JSON."""
    command = [str(python), "-m", "ddp_invariants", "certify", *row.options.split(), *BUDGET]
    if row.kind == "sampler":
        command += ["-k", "shard"]
    if row.declared:
        (folder / "declared.toml").write_text(row.declared, encoding="utf-8")
        command += ["--declare", "declared.toml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = json.loads(done.stdout)["judged"][0] if done.stdout else {}
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "version": version(python, row.library),
        "status": done.returncode,
        "levels": {level["level"]: level["verdict"] for level in answer.get("card", ())},
        "violated": [
            rule for rule, verdict in answer.get("rules", {}).items() if verdict == "violated"
        ],
        "cases": answer.get("cases", 0),
        "minutes": round(seconds / 60, 1),
    }


def run(names: Sequence[str]) -> None:
    """Judge some implementations, library by library, and store each result at once."""
    for library in sorted({ROWS[name].library for name in names}):
        with tempfile.TemporaryDirectory() as folder:
            python = installed(Path(folder) / "env", library)
            for name in names:
                if ROWS[name].library == library:
                    result = judged(python, ROWS[name], Path(folder))
                    print(f"{name}: {result}", flush=True)
                    if result["levels"]:  # Otherwise it was not loaded, and the log says why.
                        store(name, result)


def store(name: str, result: dict[str, Any]) -> None:
    """Store the result of an implementation beside those of the others."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) | {name: result}
    text = json.dumps(dict(sorted(results.items())), indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def write_page() -> None:
    """Write the page from the stored results."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [(name, row, results[name]) for name, row in ROWS.items() if name in results]
    environment = templates(keep_trailing_newline=True)
    page = environment.get_template("third-parties.md.j2").render(
        rows=rows, budget=BUDGET, adapters=ADAPTERS["ddp"]
    )
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Judge the named implementations, all if none is named, and write the page."""
    names = [name for name in sys.argv[1:] if name != "--page"]
    if "--page" not in sys.argv:
        run(names or list(ROWS))
    write_page()


if __name__ == "__main__":
    main()
