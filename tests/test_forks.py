"""Tests that run in forks: each is counted once, and a worker that dies fails its test."""

import os
from pathlib import Path

import pytest

from tests.support.forks import CAN_FORK
from tests.support.ready import Helper

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="needs fork")

ENDS = """
import os, pathlib, warnings
import pytest

def note(name):
    with pathlib.Path("pids").open("a") as file:
        file.write(f"{name} {os.getpid()}\\n")

def test_first(tmp_path):
    note("first")
    assert tmp_path.is_dir()

def test_second():
    note("second")
    warnings.warn("mind the gap")

def test_skipped():
    pytest.skip("not here")

def test_failed():
    print("words that were captured")
    assert 1 == 2
"""
DIES = """
import os

def test_before():
    pass

def test_dying():
    os._exit(7)

def test_behind():
    pass
"""
WAITS = """
import pathlib, time
import pytest

@pytest.fixture(scope="module")
def shared():
    yield
    pathlib.Path("ended").touch()

def test_waiting(shared):
    pathlib.Path("begun").touch()
    time.sleep(600)
"""
FAILS = """
import pathlib, time

def test_failing():
    while not pathlib.Path("begun").exists():
        time.sleep(0.01)
    assert False
"""
RUN = """
import sys, pytest
for name in [name for name in sys.modules if name.startswith("tests.support.forks")]:
    del sys.modules[name]
sys.exit(pytest.main([
    "-p", "tests.support.forks", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "none.ini",
    "--rootdir=.", "-ra", "-W", "default", "--workers", "2", *sys.argv[3:],
]))
"""


def run(helper: Helper, folder: Path, *arguments: str) -> tuple[int, str]:
    (folder / "none.ini").write_text("[pytest]\n")
    ended = helper.run(["-c", RUN, *arguments], folder, {"PATH": os.defpath})
    return ended.returncode, ended.stdout + ended.stderr


def test_each_test_is_counted_once_and_a_module_stays_in_one_worker(
    tmp_path: Path, helper: Helper
) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text(ENDS)

    code, shown = run(helper, tmp_path)

    assert code == 1, shown
    assert "3 failed, 6 passed, 3 skipped, 3 warnings" in shown
    assert "words that were captured" in shown
    assert "mind the gap" in shown
    assert shown.count("not here") == 3
    pids = [line.split()[1] for line in (tmp_path / "pids").read_text().splitlines()]
    assert len(pids) == 6
    assert 1 <= len(set(pids)) <= 2


def test_a_dead_worker_fails_the_test_that_it_ran(tmp_path: Path, helper: Helper) -> None:
    (tmp_path / "test_dies.py").write_text(DIES)
    (tmp_path / "test_lives.py").write_text("def test_alive():\n    pass\n")

    code, shown = run(helper, tmp_path)

    assert code == 1, shown
    assert "1 failed, 2 passed" in shown
    assert "The worker ended with code 7 during this test." in shown
    assert "2 tests were not run" in shown


def test_a_failure_stops_all_workers_if_requested(tmp_path: Path, helper: Helper) -> None:
    (tmp_path / "test_waits.py").write_text(WAITS)
    (tmp_path / "test_fails.py").write_text(FAILS)

    code, shown = run(helper, tmp_path, "-x", "test_waits.py", "test_fails.py")

    assert code == 1, shown
    assert "stopping after 1 failures" in shown
    assert (tmp_path / "ended").exists()
