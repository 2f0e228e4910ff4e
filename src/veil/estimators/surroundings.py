"""What is around a fit: searches, ensembles, pipelines, other fits on the same rows. No certificate covers these."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from veil.tables.callers import SELECTION, callers, in_worker
from veil.tables.fitted_rows import Fitted, added_up, fitted_before

SEARCH = "A search or cross-validation around this fit: its other fits on the same rows, and its scores."
WRAPPED = "What {} does around this fit: its other fits on the same rows, and anything else it computes from them."
STEPS = "Steps of a pipeline around this fit: what they learned from the rows (scaling, column selection)."
COPIES = "Copies: one row appears up to {0} times among these, and {0} copies lose up to {0} times the ε of one row."
WORKER = "Other fits on the same rows by other worker processes: this fit ran in one, which cannot see them."


class NotCoveredWarning(UserWarning):
    """Warning: something around a fit is not covered by the certificate."""


class NoGroupsWarning(UserWarning):
    """Warning: an estimator that is meant for groups was fitted without any."""


def warn_of_no_groups() -> None:
    """Say that nothing keeps a group from being left behind."""
    warnings.warn(
        "fitted without groups: all rows count as one group, and no figure is known by group. Pass "
        'sensitive_features, as labels or as names of columns: fit(X, y, sensitive_features="sex")',
        NoGroupsWarning,
        stacklevel=4,
    )


def around(fitting: Fitted) -> list[str]:
    """What around a fit its certificate does not cover; the unexpected also raises one warning."""
    modules, steps = callers()
    wrapper = next((name for name in modules if name.startswith(SELECTION)), None) or next(iter(modules), None)
    found = []
    if wrapper is not None:
        found.append(SEARCH if wrapper.startswith(SELECTION) else WRAPPED.format(".".join(wrapper.split(".")[:2])))
    before = fitted_before(fitting.rows, fitting.mark) if fitting.epsilon > 0 else []
    if before:
        found.append(_refitted(before, fitting))
    if fitting.rows.copies > 1 and fitting.epsilon > 0:
        found.append(COPIES.format(fitting.rows.copies))
    if found:
        said = " ".join((found[0][0].lower() + found[0][1:], *found[1:]))
        warnings.warn(
            f"not covered by the certificate: {said} Each fit has its own guarantee.",
            NotCoveredWarning,
            stacklevel=4,
        )
    return [*found, *([STEPS] if steps else []), *([WORKER] if in_worker() else [])]


def _refitted(before: Sequence[Fitted], fitting: Fitted) -> str:
    """The total cost of all fits on the same rows: sums, which hold under any adaptive choice."""
    epsilon, delta = added_up(before)
    most, most_delta = added_up([*before, fitting])
    models = "1 other private model" if len(before) == 1 else f"{len(before)} other private models"
    return (
        f"These rows were used to fit {models} in this process: their ε add up to {epsilon:.3g} (δ to {delta:.2g}), "
        f"with this fit to at most {most:.3g} (δ to {most_delta:.2g})."
    )
