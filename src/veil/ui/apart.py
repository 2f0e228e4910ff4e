"""Apart: long work in a process of its own, which is ended when it takes too long: certificates and plans.

What a run's folder says decides how much work it is, and the folder may be anybody's.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from veil.accounting.events import AccountingError
from veil.errors import InputError

SECONDS = 180.0
# Far more than torch needs, and than the largest files that are read.
MEMORY = 16 * 2**30
AT_ONCE = threading.BoundedSemaphore(2)
PATIENCE = 1.0
Work = Callable[[Any], Any]


class Busy(InputError):
    """As many processes as may run at once are running."""


def apart(work: Work, given: Any, seconds: float = SECONDS) -> Any:
    """What `work(given)` returns, computed in another process.

    Args:
        work: A function of a module; it must not write anything.
        given: Its argument. It goes through a pipe, so that no list of processes shows it.
        seconds: How long it may take.

    Returns:
        Its result.

    Raises:
        Busy: Others are running. A request must not wait for them: it would keep a thread from other pages.
        InputError: It failed, in one sentence, or took too long.
    """
    if not AT_ONCE.acquire(timeout=PATIENCE):
        raise Busy("other certificates or plans are being worked on: try again when they are done")
    try:
        done, value = _asked(work, given, seconds)
    finally:
        AT_ONCE.release()
    if not done:
        raise InputError(value)
    return value


def _asked(work: Work, given: Any, seconds: float) -> tuple[bool, Any]:
    """Whether a process of its own did the work, and its result or what went wrong."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_answer, args=(work, given, there), daemon=True)
    process.start()
    there.close()
    try:
        answer: tuple[bool, Any] = (False, f"it took more than {seconds:.0f} seconds")
        return here.recv() if here.poll(seconds) else answer
    except EOFError:
        return False, "the process ended before it was done, perhaps out of memory"
    finally:
        process.kill()
        process.join()
        here.close()


def _answer(work: Work, given: Any, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    _bound_memory(MEMORY)
    try:
        pipe.send((True, work(given)))
    except (InputError, AccountingError) as error:
        pipe.send((False, str(error)))
    except MemoryError:
        pipe.send((False, f"it needs more than {MEMORY // 2**30} GB of memory"))
    except Exception as error:  # a run's folder may hold anything: its page says so, and the server goes on
        pipe.send((False, f"{type(error).__name__}: what the files hold cannot be read"))


def _bound_memory(most: int) -> None:
    """Let this process have no more memory, on systems that can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def verified(folder: Path) -> dict[str, Any]:
    """The outcome of `veil verify` as plain values."""
    from veil.handover.verifying import verify_with_export

    verdict = verify_with_export(folder / "certificate.json")
    return {
        "holds": verdict.holds,
        "faults": list(verdict.faults),
        "remarks": list(verdict.remarks),
        "unit": verdict.unit,
        "opinions": [asdict(opinion) for opinion in verdict.opinions],
    }


def planned(config: Mapping[str, Any]) -> str:
    """The page of `veil plan` for a table."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a second thread costs a small model more than it gives
    from veil.advice.planning import advise
    from veil.report.plan_page import render_plan
    from veil.request import Request

    advice = advise(Request.recorded(config))
    return render_plan(advice.record, advice.page_tables())
