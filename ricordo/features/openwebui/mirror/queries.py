"""The table of synced items: the last common content of each file and note."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import Column, LargeBinary, UniqueConstraint, bindparam, delete, insert, select

from ricordo.domain.ids import new_id
from ricordo.features.files.workspaces.queries import digest_of
from ricordo.features.openai.queries import chat_summary
from ricordo.storage import conversations
from ricordo.storage.engine.repository import Repository, equal, new_values, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import reference, root, strings, table

openwebui_items = table(
    "openwebui_items",
    *root(),
    *strings("user_id", null=False),
    reference("remote_id", "memory_remotes"),
    *strings("kind", "name", null=False),
    *strings("there_id", null=False),
    *strings("seen", "digest", null=False),
    Column("content", LargeBinary, nullable=False),
    UniqueConstraint("remote_id", "kind", "name"),
    erasure="delete",
)
Kind = Literal["file", "note", "waiting"]


@dataclass(frozen=True, slots=True)
class SyncedItem:
    """A synced file or note without its content.

    The `kind` "waiting" is the note that shows the waiting proposals; its content here is empty.
    `name` is the path of a file, the label of a note's block, or the title of the waiting note.
    `there_id` is its id in Open WebUI, and `seen` names the state in Open WebUI that had this
    content; "" means that the item has to be synced again. If Open WebUI refused the item,
    `there_id` is "" and `seen` is the reason. `digest` is the content's SHA-256 in hex.
    """

    id: str
    organization_id: str
    user_id: str
    remote_id: str
    kind: Kind
    name: str
    there_id: str = ""
    seen: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ClientChat:
    """A conversation that stores a client's chat.

    `name` is the id that the client gives the chat.
    """

    conversation_id: str
    name: str
    description: str | None


_PREFIX = chat_summary("")
_ITEMS = Repository(SyncedItem, openwebui_items)
_OF_REMOTE = _ITEMS.select.where(equal(openwebui_items, "remote_id", "kind"))
_INSERT = insert(openwebui_items)
_this = openwebui_items.c.id == bindparam("this_id")
_CHANGE = setter(openwebui_items, "there_id", "seen", "digest", "content", where=_this)
_CONTENT = select(openwebui_items.c.content).where(_this)
_DELETE = delete(openwebui_items).where(_this)


def of_remote(tx: Transaction, remote_id: str, kind: Kind) -> Sequence[SyncedItem]:
    """Return the items of this kind, sorted by name.

    Args:
        tx: The transaction.
        remote_id: The remote, which is one user's account at Open WebUI.
        kind: The kind of the items.
    """
    return sorted(
        _ITEMS.all(tx, _OF_REMOTE, {"remote_id": remote_id, "kind": kind}),
        key=lambda item: item.name,
    )


def client_chats(tx: Transaction, user_id: str) -> list[ClientChat]:
    """Return the user's conversations that keep chats of clients.

    Args:
        tx: The transaction.
        user_id: The user of the conversations.
    """
    return [
        ClientChat(id, summary.removeprefix(_PREFIX), description)
        for id, summary, description in conversations.with_summary_like(tx, user_id, _PREFIX)
    ]


def content(tx: Transaction, item: SyncedItem) -> bytes:
    """Return the content that both sides had; empty if the item was removed meanwhile.

    Args:
        tx: The transaction.
        item: The stored item.
    """
    row = tx.first(_CONTENT, {"this_id": item.id})
    return b"" if row is None else bytes(row.content)


def put(tx: Transaction, item: SyncedItem, content: bytes) -> None:
    """Store an item and its content; an item with an empty id is new.

    Args:
        tx: The transaction.
        item: The item; its digest is computed here.
        content: The content as both sides now have it.
    """
    item = replace(item, digest=digest_of(content))
    columns = {
        "there_id": item.there_id,
        "seen": item.seen,
        "digest": item.digest,
        "content": content,
    }
    if item.id:
        tx.run(_CHANGE, {**new_values(columns), "this_id": item.id})
    else:
        tx.run(_INSERT, {**_ITEMS.values(replace(item, id=new_id("owuitem"))), **columns})


def remove(tx: Transaction, item: SyncedItem) -> None:
    """Delete an item with its content here; the content on both sides stays.

    Args:
        tx: The transaction.
        item: A stored item.
    """
    tx.run(_DELETE, {"this_id": item.id})
