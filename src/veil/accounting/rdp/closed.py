"""Rényi costs that have a closed form: Gaussian, Laplace, noisy maximum, mixtures and private selection."""

from __future__ import annotations

import math

import numpy as np

from veil.accounting.conversion import log_delta_at_order
from veil.accounting.events import Gaussian, Laplace, NoisyMax
from veil.accounting.rdp.quadrature import Floats


def gaussian(event: Gaussian, orders: Floats) -> Floats:
    """α·reach²/(2κ²): exact."""
    cost: Floats = orders * (event.reach / event.noise_multiplier) ** 2 / 2
    return cost


def laplace(event: Laplace, orders: Floats) -> Floats:
    """Exact (Mironov 2017), with ε the reach over the scale; for tiny ε the bound αε²/2 takes over from rounding."""
    pure = event.reach / event.noise_multiplier
    inner = np.log1p((orders - 1) * np.expm1((1 - 2 * orders) * pure) / (2 * orders - 1))
    exact = pure + inner / (orders - 1) + 4e-16 * pure
    cost: Floats = np.minimum(exact, orders * pure**2 / 2)
    return cost


def noisy_max(event: NoisyMax, orders: Floats) -> Floats:
    """The largest Rényi divergence of any mechanism of bounded range η: tight for that class.

    The log-ratio lies in an interval [t−η, t]. Its exponential moment is convex, so it is largest when only the two
    ends occur, with the weights that make e^loss average to one; and then over t there is one stationary point,
    e^t = (α−1)(1−e^(−αη)) / (α(e^(−η)−e^(−αη))). It is below αη²/8, the bound of zero-concentrated privacy
    (Hoeffding), which takes over where the difference of logarithms would lose its digits.
    """
    eta = event.range
    concentrated = orders * eta**2 / 8
    whole, most = -np.expm1(-orders * eta), -np.expm1(-(orders - 1) * eta)
    shift = np.log1p(-1 / orders) + np.log(whole / most) + eta
    exact = shift + (np.log(whole) - np.log(orders) - math.log(-math.expm1(-eta))) / (orders - 1) + 1e-14
    cost: Floats = np.where(orders * eta > 1e-3, np.minimum(exact, concentrated), concentrated)
    return np.minimum(cost, eta)


def mixture(probability: float, cost: Floats, orders: Floats) -> Floats:
    """log(1 − λ + λ·e^((α−1)ρ))/(α−1): the release happened with probability λ, and one sees whether it did."""
    if probability == 0:
        return np.zeros_like(cost)
    exponent = (orders - 1) * cost
    capped = np.minimum(exponent, 500.0)
    small = np.log1p(probability * np.expm1(capped))
    with np.errstate(invalid="ignore"):
        mixed: Floats = (small + (exponent - capped)) / (orders - 1)
    return np.where(np.isinf(cost), np.inf, mixed)


def negative_binomial_mean(shape: float, gamma: float) -> float:
    """The mean number of runs of the truncated negative binomial (shape 0: logarithmic, 1: geometric).

    >>> negative_binomial_mean(1.0, 0.25)
    4.0
    """
    log_gamma = math.log(gamma)
    if abs(shape * log_gamma) < 1e-12:
        return (1 / gamma - 1) / -log_gamma
    return shape * (1 / gamma - 1) / -math.expm1(shape * log_gamma)


def selection_negative_binomial(shape: float, gamma: float, cost: Floats, orders: Floats) -> Floats:
    """Papernot and Steinke (2022), Theorem 2: the best of a truncated negative binomial number of runs.

    ρ'(λ) = ρ(λ) + (1+η)·min over orders λ̂ of [(1−1/λ̂)·ρ(λ̂) + log(1/γ)/λ̂] + log E[K]/(λ−1). A Rényi divergence grows
    with its order, so a cost proved at a higher order holds at a lower one too. `orders` must be ascending.
    """
    constant = (1 + shape) * float(np.min((1 - 1 / orders) * cost - math.log(gamma) / orders))
    raw = cost + constant + math.log(negative_binomial_mean(shape, gamma)) / (orders - 1)
    return np.minimum.accumulate(raw[::-1])[::-1]


def selection_poisson(mean: float, cost: Floats, orders: Floats) -> Floats:
    """Papernot and Steinke (2022), Theorem 6: the best of a Poisson number of runs, or nothing when there was none.

    With δ̂ the run's δ at ε̂ = log(1 + 1/(λ−1)), outcomes of runs add up to at most μ·e^((λ−1)(ρ + μδ̂)) in the moment of
    order λ, and "no run", equally likely in both worlds, adds e^−μ. `orders` must be ascending.
    """
    raw = np.empty_like(cost)
    for index, order in enumerate(orders):
        delta = math.exp(float(np.min(log_delta_at_order(cost, orders, math.log1p(1 / (order - 1))))))
        moment = np.logaddexp(-mean, math.log(mean) + (order - 1) * (cost[index] + mean * delta))
        raw[index] = max(float(moment), 0.0) / (order - 1)
    return np.minimum.accumulate(raw[::-1])[::-1]
