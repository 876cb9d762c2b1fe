"""Reading the database beside a server that may be using it. Nothing is written, migrated or locked."""

from filelock import FileLock

from ricordo.domain.clock import Clock, SystemClock
from ricordo.errors import NotFound
from ricordo.settings import Settings
from ricordo.storage.database import open_store
from ricordo.storage.held import require_current
from ricordo.storage.sqlite import SqliteStore, first_connection, make_engine
from ricordo.storage.store import Store


def open_for_reading(settings: Settings, clock: Clock | None = None) -> Store:
    """The database as it is; only read from it. Raises NotFound, Conflict where its schema is another's, Unavailable."""
    if settings.postgres_url is not None:
        return open_store(settings, clock)
    path = settings.database_path
    if not path.exists():
        raise NotFound(f"There is no database at {path}. Start the server once, or set RICORDO_DATA_DIR.")
    engine = make_engine(path, settings.durability)
    with first_connection(engine, path) as connection:
        require_current(connection, str(path))
    # Readers wait for no writer, so the folder's lock is left to the server.
    return SqliteStore(engine, clock or SystemClock(), FileLock(path.with_suffix(".lock"), thread_local=False))
