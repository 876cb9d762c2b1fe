"""What a database of schema 6 keeps when its versions are stored in half the room: every id, object, parent and cause.

`schema_6.json` holds rows as the Ricordo of that schema wrote them: edits in runs, a rename, a deletion and a restored block, an
approved proposal and one that waits, pushes with a merge and with a commit that changed nothing, and a history that began with a
push of two blocks. Beside them it tells what that Ricordo made of them.
"""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Connection, Engine, MetaData, Table, func, insert, select, text

from ricordo.domain.scope import Actor, Scope
from ricordo.memory import owning
from ricordo.memory.repository import refreshed
from ricordo.storage import blobs, exporting, history, migrations, postgres, proposals, sqlite
from ricordo.storage.migrations import shortening
from ricordo.storage.postgres import PostgresStore, open_postgres
from ricordo.storage.sqlite import SqliteStore, open_sqlite
from ricordo.storage.store import Transaction
from ricordo.storage.tables import commits
from tests.support import postgres as servers
from tests.support.git import fsck, ids

SCHEMA_6 = json.loads(Path(__file__).with_name("schema_6.json").read_text("utf-8"))
EXPECTED: dict[str, Any] = SCHEMA_6["expected"]
CHAIN = next(iter(EXPECTED))


@pytest.fixture
def address(database: str, tmp_path: Path) -> Iterator[str]:
    """Where a database of schema 6 is, with its rows: a file, or an address on PostgreSQL."""
    if database == "sqlite":
        path = tmp_path / "ricordo.db"
        _lay_out(sqlite.make_engine(path, "normal"))
        yield str(path)
        return
    url = servers.server().new_database(empty=True)
    _lay_out(postgres.make_engine(url))
    yield url
    servers.server().drop(url)


def _lay_out(engine: Engine) -> None:
    with engine.connect() as connection:
        migrations.migrate(connection, back_up=lambda _: None, migrations=migrations.MIGRATIONS[:6])
        with connection.begin():
            connection.exec_driver_sql("BEGIN")
            for name, rows in SCHEMA_6["tables"].items():
                _insert(connection, Table(name, MetaData(), autoload_with=connection), rows)
    engine.dispose()


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        values = {name: _value(table.c[name].type, value) for name, value in row.items()}
        if not connection.execute(select(table.c.seq).where(table.c.seq == values["seq"])).first():
            connection.execute(insert(table).values(values))
    if connection.dialect.name == "postgresql" and rows:
        newest = max(row["seq"] for row in rows)
        connection.execute(select(func.setval(func.pg_get_serial_sequence(table.name, "seq"), newest)))


def _value(kind: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    if isinstance(kind, Boolean):
        return bool(value)
    return json.loads(value) if isinstance(kind, JSON) else value


def opened(address: str, tmp_path: Path) -> SqliteStore | PostgresStore:
    """The database, migrated."""
    if address.startswith("postgresql"):
        return open_postgres(address, connections=2, backups=tmp_path)
    return open_sqlite(Path(address))


@pytest.fixture
async def migrated(address: str, tmp_path: Path) -> AsyncIterator[SqliteStore | PostgresStore]:
    """The database, open and of today's schema."""
    store = opened(address, tmp_path)
    yield store
    await store.close()


def objects(tx: Transaction, chain_id: str) -> list[str]:
    """The ids of all git objects of a chain."""
    portion, found = exporting.begin(tx, chain_id, 0), set[str]()
    while not portion.is_last:
        portion = exporting.following(tx, chain_id, portion)
        found |= {one.id.hex() for one in portion.objects}
    return sorted(found)


def told(tx: Transaction, chain_id: str) -> list[dict[str, Any]]:
    """The versions of a chain as `schema_6.json` tells of them."""
    return [
        {
            "id": version.id.hex(),
            "number": version.number,
            "label": version.label,
            "parents": [parent.hex() for parent in version.parents],
            "run_id": version.run_id,
            "step_id": version.step_id,
            "author": version.author.id,
        }
        for version in history.page(tx, chain_id, limit=1000)
    ]


async def test_every_version_and_object_is_what_it_was(migrated: SqliteStore | PostgresStore, tmp_path: Path) -> None:
    for chain_id, expected in EXPECTED.items():
        assert await migrated.read(lambda tx, id=chain_id: told(tx, id)) == expected["versions"]  # type: ignore[misc]
        assert await migrated.read(lambda tx, id=chain_id: objects(tx, id)) == expected["objects"]  # type: ignore[misc]
        assert await migrated.read(lambda tx, id=chain_id: exporting.tip(tx, id)) == bytes.fromhex(expected["tip"])  # type: ignore[misc]
        path = await refreshed(migrated, tmp_path / "clones", chain_id)
        assert fsck(path) == ""
        assert ids(path)[-1] == expected["tip"]


async def test_what_is_looked_up_otherwise_is_found(migrated: SqliteStore | PostgresStore) -> None:
    by_tutor = [one for one in EXPECTED[CHAIN]["versions"] if one["run_id"]]

    def look(tx: Transaction) -> None:
        found = history.of_run(tx, Scope(), by_tutor[0]["run_id"])
        assert [one.id.hex() for one in reversed(found)] == [one["id"] for one in by_tutor]
        (one,) = history.of_step(tx, Scope(), by_tutor[0]["run_id"], by_tutor[0]["step_id"])
        assert one.id.hex() == by_tutor[0]["id"]
        deleted = history.last_deleted(tx, CHAIN, "plans")
        assert deleted is not None
        assert deleted.settings["policy"] == "direct"
        (waiting,) = proposals.waiting(tx, CHAIN)
        assert waiting.value == "Line one\nproposed later"
        for version in history.page(tx, CHAIN, limit=1000):
            assert version.blob is None or blobs.read(tx, CHAIN, version.blob)

    await migrated.read(look)


async def test_rows_are_stored_as_those_that_are_new(migrated: SqliteStore | PostgresStore) -> None:
    """What was left out of old rows is left out of new ones, and numbers go on."""

    def write(tx: Transaction) -> list[Any]:
        before = tx.all(select(func.max(commits.c.seq).label("seq")))[0].seq
        owned = owning.open_memory(tx, Scope(), "ada")
        owning.put(tx, owned, "human", "New", Actor("user", "user-ada", "Ada"))
        statement = select(commits.c.seq, commits.c.parent).order_by(commits.c.seq)
        return [row for row in tx.all(statement) if row.parent or row.seq > before]

    kept = await migrated.write(write)
    # Only what was made from a commit without a version, as one that changed nothing, or beside another of its commit.
    assert [row.parent is None for row in kept] == [False] * (len(kept) - 1) + [True]
    assert 3 <= len(kept) <= 6
    last = (await migrated.read(lambda tx: told(tx, CHAIN)))[0]
    assert last["parents"] == [EXPECTED[CHAIN]["versions"][0]["id"]]


async def test_a_kill_leaves_the_old_schema_and_the_next_start_does_it_whole(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def killed(_: Connection) -> None:
            raise KeyboardInterrupt

        patched.setattr(shortening, "_name_deletions", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(address, tmp_path)
    engine = postgres.make_engine(address) if "://" in address else sqlite.make_engine(Path(address), "normal")
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM commits WHERE chain_id = :id"), {"id": CHAIN}).scalar_one()
    engine.dispose()
    assert rows == len(EXPECTED[CHAIN]["versions"])
    store = opened(address, tmp_path)
    assert await store.read(lambda tx: told(tx, CHAIN)) == EXPECTED[CHAIN]["versions"]
    await store.close()
