"""The memory that an agent sees, as a JSON document that is patched (RFC 6902)."""

from collections.abc import Mapping

from ricordo.api.call import RequestContext
from ricordo.domain.text import Json
from ricordo.storage import agents


class MemoryDocument:
    """The text of each block that the agent sees in a conversation, by label.

    It is empty for callers who may not read memory.
    """

    def __init__(self, context: RequestContext, agent_id: str, conversation_id: str) -> None:
        self._context = context
        self._agent_id = agent_id
        self.conversation_id = conversation_id
        self._texts: Mapping[str, str] = {}

    async def texts(self) -> Mapping[str, str]:
        """Return the whole document. The next call of `changes` compares with it."""
        self._texts = await self._read()
        return self._texts

    async def changes(self, root: str) -> list[Json]:
        """Return patches for the changes since the last call of `texts` or `changes`.

        Args:
            root: The JSON pointer of the document, which precedes the labels in the paths.
        """
        before = self._texts
        after = await self.texts()
        patches: list[Json] = [
            {"op": "add", "path": f"{root}/{_escaped(label)}", "value": text}
            for label, text in after.items()
            if before.get(label) != text
        ]
        removed = sorted(before.keys() - after.keys())
        return patches + [{"op": "remove", "path": f"{root}/{_escaped(name)}"} for name in removed]

    async def _read(self) -> Mapping[str, str]:
        scope = self._context.scope
        if not scope.may("memory:read"):
            return {}
        state = await self._context.store.read(
            lambda tx: agents.load(tx, scope, self._agent_id, self.conversation_id)
        )
        return {block.shown_label: block.value for block in state.blocks if not block.hidden}


def _escaped(label: str) -> str:
    """Return a label as a part of a JSON pointer (RFC 6901)."""
    return label.replace("~", "~0").replace("/", "~1")
