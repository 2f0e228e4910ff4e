"""Methods: one file each, the composition of a draw, a bound, a noise and a controller, with its guarantee."""

from veil.methods import (  # isort: skip  # noqa: F401  (each file registers its methods, by family)
    reweighted,
    gdro,
    adversarial,
    dp_sgd,
    auto_s,
    adaptive_clip,
    dpsur,
    disk,
    dp_is_sgd,
    dpsgd_f,
    global_adapt,
    fdpg,
    asc,
    azb,
    group_gd,
    auto,
    idp_sgd,
    ino_sgd,
    noisy_sgd_mgr,
    noisy_sgd_ags,
    phased_erm,
    dp_oco,
)
from veil.methods.registry import Method, create, method, names, options_of, plan, planned, relation_asked, table

__all__ = ["Method", "create", "method", "names", "options_of", "plan", "planned", "relation_asked", "table"]
