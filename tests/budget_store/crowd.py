"""A program that makes many processes reserve from one budget until nothing is left.

`python -m tests.budget_store.crowd STORE DATASET PROCESSES EPSILON NOTES`:
its first line of output has the numbers of its processes. Each
writes the name of a run into a file of its own only after that run was reserved and begun: what stands there counts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from veil.accounting import BudgetExceeded
from veil.budget_store import BudgetStore, Cost, Spending
from veil.budget_store.store import new_claim


def work(place: str, dataset: str, number: int, epsilon: float, notes: Path) -> None:
    store = BudgetStore.open(place)
    with (notes / str(number)).open("a") as note:
        for turn in range(10_000):
            run, claim = f"{number}/{turn}", new_claim()
            try:
                store.reserve(dataset, Spending(run, Cost(epsilon, epsilon * 1e-6)), claim)
            except BudgetExceeded:
                return
            store.begin(dataset, claim)
            note.write(run + "\n")
            note.flush()


def main() -> None:
    place, dataset, processes, epsilon, notes = sys.argv[1:]
    BudgetStore.open(place).balances(dataset)  # what all of them need is imported once
    children = []
    for number in range(int(processes)):
        child = os.fork()
        if child == 0:
            try:
                work(place, dataset, number, float(epsilon), Path(notes))
                os._exit(0)
            except Exception as error:
                (Path(notes) / f"{number}.error").write_text(f"{type(error).__name__}: {error}")
                os._exit(1)
        children.append(child)
    print(*children, flush=True)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
