"""Create the schema: all tables in an empty database, missing migrations in an older database.

Before the first migration changes an existing database, a verified backup is made; on PostgreSQL a
dump, unless pg_dump is missing or older than the server. Tables of
plugins do not belong to the schema: each start of a server creates missing ones, and plugins change
them later by themselves.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources

from sqlalchemy import Connection, Table, func, inspect, select, text, update
from sqlalchemy.schema import CreateColumn

from ricordo.domain.look_alikes import look_of
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER
from ricordo.errors import Unavailable
from ricordo.storage.migrations.long_texts import cut_long_texts
from ricordo.storage.migrations.normal_names import normalise_names
from ricordo.storage.schema import core_tables as tables
from ricordo.storage.schema.columns import metadata
from ricordo.storage.schema.history_sum import COUNTED
from ricordo.storage.schema.memory_tables import (
    agents_pairs,
    blocks,
    blocks_users,
    chains,
    proposals,
)
from ricordo.storage.schema.message_changes import create_triggers

Migration = Callable[[Connection], None]
# The version of a database to which a copy is being written. Every Ricordo refuses it, older
# versions included.
HALF_COPIED = 1_000_000
UNFINISHED = (
    "This database is a half-finished copy: `ricordo db migrate-to` was interrupted while it "
    "wrote here. Its source is unchanged. Repeat that command with --replace, or use the old "
    "database."
)


_TOO_OLD = (
    "This database was made by one of the first versions of Ricordo (its schema {version} is none "
    "of those that this one can change), and it was left as it is. Choose another RICORDO_DATA_DIR "
    "or RICORDO_DATABASE_URL to begin with a new one. To take over what is in it, start the "
    "version that made it, export its agents as files, and import them here."
)
# The tables of the oldest schema that can be migrated, and the columns that migrations add to them.
_FIRST_TABLES = (
    tables.organizations,
    tables.users,
    tables.agents,
    tables.conversations,
    tables.messages,
    tables.runs,
)
_ADDED = {
    "users": frozenset(("email", "disabled_at", "identity_type", "properties", "look", "former")),
    "agents": frozenset(("message_changes",)),
    "conversations": frozenset(("has_untold", "egress")),
    "messages": frozenset(("egress",)),
}


_KEY_OF_AGENT = re.compile(
    r",\s*(?:CONSTRAINT \w+ )?FOREIGN KEY\s*\(agent_id\) REFERENCES agents \(id\) ON DELETE CASCADE"
)


def create_schema(connection: Connection) -> None:
    """Create all tables, and the local organization with its user.

    On PostgreSQL also create the objects of procrastinate and pgvector.
    """
    metadata.create_all(connection, checkfirst=False)
    connection.execute(
        tables.organizations.insert(), {"id": LOCAL_ORGANIZATION, "name": "local", "created_at": 0}
    )
    local = {
        "id": LOCAL_USER,
        "organization_id": LOCAL_ORGANIZATION,
        "name": "local",
        "created_at": 0,
    }
    connection.execute(tables.users.insert(), local)
    if connection.dialect.name == "postgresql":
        run_file(connection, "procrastinate")
        run_file(connection, "pgvector")


def add_keys_and_sharing(connection: Connection) -> None:
    """Add API keys, users of agents, fields of users, shared blocks and unreported rejections."""
    add_columns(connection, tables.users, "email", "disabled_at", "identity_type", "properties")
    add_columns(connection, blocks, "shared", "seen_as")
    add_columns(connection, tables.conversations, "has_untold")
    add_columns(connection, proposals, "is_untold")
    metadata.create_all(
        connection, tables=[tables.api_keys, tables.agents_users, blocks_users], checkfirst=False
    )
    add_columns(connection, tables.passages_tags, "user_id")
    (users_tags,) = (
        index for index in tables.passages_tags.indexes if index.name == "passages_tags_of_users"
    )
    users_tags.create(connection)
    part_tags_by_users(connection)


def add_options_of_tools(connection: Connection) -> None:
    """Add options of tools from source code: argument schemas and packages."""
    add_columns(connection, tables.tools, "options")


def add_index_of_newest_messages(connection: Connection) -> None:
    """Add an index of the newest messages of all agents.

    With the organization in the index, SQLite would prefer it to the indexes by conversation.
    """
    (newest,) = (index for index in tables.messages.indexes if index.name == "messages_newest")
    newest.create(connection)


def add_limits_of_keys(connection: Connection) -> None:
    """Add the rate and size limits of keys."""
    # If an earlier migration created the table just now, it already has these columns.
    existing = {column["name"] for column in inspect(connection).get_columns(tables.api_keys.name)}
    add_columns(
        connection, tables.api_keys, *({"requests_per_minute", "max_body_bytes"} - existing)
    )


def hide_what_others_write(connection: Connection) -> None:
    """Count only shared passages in an archive's row, and index users by a look-alike form."""
    (of_users,) = (index for index in tables.passages.indexes if index.name == "passages_of_users")
    of_users.create(connection, checkfirst=True)
    shared = (
        select(func.count())
        .where(
            tables.passages.c.archive_id == tables.archives.c.id,
            tables.passages.c.user_id.is_(None),
        )
        .scalar_subquery()
    )
    connection.execute(update(tables.archives).values(passage_count=shared))
    users = tables.users
    if "look" not in {column["name"] for column in inspect(connection).get_columns(users.name)}:
        add_columns(connection, users, "look")
    (by_look,) = (index for index in users.indexes if index.name == "users_by_look")
    by_look.create(connection, checkfirst=True)
    for row in connection.execute(
        select(users.c.id, users.c.identifier).where(users.c.identifier.is_not(None))
    ).all():
        connection.execute(
            update(users).where(users.c.id == row.id).values(look=look_of(row.identifier))
        )


def keep_former_names(connection: Connection) -> None:
    """Add the former names of users, for erasure."""
    if "former" not in {
        column["name"] for column in inspect(connection).get_columns(tables.users.name)
    }:
        add_columns(connection, tables.users, "former")


def pair_agents(connection: Connection) -> None:
    """Add pairs of agents with one memory, and planned runs, which have no lease yet."""
    metadata.create_all(connection, tables=[agents_pairs])
    (lease,) = (index for index in tables.runs.indexes if index.name == "runs_one_open")
    lease.drop(connection)
    lease.create(connection)


def add_index_of_groups(connection: Connection) -> None:
    """Add an index of the messages in groups of agents."""
    (of_groups,) = (
        index for index in tables.messages.indexes if index.name == "messages_of_groups"
    )
    of_groups.create(connection, checkfirst=True)


def count_histories(connection: Connection) -> None:
    """Store the size of its history with each chain."""
    if "history_bytes" not in {
        column["name"] for column in inspect(connection).get_columns(chains.name)
    }:
        add_columns(connection, chains, "history_bytes")
    connection.execute(update(chains).values(history_bytes=COUNTED))


def keep_tasks_without_agents(connection: Connection) -> None:
    """Let background tasks outlive their agents, since a course creates its agent again."""
    name = "background_tasks"
    if not inspect(connection).has_table(name):
        return
    if connection.dialect.name == "postgresql":
        for key in inspect(connection).get_foreign_keys(name):
            if key["constrained_columns"] == ["agent_id"]:
                connection.exec_driver_sql(f'ALTER TABLE {name} DROP CONSTRAINT "{key["name"]}"')
        return
    # SQLite drops no constraints. Its documentation has these steps for a change that leaves the
    # stored rows as they are: https://sqlite.org/lang_altertable.html#otheralter
    (sql,) = connection.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)
    ).one()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?",
        (_KEY_OF_AGENT.sub("", sql), name),
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {int(version) + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def add_index_of_waiting_proposals(connection: Connection) -> None:
    """Add an index by which waiting proposals are found without the decided ones."""
    (waiting,) = (index for index in proposals.indexes if index.name == "proposals_waiting")
    waiting.create(connection, checkfirst=True)


def count_message_changes(connection: Connection) -> None:
    """Let each agent's row count the changes of its messages."""
    existing = {column["name"] for column in inspect(connection).get_columns(tables.agents.name)}
    if "message_changes" not in existing:
        add_columns(connection, tables.agents, "message_changes")
    create_triggers(connection)


def free_tasks_of_their_agents(connection: Connection) -> None:
    """Repeat `keep_tasks_without_agents`, which missed foreign keys with a name."""
    keep_tasks_without_agents(connection)


def add_egress_labels(connection: Connection) -> None:
    """Add the labels of egress policies to memory, messages, folders and facts."""
    for table in (blocks, tables.conversations, tables.messages, tables.passages):
        existing = {column["name"] for column in inspect(connection).get_columns(table.name)}
        if "egress" not in existing:
            add_columns(connection, table, "egress")
    # This module does not know the tables of features, and one may be missing if its feature is.
    for name in ("folders", "user_facts"):
        if not inspect(connection).has_table(name):
            continue
        if "egress" not in {column["name"] for column in inspect(connection).get_columns(name)}:
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN egress TEXT")


def label_proposals(connection: Connection) -> None:
    """Add the label of the egress policy that a proposed block gets."""
    if "egress" not in {column["name"] for column in inspect(connection).get_columns("proposals")}:
        add_columns(connection, proposals, "egress")


def part_tags_by_users(connection: Connection) -> None:
    """Keep only tags of shared passages in an archive's row.

    Each tag gets the user that its passage is about.
    """
    tagged = tables.passages_tags.c
    about = (
        select(tables.passages.c.user_id)
        .where(tables.passages.c.id == tagged.passage_id)
        .scalar_subquery()
    )
    connection.execute(update(tables.passages_tags).values(user_id=about))
    has_users = select(tagged.archive_id).where(tagged.user_id.is_not(None)).distinct()
    for (archive_id,) in connection.execute(has_users).all():
        shared = (
            select(tagged.tag)
            .where(tagged.archive_id == archive_id, tagged.user_id.is_(None))
            .distinct()
        )
        tags = sorted(connection.execute(shared).scalars())
        connection.execute(
            update(tables.archives).where(tables.archives.c.id == archive_id).values(tags=tags)
        )


def add_columns(connection: Connection, table: Table, *names: str) -> None:
    """Add columns as the table describes them today.

    Args:
        connection: A connection in a transaction.
        table: The table. Its description must not have changed since the migration was written.
        *names: The columns, which the stored table lacks.
    """
    for name in names:
        column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")


# The first migration creates today's schema. It runs only on empty databases, which need no other
# migration.
MIGRATIONS: Sequence[Migration] = (
    create_schema,
    add_keys_and_sharing,
    add_options_of_tools,
    add_index_of_newest_messages,
    add_limits_of_keys,
    normalise_names,
    hide_what_others_write,
    keep_former_names,
    pair_agents,
    add_index_of_groups,
    count_histories,
    keep_tasks_without_agents,
    cut_long_texts,
    add_index_of_waiting_proposals,
    count_message_changes,
    free_tasks_of_their_agents,
    add_egress_labels,
    label_proposals,
)


def migrate(
    connection: Connection,
    *,
    back_up: Callable[[int], object],
    migrations: Sequence[Migration] = MIGRATIONS,
) -> int:
    """Bring the schema up to date, each migration in its own transaction.

    Args:
        connection: A connection. The caller holds the lock that keeps other servers out.
        back_up: Called once with the current version, before the first change to a database that is
            not empty. Its errors are passed on.
        migrations: All migrations in order, of which the first creates the whole schema; tests pass
            others.

    Returns:
        The new version.

    Raises:
        Unavailable: The schema is newer, too old, or only half of a copy.
    """
    with connection.begin():
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS schema_versions"
            " (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
        )
        version = schema_of(connection, migrations)
    newest = len(migrations)
    if version == HALF_COPIED:
        raise Unavailable(UNFINISHED)
    if version > newest:
        raise Unavailable(
            f"This database has schema {version}, and this Ricordo knows up to {newest}. "
            "Start the newer Ricordo that wrote it, or restore a backup from the data folder."
        )
    if version == 0:
        _apply(connection, migrations[0], newest)
        return newest
    if version < newest:
        back_up(version)
    for number, migration in enumerate(migrations[version:], version + 1):
        _apply(connection, migration, number)
    return newest


@contextmanager
def write_transaction(connection: Connection) -> Iterator[None]:
    """Commit all changes inside the `with` block, or none of them.

    Args:
        connection: A connection outside a transaction.
    """
    with connection.begin():
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.dialect.name == "sqlite" else "BEGIN"
        )
        yield


def schema_of(connection: Connection, migrations: Sequence[Migration] | None = None) -> int:
    """Return the version of the schema, without creating anything; 0 if there is none.

    Args:
        connection: A connection to the database.
        migrations: All migrations, of which the first names today's numbering; None: those of this
            Ricordo.

    Raises:
        Unavailable: The schema is older than the first migration here, with another numbering.
    """
    if not inspect(connection).has_table("schema_versions"):
        return 0
    names = {
        row.version: row.name
        for row in connection.execute(text("SELECT version, name FROM schema_versions"))
    }
    version: int = max(names, default=0)
    names_of_migrations = {migration.__name__ for migration in migrations or MIGRATIONS}
    first = names.get(min(names, default=0))
    is_old = version != HALF_COPIED and bool(names) and first not in names_of_migrations
    if is_old or (0 < version < len(names_of_migrations) and _lacks_columns(connection)):
        raise Unavailable(_TOO_OLD.format(version=version))
    return version


def _lacks_columns(connection: Connection) -> bool:
    """Return True if a table or a column of the oldest schema is missing."""
    inspector = inspect(connection)
    existing = set(inspector.get_table_names())
    for table in _FIRST_TABLES:
        if table.name not in existing:
            return True
        names = {column["name"] for column in inspector.get_columns(table.name)}
        if {column.name for column in table.columns} - names - _ADDED.get(table.name, frozenset()):
            return True
    return False


def _apply(connection: Connection, migration: Migration, number: int) -> None:
    with write_transaction(connection):
        migration(connection)
        connection.execute(
            text("INSERT INTO schema_versions (version, name) VALUES (:version, :name)"),
            {"version": number, "name": migration.__name__},
        )


def run_file(connection: Connection, name: str) -> None:
    """Run the statements of `<name>.sql`. Lines of only `--` separate them.

    Args:
        connection: A connection in a transaction, to PostgreSQL.
        name: The name of the file in this package, without its ending.
    """
    script = resources.files(__package__).joinpath(f"{name}.sql").read_text("utf-8")
    for statement in script.split("\n--\n"):
        # Without parameters the driver does not take a % in the function's text as a placeholder.
        connection.exec_driver_sql(statement.strip(), execution_options={"no_parameters": True})
