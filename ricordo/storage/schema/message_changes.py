"""Triggers that count changes of stored messages in the row of their agent.

The count tells whether cached messages are current (`storage/message_cache.py`). The database
counts, so no writer can miss a change. Edits, erasures and deletions by any process or program
count in their transaction. System messages are not counted, because turns write them again and no
process caches them.
"""

from sqlalchemy import Connection, Table, event

from ricordo.storage.schema.core_tables import messages

_SQLITE = tuple(
    f"CREATE TRIGGER IF NOT EXISTS messages_count_{change.lower()} AFTER {change} ON messages"  # noqa: S608 - constants
    " WHEN OLD.role <> 'system'"
    " BEGIN UPDATE agents SET message_changes = message_changes + 1 WHERE id = OLD.agent_id; END"
    for change in ("UPDATE", "DELETE")
)
# The trigger runs once for each statement. A trigger for each row would write the agent's row for
# each message.
_POSTGRES = (
    "CREATE OR REPLACE FUNCTION count_message_changes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " UPDATE agents SET message_changes = message_changes + 1 WHERE id IN"
    " (SELECT agent_id FROM old_messages WHERE role <> 'system'); RETURN NULL; END $$",
    *(
        f"CREATE OR REPLACE TRIGGER messages_count_{change.lower()} AFTER {change} ON messages"
        " REFERENCING OLD TABLE AS old_messages"
        " FOR EACH STATEMENT EXECUTE FUNCTION count_message_changes()"
        for change in ("UPDATE", "DELETE")
    ),
)


def create_triggers(connection: Connection) -> None:
    """Create the triggers in a database that may lack them."""
    statements = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRES
    for statement in statements:
        connection.exec_driver_sql(statement)


def _create_with_table(_table: Table, connection: Connection, **_options: object) -> None:
    create_triggers(connection)


# A new database gets them with the table.
event.listen(messages, "after_create", _create_with_table)
