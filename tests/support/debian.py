"""Programs from Debian that tests need.

They are installed if they are missing and the tests may install packages.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# apt-get waits for another apt-get for this number of seconds.
_APT_GET = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")


def program(*names: str, package: str, tests: str) -> str:
    """Return the path of the first of these programs that is installed.

    Raises RuntimeError if there is none and none can be installed.
    """
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise RuntimeError(
            f"{tests} need {package}. Install it, for example with: apt-get install {package}"
        )
    # Several processes of one run may install at once.
    with (Path(tempfile.gettempdir()) / "ricordo-tests-apt-get.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(map(shutil.which, names)):
            print(f"installing Debian's {package}: {tests} need it")
            for command in (["update"], ["install", "--no-install-recommends", package]):
                done = subprocess.run(
                    [*_APT_GET, *command], check=False, capture_output=True, text=True
                )
                if done.returncode:
                    raise RuntimeError(f"apt-get {command[0]} failed: {done.stderr[-2000:]}")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise RuntimeError(f"Debian's {package} was installed, and has none of: {', '.join(names)}")
    return found
