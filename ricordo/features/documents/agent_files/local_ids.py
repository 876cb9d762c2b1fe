"""Ids that are local to an agent file."""

from collections import defaultdict


class LocalIds:
    """Replaces ids of this server by local ids, such as `agent-0` and `message-12`."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, str]] = defaultdict(dict)

    def of(self, kind: str, id: str) -> str:
        """Return the local id of an item; a new item gets the next number.

        Args:
            kind: The prefix of the local id, such as "agent" or "message".
            id: The id on this server.
        """
        of_kind = self._ids[kind]
        return of_kind.setdefault(id, f"{kind}-{len(of_kind)}")

    def knows(self, kind: str, id: str) -> bool:
        """Return True if the item has a local id.

        Args:
            kind: The prefix of the local id.
            id: The id on this server.
        """
        return id in self._ids[kind]
