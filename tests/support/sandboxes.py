"""The helper program of the sandbox, which is installed where it is missing and that may be done."""

import os
import shutil
import subprocess


def bubblewrap() -> str:
    """The path of bwrap. Raises RuntimeError where it is missing and cannot be installed."""
    found = shutil.which("bwrap")
    if found:
        return found
    if shutil.which("apt-get") and os.geteuid() == 0:
        print("installing Debian's bubblewrap for the tests of the sandbox")
        for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", "bubblewrap"]):
            subprocess.run(["apt-get", *command], check=True, capture_output=True)
        return bubblewrap()
    raise RuntimeError(
        "The tests of the sandbox need bubblewrap. Install it, for example with: apt-get install bubblewrap"
    )
