"""Plan: every public constant of a run, fixed before any private row is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from veil.accounting import AccountingError, Event, Relation, Terms
from veil.accounting.certificate import GROUP_SIZES, PERSON, ROWS_FACT, UNIT_FACT
from veil.accounting.ledger import STEPS_PUBLIC, Account
from veil.accounting.spending_rules import SpendingRule
from veil.errors import require
from veil.noise.filters import DiskFilter
from veil.plans.controllers import Controller
from veil.plans.controllers.gate import Gate
from veil.plans.controllers.solver import Solver
from veil.problem import PublicFacts
from veil.request import Settings

LossFunction = Callable[[nn.Module, tuple[Any, Tensor]], Tensor]
LossTransform = Callable[[LossFunction], LossFunction]


NAMES_PUBLIC = (
    "The names of the groups and owners that have rows are public knowledge and do not change: it is not hidden that "
    "a row is the only one of its group or owner."
)
SIZES = {
    "counted": "Group sizes were counted in the rows and are treated as public; they were not released with noise.",
    "declared": "Group sizes were declared as public knowledge, and the true number of rows does not affect anything "
    "published.",
    "released": "Group sizes were released with noise, at a cost that ε includes, and the true number of rows does not "
    "affect anything published.",
}
EMPTY_PLACE = (
    "A removed row leaves its place empty: the size of its group, and what follows from sizes (rates, bounds, margins, "
    "steps, a δ that was not given), stays the same. A table that is really one row shorter is not covered: "
    "declare group sizes, or let private preprocessing release them."
)
CLASSES_READ = "The set of classes was taken from the rows and is treated as public."
WITHIN_CELL = "A row is replaced by a row of the same group and owner."
SEED_GIVEN = (
    "The seed was given by a person: anybody who knows it, or sees two runs with the same seed, can subtract the "
    "noise. Use it for tests only."
)
PEOPLE = (
    "What is said of a row here holds for a person: all rows that name the same person. Group sizes are numbers of "
    "people. A person counts in one group, that of one of their rows, with at most {} rows, chosen by a fixed rule "
    "from their name and their own rows alone. That every row names the right person is taken as given."
)
PEOPLE_BY_ROW = (
    "ε is that of all rows of a person together: at most {} rows of each count, all of one group, chosen by a fixed "
    "rule from their name and their own rows alone. Each of them is an entry by itself, so group sizes are numbers of "
    "rows, and what is said of a row here holds for all rows of a person at once. That every row names the "
    "right person is taken as given."
)
START = "The starting weights do not depend on these rows, except through releases that this ledger records."
ROW_BY_ROW = (
    "The guarantee assumes that every row's numbers were computed from that row alone, by public rules. What was "
    "computed over several rows before (scaling, filling in, selecting columns or rows) is not covered, unless the "
    "ledger records it."
)
PUBLIC_STEPS = (
    "The number of steps was chosen from public facts alone, such as a clock or a calendar: not by looking at the "
    "model, at figures of it, or at any row."
)
FAST_NOISE = (
    "Noise is Gaussian up to the rounding of floating-point numbers: secure_noise protects against attacks on that."
)
METRICS = "Figures on evaluation rows: those rows were declared public."
UNTRIED = "Whether model and loss keep rows separate: they do not accept synthetic rows, so this could not be tested."
OWN_COLLATE = "Whether the collate function keeps rows separate: its result for a row must depend on that row alone."
OWN_DRAWS = (
    "Whether the random transforms of the data set keep rows separate: they draw from a generator of their own, which "
    "cannot be started again for each row and step. Use those of torch, np.random or random."
)
OWN_DRAWS_AGAIN = (
    "Cannot resume: the transforms of the data set draw from a generator of their own, so repeated steps would put the "
    "same noise on other values. Start a new run, with transforms that draw from torch, np.random or random."
)
OWN_LOOP = (
    "Whether the losses of the session's own loop keep rows separate: its torch calls outside the model were "
    "repeated with other rows; numbers taken out of torch (.item(), numpy) and anything kept from step to step were "
    "not."
)
TRAINED = (
    "What the starting weights were trained on: they come from another training in this process. If it read these rows "
    "too, the ε of both add up: start with a fresh model, or continue a run with raise_budgets."
)
TUNING = "The choice of method, model and settings, if it was based on these rows."


@dataclass(frozen=True)
class Earlier:
    """Releases made before training, as the ledger records them: `count` from step `first` on, the event of each cell.

    Preprocessing is one; of a run that continues another, so are all steps of the earlier run.

    Args:
        purpose: What was released.
        first: Number of the first step.
        count: How many steps.
        events: What one step costs each cell, by number of the cell.

    >>> from veil.accounting import Gaussian
    >>> Earlier("preprocessing", first=0, count=1, events={0: Gaussian(20.0)}).count
    1
    """

    purpose: str
    first: int
    count: int
    events: Mapping[int, Event]


@dataclass(frozen=True)
class Plan:
    """What will happen, in public constants.

    `rules` has one spending rule per cell; None where nothing is private. `transform` changes the loss of each row
    (adversarial training does). `over_budget` says that the user accepts groups with less privacy than requested;
    otherwise such a plan is rejected. `gate` tests an update on fresh rows and takes it back if it fails.
    `earlier` are releases made before training that the rules pay for too: they enter the ledger first.
    `solver` trains the model as a whole instead of the loop. `options` are the method's own, in plain values: a
    resumed run must have the same.

    Args:
        method: Name of the method.
        facts: What is public about the rows.
        settings: ε, δ, steps, batch size and the rest.
        steps: Number of steps.
        controller: Decides what each step releases.
        relation: The neighbouring relation; None where nothing is private.
        rules: One spending rule per cell.
        assumptions: Assumptions of the method, one sentence each.
        details: Further public constants, such as the noise multiplier.
        over_budget: Whether some group may get less privacy than requested.
        transform: Changes the loss of each row.
        gate: Tests each update.
        earlier: Releases made before training.
        solver: Trains the model as a whole.
        options: The method's own options.

    >>> import veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 900), GroupSpec("small", 100)])
    >>> plan = veil.plan(rows, "dp-sgd", epsilon=1.0, steps=20, batch_size=100)
    >>> plan.steps, plan.private, plan.delta
    (20, True, 0.0005)
    """

    method: str
    facts: PublicFacts
    settings: Settings
    steps: int
    controller: Controller
    relation: Relation | None = None
    rules: tuple[SpendingRule, ...] | None = None
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    over_budget: bool = False
    transform: LossTransform | None = None
    gate: Gate | None = None
    earlier: tuple[Earlier, ...] = ()
    solver: Solver | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def noise_filter(self) -> DiskFilter | None:
        """A new noise filter as set in the settings; it is post-processing.

        Returns:
            The filter, or None if the settings have none.
        """
        if self.settings.noise_filter == "none":
            return None
        return DiskFilter(self.settings.filter_memory, self.settings.filter_lookahead)

    @property
    def private(self) -> bool:
        """Whether the plan has a privacy guarantee."""
        return self.rules is not None

    @property
    def delta(self) -> float:
        """The δ of the guarantee."""
        return self.settings.delta_for(self.facts)

    def terms(self) -> Terms:
        """The ledger's first line.

        Returns:
            Relation, δ, accountant, and budget and spending rule of every cell.

        Raises:
            AccountingError: The method is not private.
            InputError: `public_steps` is set and the steps of the method do not all cost the same.
        """
        if self.rules is None or self.relation is None:
            raise AccountingError(f"{self.method} is not private: it has no ledger")
        accounts = tuple(
            Account(
                self.facts.groups[cell.group],
                self.facts.owners[cell.owner],
                self.facts.budget_of(index, self.settings.epsilon),
                rule,
            )
            for index, (cell, rule) in enumerate(zip(self.facts.cells, self.rules, strict=True))
        )
        facts = {"method": self.method, "steps": self.steps, GROUP_SIZES: self.facts.sizes, **self.details}
        if self.facts.unit == "person":
            facts[UNIT_FACT] = PERSON
        if self.facts.rows_together > 1:
            facts[ROWS_FACT] = self.facts.rows_together
        made = Terms(self.relation, self.delta, self.settings.accountant, accounts, facts)
        if not self.settings.public_steps:
            return made
        require(
            made.steps_alike,
            f"public_steps needs a method whose steps all cost the same, which {self.method} does not promise: omit it "
            "or use dp-sgd",
        )
        return replace(made, facts={**facts, STEPS_PUBLIC: True})

    def all_assumptions(self, seed_given: bool) -> tuple[str, ...]:
        """Assumptions of the guarantee, in sentences.

        Args:
            seed_given: Whether the user chose the seed.

        Returns:
            One sentence for each assumption, as on the certificate.
        """
        found = [START, ROW_BY_ROW, NAMES_PUBLIC, SIZES[self.facts.sizes]]
        if self.relation is Relation.ADD_REMOVE and self.facts.sizes == "counted":
            found.append(EMPTY_PLACE)
        if self.facts.task == "classification" and not self.facts.classes_declared:
            found.append(CLASSES_READ)
        if self.relation is Relation.REPLACE_ONE:
            found.append(WITHIN_CELL)
        if self.facts.unit == "person":
            said = PEOPLE_BY_ROW if self.facts.person_rows == "each" else PEOPLE
            found.insert(0, said.format(self.facts.rows_per_unit))
        if self.settings.public_steps:
            found.append(PUBLIC_STEPS)
        if not self.settings.secure_noise:
            found.append(FAST_NOISE)
        if seed_given:
            found.append(SEED_GIVEN)
        return (*found, *self.assumptions)
