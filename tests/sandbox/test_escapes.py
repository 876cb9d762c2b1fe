"""Attempts to escape from the sandbox.

None succeeds, with any backend, as root or as an ordinary user.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.sandbox.escapes import ESCAPES, SECRET
from tests.support.sandboxes import bubblewrap

ROOT = Path(__file__).parents[2]
# An ordinary user cannot read root's folders, in which this interpreter may lie.
_SYSTEM = "/usr/bin/python3"
_STOPPED = {
    "bomb of memory": ("", "memory", "time"),
    "write without end": ("output",),
    "loop without end": ("cpu", "time"),
    "sleep without end": ("time",),
    "ignore signals": ("time",),
}


def attempts(backend: str, folder: Path, *what: str, as_root: bool) -> dict[str, dict[str, str]]:
    bubblewrap()
    command = [sys.executable]
    environment = {"PATH": "/usr/bin:/bin", "VICTIM": SECRET, "PYTHONPATH": str(ROOT)}
    if not as_root and os.geteuid() == 0:
        version = subprocess.run(
            [_SYSTEM, "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if version.stdout.split() != [str(part) for part in sys.version_info[:2]]:
            pytest.skip(f"an ordinary user needs {_SYSTEM} of the same version")
        folder.chmod(0o777)
        for above in folder.parents:
            if above.stat().st_uid == os.geteuid() and above not in (
                Path("/"),
                Path("/tmp"),
                Path("/dev/shm"),
            ):
                above.chmod(above.stat().st_mode | 0o011)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", _SYSTEM]
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        environment["PYTHONPATH"] = f"{ROOT}:{packages}"
        environment["HOME"] = environment["TMPDIR"] = str(folder)
    done = subprocess.run(
        [*command, "-m", "tests.sandbox.escapes", backend, str(folder), *what],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("backend", "as_root"),
    [
        pytest.param("bubblewrap", False, id="bubblewrap, as an ordinary user"),
        pytest.param("landlock", True, id="landlock, as root", marks=pytest.mark.soak),
        pytest.param("bubblewrap", True, id="bubblewrap, as root", marks=pytest.mark.soak),
        pytest.param("landlock", False, id="landlock, as an ordinary user", marks=pytest.mark.soak),
    ],
)
def test_every_attempt_to_escape_fails(backend: str, as_root: bool) -> None:
    # Other runs of the tests close pytest's own folder to ordinary users.
    with tempfile.TemporaryDirectory(prefix="ricordo-escapes-") as folder:
        found = attempts(backend, Path(folder), as_root=as_root)
    escaped = {name: found[name]["out"] for name in ESCAPES if "ESCAPED" in found[name]["out"]}
    assert escaped == {}
    # Each attempt says why it failed: by its own message, or by the sentence about its end.
    silent = [
        name
        for name in ESCAPES
        if not (found[name]["out"] or found[name]["err"] or found[name]["reason"])
    ]
    assert [
        name for name in silent if name not in ("kill everything", "use inherited descriptors")
    ] == []
    for name, kinds in _STOPPED.items():
        assert found[name]["stopped_by"] in kinds, (name, found[name])
    assert found["the victim"] is True
    assert found["the files"] == [SECRET, SECRET]
    # The working folder is created where the server may write.
    assert set(found["the folder"]) - {"ricordo.tmp"} == {"ricordo.db", "secret.key"}
    assert found["left"] == []
    assert found["connections"] is True


@pytest.mark.parametrize(
    ("backend", "as_root"),
    [
        # Only here all calls run as one user, whose processes the kernel counts together.
        pytest.param("landlock", False, id="landlock, as an ordinary user"),
        pytest.param("landlock", True, id="landlock, as root", marks=pytest.mark.soak),
        pytest.param(
            "bubblewrap", False, id="bubblewrap, as an ordinary user", marks=pytest.mark.soak
        ),
    ],
)
def test_each_call_has_its_own_limit_of_processes(backend: str, as_root: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="ricordo-escapes-") as folder:
        ended = attempts(backend, Path(folder), "neighbours", as_root=as_root)
    assert ended["patient"] == {"out": "ready\nforked\n", "err": "", "reason": ""}
    assert ended["busy"] == {"out": "ready\n", "err": "", "reason": ""}
