"""The note "Waiting for you": agents' proposals, for a user who works in Open WebUI.

Edits of the note have no effect. The note is deleted when no proposal waits.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ricordo.domain.hidden_text import with_marks
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Scope, User
from ricordo.domain.version import Proposal
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.features.memory_care.notifications.service import DigestEntry
from ricordo.features.openwebui.mirror import queries
from ricordo.features.openwebui.mirror.queries import SyncedItem
from ricordo.features.openwebui.mirror.sessions import OpenWebUI, grants_of
from ricordo.memory import user_memory
from ricordo.pages.filters import editable_markdown
from ricordo.storage import proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.proposals import ProposalFilter

TITLE = "Waiting for you"
_KIND: queries.Kind = "waiting"
_MOST = 50
_MARK = "waiting"


async def sync_waiting(
    store: Store, client: OpenWebUI, remote: Remote, user: User, reader: str
) -> None:
    """Write, change or remove the note.

    Args:
        store: The store, which checks the lease of the sync's job.
        client: The connection to Open WebUI.
        remote: The remote to which the note belongs.
        user: The owner of the proposals.
        reader: The user's id in Open WebUI.

    Raises:
        Unavailable: if Open WebUI does not answer.
        LeaseLost: if the sync's job was cancelled or taken over.
    """
    text, item = await store.read(lambda tx: (_text(tx, user), _item(tx, remote)))
    note = await client.note(item.there_id) if item else None
    noted = {"user": user.id, "kind": _MARK}
    if text and note is None:  # a sync that was killed may have created it
        note = await client.find_note(TITLE, noted, reader)
    if not text:
        if note:
            await client.remove_note(note.id)
        if item:
            await store.write(partial(queries.remove, item=item))
        return
    if note is None or note.noted.get("text") != text or note.text.strip() != text.strip():
        note = await client.put_note(
            note.id if note else None,
            TITLE,
            content={"json": None, "html": str(editable_markdown(text)), "md": text},
            noted=noted | {"text": text},
            grants=grants_of(reader, is_writable=False),
        )
    base = item or SyncedItem("", user.organization_id, user.id, remote.id, _KIND, TITLE)
    if base.there_id != note.id:
        synced = replace(base, there_id=note.id, seen=note.updated_at)
        await store.write(lambda tx: queries.put(tx, synced, b""))


def _item(tx: Transaction, remote: Remote) -> SyncedItem | None:
    return next(iter(queries.of_remote(tx, remote.id, _KIND)), None)


def _text(tx: Transaction, user: User) -> str:
    """Return the note's text, which is empty if nothing waits for the user."""
    scope = Scope(user.organization_id)
    memory = user_memory.open_memory(tx, scope, user.id)
    waiting = proposals.page(
        tx, scope, Page(limit=_MOST, order="asc"), ProposalFilter(memory.chain.id, waits=True)
    )
    if not waiting:
        return ""
    return "\n".join([*_introduction(user), *_lines(waiting)])


def _introduction(user: User) -> list[str]:
    lines = ["Agents suggest changes of your memory. Nothing changes until you decide."]
    address = NotificationSettings.current().public_url
    if address:
        lines += ["", f"Decide at {address.rstrip('/')}/ui/people/{user.id}"]
    return lines


def _lines(waiting: Sequence[Proposal]) -> list[str]:
    lines: list[str] = []
    for proposal in waiting:
        name = with_marks(proposal.author.shown_name)
        lines += ["", f"## {proposal.label}", "", f"By {name}:", "", "```"]
        lines += [line.replace("```", "'''") for line in DigestEntry(proposal, None).changes]
        lines.append("```")
        if proposal.reasoning:
            lines += ["", f"Why: {' '.join(with_marks(proposal.reasoning).split())}"]
    return lines
