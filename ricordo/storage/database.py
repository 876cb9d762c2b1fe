"""Opening the database that the settings name."""

from ricordo.domain.clock import Clock
from ricordo.errors import Unavailable
from ricordo.settings import Settings
from ricordo.storage.sqlite import open_sqlite
from ricordo.storage.store import Store

MISSING = "RICORDO_DATABASE_URL names PostgreSQL, which needs an extra. Install it: pip install 'ricordo[postgres]'"


def open_store(settings: Settings, clock: Clock | None = None) -> Store:
    """Open the database, with its schema up to date. Raises Conflict, Unavailable."""
    url = settings.postgres_url
    if url is None:
        return open_sqlite(settings.database_path, durability=settings.durability, clock=clock)
    try:
        from ricordo.storage import postgres  # brings psycopg
    except ImportError as error:
        raise Unavailable(MISSING) from error
    return postgres.open_postgres(
        url,
        connections=settings.database_connections,
        durability=settings.durability,
        backups=settings.data_dir / "backups",
        clock=clock,
    )


def is_shared(settings: Settings) -> bool:
    """Whether other servers may be at work on the same database."""
    return settings.postgres_url is not None
