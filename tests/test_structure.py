"""Sizes and shape of the package, held to `budgets.toml`: raising a budget needs a decision record that says what it buys."""

import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ricordo"
BUDGETS = tomllib.loads((ROOT / "budgets.toml").read_text("utf-8"))
MAX_FILES, SMALL = 24, 40
# Everything that may lie in the root. Add a name only with something that belongs there.
LISTED = set(
    ".ci .dockerignore .gitignore CHANGELOG.md Containerfile LICENSE Makefile README.md"
    " bench budgets.toml deploy docs pyproject.toml requirements ricordo tests".split()
)
# Databases, locks, keys and logs: what a server writes while it runs.
LEFT_BEHIND = re.compile(r"\.(db|db-wal|db-shm|sqlite|lock|key|log)$")


def python_files(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def folder_of(path: Path) -> str:
    """The folder that a module counts for: `storage`, `features/git`, or `.` for modules of the root."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2] if parts[:1] == ("features",) else parts[:1]) or "."


def test_every_folder_and_the_whole_keep_to_their_budgets() -> None:
    """Many small files without a total made 402 of them; a sum of folders that each grew a little is read by nobody."""
    by_folder: dict[str, list[Path]] = defaultdict(list)
    for path in python_files():
        by_folder[folder_of(path)].append(path)
    budgets: dict[str, int] = BUDGETS["folders"]
    assert set(by_folder) - {"features"} == set(budgets), "each folder has a budget, and each budget a folder"
    sizes = {folder: lines_of(paths) for folder, paths in by_folder.items()}
    assert {folder: size for folder, size in sizes.items() if size > budgets.get(folder, SMALL)} == {}
    assert lines_of(python_files()) <= BUDGETS["total"]["lines"]
    assert len(python_files()) <= BUDGETS["total"]["files"]
    assert lines_of(python_files(ROOT / "tests")) <= BUDGETS["total"]["test_lines"]


def test_a_folder_has_few_files_and_a_small_file_a_reason() -> None:
    """A folder of forty files has no table of contents; two files of twenty lines that are always read together are one file."""
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in python_files()}}
    assert {str(folder): count for folder, count in counts.items() if count > MAX_FILES} == {}
    small = {
        path.relative_to(PACKAGE).as_posix()
        for path in python_files()
        if path.name not in ("__init__.py", "__main__.py") and lines_of([path]) < SMALL
    }
    assert small == set(BUDGETS["small_files"])


def committed() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in listed if name and (ROOT / name).is_file()]


def test_the_repository_holds_what_is_listed_and_nothing_that_a_run_left_behind() -> None:
    """A page's example once wrote its database and secret key here, and both were committed."""
    names = committed()
    assert {name.split("/")[0] for name in names} - LISTED == set()
    assert [name for name in names if LEFT_BEHIND.search(name)] == []
