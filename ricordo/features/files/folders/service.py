"""Create, change and delete folders and files, and attach folders to agents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from ricordo.domain.agent import Agent
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.domain.text import normal_name
from ricordo.errors import Conflict, Forbidden, Invalid
from ricordo.features.files.folders import queries
from ricordo.features.files.folders.ingestion import add_ingestion, delete_file
from ricordo.features.files.folders.records import File, Folder
from ricordo.features.files.folders.texts import type_of
from ricordo.runtime import Runtime
from ricordo.storage import agents, archives, deletion, jobs, tools
from ricordo.storage.archives import FOLDER
from ricordo.storage.engine.store import Transaction

Duplicates = Literal["skip", "error", "suffix", "replace"]
TOOLS = ("open_files", "grep_files", "semantic_search_files")
MARK = "has_folders"  # in the settings of an agent with folders
DETACH = "files.detach_folder"
DETACHED_AT_ONCE = 50  # agents
# Attempts of the job that detaches a folder. The limit is high, since a killed attempt may have
# detached many agents.
_ATTEMPTS = 100
_LONGEST_NAME = 255
_PART = 1024 * 1024  # bytes of one row of an upload


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded file.

    `duplicates` is the treatment of a name that the folder already has.
    """

    name: str
    data: bytes
    duplicates: Duplicates = "suffix"
    id: str | None = None


def require_may_write(scope: Scope, user_id: str | None) -> None:
    """Raise Forbidden unless the caller may change this user's folders.

    Args:
        scope: The caller.
        user_id: The owner of the folders; None for those of the organization.
    """
    scope.require_owns(user_id)
    if user_id is None and not scope.may("archives:write"):
        raise Forbidden(
            "Your key lacks the scope archives:write, so it can only create and change its user's "
            "folders."
        )


def create_folder(tx: Transaction, scope: Scope, folder: Folder) -> Folder:
    """Store a new folder with its archive.

    Args:
        tx: The transaction.
        scope: The caller.
        folder: The folder. If its id is "", it gets one; its archive and times are set here.

    Raises:
        Forbidden: if the caller may not create folders of this owner.
        Conflict: if the owner has a folder of this name.
    """
    require_may_write(scope, folder.user_id)
    id = folder.id or new_id(FOLDER.rstrip("-"))
    now = tx.clock.now()
    created = replace(
        folder,
        id=id,
        archive_id=id,
        created_by=scope.user_id,
        updated_by=scope.user_id,
        created_at=now,
        updated_at=now,
    )
    _require_free(tx, scope, created)
    archives.insert_one(
        tx,
        Archive(
            id,
            created.organization_id,
            id,
            embedding=created.embedding,
            created_at=now,
            updated_at=now,
        ),
    )
    queries.insert_folder(tx, created)
    return created


def make_folder_for(tx: Transaction, scope: Scope, agent: Agent) -> None:
    """Create an empty folder for the agent and attach it.

    Args:
        tx: The transaction.
        scope: The caller, whose user owns the folder.
        agent: The stored agent, after which the folder is named.

    Raises:
        Forbidden: The caller may not create or attach such a folder.
        NotFound: The caller does not see the agent.
    """
    name = f"{agent.name[:200]} External Data Source"
    number = 1
    free_name = name
    while queries.find_folder(tx, scope.organization_id, free_name, scope.subject):
        number += 1
        free_name = f"{name} ({number})"
    folder = Folder(
        "", scope.organization_id, "", free_name, embedding=agent.embedding, user_id=scope.subject
    )
    attach_folders(tx, scope, agent.id, [create_folder(tx, scope, folder).id])


def update_folder(tx: Transaction, scope: Scope, folder: Folder) -> Folder:
    """Store a changed folder.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the author of the change.
        folder: The stored folder with its changes. Its name, description, instructions and metadata
            are all written.

    Raises:
        Forbidden: The caller may not change the folder.
        Conflict: The owner has another folder of this name.
    """
    require_may_write(scope, folder.user_id)
    _require_free(tx, scope, folder)
    changed = replace(folder, updated_by=scope.user_id, updated_at=tx.clock.now())
    queries.update_folder(tx, changed)
    return changed


def delete_folder(tx: Transaction, scope: Scope, folder_id: str) -> None:
    """Detach the folder from its agents and hide it at once.

    If more than `DETACHED_AT_ONCE` agents have it, a job detaches the others. When no agent has it,
    a job purges its contents.

    Args:
        tx: The transaction.
        scope: The caller.
        folder_id: The folder.

    Raises:
        NotFound: if the caller does not see the folder.
        Forbidden: if the caller may not delete it.
    """
    folder = queries.get_folder_for_change(tx, scope, folder_id)
    require_may_write(scope, folder.user_id)
    is_detached = _detach_some(tx, folder.organization_id, folder_id)
    queries.hide_files(tx, queries.ids_of_files(tx, folder_id))
    deletion.hide(tx, "archive", [folder.archive_id])
    queries.hide_folder(tx, folder_id, deletion.DELETED)
    if is_detached:
        deletion.add_job(tx, folder.organization_id, "archive", folder.archive_id)
    else:
        payload = {"folder_id": folder_id, "archive_id": folder.archive_id}
        job = Job(DETACH, folder.organization_id, payload, key=folder_id, most_attempts=_ATTEMPTS)
        jobs.add(tx, job)


async def detach_from_agents(runtime: Runtime, job: Job, report: Report) -> None:
    """Detach a deleted folder from its agents in portions, and add the job that purges it.

    Args:
        runtime: The running server.
        job: A job of the kind DETACH. Its payload names the folder and its archive.
        report: Gets the number of portions.
    """
    folder_id = job.payload["folder_id"]
    organization_id = job.organization_id

    def detach(tx: Transaction) -> bool:
        is_detached = _detach_some(tx, organization_id, folder_id)
        if is_detached:
            deletion.add_job(tx, organization_id, "archive", job.payload["archive_id"])
        return is_detached

    count = 1
    while not await runtime.store.write(detach):
        report(count, count)
        count += 1


def add_file(tx: Transaction, scope: Scope, folder_id: str, upload: Upload) -> File:
    """Store an upload, and add the job that ingests it.

    Args:
        tx: The transaction.
        scope: The caller.
        folder_id: The folder.
        upload: The file. Its name may be a path, of which the last part counts.

    Returns:
        The new file; with `duplicates` "skip", an existing file of this name.

    Raises:
        NotFound: if the caller does not see the folder.
        Forbidden: if the caller may not change it.
        Invalid: if the upload has no name, or a name that is too long.
        Conflict: if the name is taken and `duplicates` is "error".
    """
    folder = queries.get_folder_for_change(tx, scope, folder_id)
    require_may_write(scope, folder.user_id)
    name = name_of(upload.name)
    if (existing := queries.find_by_name(tx, folder_id, name)) is not None:
        if upload.duplicates == "skip":
            return existing
        if upload.duplicates == "error":
            raise Conflict(
                f'The folder "{folder.name}" already has a file named "{name}". Rename yours, or '
                "replace that one."
            )
        if upload.duplicates == "replace":
            delete_file(tx, existing)
    now = tx.clock.now()
    file = File(
        id=upload.id or new_id("file"),
        organization_id=folder.organization_id,
        folder_id=folder_id,
        name=_free_name(tx, folder_id, name),
        original_name=name,
        type=type_of(name),
        size=len(upload.data),
        status="parsing",
        user_id=folder.user_id,
        created_by=scope.user_id,
        created_at=now,
        updated_at=now,
    )
    queries.insert_file(tx, file)
    starts = range(0, max(len(upload.data), 1), _PART)
    parts = [upload.data[start : start + _PART] for start in starts]
    queries.insert_upload(tx, file.id, parts)
    add_ingestion(tx, file)
    return file


def remove_file(tx: Transaction, scope: Scope, folder_id: str, file_id: str) -> None:
    """Delete a file; agents lose it at once.

    Args:
        tx: The transaction.
        scope: The caller.
        folder_id: The folder that must contain the file.
        file_id: The file.

    Raises:
        NotFound: The caller does not see such a file in this folder.
        Forbidden: The caller may not change files of the file's owner.
    """
    file = queries.get_file(tx, scope, file_id, folder_id)
    require_may_write(scope, file.user_id)
    delete_file(tx, file)


def attach_folders(tx: Transaction, scope: Scope, agent_id: str, folder_ids: Sequence[str]) -> None:
    """Attach these folders to the agent, with the tools that read them.

    Folders that are attached already stay attached.

    Args:
        tx: The transaction.
        scope: The caller; without `agents:write`, only folders of the caller's user can be
            attached.
        agent_id: The agent.
        folder_ids: The folders, in any number; repeated ids have no effect.

    Raises:
        NotFound: if the caller does not see the agent or a folder.
        Forbidden: if the caller may not attach a folder.
    """
    agents.lock(tx, scope, agent_id)
    state = agents.load(tx, scope, agent_id)
    for folder_id in dict.fromkeys(folder_ids):
        _require_may_attach(scope, queries.get_folder(tx, scope, folder_id))
        queries.attach_folder(tx, agent_id, folder_id)
    if folder_ids and not state.agent.settings.get(MARK):
        agents.update(tx, replace(state.agent, settings={**state.agent.settings, MARK: True}))
        missing = [name for name in TOOLS if name not in {tool.name for tool in state.tools}]
        offered = tools.by_names(tx, Scope(state.agent.organization_id), missing)
        tools.attach(tx, agent_id, [tool.id for tool in offered.values()])


def set_folders(tx: Transaction, scope: Scope, agent_id: str, folder_ids: Sequence[str]) -> None:
    """Attach these folders to the agent, and detach the others that the caller sees.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent.
        folder_ids: All folders that remain or become attached.

    Raises:
        NotFound, Forbidden: as `attach_folders` does, also for the folders to detach.
    """
    agents.require(tx, scope, agent_id)
    for folder in queries.folders_of_agent(tx, scope, agent_id):
        if folder.id not in folder_ids:
            detach_folder(tx, scope, agent_id, folder.id)
    attach_folders(tx, scope, agent_id, folder_ids)


def detach_folder(tx: Transaction, scope: Scope, agent_id: str, folder_id: str) -> None:
    """Detach the folder from the agent; nothing changes if it is not attached.

    With the agent's last folder, the tools that read files are detached too.

    Args:
        tx: The transaction.
        scope: The caller; without `agents:write`, only folders of the caller's user can be
            detached.
        agent_id: The agent.
        folder_id: The folder.

    Raises:
        NotFound: if the caller does not see the agent or the folder.
        Forbidden: if the caller may not detach it.
    """
    agents.require(tx, scope, agent_id)
    _require_may_attach(scope, queries.get_folder(tx, scope, folder_id))
    _detach(tx, scope.organization_id, agent_id, folder_id)


def _detach_some(tx: Transaction, organization_id: str, folder_id: str) -> bool:
    """Detach the folder from a portion of its agents; return True if no agent is left."""
    agent_ids = queries.agents_of(tx, folder_id, organization_id, DETACHED_AT_ONCE + 1)
    for agent_id in agent_ids[:DETACHED_AT_ONCE]:
        _detach(tx, organization_id, agent_id, folder_id)
    return len(agent_ids) <= DETACHED_AT_ONCE


def _detach(tx: Transaction, organization_id: str, agent_id: str, folder_id: str) -> None:
    everything = Scope(organization_id)
    agents.lock(tx, everything, agent_id)
    was_attached = queries.detach_folder(tx, agent_id, folder_id)
    if not was_attached or queries.folders_of_agent(tx, everything, agent_id):
        return
    state = agents.load(tx, everything, agent_id)
    settings = {key: setting for key, setting in state.agent.settings.items() if key != MARK}
    agents.update(tx, replace(state.agent, settings=settings))
    for tool in state.tools:
        if tool.name in TOOLS and tool.tool_type == "letta_files_core":
            tools.detach(tx, agent_id, tool.id)


def _require_may_attach(scope: Scope, folder: Folder) -> None:
    if not scope.may("agents:write") and (
        folder.user_id is None or folder.user_id != scope.subject
    ):
        raise Forbidden(
            "Your key lacks the scope agents:write, so it can only attach and detach its user's "
            "folders."
        )


def name_of(name: str) -> str:
    """Return the last part of a path as a printable name.

    Args:
        name: The path or name that a client sent, with slashes or backslashes.

    Raises:
        Invalid: Nothing is left, or the name has more than 255 characters.
    """
    last = PurePosixPath(normal_name(name).replace("\\", "/").replace("\0", "")).name
    last = "".join(sign if sign.isprintable() else "_" for sign in last).strip()
    if not last or last in (".", ".."):
        raise Invalid("The file has no name. Send one, such as notes.md.")
    if len(last) > _LONGEST_NAME:
        raise Invalid(
            f"The name of the file has {len(last)} characters, and {_LONGEST_NAME} are allowed. "
            "Shorten it."
        )
    return last


def _free_name(tx: Transaction, folder_id: str, name: str) -> str:
    path = PurePosixPath(name)
    existing_names = queries.names_in(tx, folder_id, path.stem)
    number = 0
    free_name = name
    while free_name in existing_names:
        number += 1
        free_name = f"{path.stem}_({number}){path.suffix}"
    return free_name


def _require_free(tx: Transaction, scope: Scope, folder: Folder) -> None:
    """Raise Conflict if another folder of the same owner has this name."""
    other = queries.find_folder(tx, scope.organization_id, folder.name, folder.user_id)
    if other is not None and other.id != folder.id:
        raise Conflict(f'A folder named "{folder.name}" already exists. Choose another name.')


HANDLERS = (JobHandler(DETACH, detach_from_agents),)
