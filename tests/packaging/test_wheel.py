"""What people install: a wheel that runs in an empty folder, without the source tree and without a network."""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

from tests.cli.test_demo import check_demo, stale

ROOT = Path(__file__).parents[2]
Installed = Callable[..., subprocess.CompletedProcess[str]]
ALONE = ("unshare", "--map-root-user", "--net")  # a network of its own, in which there is nobody


@functools.cache
def can_be_cut_off() -> bool:
    """Whether this system lets a user start a program without a network."""
    return shutil.which("unshare") is not None and subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source archive and wheel, built as a release builds them: the wheel from the archive."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION": "9.8.7", "VEIL_URL": "https://example.org/veil"}
    done = subprocess.run(build, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel."""
    (file,) = dist.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Run a program of a new environment that has the wheel, where there is neither source tree nor network.

    Dependencies are those of this environment: a path that a .pth file adds does not bring an editable Veil with it.
    """
    home, empty = tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    words = ["install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", "--prefix", str(home), str(wheel)]
    subprocess.run([str(home / "bin" / "python"), "-m", "pip", *words], check=True)
    left_out = {"VEIL_DATA", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}

    def run(program: str, *words: str, folder: Path = empty) -> subprocess.CompletedProcess[str]:
        command = [*(ALONE if can_be_cut_off() else ()), str(home / "bin" / program), *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)

    return run


def test_the_distribution_is_called_veil_dp_and_its_version_is_the_tag(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        about = next(name for name in files.namelist() if name.endswith("/METADATA"))
        fields = Parser().parsestr(files.read(about).decode())
        scripts = files.read(about.replace("METADATA", "entry_points.txt")).decode()
    assert (fields["Name"], fields["Version"]) == ("veil-dp", "9.8.7")
    assert "veil = veil.cli:main" in scripts
    assert "veil-dp = veil.cli:main" in scripts
    assert "Source, https://example.org/veil" in fields.get_all("Project-URL")


def test_links_of_the_readme_lead_somewhere_from_a_package_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        about = next(name for name in files.namelist() if name.endswith("/METADATA"))
        shown = Parser().parsestr(files.read(about).decode()).get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", str(shown))
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "![Python 3.11" in shown
    assert "(https://example.org/veil/raw/main/docs/figures/report.png)" in shown
    assert all((ROOT / link.partition("/main/")[2].partition("#")[0]).exists() for link in links if "/main/" in link)


def test_the_source_archive_has_everything_that_tests_and_site_need(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    needed = ("pyproject.toml", "Makefile", "README.md", "docs/index.md", "examples/adult.py", "tests/conftest.py")
    assert [name for name in needed if name not in names] == []
    assert not any(name.startswith((".venv", "build/", "dist/")) for name in names)


def test_a_wheel_holds_every_file_that_is_not_python_and_nothing_but_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    package = ROOT / "src" / "veil"
    kept = {f"veil/{file.relative_to(package).as_posix()}" for file in package.rglob("*") if file.is_file()}
    kept = {name for name in kept if "__pycache__" not in name}
    assert kept - names == set()
    assert {name.partition("/")[0] for name in names} == {"veil", "veil_dp-9.8.7.dist-info"}


@pytest.mark.slow
def test_a_wheel_trains_predicts_and_verifies_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    where = installed("python", "-c", "import veil; print(veil.__file__, veil.__version__)").stdout
    assert str(ROOT) not in where
    assert "9.8.7" in where
    assert installed("python", "-m", "veil", "--version").stdout.strip() == "veil 9.8.7"
    table = tmp_path / "people.csv"
    with table.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["sex", "age", "bought"])
        write.writerows([("fm"[k % 2], 20 + k * 37 % 50, "yes" if k * 37 % 50 > 25 else "no") for k in range(600)])
    asked = ["people.csv", "--target", "bought", "--group", "sex", "--out", "run", "--json"]
    trained = installed("veil", "train", *asked, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["privacy"]["epsilon"] <= 1.0
    predicted = installed("veil", "predict", "run", "people.csv", "-o", "answers.csv", folder=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 601
    verified = installed("veil-dp", "verify", "run", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_an_example_runs_with_a_wheel_alone(installed: Installed, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "own_model.py", tmp_path)
    done = installed("python", "own_model.py", "--rows", "800", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ε" in done.stdout


@pytest.mark.slow
def test_a_typed_client_is_checked_against_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """The package says that it is typed, and a type checker outside the source tree believes it."""
    shutil.copy(Path(__file__).with_name("typed_client.py"), tmp_path)
    (tmp_path / "wrong.py").write_text("import veil\n\nveil.fit(1, 2)\n", encoding="utf-8")
    words = ("-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--ignore-missing-imports")
    done = installed("python", *words, "--follow-imports=silent", "typed_client.py", "wrong.py", folder=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert all(line.startswith("wrong.py:3") and "[arg-type]" in line for line in errors)


@pytest.mark.slow
def test_the_demo_of_a_wheel_runs_in_an_empty_folder_and_finds_what_the_readme_shows(
    installed: Installed, tmp_path: Path
) -> None:
    done = installed("veil", "demo", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    check_demo(tmp_path, answer)
    assert answer["metrics"]["worst_group_accuracy"] > 0.6
    assert stale(answer) == {}


def test_programs_of_the_wheel_had_no_network(installed: Installed) -> None:
    if not can_be_cut_off():
        pytest.skip("unshare is missing or not allowed: the tests of this file ran with the network of this machine")
    done = installed("python", "-c", "import socket; print([name for _, name in socket.if_nameindex()])")
    assert done.stdout.strip() == "['lo']", done.stdout + done.stderr
