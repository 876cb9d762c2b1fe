"""What an agent file holds under `ricordo`, made fit for import: archives, conversations, history, schedules by agent."""

from collections.abc import Mapping
from typing import Any

from ricordo.api.models.base import Json
from ricordo.features.agent_files import messages as formats
from ricordo.features.agent_files.content import VERSION, FileAgent, FileMemory
from ricordo.features.agent_files.tolerance import ImportNotes, fitted, without_unknown

_KIND = "The part `ricordo`"
_LABELS = ("label", "old_label", "new_label")


def read_own_part(
    content: Json, labels: Mapping[str, str], notes: ImportNotes
) -> dict[str, FileAgent]:
    """Return what there is of each agent, by its id in the file; `labels` are mended ones by those of the file."""
    part = content.get("ricordo")
    if part is None:
        return {}
    if not isinstance(part, dict) or part.get("version") != VERSION:
        version = part.get("version") if isinstance(part, dict) else None
        notes.add(
            f"{_KIND} is of version {str(version)[:20]}, and this server reads version {VERSION}: the history of memory, "
            "archives, conversations and schedules are left out."
        )
        return {}
    part = without_unknown(part, ("version", "agents"), _KIND, "ricordo", notes)
    agents = part.get("agents") or {}
    if not isinstance(agents, dict):
        notes.add(f"{_KIND}: agents is left out, since it is no object.")
        return {}
    known = {one["id"] for one in content["agents"]}
    for id in agents.keys() - known:
        notes.add(f'{_KIND}: "{id[:80]}" is left out, since the file has no such agent.')
    return {id: _agent(id, agents[id], labels, notes) for id in known & agents.keys()}


def _agent(id: str, sent: Any, labels: Mapping[str, str], notes: ImportNotes) -> FileAgent:
    if not isinstance(sent, dict):
        notes.add(f'{_KIND}: what it has of "{id[:80]}" is left out, since it is no object.')
        return FileAgent()
    memory = sent.get("memory")
    if isinstance(memory, dict):
        memory = fitted(FileMemory, memory, "The history of memory", f"ricordo.{id}.memory", notes)
        sent = {**sent, "memory": _relabelled(memory, labels)}
    sent = fitted(FileAgent, sent, _KIND, f"ricordo.{id}", notes)
    if sent.get("messages") is not None:
        sent["messages"] = formats.readable(_with_own_ids(sent["messages"], notes), notes)
    for thread in sent.get("conversations") or ():
        thread["messages"] = formats.readable(
            _with_own_ids(thread.get("messages") or [], notes), notes
        )
    return FileAgent.model_validate(sent)


def _relabelled(memory: Json, labels: Mapping[str, str]) -> Json:
    """Return the memory with mended labels in the place of those of the file."""
    if not labels:
        return memory
    changed = dict(memory)
    for name in ("versions", "proposals"):
        changed[name] = [
            {
                field: labels.get(value, value) if field in _LABELS else value
                for field, value in one.items()
            }
            for one in memory.get(name) or ()
        ]
    return changed


def _with_own_ids(sent: list[Json], notes: ImportNotes) -> list[Json]:
    by_id = {one["id"]: one for one in reversed(sent)}
    if len(by_id) < len(sent):
        notes.add("Messages: one with the id of an earlier message is left out.")
    return [one for one in sent if by_id[one["id"]] is one]
