"""Trains on partitions in this process and with two actors of Ray, one of which is killed in the middle.

`python -m tests.tables.ray_partitions FOLDER`: ends with 0 if models, certificates and figures are the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tests.tables.partition_cases import folder_at, request_for
from veil.foundation import holders
from veil.tables import mapped
from veil.tables.table_run import train_table

KILLED_AT = 9


def main() -> None:
    folder = folder_at(Path(sys.argv[1]))
    torch.set_num_threads(1)
    mapped.LARGE = 10
    alone = train_table(request_for(folder, test=None, holdout=0.2))
    hired: list[Any] = []
    hire, put = holders.RayCrew.hire, holders.HeldByWorkers._put

    def noted(crew: holders.RayCrew, again: bool = False) -> Any:
        hired.append(hire(crew, again))
        return hired[-1]

    def killing(held: holders.HeldByWorkers, place: int, *given: Any) -> Any:
        ticket = put(held, place, *given)
        if held._asked == KILLED_AT and len(hired) == 2 and place == 0:
            import ray

            ray.kill(hired[0])
        return ticket

    holders.RayCrew.hire, holders.HeldByWorkers._put = noted, killing  # type: ignore[method-assign]
    apart = train_table(request_for(folder, test=None, holdout=0.2, workers=2))
    assert len(hired) == 3, f"{len(hired)} actors were hired: the one that was killed must be replaced"
    for name, value in alone.model.state_dict().items():
        assert torch.equal(apart.model.state_dict()[name], value), name
    assert apart.certificate.as_json() == alone.certificate.as_json()
    assert apart.metrics is not None
    assert alone.metrics is not None
    assert apart.metrics.as_json() == alone.metrics.as_json()


if __name__ == "__main__":
    main()
