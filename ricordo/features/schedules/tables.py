"""The table of scheduled messages. One that is a user's says so, and goes with the user."""

from sqlalchemy import Index

from ricordo.storage.schema.columns import json_value, reference, root, strings, table, timestamps

schedules = table(
    "schedules",
    *root(),
    reference("agent_id", "agents"),
    *strings("user_id"),
    # Who made it: as whom its turns run.
    json_value("runs_as"),
    json_value("message"),
    *strings("cron", erasure="keep"),
    *timestamps("due_at"),
    *strings("error"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at"),
    Index("schedules_of_agents", "agent_id", "seq"),
    erasure="delete",
)
