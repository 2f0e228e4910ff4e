"""What people install: a wheel that runs in an empty folder, without the source tree and without a network."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Installed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the source tree as a release builds it."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION": "9.8.7"}
    done = subprocess.run(build, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Run Python with the wheel's files in an empty folder; the source tree is out of reach."""
    home, empty = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(home)
    environment = {name: value for name, value in os.environ.items() if name != "VEIL_DATA"}
    environment |= {"PYTHONPATH": str(home), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}

    def run(*words: str, folder: Path = empty) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder)

    return run


def test_the_distribution_is_called_veil_dp_and_its_version_is_the_tag(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        about = next(name for name in files.namelist() if name.endswith("/METADATA"))
        fields = Parser().parsestr(files.read(about).decode())
        scripts = files.read(about.replace("METADATA", "entry_points.txt")).decode()
    assert (fields["Name"], fields["Version"]) == ("veil-dp", "9.8.7")
    assert "veil = veil.cli:main" in scripts
    assert "veil-dp = veil.cli:main" in scripts


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
    where = installed("-c", "import veil; print(veil.__file__, veil.__version__)").stdout
    assert str(ROOT) not in where
    assert "9.8.7" in where
    table = tmp_path / "people.csv"
    with table.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["sex", "age", "bought"])
        write.writerows([("fm"[k % 2], 20 + k * 37 % 50, "yes" if k * 37 % 50 > 25 else "no") for k in range(600)])
    asked = ["people.csv", "--target", "bought", "--group", "sex", "--out", "run", "--json"]
    trained = installed("-m", "veil.cli", "train", *asked, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["privacy"]["epsilon"] <= 1.0
    predicted = installed("-m", "veil.cli", "predict", "run", "people.csv", "-o", "answers.csv", folder=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 601
    verified = installed("-m", "veil.cli", "verify", "run", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.long
def test_the_demo_of_a_wheel_runs_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    done = installed("-m", "veil.cli", "demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worst group" in done.stdout
