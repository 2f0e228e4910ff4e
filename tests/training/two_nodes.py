"""Runs a command on a cluster of two local raylets and kills one of them in the middle.

`python -m tests.training.two_nodes PATTERN COMMAND…`: the second raylet dies as soon as a file matches the pattern.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import time

from ray.cluster_utils import Cluster

OBJECT_STORE = 80_000_000


def main() -> int:
    pattern, command = sys.argv[1], sys.argv[2:]
    small = {"num_cpus": 1, "object_store_memory": OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    second = cluster.add_node(**small)
    try:
        running = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"})
        while running.poll() is None and not glob.glob(pattern):
            time.sleep(0.05)
        killed = running.poll() is None
        cluster.remove_node(second, allow_graceful=False)
        code = running.wait(timeout=600)
        print("killed in the middle" if killed else "the command was over before", file=sys.stderr)
        return code if killed else 3
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
