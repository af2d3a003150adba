"""A Dask cluster of two worker processes on this machine, for tests: `python dask_cluster.py`.

It prints the address of its scheduler, and runs until its standard input is closed.
"""

import sys
import tempfile

from distributed import LocalCluster

if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            host="127.0.0.1",
            local_directory=folder,
        ) as cluster,
    ):
        sys.stdout.write(f"{cluster.scheduler_address}\n")
        sys.stdout.flush()
        sys.stdin.read()
