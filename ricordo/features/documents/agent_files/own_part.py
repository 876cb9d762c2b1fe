"""Check and mend the part `ricordo` of an agent file.

It contains archives, conversations, history and schedules for each agent.
"""

from collections.abc import Mapping
from typing import Any

from ricordo.domain.text import Json
from ricordo.features.documents.agent_files import messages as formats
from ricordo.features.documents.agent_files.content import VERSION, FileAgent, FileMemory
from ricordo.features.documents.agent_files.tolerance import ImportNotes, fitted, without_unknown

_KIND = "The part `ricordo`"
_LABELS = ("label", "old_label", "new_label")


def read_own_part(
    content: Json, labels: Mapping[str, str], notes: ImportNotes
) -> dict[str, FileAgent]:
    """Return the agents' parts by their ids in the file.

    A broken part is mended, or left out and noted.

    Args:
        content: The mended file, with its agents and its part `ricordo`.
        labels: The mended labels, by the invalid labels in the file.
        notes: Gets notes on the changes.
    """
    part = content.get("ricordo")
    if part is None:
        return {}
    if not isinstance(part, dict) or part.get("version") != VERSION:
        if isinstance(part, dict):
            version = part.get("version")
        else:
            version = None
        notes.add(
            f"{_KIND} is of version {str(version)[:20]}, and this server reads version {VERSION}: "
            "the history of memory, archives, conversations and schedules are left out."
        )
        return {}
    part = without_unknown(part, ("version", "agents"), _KIND, "ricordo", notes)
    agents = part.get("agents") or {}
    if not isinstance(agents, dict):
        notes.add(f"{_KIND}: agents is left out, since it is not an object.")
        return {}
    agent_ids = {agent["id"] for agent in content["agents"]}
    for id in agents.keys() - agent_ids:
        notes.add(f'{_KIND}: "{id[:80]}" is left out, since the file has no such agent.')
    return {id: _agent(id, agents[id], labels, notes) for id in agent_ids & agents.keys()}


def _agent(id: str, part: Any, labels: Mapping[str, str], notes: ImportNotes) -> FileAgent:
    if not isinstance(part, dict):
        notes.add(f'{_KIND}: the entry of "{id[:80]}" is left out, since it is not an object.')
        return FileAgent()
    memory = part.get("memory")
    if isinstance(memory, dict):
        memory = fitted(FileMemory, memory, "The history of memory", f"ricordo.{id}.memory", notes)
        part = {**part, "memory": _relabel(memory, labels)}
    part = fitted(FileAgent, part, _KIND, f"ricordo.{id}", notes)
    if part.get("messages") is not None:
        part["messages"] = formats.readable(_without_repeated_ids(part["messages"], notes), notes)
    for thread in part.get("conversations") or ():
        thread["messages"] = formats.readable(
            _without_repeated_ids(thread.get("messages") or [], notes), notes
        )
    return FileAgent.model_validate(part)


def _relabel(memory: Json, labels: Mapping[str, str]) -> Json:
    """Return the memory with invalid labels replaced by the mended ones."""
    if not labels:
        return memory
    changed = dict(memory)
    for name in ("versions", "proposals"):
        changed[name] = [
            {
                field: labels.get(value, value) if field in _LABELS else value
                for field, value in change.items()
            }
            for change in memory.get(name) or ()
        ]
    return changed


def _without_repeated_ids(raw_messages: list[Json], notes: ImportNotes) -> list[Json]:
    by_id = {message["id"]: message for message in reversed(raw_messages)}
    if len(by_id) < len(raw_messages):
        notes.add("Messages: one with the id of an earlier message is left out.")
    return [message for message in raw_messages if by_id[message["id"]] is message]
