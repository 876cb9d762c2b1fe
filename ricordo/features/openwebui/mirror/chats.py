"""Mark chats that were deleted in Open WebUI, or delete them if a setting says so."""

import re
from collections.abc import Mapping

from ricordo.agents.conversations import stop_and_delete
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope, User
from ricordo.errors import Invalid, NotFound
from ricordo.features.openwebui.mirror import queries
from ricordo.features.openwebui.mirror.options import OpenWebUISettings
from ricordo.features.openwebui.mirror.sessions import OpenWebUI
from ricordo.runtime import Runtime
from ricordo.storage import conversations, jobs
from ricordo.storage.conversations import GONE_THERE
from ricordo.storage.engine.store import Store, Transaction

_DELETE = "openwebui.delete_chats"
# Ids of Open WebUI's chats; other programs' names for chats have another form.
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def sync_chats(store: Store, client: OpenWebUI, user: User, reader: str) -> None:
    """Mark the user's conversations whose chat was deleted in Open WebUI.

    The mark is removed again if the chat exists. Nothing changes if Open WebUI hides the chats of
    users from administrators. A setting can also have the marked conversations deleted by a job.

    Args:
        store: The store with the conversations.
        client: The connection to Open WebUI.
        user: The user whose chats are compared.
        reader: The user's id in Open WebUI.

    Raises:
        Unavailable: if Open WebUI does not answer.
    """
    conversations_by_chat = await store.read(lambda tx: _chats(tx, user))
    if not conversations_by_chat:
        return
    try:
        present = await client.chat_ids(reader)
        # The list may skip a chat if others are deleted meanwhile, so each missing chat is looked
        # up separately.
        deleted_ids = {
            id for id in conversations_by_chat.keys() - present if not await client.has_chat(id)
        }
    except Invalid:
        return
    marks = {
        conversation_id: GONE_THERE if chat_id in deleted_ids else None
        for chat_id, rows in conversations_by_chat.items()
        for conversation_id, mark in rows.items()
        if (mark == GONE_THERE) != (chat_id in deleted_ids) and mark in (None, "", GONE_THERE)
    }

    def write(tx: Transaction) -> None:
        for conversation_id, mark in marks.items():
            conversations.change(tx, conversation_id, description=mark)
        if deleted_ids and OpenWebUISettings.current().openwebui_deleted_chats == "delete":
            payload = {"user_id": user.id}
            key = f"{_DELETE}:{user.id}"
            jobs.add(tx, Job(_DELETE, user.organization_id, payload, key=key, is_single=True))

    if deleted_ids or marks:
        await store.write(write)


def _chats(tx: Transaction, user: User) -> Mapping[str, Mapping[str, str | None]]:
    """Return the user's conversations with their descriptions, by the ids of their chats."""
    chats: dict[str, dict[str, str | None]] = {}
    for chat in queries.client_chats(tx, user.id):
        if _ID.fullmatch(chat.name):
            chats.setdefault(chat.name, {})[chat.conversation_id] = chat.description
    return chats


async def _delete_gone(runtime: Runtime, job: Job, _report: Report) -> None:
    """Delete the user's conversations whose chat was deleted in Open WebUI."""
    user_id = job.payload["user_id"]
    chats = await runtime.store.read(lambda tx: queries.client_chats(tx, user_id))
    for chat in chats:
        if chat.description == GONE_THERE:
            try:
                await stop_and_delete(runtime, Scope(job.organization_id), chat.conversation_id)
            except NotFound:
                continue


DELETE_GONE = JobHandler(_DELETE, _delete_gone)
