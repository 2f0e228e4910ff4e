"""Apart: long work in a process of its own, which is ended when it takes too long: certificates and plans.

What a run's folder says decides how much work it is, and the folder may be anybody's.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from veil.accounting.events import AccountingError
from veil.errors import InputError

SECONDS = 180.0
AT_ONCE = threading.BoundedSemaphore(2)
Work = Callable[[Any], Any]


def apart(work: Work, given: Any, seconds: float = SECONDS) -> Any:
    """What `work(given)` returns, computed in another process.

    Args:
        work: A function of a module; it must not write anything.
        given: Its argument. It goes through a pipe, so that no list of processes shows it.
        seconds: How long it may take.

    Returns:
        Its result.

    Raises:
        InputError: It failed, in one sentence, or took too long.
    """
    spawn = get_context("spawn")
    with AT_ONCE:
        here, there = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_answer, args=(work, given, there), daemon=True)
        process.start()
        there.close()
        try:
            done, value = here.recv() if here.poll(seconds) else (False, f"it took more than {seconds:.0f} seconds")
        except EOFError:
            done, value = False, "the process ended before it was done, perhaps out of memory"
        finally:
            process.kill()
            process.join()
            here.close()
    if not done:
        raise InputError(value)
    return value


def _answer(work: Work, given: Any, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    try:
        pipe.send((True, work(given)))
    except (InputError, AccountingError) as error:
        pipe.send((False, str(error)))
    except Exception as error:  # a run's folder may hold anything: its page says so, and the server goes on
        pipe.send((False, f"{type(error).__name__}: what the files hold cannot be read"))


def verified(folder: Path) -> dict[str, Any]:
    """The outcome of `veil verify` as plain values."""
    from veil.accounting.verify import verify

    verdict = verify(folder / "certificate.json")
    return {
        "holds": verdict.holds,
        "faults": list(verdict.faults),
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
