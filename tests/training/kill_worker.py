"""Trains a table again and again in children that are killed at random moments.

`python -m tests.training.kill_worker FOLDER KILLS SEED`.

Prints one JSON object: kills, runs, and every way in which a disturbed run differed from an undisturbed one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from veil.accounting import Ledger
from veil.noise import GaussianNoise
from veil.plans import Settings
from veil.request import Request
from veil.tables.table_run import train_table
from veil.training.run_folder import finished_in

FILES = ("model.safetensors", "ledger.jsonl", "certificate.json", "preprocessing.jsonl", "evaluation.jsonl")
OF_PURPOSE = {"gradient": ("ledger.jsonl", "gradient"), "statistic": ("ledger.jsonl", "gradient")}
OF_PURPOSE |= {name: (f"{name}.jsonl", name) for name in ("preprocessing", "evaluation")}


def table(path: Path) -> None:
    generator = np.random.default_rng(3)
    rows = 1500
    x = generator.normal(size=(rows, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["sex"] = np.where(generator.random(rows) < 0.3, "f", "m")
    frame["rich"] = np.where(x[:, 0] + generator.normal(size=rows) > 0, "yes", "no")
    frame.to_csv(path, index=False)


def train(data: Path, out: Path, method: str, resume: bool, preprocessing: bool) -> None:
    request = Request.checked(
        data=data,
        target="rich",
        group="sex",
        method=method,
        model="logistic",
        private_preprocessing=0.1 if preprocessing else None,
        settings=Settings.checked(epsilon=2.0, steps=150, batch_size=64, seed=5, checkpoint_every=7),
    )
    train_table(request, out=out, resume=resume)


def log_releases(path: Path) -> None:
    """Let every release leave a line once its noise has been drawn."""
    add = GaussianNoise.add
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def logged(self, step, values, std, purpose="gradient"):  # type: ignore[no-untyped-def]
        noisy = add(self, step, values, std, purpose)
        os.write(log, f"{purpose} {step}\n".encode())
        return noisy

    GaussianNoise.add = logged  # type: ignore[method-assign]


def uncovered(out: Path, log: Path) -> list[str]:
    """Releases that were made and that no ledger on disk covers."""
    ledgers: dict[str, list[tuple[str, int, int]]] = {}
    for name in ("ledger.jsonl", "preprocessing.jsonl", "evaluation.jsonl"):
        if (out / name).exists() and b"\n" in (out / name).read_bytes():
            copy = out / f"copy-{name}"
            copy.write_bytes((out / name).read_bytes())
            entries = Ledger.open(copy).entries
            ledgers[name] = [(e["purpose"], e["first"], e["first"] + e["count"]) for e in entries]
            copy.unlink()
    missing = []
    for line in set(log.read_text().splitlines()) if log.exists() else ():
        purpose, step = line.rsplit(" ", 1)
        name, entered = OF_PURPOSE.get(purpose, ("ledger.jsonl", purpose))
        if not any(p == entered and first <= int(step) < end for p, first, end in ledgers.get(name, [])):
            missing.append(line)
    return missing


def child(data: Path, out: Path, method: str, resume: bool, preprocessing: bool, log: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            log_releases(log)
            train(data, out, method, resume, preprocessing)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


def main() -> None:
    torch.set_num_threads(1)
    folder, wanted, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    folder.mkdir(parents=True, exist_ok=True)
    table(folder / "people.csv")
    kills, runs, faults = 0, 0, []
    cases = [("asc", False), ("dp-sgd", True), ("fdpg", False)]
    whole, seconds = {}, {}
    for method, preprocessing in cases:
        # In this process, so that children have what it imports and accounts: they are killed while they train.
        whole[method] = folder / f"whole-{method}"
        train(folder / "people.csv", whole[method], method, False, preprocessing)
        began = time.monotonic()
        pid = child(folder / "people.csv", folder / f"timed-{method}", method, False, preprocessing, folder / "log")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        seconds[method] = time.monotonic() - began
    while kills < wanted:
        method, preprocessing = cases[runs % len(cases)]
        out, log = folder / f"cut-{runs}", folder / f"log-{runs}"
        runs += 1
        while True:
            resume = (out / "seed.key").exists()
            pid = child(folder / "people.csv", out, method, resume, preprocessing, log)
            time.sleep(chance.uniform(0, 1.1) * seconds[method])
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            faults += [f"{out.name}: {line} was released and not reserved" for line in uncovered(out, log)]
            if os.WIFSIGNALED(status):
                kills += 1
                if finished_in(out):
                    break  # killed after its last write
                continue
            if os.waitstatus_to_exitcode(status) != 0:
                faults.append(f"{out.name}: ended with {os.waitstatus_to_exitcode(status)}")
            break
        for name in FILES:
            paths = [place / name for place in (whole[method], out)]
            contents = [path.read_bytes() if path.exists() else None for path in paths]
            if contents[0] != contents[1]:
                faults.append(f"{out.name}: {name} differs")
    print(json.dumps({"kills": kills, "runs": runs, "faults": faults}))


if __name__ == "__main__":
    main()
