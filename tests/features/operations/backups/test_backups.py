"""Backups that are taken while a server writes, and show one moment.

Damaged ones are refused; a restore is whole or not at all.
"""

import os
import random
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Conflict, Invalid, NotFound, Unavailable
from ricordo.features.operations.backups.service import back_up, restore
from ricordo.features.operations.move.service import MoveReport
from ricordo.settings import Settings
from ricordo.storage.engine.work_folders import COPY, open_work_folder
from tests.cli.conftest import Shell, environment
from tests.features.operations.move.test_cli import fill
from tests.features.processes import KilledCommand, after
from tests.seams.http import ok
from tests.seams.server import MODEL, serving
from tests.support import postgres
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK


def table_hashes(done: MoveReport) -> dict[str, str]:
    """Return the hashes of the tables, except the audit log, which records commands."""
    return {name: one for name, one in done.hashes.items() if not name.startswith("audit_")}


def silent(*_: Any) -> None:
    """Ignore the progress."""


def test_a_backup_under_load_is_consistent_and_restores_equally(tmp_path: Path) -> None:
    live, other = tmp_path / "live", tmp_path / "other"
    settings, empty = Settings(data_dir=live), Settings(data_dir=other)
    with serving(live) as server, server.http() as http:
        agents = [
            ok(http.post("/v1/agents/", json={"model": MODEL, "name": str(number)}))["id"]
            for number in range(2)
        ]
        ends = threading.Event()

        def talk(agent: str) -> None:
            with server.http() as own:
                for number in range(10_000):
                    if ends.is_set():
                        return
                    ok(
                        own.post(
                            f"/v1/agents/{agent}/messages", json={"input": f"Remark {number}."}
                        )
                    )

        threads = [threading.Thread(target=talk, args=(agent,)) for agent in agents]
        for thread in threads:
            thread.start()
        try:
            made = [back_up(settings, tmp_path / f"{number}.db", silent) for number in range(2)]
        finally:
            ends.set()
            for thread in threads:
                thread.join()
    assert made[0].rows["messages"] < made[1].rows["messages"], (
        "the server must continue during the backup"
    )
    shutil.copy(live / "secret.key", tmp_path / "secret.key")
    back = restore(tmp_path / "1.db", empty, silent)
    assert (back.rows, back.hashes) == (made[1].rows, made[1].hashes)
    (tmp_path / "secret.key").rename(other / "secret.key")
    with serving(other) as server, server.http() as http:
        for agent in agents:
            said = ok(
                http.get(f"/v1/agents/{agent}/messages", params={"limit": 1000, "order": "asc"})
            )
            remarks = [one["content"] for one in said if one["message_type"] == "user_message"]
            assert remarks == [f"Remark {number}." for number in range(len(remarks))], (
                "no earlier message may be missing"
            )
        ok(http.post(f"/v1/agents/{agents[0]}/messages", json={"input": "I am back."}))
    assert (tmp_path / "1.db").stat().st_mode & 0o777 == 0o600
    assert [
        path.name
        for path in tmp_path.iterdir()
        if "unfinished" in path.name or path.suffix == ".lock"
    ] == []


def test_backups_and_restores_do_not_overwrite_without_replace(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    with pytest.raises(NotFound):
        back_up(settings, tmp_path / "none.db", silent)
    assert not list(tmp_path.glob("none*"))
    fill(settings.database_path)
    first = back_up(settings, tmp_path / "first.db", silent)
    with pytest.raises(Conflict, match="already exists"):
        back_up(settings, tmp_path / "first.db", silent)
    fill(settings.database_path)
    second = back_up(settings, tmp_path / "second.db", silent)
    with pytest.raises(Conflict, match=r"holds agents, .*--replace"):
        restore(tmp_path / "first.db", settings, silent)
    assert back_up(settings, tmp_path / "third.db", silent).hashes == second.hashes
    assert restore(tmp_path / "first.db", settings, silent, replace=True).hashes == first.hashes
    left = open_work_folder(settings.data_dir, COPY)
    # A kill releases the lock in the same way.
    left._lock.release()
    with serving(tmp_path / "data"):
        assert not left.path.exists(), "a start must remove leftovers of killed processes"
        with pytest.raises(Conflict, match="Another Ricordo server is using"):
            restore(tmp_path / "first.db", settings, silent, replace=True)


def test_a_damaged_backup_is_refused_and_the_old_database_is_kept(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    fill(settings.database_path)
    good = tmp_path / "good.db"
    whole = back_up(settings, good, silent)
    data = good.read_bytes()
    broken = bytearray(data)
    for place in range(8192, len(broken), 4096):
        broken[place : place + 200] = os.urandom(200)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE recipes (name)")
        connection.commit()
    for number, bad in enumerate(
        (data[: len(data) // 2], bytes(broken), b"no database at all", b"")
    ):
        path = tmp_path / f"bad-{number}.db"
        path.write_bytes(bad)
        with pytest.raises((Invalid, Conflict, NotFound, Unavailable)):
            restore(path, settings, silent, replace=True)
    for path in (foreign, tmp_path / "nowhere.db"):
        with pytest.raises((Invalid, Conflict, NotFound, Unavailable)):
            restore(path, settings, silent, replace=True)
    assert back_up(settings, tmp_path / "after.db", silent).hashes == whole.hashes


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_a_restore_that_is_killed_leaves_the_old_or_the_new(
    kills: int, tmp_path: Path, helper: Helper
) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    fill(settings.database_path)
    old = table_hashes(back_up(settings, tmp_path / "old.db", silent))
    fill(settings.database_path)
    new = table_hashes(back_up(settings, tmp_path / "new.db", silent))
    restore(tmp_path / "old.db", settings, silent, replace=True)
    command = ("restore", str(tmp_path / "new.db"), "--replace")
    variables = environment(settings.data_dir)
    begin = time.monotonic()
    KilledCommand(helper, command, tmp_path / "work", variables).finish()
    duration = time.monotonic() - begin
    for number in range(kills):
        restore(tmp_path / "old.db", settings, silent, replace=True)
        moment = after(random.uniform(0, duration))  # noqa: S311 - a moment
        KilledCommand(helper, command, tmp_path / "work", variables).kill_once(moment)
        assert table_hashes(back_up(settings, tmp_path / f"now-{number}.db", silent)) in (old, new)


def test_a_postgresql_database_can_be_backed_up_into_a_file(shell: Shell, tmp_path: Path) -> None:
    fill(shell.data / "ricordo.db")
    url = postgres.server().new_database()
    try:
        assert shell.run("restore", "missing.db").returncode == 2
        made = shell.run("backup", "one.db")
        assert "The numbers of rows and their hashes are equal." in made.stdout, made.stderr
        for part in (" users, ", " messages, ", " memory blocks, ", "one.db ("):
            assert part in made.stdout
        there = shell.run("restore", "one.db", RICORDO_DATABASE_URL=url)
        assert "equal to the backup's: " in there.stdout, there.stderr
        again = shell.run("backup", "two.db", RICORDO_DATABASE_URL=url)
        assert again.returncode == 0, again.stderr
        hashes = [
            table_hashes(
                restore(
                    shell.folder / name, Settings(data_dir=tmp_path / f"restored-{name}"), silent
                )
            )
            for name in ("one.db", "two.db")
        ]
        assert hashes[0] == hashes[1]
    finally:
        postgres.server().drop(url)
