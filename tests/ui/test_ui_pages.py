"""The pages: what they list, what a broken folder does to them (nothing), and that they never write."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.program import Program
from tests.ui.conftest import Ask
from tests.ui.ui_cases import HOSTILE, certified, write_run
from veil.accounting.model_digest import NO_HASH
from veil.budget_store import BudgetStore, Cost, DataSet, Spending
from veil.errors import InputError
from veil.ui import apart as apart_module
from veil.ui.app import Pages
from veil.ui.comparing import MOST
from veil.ui.filters import PAGE, SORTS, Filters, listing
from veil.ui.folders import Unreadable, check_files, read_bytes
from veil.ui.runs import DAMAGED, FINISHED, LARGE, UNFINISHED, WEIGHTS, Shelf
from veil.ui.tables import PlannedTable, tables_of

ROWS = re.compile(r'<th scope="row"><span class="tick">.*?<a [^>]*>(.*?)</a>', re.DOTALL)


def listed(page: str) -> list[str]:
    return [html.unescape(name) for name in ROWS.findall(page)]


def everything(root: Path) -> dict[str, Any]:
    """All that a page could change: names, contents, times."""
    paths = [path for path in root.rglob("*") if not path.is_fifo()]
    return {str(p): (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


def test_every_run_is_listed_whatever_lies_beside_it(written: Path, ask: Ask) -> None:
    states = {run.name: run.state for run in Shelf(written).runs()}
    finished = {name for name, state in states.items() if state == FINISHED}
    assert finished == {
        "first", HOSTILE, *(f"comparison/{m}-{s}" for m in ("asc", "erm") for s in (1, 2)), "broken/record",
        "broken/surrogate", "broken/vast",
    }  # fmt: skip
    assert states["unfinished"] == UNFINISHED
    assert all(
        states[f"broken/{name}"] == DAMAGED
        for name in ("empty", "cut", "deep", "nested", "list", "words", "huge", "pipe")
    )
    assert "no run at all" not in states
    page = ask("/")
    assert page.status_code == 200
    assert set(listed(page.text)) == set(states)
    assert "broken/not � text" in page.text


def test_no_folder_breaks_a_page_about_it(ask: Ask, ids: dict[str, str]) -> None:
    for name, run in ids.items():
        for path in (f"/runs/{run}", f"/runs/{run}/report", f"/runs/{run}/certificate", f"/compare?run={run}"):
            answer = ask(path)
            assert answer.status_code == 200, (name, path)
            assert "Traceback" not in answer.text
    together = "&".join(f"run={run}" for run in ids.values())
    assert ask(f"/compare?{together}").status_code == 200
    assert ask(f"/compare/report?{together}").status_code == 200
    assert ask("/compare/report").status_code == 200


def test_html_in_names_is_text(ask: Ask, ids: dict[str, str], guard: Any) -> None:
    run = ids[HOSTILE]
    both = f"/compare?run={run}&run={ids['first']}"
    for path in ("/", f"/runs/{run}", f"/runs/{run}/certificate", both, f"/?q={'<script>alert(1)</script>'}"):
        page = ask(path).text.replace(guard.place, "")  # a secret may contain any digits
        assert "<img" not in page
        assert "<script" not in page
        assert "49" not in re.sub(r"\d\.\d+|[0-9a-f]{16}", "", page) or "{{ 7*7 }}" in page
    assert html.escape("</script><script>alert(2)</script>") in ask(both).text


@pytest.mark.parametrize(
    "path",
    [
        "/runs/../../etc/passwd",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/first",
        "/runs/%00",
        "/runs//etc/passwd",
        "/runs/first/report",
        "/plans/..%2fpeople.csv/page",
        "/compare?run=../first&run=/etc/passwd",
        "/assets/ui.css",
        "/style.css/../runs.html",
    ],
)
def test_a_path_is_never_taken_from_an_address(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status_code in (404, 200, 308)
    assert "root:" not in answer.text
    if answer.status_code == 200:
        assert "Tick two or more" in answer.text


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = certified(write_run(tmp_path / "outside" / "secret"))
    root = tmp_path / "runs"
    write_run(root / "inside")
    (root / "folder").symlink_to(outside)
    (root / "parent").symlink_to(tmp_path / "outside")
    copied = write_run(root / "files")
    for name in ("metrics.json", "run.json"):
        (copied / name).unlink()
        (copied / name).symlink_to(outside / name)
    found = {run.name: run for run in Shelf(root).runs()}
    assert set(found) == {"inside", "files"}
    assert found["files"].state == DAMAGED
    assert "Too many levels of symbolic links" in found["files"].problem
    with pytest.raises(Unreadable, match="is a link"):
        check_files(copied, 1000)
    with pytest.raises(Unreadable, match="larger than 0 MB"):
        read_bytes(root / "inside", "run.json", 10)


def test_looking_changes_nothing(ask: Ask, root: Path, ids: dict[str, str]) -> None:
    before = everything(root)
    for path in ("/", f"/runs/{ids['first']}", f"/runs/{ids['first']}/certificate", "/budgets", "/plans"):
        assert ask(path).status_code == 200
    ask(f"/compare/report?run={ids['first']}&run={ids[HOSTILE]}")
    assert everything(root) == before


def test_a_certificate_is_verified_by_a_click_which_changes_nothing(ask: Ask, ids: dict[str, str], root: Path) -> None:
    before = everything(root)
    page = ask(f"/runs/{ids['first']}/certificate")
    assert "Verify this certificate" in page.text
    assert 'id="outcome"' not in page.text
    outcome = ask(f"/runs/{ids['first']}/certificate?verify=1").text
    assert '<p class="big">holds</p>' in outcome
    assert html.escape(NO_HASH) in outcome
    assert everything(root) == before
    assert "Not verified: there is no ledger.jsonl" in ask(f"/runs/{ids['comparison/asc-1']}/certificate?verify=1").text
    assert "Verify this certificate" not in ask(f"/runs/{ids['comparison/erm-1']}/certificate").text


def test_filters_narrow_and_orders_order(root: Path, ask: Ask) -> None:
    runs = Shelf(root).runs()
    assert set(listed(ask("/?method=asc&state=finished&q=comp").text)) == {"comparison/asc-1", "comparison/asc-2"}
    assert {run.verdict for run in listing(runs, Filters(verdict="useful")).runs} == {"useful"}
    assert listed(ask("/?q=nothing+like+it").text) == []
    for sort, (_, key) in SORTS.items():
        found = listing(runs, Filters(sort=sort)).runs
        assert [key(run) for run in found] == sorted(map(key, runs)), sort
    for odd in ("?sort=x", "?page=-1", "?page=99999999999", "?page=٣", "?q=" + "a" * 5000, "?method=%ff"):
        assert ask(f"/{odd}").status_code == 200


def test_a_long_list_has_pages_and_every_run_is_on_one(tmp_path: Path) -> None:
    for number in range(PAGE + 5):
        folder = tmp_path / f"run-{number:03}"
        folder.mkdir()
        (folder / "run.json").write_text("{}")
        (folder / "metrics.json").write_text('{"method": "asc", "metrics": {}, "privacy": {"epsilon": 1}}')
    runs = Shelf(tmp_path).runs()
    first, last = (listing(runs, Filters(sort="name", page=page)) for page in (1, 9))
    assert (len(first.runs), len(last.runs), first.pages, last.filters.page) == (PAGE, 5, 2, 2)
    assert [run.name for run in (*first.runs, *last.runs)] == sorted(run.name for run in runs)


def test_an_exported_model_is_no_damaged_run(tmp_path: Path) -> None:
    for name, model in (("handed-over", "model.onnx"), ("scikit-learn", "model.pkl"), ("run", "model.onnx")):
        (certified(write_run(tmp_path / name)) / model).touch()
    for name in ("handed-over", "scikit-learn"):
        for file in ("config.toml", "metrics.json"):
            (tmp_path / name / file).unlink()
    assert [(run.name, run.state) for run in Shelf(tmp_path).runs()] == [("run", FINISHED)]


def test_a_summary_is_read_again_only_where_the_run_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name)
    shelf, read = Shelf(tmp_path), list[str]()
    shelf.runs()
    plain = shelf._summary
    monkeypatch.setattr(shelf, "_summary", lambda folder, names: (read.append(folder.name), plain(folder, names))[1])
    shelf.runs()
    assert read == []
    (tmp_path / "two" / "seed.key").write_text("{}")
    assert {run.name: run.state for run in shelf.runs()} == {"one": FINISHED, "two": UNFINISHED}
    assert read == ["two"]


def test_ticked_runs_stand_side_by_side_with_what_differs(ask: Ask, ids: dict[str, str]) -> None:
    page = ask(f"/compare?run={ids['comparison/asc-1']}&run={ids['comparison/erm-2']}&run={ids['unfinished']}").text
    assert "2 runs side by side" in page
    assert "their ε add up" in page
    assert "Group Female × &gt;50K" in page
    assert "Settings that differ" not in page or "Method" in page
    assert "Tick two or more" in ask(f"/compare?run={ids['first']}").text
    report = ask(f"/compare/report?run={ids['comparison/asc-1']}&run={ids['comparison/erm-2']}").text
    assert "Comparison" in report


def test_at_most_so_many_runs_are_compared(root: Path, ask: Ask, ids: dict[str, str]) -> None:
    many = "&".join(f"run={run}" for _ in range(MOST) for run in ids.values())
    assert ask(f"/compare?{many}").status_code == 200


def test_budgets_show_what_is_left_and_cannot_be_changed(tmp_path: Path, ask: Ask) -> None:
    assert "there is no budget store at" in ask("/budgets").text
    store = BudgetStore.create(tmp_path / "budget.sqlite")
    assert "No data set has a budget yet" in ask("/budgets").text
    store.add_dataset(DataSet(HOSTILE), epsilon=4.0, delta=1e-5)
    store.reserve(HOSTILE, Spending("a run", Cost(1.5, 1e-6), method="asc", note="<b>note</b>"))
    before = (tmp_path / "budget.sqlite").read_bytes()
    page = ask("/budgets").text
    assert '<td class="num strong">2.5</td>' in page
    assert html.escape(HOSTILE, quote=False)[:20] in page
    assert "<b>" not in page
    assert (tmp_path / "budget.sqlite").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if "budget" in path.name] == ["budget.sqlite"]


def test_a_plan_takes_rows_and_columns_from_a_run_and_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    config = {
        "data": "people.csv",
        "target": "rich",
        "group": ["sex"],
        "model": "evil:factory",
        "init": "weights",
        "seed": 3,
    }
    (folder / "config.toml").write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items()))
    (table,) = tables_of(Shelf(tmp_path).runs())
    assert table.config == {"data": "people.csv", "target": "rich", "group": ["sex"]}
    assert table.words == "veil plan people.csv --target rich --group sex"


def test_a_plan_that_cannot_be_made_says_why(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as a plan sets it for itself
    monkeypatch.setattr("veil.ui.app.apart", lambda work, given: work(given))
    page = ask("/plans").text
    table = re.findall(r"/plans/([0-9a-f]{16})", page)[0]
    assert "iframe" in ask(f"/plans/{table}").text
    outcome = ask(f"/plans/{table}/page")
    assert outcome.status_code == 200
    assert "There is no plan" in outcome.text
    assert outcome.headers["Content-Security-Policy"].startswith("sandbox")


def test_work_that_takes_too_long_is_ended() -> None:
    import time

    from veil.ui.apart import apart

    with pytest.raises(InputError, match="more than 0 seconds"):
        apart(time.sleep, 600, seconds=0.1)
    with pytest.raises(InputError, match="ended before"):
        apart(os._exit, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may not bound memory")
def test_work_that_takes_too_much_memory_is_ended() -> None:
    from veil.ui.apart import apart

    with pytest.raises(InputError, match="more than 16 GB of memory"):
        apart(bytes, 2**36)


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx", "model.pkl", "score.py", "code/serve.py"])
def test_verifying_opens_no_pipe_no_folder_and_nothing_that_is_vast(tmp_path: Path, name: str) -> None:
    file = write_run(tmp_path / "run") / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")
    check_files(tmp_path / "run", LARGE, WEIGHTS)
    os.truncate(file, 200 * 2**30)
    with pytest.raises(Unreadable, match=f"{file.name} is not a file of at most 4096 MB"):
        check_files(tmp_path / "run", LARGE, WEIGHTS)
    for make in (os.mkfifo, os.mkdir):
        file.unlink()
        make(file)
        with pytest.raises(Unreadable, match=f"{file.name} is not a file"):
            check_files(tmp_path / "run", LARGE, WEIGHTS)


def test_a_click_on_verify_refuses_a_vast_model(tmp_path: Path, guard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = certified(write_run(tmp_path / "run"))
    (folder / "model.safetensors").touch()
    os.truncate(folder / "model.safetensors", 200 * 2**30)
    monkeypatch.setattr("veil.ui.app.apart", lambda *given: pytest.fail("the folder was opened"))
    pages = Pages(tmp_path, "", guard)
    (run,) = pages.shelf.runs()
    assert pages._verified(run) == {"problem": "model.safetensors is not a file of at most 4096 MB"}


@pytest.mark.parametrize("name", ["data", "test", "schema"])
def test_a_plan_reads_no_device_and_no_pipe(
    tmp_path: Path, guard: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.setattr("veil.ui.app.apart", lambda work, given: "a plan")
    pages = Pages(tmp_path, "", guard)
    for place in ("/dev/zero", tmp_path / "pipe.csv"):
        with pytest.raises(Unreadable, match="is neither a file nor a folder"):
            pages._planned(PlannedTable("0", {"data": str(tmp_path), name: str(place)}, 1))
    assert pages._planned(PlannedTable("0", {"data": str(tmp_path)}, 1)) == "a plan"


def test_work_of_others_is_not_waited_for(ask: Ask, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veil.ui.apart.AT_ONCE", threading.BoundedSemaphore(1))
    monkeypatch.setattr("veil.ui.apart.PATIENCE", 0.01)
    table = re.findall(r"/plans/([0-9a-f]{16})", ask("/plans").text)[0]
    with apart_module.AT_ONCE:
        for path in (f"/runs/{ids['first']}/certificate?verify=1", f"/plans/{table}/page"):
            answer = ask(path)
            assert answer.status_code == 503
            assert "try again" in answer.text
    assert apart_module.apart(abs, -3) == 3


def test_the_page_verifies_as_the_command_does(tmp_path: Path, ask: Ask, veil: Program) -> None:
    from veil.ui.apart import verified

    folder = certified(write_run(tmp_path / "run"))
    _, out, _ = veil("verify", str(folder), "--json")
    command, found = json.loads(out), verified(folder)
    assert command["remarks"]
    assert {name: found[name] for name in command} == command
    (folder / "model.pkl").write_bytes(b"no model")
    code, _, err = veil("verify", str(folder))
    assert code != 0
    with pytest.raises(InputError) as caught:
        verified(folder)
    assert str(caught.value).split()[0] in err


def test_without_the_framework_one_sentence_says_what_to_install(
    veil: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("veil.cli.ui.find_spec", lambda name: None)
    code, out, err = veil("ui", str(tmp_path))
    assert (code, out) == (2, "")
    assert "pip install 'veil-dp[ui]'" in err
    monkeypatch.undo()


def test_a_folder_that_is_none_and_a_port_that_is_taken_are_said(veil: Program, tmp_path: Path) -> None:
    import socket

    code, _, err = veil("ui", str(tmp_path / "nowhere"))
    assert code == 2
    assert "there is no folder" in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = veil("ui", str(tmp_path), "--port", str(port))
    assert code == 2
    assert f"port {port} cannot be used" in err
