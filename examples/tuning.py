"""Private tuning: several candidates, the best one published, and ε is what the whole search costs.

python examples/tuning.py [--rows N]

The same on the command line: veil tune adult.csv --target income --group sex --epsilon 2 --trials 2 --candidate auto
--candidate "auto cap=8" --candidate group-gd
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import veil
from veil.datasets import load_adult
from veil.request import Settings, TuneRequest
from veil.tables.tuning import tune


def main(rows: int) -> veil.Run:
    """Choose among three candidates on rows that none of them is trained on."""
    table, _ = load_adult()
    with tempfile.TemporaryDirectory() as folder:
        people = Path(folder) / "adult.csv"
        table.sample(rows, random_state=0).drop(columns="fnlwgt").to_csv(people, index=False)
        request = TuneRequest.checked(
            data=people,
            target="income",
            group=["sex"],
            candidate=["auto", "auto cap=8", "group-gd"],
            trials=2.0,  # in expectation: how many there are is random and stays secret
            settings=Settings.checked(epsilon=2.0, seed=1),  # without a seed it is drawn and destroyed
        )
        run = tune(request, Path(folder) / "run")
    print("chosen:", run.plan.method)
    print("accuracy on rows that had no say in the choice:")
    for group, score in run.metrics.by_group.items():
        print(f"  {group}: {score.accuracy:.3f} of {score.n} rows")
    print(f"the whole search: ε = {run.certificate.epsilon:.2f}")
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    main(parser.parse_args().rows)
