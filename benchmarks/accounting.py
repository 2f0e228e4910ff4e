"""Accounting beside dp-accounting and opacus: ε of one setting, of many events, and calibration."""

from __future__ import annotations

import itertools
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import pld as peer_pld
from dp_accounting import rdp as peer_rdp
from opacus.accountants.analysis import rdp as opacus_rdp

from benchmarks._timing import interleaved
from veil.accounting import Pld, PoissonGaussian, Rdp, Repeated, SubsetGaussian
from veil.accounting.calibration import noise_multiplier

RATE, NOISE, STEPS, DELTA = 0.005, 1.0, 10_000, 1e-5
# dp-accounting's PLD on this grid is about as loose as ours by default.
GRID = 1e-4
ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))


def _peer_event(rate: float, noise: float) -> Any:
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))


def _peer_rdp(pairs: list[tuple[float, float]], steps: int) -> float:
    accountant = peer_rdp.RdpAccountant()
    for rate, noise in pairs:
        accountant.compose(_peer_event(rate, noise), steps)
    return float(accountant.get_epsilon(DELTA))


def _peer_pld(rate: float, noise: float) -> float:
    accountant = peer_pld.PLDAccountant(value_discretization_interval=GRID)
    accountant.compose(_peer_event(rate, noise), STEPS)
    return float(accountant.get_epsilon(DELTA))


def _opacus(pairs: list[tuple[float, float]], steps: int) -> float:
    total = sum(
        np.asarray(opacus_rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=ORDERS))
        for rate, noise in pairs
    )
    return float(opacus_rdp.get_privacy_spent(orders=ORDERS, rdp=total, delta=DELTA)[0])


def _peer_calibration() -> float:
    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: peer_pld.PLDAccountant(value_discretization_interval=GRID),
            lambda noise: dp_accounting.SelfComposedDpEvent(_peer_event(RATE, noise), STEPS),
            1.0,
            DELTA,
            dp_accounting.ExplicitBracketInterval(0.5, 8.0),
            tol=1e-4,
        )
    )


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of each, and how many times faster than the best peer."""
    many = [(0.001 + 0.0001 * i, 0.8 + 0.01 * i) for i in range(20 if quick else 200)]
    # A fresh setting at every call: nothing is answered from a cache.
    fresh = (NOISE + 1e-7 * i for i in itertools.count())
    events = [Repeated(PoissonGaussian(noise, rate), 50) for rate, noise in many]

    def one(noise: float) -> list[Repeated]:
        return [Repeated(PoissonGaussian(noise, RATE), STEPS)]

    def calibrate() -> float:
        return noise_multiplier(one, 1.0, DELTA, Pld())

    suites = {
        "epsilon by RDP": {
            "veil": lambda: Rdp().epsilon(one(next(fresh)), DELTA),
            "dp-accounting": lambda: _peer_rdp([(RATE, next(fresh))], STEPS),
            "opacus": lambda: _opacus([(RATE, next(fresh))], STEPS),
        },
        "epsilon by PLD": {
            "veil": lambda: Pld().epsilon(one(next(fresh)), DELTA),
            "dp-accounting": lambda: _peer_pld(RATE, next(fresh)),
        },
        f"{len(many)} events by RDP": {
            "veil": lambda: Rdp().epsilon(events, DELTA),
            "dp-accounting": lambda: _peer_rdp(many, 50),
            "opacus": lambda: _opacus(many, 50),
        },
        "subset by PLD (no peer)": {
            "veil": lambda: Pld().epsilon([Repeated(SubsetGaussian(9.2 + next(fresh), 49_208, 256), 11_580)], DELTA)
        },
        "noise by PLD": {"veil": calibrate, "dp-accounting": _peer_calibration},
    }
    rows = []
    for name, candidates in suites.items():
        rounds = max(3, repeats // 3) if name.startswith(("noise", f"{len(many)}")) else repeats
        seconds = interleaved(candidates, rounds)
        peers = [value for key, value in seconds.items() if key != "veil"]
        row: dict[str, Any] = {"workload": name, **{f"{key}_ms": 1e3 * value for key, value in seconds.items()}}
        row["times_faster_than_best_peer"] = min(peers) / seconds["veil"] if peers else None
        rows.append(row)
    return rows
