"""The ids of a file, which are its own."""

from collections import defaultdict


class LocalIds:
    """Local ids by those of this server: `agent-0`, `message-12`."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = defaultdict(dict)

    def of(self, kind: str, id: str) -> str:
        known = self._known[kind]
        return known.setdefault(id, f"{kind}-{len(known)}")

    def knows(self, kind: str, id: str) -> bool:
        return id in self._known[kind]
