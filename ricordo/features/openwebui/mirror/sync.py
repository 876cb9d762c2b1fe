"""Open WebUI as a remote of its users' memory: their blocks are notes there, and their workspaces knowledge bases.

The one server that RICORDO_OPENWEBUI_URL names is a remote of each user whom it brought here: they are called `open-webui:` and
their id there.
"""

from dataclasses import replace

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User
from ricordo.errors import Invalid
from ricordo.features.memory_care.erasure.service import forgotten_names
from ricordo.features.openai.caller import PREFIX
from ricordo.features.openwebui.mirror.files import FileSync, refusals
from ricordo.features.openwebui.mirror.notes import NoteSync
from ricordo.features.openwebui.mirror.options import OpenWebUISettings
from ricordo.features.openwebui.mirror.sessions import OpenWebUI, connected
from ricordo.features.sync.remotes import queries as remotes
from ricordo.features.sync.remotes.service import RemoteMoved, add_for_all, owner_of, until_settled
from ricordo.runtime import Runtime
from ricordo.settings import Settings
from ricordo.storage.engine.store import Store, Transaction

KIND = "openwebui"
_MOST_PROBLEMS = 20


class OpenWebUIRemotes:
    """Remotes of the kind `openwebui`."""

    kind = KIND
    is_shared = True  # its notes and knowledge bases are of one user each

    def read(self, asked: Access, settings: Settings) -> Access:  # noqa: ARG002 - the protocol's
        """Return the address that the settings name; no other is called."""
        url = OpenWebUISettings().openwebui_url
        if (
            url is None
            or asked.address.rstrip("/") != url.rstrip("/")
            or asked.password
            or asked.username
            or asked.options
        ):
            raise Invalid(
                "A remote of this kind is the Open WebUI that RICORDO_OPENWEBUI_URL names. Give its address, and nothing else."
            )
        return Access(url.rstrip("/"))

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Bring the notes, the knowledge base, the memory and the workspace together.

        Raises Unavailable where Open WebUI cannot be reached, Invalid where it refuses the key, or does not know the user.
        """
        address, key = self.read(access, settings).address, OpenWebUISettings().openwebui_api_key
        user = await store.read(lambda tx: owner_of(tx, remote))
        reader = id_there(user)
        async with connected(address, key.get_secret_value() if key else None) as client:
            return await until_settled(lambda: _attempt(store, client, remote, user, reader))


async def _attempt(
    store: Store, client: OpenWebUI, remote: Remote, user: User, reader: str
) -> Remote:
    """Do it once. Raises RemoteMoved where something changed there meanwhile."""
    remote = await store.read(lambda tx: remotes.get(tx, Scope(user.organization_id), remote.id))
    if remote.seen is None:
        marker = f"[ricordo:{user.id}]"
        made = await client.knowledge_base(
            marker, f"Workspace of {user.name or user.identifier or user.id}"[:100], reader
        )
        remote = replace(remote, seen=made)
        await store.write(lambda tx: remotes.note(tx, remote))
    files = FileSync(store, client, remote, user.id)
    if not await files.run(remote.seen or ""):
        gone = replace(remote, seen=None)

        def forget(tx: Transaction) -> None:
            files.forget(tx)
            remotes.note(tx, gone)

        await store.write(forget)
        raise RemoteMoved
    notes = NoteSync(store, client, remote, user, reader)
    await notes.run()
    refused = await store.read(lambda tx: refusals(tx, remote))
    problems = [*files.problems, *notes.problems, *refused][:_MOST_PROBLEMS]
    return replace(remote, last_error=" ".join(problems) or None)


def id_there(user: User) -> str:
    """Return the user's id in Open WebUI. Raises Invalid."""
    name = user.identifier or ""
    if not name.startswith(PREFIX) or "@" in name:
        raise Invalid(
            f'This user is not known from Open WebUI. Those who are have names such as "{PREFIX}" and their id there.'
        )
    return name.removeprefix(PREFIX)


async def _add_missing(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Make Open WebUI a remote of the memory of each of its users that lacks it, but of nobody who was forgotten."""
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
