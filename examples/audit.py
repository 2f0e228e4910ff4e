"""An attack on a plan: canaries give a lower bound of ε that must stay below the certificate.

python examples/audit.py [--rows N]
"""

from __future__ import annotations

import argparse

import veil
from veil.auditing import Audit
from veil.datasets import GroupSpec, generate


def main(canaries: int, seed: int | None = None) -> Audit:
    """DP-SGD at ε = 4 on two groups: attack each with as many synthetic rows."""
    problem = generate([GroupSpec("large", 9000), GroupSpec("small", 1000)])
    plan = veil.plan(problem, "dp-sgd", epsilon=4.0, steps=100, batch_size=500)
    found = veil.audit(plan, canaries=canaries, seed=seed)
    for group, finding in found.by_group.items():
        print(f"{group}: an attacker finds at least ε = {finding.bound(found.headline):.2f} of {finding.epsilon:.2f}")
    print("the certificate holds" if found.holds else "THE CERTIFICATE IS BROKEN")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="canaries in each group")
    main(parser.parse_args().rows)
