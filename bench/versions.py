"""`python -m bench.versions`: the cost of memory's versions, compared with git's loose objects.

In an empty SQLite file one block of 2 kB is edited 10,000 times, among nine others that stay
unchanged. Each edit changes one line of 25. Then the bench reads the history, single old texts, and
the blame. A part of the same edits is stored in a bare git repository as loose objects. This uses
pygit2 if it is installed, otherwise dulwich.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import report
from bench.report import Figure
from ricordo.domain.block import Block
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.memory import user_memory
from ricordo.memory.blame import blame
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import blocks, history, versions
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction

LABEL = "human"
OTHERS = tuple(f"block {number}" for number in range(9))
LINES, LINE = 25, 79  # characters; with the line ends a text has 2 kB
ADA = Actor("user", "user-ada", "Ada")
ROUNDS = 10
MEGABYTE = 1_000_000
_WORDS = (
    "she likes tea and reads about proofs in the evening while others walk along the river".split()
)


def texts(count: int, seed: int = 1) -> Iterator[str]:
    """Yield texts of 2 kB; each differs from the one before in one line."""
    chance = random.Random(seed)
    lines = [_line(chance) for _ in range(LINES)]
    for _ in range(count):
        lines[chance.randrange(LINES)] = _line(chance)
        yield "\n".join(lines)


def _line(chance: random.Random) -> str:
    return f"{chance.randrange(10**6)} {' '.join(chance.choices(_WORDS, k=20))}"[:LINE].ljust(
        LINE, "."
    )


async def measure(folder: Path, edits: int) -> list[Figure]:
    """Return the figures of Ricordo's store."""
    store = open_sqlite(folder / "ricordo.db")
    owned, block = await _lay_out(store)
    before = _size(store)
    cpus = await _edit(store, block, edits)
    grown = (_size(store) - before) / MEGABYTE
    put = await _put(store, owned, 500)
    figures = [
        Figure(f"{edits:,} edits of a 2 kB block: size", grown, "MB", 5 * edits / 10_000),
        Figure(
            "  processor time of a commit, with its transaction",
            statistics.median(cpus) * 1000,
            "ms",
            1,
        ),
        Figure("  smallest round", min(cpus) * 1000, "ms"),
        Figure("  processor time of an owner's put, with all it reads", put * 1000, "ms"),
    ]
    figures += await store.read(lambda tx: _read(tx, owned))
    await store.close()
    return figures


async def _lay_out(store: SqliteStore) -> tuple[UserMemory, Block]:
    def work(tx: Transaction) -> tuple[UserMemory, Block]:
        owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
        for number, (label, text) in enumerate(zip(OTHERS, texts(len(OTHERS)), strict=True)):
            user_memory.put(tx, owned, label, f"{number}\n{text}", ADA)
        first = next(texts(1, seed=2))
        return owned, user_memory.put(tx, owned, LABEL, first, ADA, PutOptions(policy="direct"))

    return await store.write(work)


async def _edit(store: SqliteStore, block: Block, edits: int) -> list[float]:
    """Return the processor seconds of an edit in each round.

    The edits are an agent's, committed like a step's, and include the change of threads.
    """
    cpus = []
    agent, run = Actor("agent", new_id("agent"), "Tutor"), new_id("run")
    for number, text in enumerate(texts(edits)):
        if number % (edits // ROUNDS) == 0:
            cpus.append(time.process_time())
        metadata = ChangeMetadata(agent, f"Edit {number}", run_id=run, step_id=new_id("step"))
        written = await store.write(
            partial(blocks.write, block=block, value=text, metadata=metadata)
        )
        assert written is not None
        block = written
    cpus.append(time.process_time())
    return [(after - before) / (edits // ROUNDS) for before, after in pairwise(cpus)]


async def _put(store: SqliteStore, owned: UserMemory, edits: int) -> float:
    new = list(texts(edits, seed=3))
    began = time.process_time()
    for text in new:
        await store.write(partial(user_memory.put, memory=owned, label=LABEL, text=text, by=ADA))
    return (time.process_time() - began) / edits


def _read(tx: Transaction, owned: UserMemory) -> list[Figure]:
    chain_id = owned.chain.id
    all_of_it = history.page(tx, chain_id, label=LABEL, limit=1_000_000)
    old = random.Random(4).sample([one for one in all_of_it if one.blob], 100)
    return [
        Figure(
            "history of 20",
            _median(lambda: history.page(tx, chain_id, label=LABEL, limit=20)),
            "ms",
            1,
        ),
        Figure(
            "history of 20, of a block that was never edited",
            _median(lambda: history.page(tx, chain_id, label=OTHERS[0], limit=20)),
            "ms",
            1,
        ),
        Figure(
            "an old text",
            _median(*(lambda one=one: versions.read_text(tx, chain_id, one.blob) for one in old)),
            "ms",
        ),
        Figure("blame of all lines", _median(lambda: blame(tx, chain_id, LABEL), rounds=3), "ms"),
        Figure(
            "blame of a block that was never edited",
            _median(lambda: blame(tx, chain_id, OTHERS[0]), rounds=9),
            "ms",
        ),
    ]


def _median(*work: Callable[[], Any], rounds: int = 50) -> float:
    """Return the median wall milliseconds.

    The first call loads and compiles, so it does not count.
    """
    work[0]()
    took = []
    for number in range(max(rounds, len(work))):
        began = time.perf_counter()
        work[number % len(work)]()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def _size(store: SqliteStore) -> int:
    """Return the bytes of the file, after the write-ahead log was written back."""
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, size = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("page_count", "page_size")
        )
    return int(pages * size)


def measure_git(folder: Path, edits: int) -> list[Figure]:
    """Return the figures of the same edits as loose objects, scaled to 10,000 edits."""
    name, commit = _git_writer(folder)
    others = {
        f"{label}.md": text.encode() for label, text in zip(OTHERS, texts(len(OTHERS)), strict=True)
    }
    began = time.process_time()
    for number, text in enumerate(texts(edits)):
        commit(others if not number else {}, text.encode(), f"Edit {number}")
    cpu = (time.process_time() - began) / edits
    sizes = [
        (path.stat().st_blocks * 512, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    times = 10_000 / edits / MEGABYTE
    return [
        Figure(
            f"git's loose objects by {name}, 10,000 edits: on disk",
            sum(size for size, _ in sizes) * times,
            "MB",
        ),
        Figure("  their bytes alone", sum(size for _, size in sizes) * times, "MB"),
        Figure("  processor time of a commit", cpu * 1000, "ms"),
    ]


_Commit = Callable[[dict[str, bytes], bytes, str], None]


def _git_writer(folder: Path) -> tuple[str, _Commit]:
    """Return the library's name, and a function that commits the block.

    Its first call also commits the other blocks.
    """
    try:
        import pygit2
    except ImportError:
        return "dulwich", _by_dulwich(folder)
    repository = pygit2.init_repository(str(folder), bare=True)
    who = pygit2.Signature("Tutor", "agent-tutor@ricordo", 1_767_225_600, 0)
    entries: dict[str, Any] = {}
    tips: list[Any] = []

    def commit(others: dict[str, bytes], text: bytes, message: str) -> None:
        for name, data in {**others, f"{LABEL}.md": text}.items():
            entries[name] = repository.create_blob(data)
        builder = repository.TreeBuilder()
        for name, id in entries.items():
            builder.insert(name, id, pygit2.GIT_FILEMODE_BLOB)
        tips[:] = [
            repository.create_commit("refs/heads/main", who, who, message, builder.write(), tips)
        ]

    return "pygit2", commit


def _by_dulwich(folder: Path) -> _Commit:
    from dulwich.objects import Blob, Commit, Tree
    from dulwich.repo import Repo

    repository = Repo.init_bare(str(folder))
    tree = Tree()
    tips: list[Any] = []

    def commit(others: dict[str, bytes], text: bytes, message: str) -> None:
        for name, data in {**others, f"{LABEL}.md": text}.items():
            blob = Blob.from_string(data)
            repository.object_store.add_object(blob)
            tree.add(name.encode(), 0o100644, blob.id)
        repository.object_store.add_object(tree)
        made = Commit()
        made.tree, made.parents = tree.id, list(tips)
        made.author = made.committer = b"Tutor <agent-tutor@ricordo>"
        made.author_time = made.commit_time = 1_767_225_600
        made.author_timezone = made.commit_timezone = 0
        made.message = message.encode()
        repository.object_store.add_object(made)
        repository.refs[b"refs/heads/main"] = made.id  # type: ignore[index]
        tips[:] = [made.id]

    return commit


def main() -> None:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=__doc__)
    parser.add_argument("--edits", type=int, default=10_000, help="how often the block is edited")
    parser.add_argument(
        "--git-edits", type=int, default=1_000, help="how many of those go into git"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder), options.edits))
    with tempfile.TemporaryDirectory() as folder:
        figures += measure_git(Path(folder), options.git_edits)
    report.show(figures)
    print(f"kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
