"""The folders of an agent, and the files that it has open, over HTTP.

Folders were called sources before, and routes with that name remain.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from ricordo.api.call import Paged, RequestContext, whole_agent
from ricordo.api.models.agents import AgentResponse
from ricordo.api.routing import Routes, needs
from ricordo.domain.text import Json
from ricordo.features.files.folders import queries, service, windows
from ricordo.features.files.folders.models import (
    AgentFileResponse,
    AgentFilesResponse,
    FolderResponse,
)
from ricordo.features.files.folders.records import AgentFile, File
from ricordo.features.files.folders.routes import folder_json
from ricordo.features.files.folders.windows import View
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

_WRITES = needs("agents:write", "memory:write")


def list_folders(
    tx: Transaction, context: RequestContext, agent_id: str, paging: Paged
) -> list[Json]:
    """List the folders of the agent."""
    agents.require(tx, context.scope, agent_id)
    folders = queries.page_of_agents_folders(tx, context.scope, agent_id, paging.page(default=100))
    return [folder_json(context, folder) for folder in folders]


def attach(tx: Transaction, context: RequestContext, agent_id: str, folder_id: str) -> Json:
    """Attach a folder to the agent, with the tools that read it.

    Repeating it has no effect.
    """
    service.attach_folders(tx, context.scope, agent_id, [folder_id])
    return whole_agent(tx, context, agent_id)


def detach(tx: Transaction, context: RequestContext, agent_id: str, folder_id: str) -> Json:
    """Detach a folder from the agent.

    Detaching the last folder also detaches the tools that read files.
    """
    service.detach_folder(tx, context.scope, agent_id, folder_id)
    return whole_agent(tx, context, agent_id)


def _folders(name: str) -> Routes:
    routes = Routes(prefix=f"/v1/agents/{{agent_id}}/{name}", tags=["agents"], scope="agents")
    routes.get("", response_model=list[FolderResponse])(list_folders)
    routes.patch("/attach/{folder_id}", response_model=AgentResponse)(_WRITES(attach))
    routes.patch("/detach/{folder_id}", response_model=AgentResponse)(_WRITES(detach))
    return routes


router = _folders("folders")
router.routes += _folders("sources").routes
_files = Routes(prefix="/v1/agents/{agent_id}/files", tags=["agents"], scope="agents")


@_files.get("", response_model=AgentFilesResponse)
def list_files(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    paging: Paged,
    is_open: Annotated[
        bool | None, Query(description="Only open files, or only closed ones.")
    ] = None,
    cursor: Annotated[str | None, Query(description="The older name of `after`.")] = None,
) -> Json:
    """List the readable files of the agent's folders, by default most recently used first.

    Each entry shows whether the file is open, and its visible text. Each user has separate open
    files: with a user's key the list is for turns with this user, otherwise for turns without a
    user. If there are more files, `next_cursor` is the `after` of the next request, or its `before`
    if this request has only `before`.
    """
    view = _view(tx, context, agent_id)
    page = paging.page(default=20)
    listed = [
        (window, file)
        for window, file in windows.all_windows(tx, view)
        if is_open in (None, window.is_open)
    ]
    if page.order != "asc":
        listed.reverse()
    ids = [window.id for window, _ in listed]
    after = page.after or cursor
    if any(mark and mark not in ids for mark in (after, page.before)):
        ids = []  # as in other lists, nothing follows an unknown id
    begin = ids.index(after) + 1 if after in ids else 0
    end = ids.index(page.before) if page.before in ids else len(ids)
    goes_back = bool(page.before) and not after
    if goes_back:
        begin = max(begin, end - page.limit)
    selected = listed[begin : min(end, begin + page.limit)]
    if goes_back:
        has_more = begin > 0
    else:
        has_more = begin + len(selected) < end
    if has_more and selected:
        next_cursor = selected[0 if goes_back else -1][0].id
    else:
        next_cursor = None
    limit = view.agent.file_char_limit
    beginnings = windows.beginnings_of(tx, ((window, limit) for window, _ in selected))
    return AgentFilesResponse.of(
        None,
        files=[_json(tx, view, window, file, beginnings=beginnings) for window, file in selected],
        next_cursor=next_cursor,
        has_more=has_more,
    )


@_files.patch("/close-all", response_model=list[str])
@_WRITES
def close_all(tx: Transaction, context: RequestContext, agent_id: str) -> list[str]:
    """Close every open file, and return their names."""
    view = _view(tx, context, agent_id)
    return [view.path_of(file) for file in windows.close_windows(tx, view)]


@_files.patch("/{file_id}/open", response_model=list[str])
@_WRITES
def open_file(tx: Transaction, context: RequestContext, agent_id: str, file_id: str) -> list[str]:
    """Open a file of the agent's folders.

    Returns the names of the files that were closed to make room.
    """
    view = _view(tx, context, agent_id)
    _, closed = windows.open_windows(tx, view, [(_file(tx, context, view, file_id), None, None)])
    return [view.path_of(file) for file in closed]


@_files.patch("/{file_id}/close", response_model=Json)
@_WRITES
def close_file(tx: Transaction, context: RequestContext, agent_id: str, file_id: str) -> Json:
    """Close a file; closing a closed file changes nothing."""
    view = _view(tx, context, agent_id)
    windows.close_windows(tx, view, _file(tx, context, view, file_id).id)
    return {}


def _view(tx: Transaction, context: RequestContext, agent_id: str) -> View:
    return windows.view_of(
        tx, agents.load(tx, context.scope, agent_id).agent, context.scope.subject
    )


def _file(tx: Transaction, context: RequestContext, view: View, file_id: str) -> File:
    file = queries.get_file(tx, context.scope, file_id)
    return windows.require_readable(view, file)


def _json(
    tx: Transaction, view: View, window: AgentFile, file: File, *, beginnings: Mapping[str, str]
) -> Json:
    folder = next(folder for folder in view.folders if folder.id == file.folder_id)
    text = None
    if window.is_open:
        limit = view.agent.file_char_limit
        text = windows.render_window(tx, file, window, limit, beginnings.get(file.id))
    return AgentFileResponse.of(
        window,
        file_name=view.path_of(file),
        folder_id=folder.id,
        folder_name=folder.name,
        visible_content=text,
        start_line=None if window.start_line is None else window.start_line + 1,
    )


router.routes += _files.routes
