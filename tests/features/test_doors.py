"""Who may write memory: the modules that write its tables.

`test_write_paths.py` goes each way to them.
"""

import re
from pathlib import Path

import ricordo

# Who may write the tables of core memory, and no other module: the door, what stands behind it, and
# erasure, which leaves less.
DOOR = {"storage/blocks.py", "storage/versions.py", "storage/proposals.py"}
BESIDE = {
    "storage/git_objects.py",  # what an owner pushed by git keeps its ids, so it is stored as it came, its policies asked
    "features/memory_care/erasure/queries.py",
    "features/memory_care/erasure/service.py",
    "storage/rewriting.py",  # takes a forgotten thing out of versions; its owner decided about each
    "storage/history_size.py",  # the sum of a history's bytes alone
    "storage/migrations/__init__.py",  # the same sum, for rows of before
    "storage/future_times.py",  # times alone, which a clock that was set wrong gave
}
_TABLES = "(?:blocks|commits|blobs|chains|proposals)"
_ROOT = Path(ricordo.__file__).parent


def test_only_the_door_writes_the_tables_of_memory() -> None:
    """A second way in would be one that no policy guards.

    Take the door, or stand in this list with a reason.
    """
    writes = re.compile(rf"\b(?:insert|update|delete|setter|Missing)\(\s*({_TABLES})\b")
    rows_of = re.compile(rf"\bRepository\(\s*\w+,\s*({_TABLES})\b")
    found: dict[str, set[str]] = {}
    for path in _ROOT.rglob("*.py"):
        source = path.read_text("utf-8")
        if re.search(r"^from [\w.]*tables import", source, re.MULTILINE):
            tables = {*writes.findall(source)}
            tables |= (
                {*rows_of.findall(source)} if re.search(r"\.(insert|updates)\(", source) else set()
            )
            found |= {path.relative_to(_ROOT).as_posix(): tables} if tables else {}
    assert set(found) <= DOOR | BESIDE, found
    assert found["storage/blocks.py"] >= {"blocks"}
    assert found["storage/versions.py"] >= {"commits", "chains"}
