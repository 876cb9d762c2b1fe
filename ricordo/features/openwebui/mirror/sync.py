"""Open WebUI as a remote: notes for blocks, knowledge bases for workspaces.

The Open WebUI server of RICORDO_OPENWEBUI_URL is a remote of each of its users. The identifier of
these users is `open-webui:` followed by their id in Open WebUI.
"""

from dataclasses import replace

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User
from ricordo.errors import Invalid
from ricordo.features.memory_care.erasure.service import forgotten_names
from ricordo.features.openai.caller import PREFIX
from ricordo.features.openwebui.mirror.chats import sync_chats
from ricordo.features.openwebui.mirror.files import FileSync, refusals
from ricordo.features.openwebui.mirror.notes import NoteSync
from ricordo.features.openwebui.mirror.options import OpenWebUISettings
from ricordo.features.openwebui.mirror.sessions import OpenWebUI, connected
from ricordo.features.openwebui.mirror.waiting import sync_waiting
from ricordo.features.sync.remotes.service import RemoteMoved, add_for_all, owner_of, until_settled
from ricordo.runtime import Runtime
from ricordo.settings import Settings
from ricordo.storage import remotes
from ricordo.storage.engine.store import Store, Transaction

KIND = "openwebui"
_MAX_PROBLEMS = 20


class OpenWebUIRemotes:
    """Remotes of the kind `openwebui`."""

    kind = KIND
    is_shared = True  # each of its notes and knowledge bases belongs to one user

    def read(self, access: Access, settings: Settings) -> Access:  # noqa: ARG002 - the protocol's
        """Return the address that the settings name.

        Args:
            access: The address to check. Its other fields must be empty.
            settings: Not used; the feature has its settings elsewhere.

        Raises:
            Invalid: for any other address.
        """
        url = OpenWebUISettings().openwebui_url
        has_more = access.password or access.username or access.options
        if url is None or access.address.rstrip("/") != url.rstrip("/") or has_more:
            raise Invalid(
                "A remote of this kind must have the address in RICORDO_OPENWEBUI_URL, and no "
                "other fields."
            )
        return Access(url.rstrip("/"))

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Sync the memory with the notes, and the workspace with the knowledge base.

        Args:
            store: The store, which checks the lease of the sync's job at each write.
            remote: The remote. Its `seen` is the id of the knowledge base; None before the first
                sync.
            access: The address of Open WebUI. The key is read from the settings.
            settings: The settings of the server.

        Returns:
            The remote with its progress. Its `last_error` names files and notes that could not be
            synced.

        Raises:
            Unavailable: if Open WebUI cannot be reached, or changes faster than it can be synced.
            Invalid: if Open WebUI refuses the key, or the user does not come from there.
            NotFound: if the user was erased.
            LeaseLost: if the sync's job was cancelled or taken over.
        """
        address = self.read(access, settings).address
        key = OpenWebUISettings().openwebui_api_key
        user = await store.read(lambda tx: owner_of(tx, remote))
        reader = id_there(user)
        secret = key.get_secret_value() if key else None
        async with connected(address, secret, store) as client:
            return await until_settled(lambda: _attempt(store, client, remote, user, reader))


async def _attempt(
    store: Store, client: OpenWebUI, remote: Remote, user: User, reader: str
) -> Remote:
    """Sync once. Raises RemoteMoved if something changed in Open WebUI meanwhile."""
    remote = await store.read(lambda tx: remotes.get(tx, Scope(user.organization_id), remote.id))
    if remote.seen is None:
        marker = f"[ricordo:{user.id}]"
        name = f"Workspace of {user.name or user.identifier or user.id}"[:100]
        remote = replace(remote, seen=await client.knowledge_base(marker, name, reader))
        await store.write(lambda tx: remotes.note(tx, remote))
    files = FileSync(store, client, remote, user.id)
    if not await files.run(remote.seen or ""):
        without_base = replace(remote, seen=None)

        def forget(tx: Transaction) -> None:
            files.forget(tx)
            remotes.note(tx, without_base)

        await store.write(forget)
        raise RemoteMoved
    notes = NoteSync(store, client, remote, user, reader)
    await notes.run()
    await sync_waiting(store, client, remote, user, reader)
    await sync_chats(store, client, user, reader)
    refused_files = await store.read(lambda tx: refusals(tx, remote))
    problems = [*files.problems, *notes.problems, *refused_files][:_MAX_PROBLEMS]
    return replace(remote, last_error=" ".join(problems) or None)


def id_there(user: User) -> str:
    """Return the user's id in Open WebUI. Raises Invalid."""
    name = user.identifier or ""
    if not name.startswith(PREFIX) or "@" in name:
        raise Invalid(
            "This user does not come from Open WebUI. Users of Open WebUI have names that begin "
            f'with "{PREFIX}".'
        )
    return name.removeprefix(PREFIX)


async def _add_missing(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Add Open WebUI as a remote for each of its users that does not have it.

    Erased users are left out.
    """
    url = OpenWebUISettings().openwebui_url
    if url is None:
        return
    is_forgotten = await forgotten_names(runtime)

    def is_left_out(identifier: str) -> bool:
        is_known = identifier.startswith(PREFIX) and "@" not in identifier
        return not is_known or is_forgotten(LOCAL_ORGANIZATION, identifier)

    kind = runtime.remotes[KIND]
    await add_for_all(runtime, kind, LOCAL_ORGANIZATION, Access(url), is_left_out)


ALL_USERS = JobHandler("openwebui_of_all_users", _add_missing, every_seconds=60.0)


REMOTES = OpenWebUIRemotes()
