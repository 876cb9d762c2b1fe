"""A backup of a PostgreSQL database before its schema changes: pg_dump writes it, where it is installed and new enough."""

import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

from sqlalchemy import Connection

from ricordo.domain.clock import Clock, to_datetime
from ricordo.errors import Unavailable

log = logging.getLogger(__name__)


def dump(connection: Connection, folder: Path, version: int, clock: Clock) -> Path | None:
    """Write the connection's database into the folder, for `pg_restore`; None, with a warning, where pg_dump cannot.

    Raises Unavailable where a dump was begun and failed.
    """
    program = shutil.which("pg_dump")
    server = int(str(connection.exec_driver_sql("SHOW server_version_num").scalar_one())) // 10000
    connection.rollback()
    if program is None or _major(program) < server:
        log.warning(
            "the schema is about to change and there is no backup of it: pg_dump is not installed, or older than the server. "
            "Back up the database with your own tools before each upgrade.",
            extra={"schema": version, "postgresql": server},
        )
        return None
    moment = to_datetime(clock.now()).strftime("%Y%m%dT%H%M%S%f")
    target = folder / f"{connection.engine.url.database}-schema{version}-{moment}.dump"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.touch(mode=0o600)
    except OSError as error:
        raise Unavailable(
            f"The backup {target} cannot be written: {error.strerror}. Choose another RICORDO_DATA_DIR."
        ) from error
    _run(program, connection, target)
    log.info("backed up the database before its schema changes", extra={"file": str(target), "schema": version})
    return target


def _run(program: str, connection: Connection, target: Path) -> None:
    url = connection.engine.url
    # Not as an argument: every user of a machine may read those.
    environment = os.environ | ({"PGPASSWORD": str(url.password)} if url.password else {})
    address = url.set(drivername="postgresql", password=None, query=_for_tools(dict(url.query)))
    done = subprocess.run(  # noqa: S603 - our own arguments
        [program, "--format=custom", f"--file={target}", f"--dbname={address.render_as_string(hide_password=False)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not target.stat().st_size:
        target.unlink(missing_ok=True)
        raise Unavailable(
            f"The backup before an upgrade failed, so nothing was changed: {done.stderr.strip()[:300]} "
            "Free the disk or mend pg_dump, then start again."
        )


def _for_tools(query: dict[str, str | tuple[str, ...]]) -> dict[str, str | tuple[str, ...]]:
    return query | {"application_name": "ricordo-backup"}


def _major(program: str) -> int:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    found = re.search(r"\) (\d+)", shown)
    return int(found[1]) if found else 0
