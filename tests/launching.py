"""Start several processes with torchrun, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import gettempdir

ROOT = Path(__file__).parents[1]
NO_CONNECTION = ("connectFullMesh", "EADDRINUSE", "DistNetworkError", "rendezvous")
# torch's own threads may abort a process at its very end; the other processes are then stopped wherever they are.
ABORTED = "terminate called without an active exception"
TRIES = 3


def launched(words: Sequence[str], processes: int) -> subprocess.CompletedProcess[str]:
    """One start of `processes` processes; of one, without torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    # One group at a time: two that start at once may choose the same free port.
    with (Path(gettempdir()) / "veil-process-groups.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        return subprocess.run(
            [sys.executable, *(torchrun if processes > 1 else []), *words],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


def finished(
    words: Sequence[str], processes: int, again: Callable[[], None] = lambda: None
) -> subprocess.CompletedProcess[str]:
    """A start that ends well; after `again`, once more where the machine gave no connection or torch aborted."""
    for _ in range(TRIES):
        done = launched(words, processes)
        if done.returncode == 0 or not any(sign in done.stderr for sign in (*NO_CONNECTION, ABORTED)):
            break
        again()
    assert done.returncode == 0, done.stderr[-8000:]
    return done
