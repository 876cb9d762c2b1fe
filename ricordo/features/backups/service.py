"""Backups of a database while servers use it, and back: copied in one snapshot, compared by hash, put into place in one step."""

from pathlib import Path

from pydantic import SecretStr

from ricordo.errors import Conflict
from ricordo.features.move.service import MoveOptions, MoveReport, Report, move
from ricordo.settings import Settings
from ricordo.storage.engine.backups import flush_folder, held_in, make_private_folder, require_sound, settle
from ricordo.storage.engine.sqlite import lock_file

_UNFINISHED = ".unfinished"


def back_up(settings: Settings, target: Path, report: Report) -> MoveReport:
    """Write all of the database, as it is now, into an SQLite file. Servers may go on meanwhile.

    Raises Conflict where the file is there, NotFound, Unavailable.
    """
    target = target.absolute()
    if target.exists():
        raise Conflict(f"{target} is there already. Name a new file.")
    make_private_folder(target.parent)
    part = target.with_name(target.name + _UNFINISHED)
    _remove(part)  # of a backup that was killed
    try:
        done = move(settings, _at(settings, part), MoveOptions(force=True), report)
        settle(part)
        part.replace(target)
    finally:
        _remove(part)
    flush_folder(target.parent)
    return done


def restore(source: Path, settings: Settings, report: Report, *, replace: bool = False) -> MoveReport:
    """Put a backup in the place of the database, which no server may use. `replace`: also where it holds something.

    Until the last step the old database is as it was. On PostgreSQL the database must be empty. Raises Conflict, Invalid, NotFound,
    Unavailable.
    """
    source = source.absolute()
    require_sound(source)
    if settings.postgres_url is not None:
        return move(_at(settings, source), settings, MoveOptions(replace=replace), report)
    path = settings.database_path
    make_private_folder(path.parent)
    part = path.with_name(path.name + _UNFINISHED)
    lock = lock_file(path)
    try:
        if not replace and path.exists() and (held := held_in(path)):
            raise Conflict(f"{path} is not empty: it holds {', '.join(held)}. Back it up, then repeat with --replace.")
        _remove(part)
        done = move(_at(settings, source), _at(settings, part), MoveOptions(force=True), report)
        settle(part)
        if path.exists():
            settle(path)  # its log is written back and gone, so that it cannot be taken for the new one's
        part.replace(path)
        flush_folder(path.parent)
    finally:
        _remove(part)
        lock.release()
    return done


def _at(settings: Settings, path: Path) -> Settings:
    return settings.model_copy(update={"database_url": SecretStr(f"sqlite:///{path}")})


def _remove(path: Path) -> None:
    beside = [path.with_name(path.name + ending) for ending in ("", "-wal", "-shm")]
    for one in (*beside, path.with_suffix(".lock")):
        one.unlink(missing_ok=True)
