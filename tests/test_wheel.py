"""One wheel holds both packages, their templates and entry points, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 1_200_000  # bytes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    assert path.stat().st_size < LARGEST
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "headwise",
        "headwise_papers",
    }
    assert not [name for name in wheel.namelist() if Path(name).name.startswith("test_")]


def test_the_wheel_holds_what_the_report_needs(wheel):
    ends = {Path(name).suffix for name in wheel.namelist() if "/reporting/" in name}
    assert {".j2", ".css", ".js"} <= ends


def test_the_wheel_declares_commands_and_kinds(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(name).decode()
    for line in ("[headwise.commands]", "[headwise.kinds]", "headwise = headwise.cli:main"):
        assert line in text
