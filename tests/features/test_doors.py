"""The modules that may write the tables of memory.

`test_write_paths.py` tests each path to them.
"""

import re
from pathlib import Path

import ricordo

# The only modules that may write the tables of core memory: the central functions, the modules
# behind them, and erasure, which only removes.
DOOR = {"storage/blocks.py", "storage/versions.py", "storage/proposals.py"}
BESIDE = {
    # An owner's push keeps its ids, so it is stored unchanged, after a check of the policies.
    "storage/git_objects.py",
    "features/memory_care/erasure/queries.py",
    "features/memory_care/erasure/service.py",
    "storage/rewriting.py",  # removes forgotten texts from versions, as their owner decided
    "storage/history_size.py",  # changes only the sum of a history's bytes
    "storage/migrations/__init__.py",  # changes the same sum, for older rows
    "storage/future_times.py",  # changes only times that a wrong clock set
}
_TABLES = "(?:blocks|commits|blobs|chains|proposals)"
_ROOT = Path(ricordo.__file__).parent


def test_only_the_listed_modules_write_the_memory_tables() -> None:
    """No policy would check a second way to write.

    Use the central function, or add the module to this list with a reason.
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
