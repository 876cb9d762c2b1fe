"""Reading a database beside a server: the same data, no lock, no write, no migration."""

from pathlib import Path

import pytest
from sqlalchemy import text

from ricordo.errors import Conflict, NotFound, Unavailable
from ricordo.settings import Settings
from ricordo.storage.engine.database import read_beside
from ricordo.storage.engine.sqlite import open_sqlite

DATABASES = ("sqlite",)


def settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, find_local_models=False)


async def test_what_a_server_wrote_is_read_while_it_runs_and_cannot_be_written(tmp_path: Path) -> None:
    server = open_sqlite(tmp_path / "ricordo.db")
    with read_beside(settings(tmp_path)) as tx:
        assert tx.all(text("SELECT count(*) AS found FROM organizations"))[0].found == 1
        with pytest.raises(Conflict, match="Another Ricordo server"):
            open_sqlite(tmp_path / "ricordo.db")  # the server's lock is still its own
    with pytest.raises(Unavailable, match="readonly"), read_beside(settings(tmp_path)) as tx:
        tx.run(text("DELETE FROM users"))
    await server.close()


async def test_nothing_is_made_where_nothing_is_and_another_schema_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no database"), read_beside(settings(tmp_path / "empty")):
        pass
    assert not (tmp_path / "empty").exists()
    server = open_sqlite(tmp_path / "ricordo.db")
    await server.write(lambda tx: tx.run(text("UPDATE schema_versions SET version = 99")))
    await server.close()
    with pytest.raises(Conflict, match="has schema 99"), read_beside(settings(tmp_path)):
        pass
