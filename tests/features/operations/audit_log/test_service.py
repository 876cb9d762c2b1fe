"""The chain of the audit log.

The tests cover its check, retention, erasure, kills, and the commands that are recorded.
"""

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import delete, update

from ricordo.domain.clock import DAY
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Unavailable
from ricordo.features.operations.audit_log import queries
from ricordo.features.operations.audit_log.queries import HASHED, AuditDraft
from ricordo.features.operations.audit_log.service import AuditWriter, verify
from ricordo.features.operations.audit_log.tables import (
    TABLES,
    audit_chains,
    audit_log,
    audit_people,
)
from ricordo.storage import users
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.columns import metadata
from tests.cli.conftest import Shell
from tests.conftest import BOTH
from tests.features.operations.move.test_cli import fill
from tests.seams.http import erase, ok
from tests.seams.server import serving
from tests.seams.stores import START, ManualClock
from tests.support import postgres
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, ServerProcess

DATABASES = BOTH
ROWS = 5


async def write(store: Store, *drafts: AuditDraft) -> None:
    """Record the drafts one after the other, but the second and third together."""
    await store.write(lambda tx: metadata.create_all(tx.connection, tables=TABLES))
    writer = AuditWriter()
    await writer.add(store, drafts[0])
    await asyncio.gather(*(writer.add(store, draft) for draft in drafts[1:3]))
    for draft in drafts[3:]:
        await writer.add(store, draft)


def drafts(user_id: str | None = None) -> list[AuditDraft]:
    return [
        AuditDraft(
            f"POST /v1/{number}",
            200,
            START + number * DAY,
            user_id=user_id,
            address="::1",
            objects={"id": "x"},
        )
        for number in range(ROWS)
    ]


async def problems(store: Store, *expected: str) -> list[str]:
    checks, missing = await store.read(lambda tx: verify(tx, expected))
    return [problem for check in checks for problem in check.problems] + missing


async def test_an_unchanged_chain_verifies(store: Store) -> None:
    await write(store, *drafts())
    assert await problems(store) == []
    (check,), _ = await store.read(verify)
    assert (check.first, check.last) == (1, ROWS)
    assert await problems(store, f"{ROWS}:{check.hash}") == []
    assert await problems(store, f"4:{check.hash}") == [f"4:{check.hash}"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "Row 1 was changed, or row 2 was."),
        (3, "Row 3 was changed, or row 4 was."),
        (ROWS, f"Row {ROWS} was changed."),
    ],
)
async def test_a_change_of_any_column_is_detected(store: Store, number: int, expected: str) -> None:
    await write(store, *drafts())
    row = (await store.read(lambda tx: queries.rows_after(tx, LOCAL_ORGANIZATION, number - 1)))[0]
    its = audit_log.c.number == number
    for column in {*HASHED} - {"organization_id", "number"}:
        old, new = (
            row[column],
            {"x": "y"} if column == "objects" else 1 if isinstance(row[column], int) else "forged",
        )
        new = 2 if new == old else new
        await store.write(
            lambda tx, new=new, column=column: tx.run(
                update(audit_log).where(its).values({column: new})
            )
        )
        assert expected in await problems(store), column
        await store.write(
            lambda tx, old=old, column=column: tx.run(
                update(audit_log).where(its).values({column: old})
            )
        )
    assert await problems(store) == []


async def test_writers_of_several_servers_append_to_one_chain(store: Store) -> None:
    await store.write(lambda tx: metadata.create_all(tx.connection, tables=TABLES))
    writers = [AuditWriter() for _ in range(4)]
    for draft in drafts():
        await asyncio.gather(*(writer.add(store, draft) for writer in writers))
    (check,), _ = await store.read(verify)
    assert (check.first, check.last, check.problems) == (1, len(writers) * ROWS, [])


@pytest.mark.parametrize(
    ("number", "expected"), [(1, "Row 1 is missing."), (ROWS, f"Row {ROWS} is missing.")]
)
async def test_a_removed_first_or_last_row_is_detected(
    store: Store, number: int, expected: str
) -> None:
    await write(store, *drafts())
    await store.write(lambda tx: tx.run(delete(audit_log).where(audit_log.c.number == number)))
    assert await problems(store) == [expected]


async def test_a_rewritten_chain_is_detected_with_a_saved_hash(store: Store) -> None:
    await write(store, *drafts())
    (check,), _ = await store.read(verify)

    def forge(tx: Transaction) -> None:
        for table in (audit_log, audit_chains):
            tx.run(delete(table))
        queries.append(tx, drafts()[1:], {})

    await store.write(forge)
    assert await problems(store) == []
    assert await problems(store, f"{ROWS}:{check.hash}") == [f"{ROWS}:{check.hash}"]


async def test_a_changed_author_is_detected_and_an_erased_user_is_not(
    store: Store,
) -> None:
    ada = await store.write(lambda tx: users.find_or_make(tx, Scope(), "ada"))
    bob = await store.write(lambda tx: users.find_or_make(tx, Scope(), "bob"))
    await write(store, *drafts(ada.id))
    its = audit_people.c.user_id == ada.id
    await store.write(lambda tx: tx.run(update(audit_people).where(its).values(user_id=bob.id)))
    found = await problems(store)
    assert found
    assert all(problem.startswith("The person behind person-") for problem in found)
    await store.write(lambda tx: tx.run(delete(audit_people)))
    assert await problems(store) == []


async def test_retention_deletes_the_oldest_and_keeps_the_anchor(
    store: Store, clock: ManualClock
) -> None:
    await write(store, *drafts())
    (check,), _ = await store.read(verify)
    expire = lambda before: store.write(  # noqa: E731
        lambda tx: queries.expire(tx, check.organization_id, before)
    )
    assert not await expire(START + 3 * DAY)
    assert await problems(store, f"{ROWS}:{check.hash}") == []
    (later,), _ = await store.read(verify)
    assert (later.first, later.last) == (4, ROWS)
    await store.write(lambda tx: tx.run(update(audit_chains).values(anchor="0" * 64)))
    assert await problems(store) == ["Rows before the first one were changed, or row 4 was."]
    clock.advance(30 * 24 * 3600)
    assert not await expire(clock.now())
    assert await store.read(lambda tx: tx.all(audit_people.select())) == []
    await write(store, *drafts())
    (after,), _ = await store.read(verify)
    assert (after.first, after.last, after.problems) == (ROWS + 1, 2 * ROWS, [])


async def test_rows_whose_write_failed_are_written_with_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.write(lambda tx: metadata.create_all(tx.connection, tables=TABLES))
    writer, (first, second, third, *_) = AuditWriter(), drafts()
    with monkeypatch.context() as patch:
        patch.setattr(queries, "append", unreachable)
        await writer.add(store, first)
    third.organization_id = "org-of-nobody"  # No row can belong to a missing organization.
    await asyncio.gather(writer.add(store, second), writer.add(store, third))
    rows = await store.read(lambda tx: queries.rows_after(tx, first.organization_id, 0))
    assert [row["action"] for row in rows] == [first.action, second.action]
    assert await problems(store) == []


def unreachable(*_: Any, **__: Any) -> None:
    raise Unavailable("The database failed.")


def test_an_export_filter_with_nul_is_refused(tmp_path: Path) -> None:
    url = postgres.server().new_database()
    with serving(tmp_path, database_url=url) as server, server.http() as http:
        answer = http.get("/v1/audit-log/export?action=a%00b")
    postgres.server().drop(url)
    assert (answer.status_code, "NUL" in answer.text) == (400, True)


def test_an_erased_user_becomes_a_pseudonym_and_exports_stay_verifiable(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server, server.http() as http:
        ok(http.put("/users/ada/blocks/human", json={"body": "Hers."}))
        (before,) = ok(http.get("/v1/audit-log", params={"user_id": "ada"}))
        receipt = erase(http, "ada")
        lines = [json.loads(line) for line in http.get("/v1/audit-log/export").text.splitlines()]
        assert [line["for_user_id"] for line in lines] == [None, None]
        assert lines[0]["on_behalf_of"] == before["on_behalf_of"]
        assert lines[1]["objects"] == {"id": receipt["id"]}
        assert before["for_user_id"] not in json.dumps(lines)
        assert [check.problems for check in server.read(verify)[0]] == [[]]
    stored = {**lines[0], "created_at": micros(lines[0]["created_at"])}
    content = json.dumps(
        [stored[name] for name in HASHED], separators=(",", ":"), sort_keys=True, ensure_ascii=False
    )
    assert lines[1]["previous"] == hashlib.sha256(content.encode()).hexdigest()


def micros(text: str) -> int:
    whole = datetime.fromisoformat(text.replace("Z", "+00:00")) - datetime(1970, 1, 1, tzinfo=UTC)
    return whole.days * DAY + whole.seconds * 1_000_000 + whole.microseconds


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_what_was_confirmed_before_a_kill_is_in_the_log(
    kills: int, tmp_path: Path, helper: Helper
) -> None:
    server = ServerProcess(helper, tmp_path, {"RICORDO_EMBEDDING": "none"}, None)
    server.start()
    confirmed: list[str] = []

    def change() -> None:
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=20) as http:
            try:
                while True:
                    confirmed.append(
                        ok(http.post("/v1/blocks/", json={"label": "human", "value": "x"}))["id"]
                    )
            except httpx2.TransportError:
                return

    try:
        for number in range(kills):
            threads = [threading.Thread(target=change) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.4 + number * 0.137 % 1)
            server.kill()
            for thread in threads:
                thread.join()
            server.start()
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=20) as http:
            lines = http.get("/v1/audit-log/export").text.splitlines()
    finally:
        server.stop()
    recorded = {json.loads(line)["objects"].get("id") for line in lines}
    assert len(confirmed) > kills
    assert set(confirmed) <= recorded


def test_command_line_backups_and_restores_are_in_the_audit_log(
    shell: Shell, tmp_path: Path
) -> None:
    fill(shell.data / "ricordo.db")
    copy = tmp_path / "copy.db"
    assert shell.run("backup", str(copy)).returncode == 0
    assert shell.run("backup", str(copy)).returncode != 0
    checked = shell.run("audit", "verify")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 rows, the last one 2:" in checked.stdout
    rows = [json.loads(line) for line in shell.run("audit", "export").stdout.splitlines()]
    assert [(row["action"], row["status"]) for row in rows] == [
        ("ricordo backup", 0),
        ("ricordo backup", 1),
    ]
    assert rows[0]["address"].startswith("account ")
    assert shell.run("restore", str(copy), "--replace").returncode == 0
    assert "ricordo restore" in shell.run("audit", "export").stdout
    with closing(sqlite3.connect(shell.data / "ricordo.db")) as file, file:
        file.execute("UPDATE audit_log SET action = 'ricordo nothing'")
    forged = shell.run("audit", "verify")
    assert forged.returncode == 1
    assert "Row 1 was changed." in forged.stdout
