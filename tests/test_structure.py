"""Sizes and shape of the package, held to `budgets.toml`: raising a budget needs a decision record that says what it buys."""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ricordo"
BUDGETS = tomllib.loads((ROOT / "budgets.toml").read_text("utf-8"))
MAX_FILES, SMALL = 24, 40


def python_files(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def folder_of(path: Path) -> str:
    """The folder that a module counts for: `storage`, `features/git`, or `.` for modules of the root."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2] if parts[:1] == ("features",) else parts[:1]) or "."


def modules() -> dict[str, Path]:
    return {
        ".".join(("ricordo", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in python_files()
    }


def imports_of(path: Path, known: dict[str, Path]) -> Iterator[Path]:
    """The modules of the package that a module imports when it is imported."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [name if name in known else node.module for name in named]
        else:
            continue
        yield from (known[name] for name in named if name in known)


def test_every_folder_keeps_to_its_budget_of_lines() -> None:
    """Many small files without a total made 402 of them."""
    by_folder: dict[str, list[Path]] = defaultdict(list)
    for path in python_files():
        by_folder[folder_of(path)].append(path)
    budgets: dict[str, int] = BUDGETS["folders"]
    assert set(by_folder) - {"features"} == set(budgets), "each folder has a budget, and each budget a folder"
    sizes = {folder: lines_of(paths) for folder, paths in by_folder.items()}
    assert {folder: size for folder, size in sizes.items() if size > budgets.get(folder, SMALL)} == {}


def test_the_whole_keeps_to_its_budget() -> None:
    """A sum of folders that each grew a little is a package that nobody reads."""
    assert lines_of(python_files()) <= BUDGETS["total"]["lines"]
    assert len(python_files()) <= BUDGETS["total"]["files"]
    assert lines_of(python_files(ROOT / "tests")) <= BUDGETS["total"]["test_lines"]


def test_a_folder_has_few_files() -> None:
    """A folder of forty files has no table of contents."""
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in python_files()}}
    assert {str(folder): count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_a_small_file_has_a_reason() -> None:
    """Two files of twenty lines that are always read together are one file."""
    reasons: dict[str, str] = BUDGETS["small_files"]
    small = {
        path.relative_to(PACKAGE).as_posix()
        for path in python_files()
        if path.name not in ("__init__.py", "__main__.py") and lines_of([path]) < SMALL
    }
    assert small == set(reasons)


def test_no_two_folders_import_each_other() -> None:
    """Two folders that import each other are one folder, and neither can be read first."""
    known = modules()
    edges: set[tuple[str, str]] = set()
    for path in python_files():
        for target in imports_of(path, known):
            if target.parent != path.parent and PACKAGE not in (target.parent, path.parent):
                edges.add((folder_name(path), folder_name(target)))
    assert {tuple(sorted(edge)) for edge in edges if edge[::-1] in edges} == set()


def folder_name(path: Path) -> str:
    return path.parent.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("table", ["total", "folders", "small_files"])
def test_the_budgets_name_what_they_are_for(table: str) -> None:
    """A budget file with a misspelt table would hold nothing."""
    assert BUDGETS[table]
