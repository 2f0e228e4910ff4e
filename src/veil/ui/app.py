"""The pages of `veil ui`: every one is read from disk when it is asked for, and none changes anything."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, abort, render_template, request
from jinja2 import FunctionLoader, StrictUndefined
from werkzeug.exceptions import HTTPException

from veil.budget_store import BudgetStore
from veil.errors import InputError
from veil.report import render_page, wording
from veil.report.cleaning import clean
from veil.report.page import asset
from veil.ui.apart import Busy, apart, planned, verified
from veil.ui.comparing import MOST, differing_settings, figure_lines
from veil.ui.filters import SORTS, Filters, listing
from veil.ui.folders import Unreadable, check_files, check_source, read_json
from veil.ui.guard import FRAMED, HEADERS, POLICY, Guard
from veil.ui.runs import LARGE, WEIGHTS, RunSummary, Shelf, audits_of, record_of
from veil.ui.tables import SOURCES, PlannedTable, tables_of

ASSETS = "assets"
STORE_PATIENCE = 2.0
KEPT_PLANS = 8


class Pages:
    """What the pages are made from: the runs of a folder, and a budget store."""

    def __init__(self, root: Path, store: str, guard: Guard) -> None:
        self.shelf, self.store, self.guard = Shelf(root), store, guard
        self._plans: dict[str, str] = {}

    def enter(self) -> Response:
        """Exchange the token for a cookie, then go on to the list (by a page: a strict cookie needs one of our own)."""
        if not self.guard.admits(request.args.get("token", "")):
            return _refused("Open the address that `veil ui` printed: it has the token.")
        return self.guard.let_in(page("enter.html"))

    def runs(self) -> Response:
        """The list, narrowed and ordered by the query string."""
        found = listing(self.shelf.runs(), Filters.from_query(request.args))
        shelf = self.shelf
        return page(
            "runs.html",
            listing=found,
            filters=found.filters,
            sorts=SORTS,
            root=shelf.root,
            whole=shelf.whole,
            most=MOST,
        )

    def run(self, run_id: str) -> Response:
        """One run with its report inside."""
        return page("run.html", run=self._run(run_id))

    def report(self, run_id: str) -> Response:
        """The report of a run, made anew from its record: no page that lies in a folder is ever shown."""
        return self._reported([self._run(run_id)])

    def certificate(self, run_id: str) -> Response:
        """What a run promises, and on request what the second accountant says to it."""
        run, shown, problem = self._run(run_id), None, ""
        try:
            shown = clean(read_json(run.folder, "certificate.json", LARGE))
        except Unreadable as error:
            problem = f"{error}."
        asked = shown is not None and request.args.get("verify") == "1"
        outcome = self._verified(run) if asked else None
        return page("certificate.html", run=run, certificate=shown, problem=problem, outcome=outcome)

    def compare(self) -> Response:
        """Ticked runs side by side, with the report about all of them."""
        found = [run for run in self._ticked() if run.state == "finished"]
        records, problem = [], ""
        try:
            records = [clean(record_of(run)) for run in found]
        except Unreadable as error:
            problem = f"{error}."
        figures, settings = figure_lines(records), differing_settings(records)
        ids = [run.id for run in found]
        return page("compare.html", runs=found, ids=ids, figures=figures, settings=settings, problem=problem, most=MOST)

    def comparison(self) -> Response:
        """The report about the ticked runs."""
        return self._reported(self._ticked())

    def budgets(self) -> Response:
        """What is left of every budget in the store."""
        found: list[dict[str, Any]] = []
        place, problem = "", ""
        try:
            store = BudgetStore.open(self.store, patience=STORE_PATIENCE, writable=False)
            place = store.place
            found = [
                {"set": store.dataset(name), "balances": store.balances(name), "entries": store.history(name)[::-1]}
                for name in store.names()
            ]
        except InputError as error:
            problem = str(error)
        return page("budgets.html", found=found, place=place, problem=problem)

    def plans(self) -> Response:
        """The tables that a plan can be made for."""
        return page("plans.html", tables=tables_of(self.shelf.runs()))

    def plan(self, table_id: str) -> Response:
        """A plan with its sliders inside."""
        return page("plan_frame.html", table=self._table(table_id))

    def plan_page(self, table_id: str) -> Response:
        """The plan itself."""
        table = self._table(table_id)
        try:
            return framed(self._planned(table))
        except InputError as error:
            answer = framed(_text("problem.html", heading="There is no plan", problem=str(error)))
            answer.status_code = 503 if isinstance(error, Busy) else 200
            return answer

    def style(self) -> Response:
        """The style of reports, and what these pages add."""
        return Response(asset("report.css") + _asset("ui.css"), mimetype="text/css")

    def _run(self, run_id: str) -> RunSummary:
        return self.shelf.run(run_id) or abort(404)

    def _table(self, table_id: str) -> PlannedTable:
        found = (table for table in tables_of(self.shelf.runs()) if table.id == table_id)
        return next(found, None) or abort(404)

    def _ticked(self) -> list[RunSummary]:
        known = {run.id: run for run in self.shelf.runs()}
        return [known[run] for run in dict.fromkeys(request.args.getlist("run")) if run in known][:MOST]

    def _reported(self, runs: list[RunSummary]) -> Response:
        try:
            records = [record_of(run) for run in runs]
            return framed(render_page(records, audits=audits_of(runs)))
        except InputError as error:
            return framed(_text("problem.html", heading="There is no report", problem=f"{error}"))
        except Exception as error:  # a record may be anybody's: the page says that it is none
            said = f"run.json is not the record of a run ({type(error).__name__})"
            return framed(_text("problem.html", heading="There is no report", problem=said))

    def _verified(self, run: RunSummary) -> Mapping[str, Any]:
        try:
            check_files(run.folder, LARGE, WEIGHTS)
            return {"problem": "", **apart(verified, run.folder)}
        except Busy:
            raise
        except (InputError, OSError) as error:
            return {"problem": str(error)}

    def _planned(self, table: PlannedTable) -> str:
        """A plan; the last ones are kept, as long as the file they are about does not change."""
        try:
            key = f"{table.id} {Path(str(table.config['data'])).stat().st_mtime_ns}"
        except (OSError, ValueError):
            key = table.id
        if key not in self._plans:
            for name in SOURCES & table.config.keys():
                check_source(Path(str(table.config[name])))
            made = apart(planned, dict(table.config))
            self._plans = {**dict(list(self._plans.items())[1 - KEPT_PLANS :]), key: made}
        return self._plans[key]


def create_app(root: Path, store: str, guard: Guard) -> Flask:
    """The web application.

    Args:
        root: The folder of runs.
        store: The budget store, as for `veil budget`.
        guard: Who may look.

    Returns:
        A WSGI application.
    """
    app = Flask("veil.ui", static_folder=None)
    app.jinja_options = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    app.jinja_loader = FunctionLoader(lambda name: asset(name) if name == "parts.html.j2" else _asset(name))
    for filling in (wording.percent, wording.number, wording.label, wording.show, wording.spelled, moment):
        app.jinja_env.filters[filling.__name__] = filling
    pages = Pages(root, store, guard)
    routes = Blueprint("ui", __name__, url_prefix=f"/{guard.place}")
    for rule, show in (
        ("/enter", pages.enter),
        ("/", pages.runs),
        ("/runs/<run_id>", pages.run),
        ("/runs/<run_id>/report", pages.report),
        ("/runs/<run_id>/certificate", pages.certificate),
        ("/compare", pages.compare),
        ("/compare/report", pages.comparison),
        ("/budgets", pages.budgets),
        ("/plans", pages.plans),
        ("/plans/<table_id>", pages.plan),
        ("/plans/<table_id>/page", pages.plan_page),
        ("/style.css", pages.style),
    ):
        routes.add_url_rule(rule, endpoint=show.__name__, view_func=show)
    app.register_blueprint(routes)
    app.before_request(lambda: None if (fault := guard.fault(request)) is None else _refused(fault))
    app.after_request(_with_headers)
    app.register_error_handler(Exception, _failed)
    return app


def page(template: str, **values: Any) -> Response:
    """A page of our own."""
    return Response(_text(template, **values), mimetype="text/html")


def framed(html: str | bytes) -> Response:
    """A page with a script, for a frame: it gets an origin of its own."""
    text = html if isinstance(html, bytes) else html.encode("utf-8", "replace")
    return Response(text, mimetype="text/html", headers={"Content-Security-Policy": FRAMED})


def _text(template: str, **values: Any) -> bytes:
    """A filled template; characters that no text can hold (from names of files) are replaced."""
    return render_template(template, **values).encode("utf-8", "replace")


def _asset(name: str) -> str:
    return files("veil.ui").joinpath(ASSETS, name).read_text(encoding="utf-8")


def moment(when: float) -> str:
    """A time as people write it."""
    return datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M") if when else wording.NOTHING


def _refused(why: str) -> Response:
    """The same few words for everybody: nothing about the runs, not even whether a page exists."""
    response = Response(f"{why}\n", status=403, mimetype="text/plain")
    response.headers["Content-Security-Policy"] = POLICY
    return response


def _with_headers(response: Response) -> Response:
    response.headers.setdefault("Content-Security-Policy", POLICY)
    for name, value in HEADERS.items():
        response.headers[name] = value
    return response


def _failed(error: Exception) -> Response:
    """A page that does not exist, work that others keep waiting, or a fault of ours: that is printed by `veil ui`."""
    if isinstance(error, Busy):
        response = page("nothing.html", heading="Busy", said=f"{str(error).capitalize()}.")
        response.status_code = 503
        return response
    code = error.code or 500 if isinstance(error, HTTPException) else 500
    if not isinstance(error, HTTPException):
        traceback.print_exception(error, file=sys.stderr)
    said = "There is no such page, or the run has gone." if code == 404 else "The terminal of veil ui says more."
    response = page("nothing.html", heading="Nothing here" if code == 404 else "That did not work", said=said)
    response.status_code = code
    return response
