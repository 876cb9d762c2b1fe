"""The migration that indexes long texts in parts: it adds a job for each affected index."""

from sqlalchemy import Connection, func, select, union

from ricordo.domain.ids import new_id
from ricordo.storage.schema import core_tables as tables

# The job of `ricordo index rebuild`. Until it is done, the older index is searched.
REINDEX = "search.reindex"
# Texts with more characters are cut into parts.
UNCUT_CHARACTERS = 1350


def cut_long_texts(connection: Connection) -> None:
    """Add jobs that rebuild the indexes of agents and archives with a long text."""
    waiting = select(tables.jobs.c.key).where(
        tables.jobs.c.kind == REINDEX, tables.jobs.c.status == "waiting"
    )
    messages = tables.messages
    passages = tables.passages
    owners = union(
        select(messages.c.agent_id.label("id"), messages.c.organization_id).where(
            func.length(messages.c.text) > UNCUT_CHARACTERS
        ),
        select(passages.c.archive_id, passages.c.organization_id).where(
            func.length(passages.c.text) > UNCUT_CHARACTERS
        ),
    ).subquery()
    rows = connection.execute(select(owners).where(owners.c.id.not_in(waiting))).all()
    jobs = [
        {
            "id": new_id("job"),
            "organization_id": row.organization_id,
            "kind": REINDEX,
            "payload": {"owner_id": row.id},
            "key": row.id,
            "is_single": True,
            "status": "waiting",
            "attempts": 0,
            "most_attempts": 5,
            "not_before": 0,
            "progress": {},
            "created_at": 0,
        }
        for row in rows
    ]
    if jobs:
        connection.execute(tables.jobs.insert(), jobs)
