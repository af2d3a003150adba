"""Environments of their own for the libraries that the scripts in this folder test."""

import subprocess
import sysconfig
import venv
from pathlib import Path

LIBRARIES = {
    "accelerate": "accelerate safetensors psutil huggingface_hub packaging pyyaml httpx2 httpcore2 "
    "h2 hpack hyperframe tqdm filelock click shellingham typer anyio hf-xet truststore",
    "catalyst": "catalyst tensorboardX hydra-slayer accelerate tqdm protobuf",
    "datasets": "datasets pyarrow dill multiprocess xxhash pandas pytz huggingface_hub httpx "
    "httpcore httpx2 httpcore2 h2 hpack hyperframe anyio tqdm aiohttp multidict yarl aiosignal "
    "frozenlist aiohappyeyeballs propcache truststore",
    "fabric": "lightning lightning-utilities torchmetrics fsspec packaging pyyaml tqdm",
    "fairscale": "fairscale",
    "fsdp2": "",
    "lightning": "lightning pytorch-lightning lightning-utilities torchmetrics fsspec packaging pyyaml tqdm",
    "ignite": "pytorch-ignite packaging",
    "mmengine": "mmengine addict yapf termcolor platformdirs opencv-python-headless",
    "opacus": "opacus scipy opt-einsum",
    "monai": "monai",
    "torch": "",
    "torchdata": "torchdata",
    "transformers": "transformers tokenizers safetensors regex huggingface_hub httpx2 httpcore2 "
    "h2 hpack hyperframe anyio hf-xet tqdm truststore",
    "webdataset": "webdataset braceexpand pyyaml",
}
"""The distributions that a library needs beside torch; the first one is the library."""


def installed(folder: Path, library: str) -> Path:
    """Make an environment with a library over the packages here, and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (here,) = folder.glob("lib/python*/site-packages")
    (here / "suite.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    if LIBRARIES[library]:
        command = [str(python), "-m", "pip", "install", "-q", "--no-deps"]
        subprocess.run([*command, *LIBRARIES[library].split()], check=True)
    return python
