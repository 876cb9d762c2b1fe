"""The cost of a start: import, help text, first healthy answer, and the number of base packages."""

import json
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from bench.servers import ricordo

_ROOT = Path(__file__).parent.parent


def cpu_of(*command: str, rounds: int = 5) -> float:
    """Return the median CPU seconds of a command, user and system."""
    costs = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(costs)


def import_cpu() -> float:
    """Return the CPU seconds of `import ricordo`, less the CPU seconds of the bare interpreter."""
    return max(
        0.0, cpu_of(sys.executable, "-c", "import ricordo") - cpu_of(sys.executable, "-c", "")
    )


def help_cpu() -> float:
    """Return the CPU seconds of `ricordo --help`."""
    return cpu_of(str(Path(sys.executable).with_name("ricordo")), "--help")


def start_seconds(model_url: str, rounds: int = 3) -> float:
    """Return the median wall seconds from starting a server to its first healthy answer."""
    times = []
    for _ in range(rounds):
        with ricordo(model_url) as server:
            times.append(server.started_in)
    return statistics.median(times)


def base_packages() -> int:
    """How many packages `make install` installs on this system, Ricordo itself left out."""
    report = subprocess.run(
        [sys.executable, "-m", "pip", "inspect", "--local"],
        check=True,
        capture_output=True,
        cwd=_ROOT,
    )
    installed = {
        _plain(item["metadata"]["name"]) for item in json.loads(report.stdout)["installed"]
    }
    locked = {
        _plain(line.split("==")[0])
        for line in (_ROOT / "requirements" / "base.txt").read_text().splitlines()
        if "==" in line and not line.startswith((" ", "#"))
    }
    return len(installed & locked)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
