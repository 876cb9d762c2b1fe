"""A store and a chat history of LangGraph and LangChain on a Ricordo server.

Copy this file into your program. It needs `langgraph`, `langchain-core` and `letta-client`.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from letta_client import Letta

_PAGE = 100
_MOST_SENT = 1000  # messages of one request


class RicordoStore(BaseStore):
    """A store of LangGraph in an archive.

    An item is a passage: its value and key are in the metadata, and its text is searched by words
    and meaning. Tags name its namespace and each prefix of it.

    Args:
        client: The client of the server.
        archive_id: The archive, which other programs and agents may use too.
    """

    def __init__(self, client: Letta, archive_id: str) -> None:
        self._client = client
        self._archive_id = archive_id

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in their order, and return their results."""
        return [self._run(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in a thread, since the client is synchronous."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _run(self, op: Op) -> Result:
        match op:
            case GetOp():
                return self._get(op.namespace, op.key)
            case PutOp():
                return self._put(op)
            case SearchOp():
                return self._search(op)
            case ListNamespacesOp():
                return self._namespaces(op)
        raise NotImplementedError(f"This store has no operation {type(op).__name__}.")

    def _get(self, namespace: tuple[str, ...], key: str) -> Item | None:
        found = self._find([_item_tag(namespace, key)], limit=1)
        return next((_item(passage) for passage, _ in found), None)

    def _put(self, op: PutOp) -> None:
        tag = _item_tag(op.namespace, op.key)
        earlier = [passage for passage, _ in self._find([tag], limit=_PAGE)]
        if op.value is not None:
            metadata: dict[str, Any] = {
                "namespace": list(op.namespace),
                "key": op.key,
                "value": dict(op.value),
            }
            if earlier:
                metadata["created_at"] = _item(earlier[0]).created_at.isoformat()
            self._client.archives.passages.create(
                self._archive_id,
                text=_searched_text(op.key, op.value, op.index),
                tags=[tag, *_prefix_tags(op.namespace)],
                metadata=metadata,
            )
        for passage in earlier:
            self._client.archives.passages.delete(passage.id, archive_id=self._archive_id)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        tags = _prefix_tags(op.namespace_prefix)[-1:]
        items = []
        for passage, score in self._find(tags, query=op.query):
            if len(items) >= op.offset + op.limit:
                break
            item = _item(passage)
            if all(item.value.get(name) == value for name, value in (op.filter or {}).items()):
                items.append(
                    SearchItem(
                        item.namespace,
                        item.key,
                        item.value,
                        item.created_at,
                        item.updated_at,
                        score if op.query else None,
                    )
                )
        return items[op.offset :]

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        names = {_item(passage).namespace for passage, _ in self._find([])}
        fitting = [name for name in names if all(map(_fits(name), op.match_conditions or ()))]
        shown = sorted({name[: op.max_depth] for name in fitting})
        return shown[op.offset : op.offset + op.limit]

    def _find(
        self, tags: Sequence[str], query: str | None = None, limit: int | None = None
    ) -> Iterator[tuple[Any, float]]:
        """Yield passages of this store with all tags, and their scores: best or newest first."""
        offset = 0
        while True:
            body: dict[str, Any] = {
                "archive_id": self._archive_id,
                "limit": limit or _PAGE,
                "offset": offset,
                "tags": list(tags),
                "tag_match_mode": "all",
            }
            if query:
                body["query"] = query
            page = self._client.post("/v1/passages/search", body=body, cast_to=list[dict[str, Any]])
            for found in page:
                passage = _Passage(found["passage"])
                if "namespace" in passage.metadata:
                    yield passage, found["score"]
            offset += len(page)
            if limit or len(page) < _PAGE:
                return


class _Passage:
    """A passage of the server's answer."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.id = wire["id"]
        self.metadata = wire["metadata"] or {}
        self.created_at = wire["created_at"]


def _item(passage: _Passage) -> Item:
    metadata = passage.metadata
    created_at = metadata.get("created_at") or passage.created_at
    return Item(
        value=metadata["value"],
        key=metadata["key"],
        namespace=tuple(metadata["namespace"]),
        created_at=created_at,
        updated_at=passage.created_at,
    )


def _prefix_tags(namespace: Sequence[str]) -> list[str]:
    return [_tag("namespace", namespace[:end]) for end in range(1, len(namespace) + 1)]


def _item_tag(namespace: Sequence[str], key: str) -> str:
    return _tag("item", [*namespace, key])


def _tag(kind: str, names: Sequence[str]) -> str:
    """Return a short tag for these names, which may hold any characters."""
    return f"{kind}:{sha256(json.dumps(list(names)).encode()).hexdigest()[:32]}"


def _searched_text(key: str, value: Mapping[str, Any], index: Any) -> str:
    """Return the text of an item: all of its values, those that `index` names, or only its key."""
    if index is False:
        return key
    texts = [
        content if isinstance(content, str) else json.dumps(content)
        for name, content in value.items()
        if index is None or name in index
    ]
    return "\n".join(filter(None, texts)) or key


def _fits(name: tuple[str, ...]) -> Any:
    def fits(condition: MatchCondition) -> bool:
        path = condition.path
        if len(name) < len(path):
            return False
        part = name[: len(path)] if condition.match_type == "prefix" else name[-len(path) :]
        return all(wanted in ("*", one) for wanted, one in zip(path, part, strict=True))

    return fits


class RicordoChatMessageHistory(BaseChatMessageHistory):
    """The history of a chat in a conversation of an agent. It is part of the agent's recall.

    Args:
        client: The client of the server.
        agent_id: The agent.
        conversation_id: The conversation; without one, a new conversation is created.
    """

    def __init__(self, client: Letta, agent_id: str, conversation_id: str | None = None) -> None:
        self._client = client
        self._agent_id = agent_id
        self.conversation_id = conversation_id or self._new_conversation()

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The texts of the user and the agent, the oldest first."""
        pages = self._client.conversations.messages.list(self.conversation_id, order="asc")
        history: list[BaseMessage] = []
        for message in pages:
            content = getattr(message, "content", None)
            if message.message_type == "user_message":
                history.append(HumanMessage(content=content, id=message.id))
            elif message.message_type == "assistant_message":
                history.append(AIMessage(content=content, id=message.id))
        return history

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store texts of the user and the agent; other messages are left out."""
        roles = {"human": "user", "ai": "assistant"}
        stored = [
            {"role": roles[message.type], "content": str(message.text)}
            for message in messages
            if message.type in roles and str(message.text)
        ]
        path = f"/v1/agents/{self._agent_id}/messages/import"
        for start in range(0, len(stored), _MOST_SENT):
            part = stored[start : start + _MOST_SENT]
            body = {"messages": part, "conversation_id": self.conversation_id}
            self._client.post(path, body=body, cast_to=object)

    def clear(self) -> None:
        """Delete the conversation, and begin a new one."""
        self._client.conversations.delete(self.conversation_id)
        self.conversation_id = self._new_conversation()

    def _new_conversation(self) -> str:
        return self._client.conversations.create(agent_id=self._agent_id).id
