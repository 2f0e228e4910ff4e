"""Holders: parts that lie somewhere, one question to all of them, and exactly one answer of each part.

In this process, or with Ray: an actor holds some parts and answers for them. An actor that dies is replaced, and the
question is put to the new one; parts are made anew from their makers, so the answer is the same. An answer that comes
twice, or to an earlier question, is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from veil.errors import require
from veil.foundation.parallel import PATIENCE
from veil.foundation.ray_cluster import RayCluster

Maker = Callable[[], Any]
# Asked of one part, with what is given to all of them.
Question = Callable[[Any, Any], Any]
_DIED = "workers died repeatedly (out of memory?): use more workers, or smaller files"


class Holders(Protocol):
    """Whoever holds the parts."""

    @property
    def room(self) -> float:
        """The share of its machine's memory that one part may take."""
        ...

    def ask(self, question: Question, given: Any = None) -> list[Any]:
        """One answer for each part, in order."""
        ...

    def close(self) -> None:
        """Let go of the parts."""
        ...


class HeldHere:
    """All parts in this process, one after the other.

    >>> HeldHere([lambda: [1, 2], lambda: [3]]).ask(lambda part, given: sum(part) + given, 10)
    [13, 13]
    """

    def __init__(self, makers: Sequence[Maker]) -> None:
        self._makers = makers
        self._held: dict[int, Any] = {}

    @property
    def room(self) -> float:
        """The share of this machine's memory that one part may take."""
        return 1.0 / len(self._makers)

    def ask(self, question: Question, given: Any = None) -> list[Any]:
        """One answer for each part, in order."""
        return [question(_held(self._held, part, make), given) for part, make in enumerate(self._makers)]

    def close(self) -> None:
        """Let go of the parts."""
        self._held.clear()


@dataclass(frozen=True)
class Answer:
    """What a worker says of one part, to the question of this number."""

    asked: int
    part: int
    value: Any


@dataclass
class Tally:
    """The answers to one question. The first one of each part counts, and nothing that was asked before.

    >>> tally = Tally(asked=2, parts=2)
    >>> for answer in (Answer(2, 0, "a"), Answer(2, 0, "b"), Answer(1, 1, "late")):
    ...     tally.hear(answer)
    >>> tally.missing, tally.answers
    ([1], {0: 'a'})
    """

    asked: int
    parts: int
    answers: dict[int, Any] = field(default_factory=dict)

    def hear(self, answer: Answer) -> None:
        """Count an answer, unless it is a second one or belongs to another question."""
        if answer.asked == self.asked and 0 <= answer.part < self.parts:
            self.answers.setdefault(answer.part, answer.value)

    @property
    def missing(self) -> list[int]:
        """The parts that have not answered."""
        return [part for part in range(self.parts) if part not in self.answers]


class Crew(Protocol):
    """How workers are hired and asked; a ticket stands for what one of them was asked."""

    def hire(self, again: bool = False) -> Any:
        """A new worker; `again` if it takes the place of one that died."""
        ...

    def ask(self, worker: Any, asked: int, parts: Sequence[int], question: Question, given: Any) -> Any:
        """Ask a worker for some parts; returns a ticket at once."""
        ...

    def heard(self, tickets: Sequence[Any]) -> tuple[Any, list[Answer] | None]:
        """Wait for one of the tickets; None in place of its answers if the worker died."""
        ...

    def close(self) -> None:
        """Let all workers go."""
        ...


class HeldByWorkers:
    """Parts that workers hold, each a fixed share of them."""

    def __init__(self, crew: Crew, parts: int, workers: int, room: float) -> None:
        self._crew, self._parts, self.room = crew, parts, room
        count = min(workers, parts)
        self._shares = [list(range(first, parts, count)) for first in range(count)]
        self._workers = [crew.hire() for _ in self._shares]
        self._asked = 0

    def ask(self, question: Question, given: Any = None) -> list[Any]:
        """One answer for each part, in order; a worker that dies is replaced and asked again."""
        self._asked += 1
        tally = Tally(self._asked, self._parts)
        tickets = {self._put(place, tally.missing, question, given): place for place in range(len(self._shares))}
        failures = 0
        while tally.missing:
            ticket, answers = self._crew.heard(list(tickets))
            place = tickets.pop(ticket)
            for answer in answers or ():
                tally.hear(answer)
            if answers is None:
                self._workers[place] = self._crew.hire(again=True)
            if set(self._shares[place]) & set(tally.missing):
                failures += 1
                require(failures < PATIENCE * len(self._shares), _DIED)
                tickets[self._put(place, tally.missing, question, given)] = place
        return [tally.answers[part] for part in range(self._parts)]

    def _put(self, place: int, missing: Sequence[int], question: Question, given: Any) -> Any:
        own = [part for part in self._shares[place] if part in set(missing)]
        return self._crew.ask(self._workers[place], self._asked, own, question, given)

    def close(self) -> None:
        """Let the workers go."""
        self._crew.close()


class Worker:
    """What runs in an actor: makes parts when they are asked for, and keeps them."""

    def __init__(self, makers: Sequence[Maker]) -> None:
        self._makers = makers
        self._held: dict[int, Any] = {}

    def answer(self, asked: int, parts: Sequence[int], question: Question, given: Any) -> list[Answer]:
        """One answer for each of some parts."""
        return [Answer(asked, part, question(_held(self._held, part, self._makers[part]), given)) for part in parts]


class RayCrew:
    """Workers are actors of Ray."""

    def __init__(self, makers: Sequence[Maker], workers: int) -> None:
        self.cluster = RayCluster(workers)
        self._ray = self.cluster.ray
        self._makers = self._ray.put(list(makers))
        self._given: tuple[Any, Any] | None = None
        self._actors: list[Any] = []
        self._asked: dict[Any, Any] = {}

    def hire(self, again: bool = False) -> Any:
        """A new actor. One that takes a dead one's place needs no free core: its node may be gone."""
        made = self._ray.remote(Worker).options(num_cpus=0 if again else 1, scheduling_strategy="SPREAD")
        self._actors.append(made.remote(self._makers))
        return self._actors[-1]

    def ask(self, worker: Any, asked: int, parts: Sequence[int], question: Question, given: Any) -> Any:
        """Ask an actor; what is given to all is sent to each machine once."""
        if self._given is None or self._given[0] is not given:
            self._given = (given, self._ray.put(given))
        ticket = worker.answer.remote(asked, parts, question, self._given[1])
        self._asked[ticket] = worker
        return ticket

    def heard(self, tickets: Sequence[Any]) -> tuple[Any, list[Answer] | None]:
        """The next ticket that is done; an error of the question itself is raised."""
        [ticket], _ = self._ray.wait(list(tickets), num_returns=1)
        worker = self._asked.pop(ticket)
        try:
            answers: list[Answer] = self._ray.get(ticket)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError:  # the actor, its machine, or what it had answered is gone
            self._ray.kill(worker)  # one that is only out of reach must not come back
            self._actors.remove(worker)
            return ticket, None
        return ticket, answers

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors.clear()
        self.cluster.close()


def held_by_actors(makers: Sequence[Maker], workers: int) -> HeldByWorkers:
    """Parts held by so many actors of Ray."""
    require(workers > 0, f"workers is {workers}: give how many actors hold the partitions")
    crew = RayCrew(makers, workers)
    count = min(workers, len(makers))
    room = 1.0 / (math.ceil(len(makers) / count) * math.ceil(count / crew.cluster.machines))
    return HeldByWorkers(crew, len(makers), workers, room)


def _held(held: dict[int, Any], part: int, make: Maker) -> Any:
    if part not in held:
        held[part] = make()
    return held[part]
