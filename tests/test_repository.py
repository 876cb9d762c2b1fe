"""What lies in the repository: nothing that a run left behind."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Everything that may lie in the repository's root. Add a name here only with something that belongs there.
LISTED = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "bench",
    "budgets.toml",
    "docs",
    "pyproject.toml",
    "requirements",
    "ricordo",
    "tests",
}
# Databases, locks, keys and logs: what a server writes while it runs.
LEFT_BEHIND = re.compile(r"\.(db|db-wal|db-shm|sqlite|lock|key|log)$")


def committed() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in listed if name and (ROOT / name).exists()]


def test_the_root_holds_only_what_is_listed() -> None:
    """A page's example once wrote its database and secret key here, and both were committed."""
    assert {name.split("/")[0] for name in committed()} - LISTED == set()


def test_no_database_lock_key_or_log_is_committed() -> None:
    """A key that was committed once protects nothing any more."""
    assert [name for name in committed() if LEFT_BEHIND.search(name)] == []
