"""Blocks of courses: each student has separate ones, described by the course."""

from collections.abc import Mapping
from typing import Any

from ricordo.domain.block import Chain
from ricordo.domain.scope import Scope
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction

# A key in a block's metadata. With the value FOR_ALL, every agent that talks with the user sees the
# user's copy, and not only the tutor.
COPY = "copy"
FOR_ALL = "for_all_agents"
COURSE_TAG = "course"  # of agents that a course made
_SETTINGS = ("description", "limit", "policy", "title", "schema_ref")


def begin_as_course(
    tx: Transaction, chain: Chain, label: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a new block's settings, completed from the course's block with the same label.

    A student may create such a block before the tutor does. It still gets the course's title,
    schema, description, limit, policy and teachers.

    Args:
        tx: The transaction.
        chain: The chain of the new block. Only a user's chain gets settings of a course.
        label: The block's label.
        settings: The given settings, which take precedence. A block with `agent_id` or `course`
            gets no others.
    """
    if chain.owner_kind != "user" or settings.get("agent_id") or settings.get("course"):
        return dict(settings)
    scope = Scope(chain.organization_id)
    models = blocks.of_tagged_agents(tx, scope, label, COURSE_TAG)
    model = next((block for block in models if block.metadata.get(COPY) == FOR_ALL), None)
    if model is None:
        return dict(settings)
    filled = {name: getattr(model, name) for name in _SETTINGS}
    filled |= {name: setting for name, setting in settings.items() if setting is not None}
    return filled | {"metadata": {**model.metadata, **(settings.get("metadata") or {})}}
