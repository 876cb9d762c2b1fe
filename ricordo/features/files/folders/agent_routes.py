"""The folders of an agent, and the files that it has open, over HTTP. The older name of a folder is
source.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from ricordo.api.call import Paged, RequestContext, whole_agent
from ricordo.api.models.agents import AgentResponse
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes, needs
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
    """The folders of the agent."""
    agents.require(tx, context.scope, agent_id)
    found = queries.page_of_agents_folders(tx, context.scope, agent_id, paging.page(default=100))
    return [folder_json(context, one) for one in found]


def attach(tx: Transaction, context: RequestContext, agent_id: str, folder_id: str) -> Json:
    """Give a folder to the agent, with the tools that read it; doing it twice is the same as once."""
    service.attach_folders(tx, context.scope, agent_id, [folder_id])
    return whole_agent(tx, context, agent_id)


def detach(tx: Transaction, context: RequestContext, agent_id: str, folder_id: str) -> Json:
    """Take a folder from the agent; with the last one go the tools that read files."""
    service.detach_folder(tx, context.scope, agent_id, folder_id)
    return whole_agent(tx, context, agent_id)


def _folders(name: str) -> Routes:
    made = Routes(prefix=f"/v1/agents/{{agent_id}}/{name}", tags=["agents"], scope="agents")
    made.get("", response_model=list[FolderResponse])(list_folders)
    made.patch("/attach/{folder_id}", response_model=AgentResponse)(_WRITES(attach))
    made.patch("/detach/{folder_id}", response_model=AgentResponse)(_WRITES(detach))
    return made


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
        bool | None, Query(description="Only files that are open, or that are closed.")
    ] = None,
    cursor: Annotated[str | None, Query(description="The older name of `after`.")] = None,
) -> Json:
    """The files of the agent's folders that can be read, the last looked at first; which are open,
    and what of them is seen.

    In turns with nobody or, for a user's key, with this user.
    """
    view = _view(tx, context, agent_id)
    page = paging.page(default=20)
    found = [one for one in windows.all_windows(tx, view) if is_open in (None, one[0].is_open)]
    found = found if page.order == "asc" else found[::-1]
    ids = [window.id for window, _ in found]
    begin = ids.index(after) + 1 if (after := page.after or cursor) in ids else 0
    end = ids.index(page.before) if page.before in ids else len(ids)
    begin = max(begin, end - page.limit) if page.before and not after else begin
    some = found[begin : min(end, begin + page.limit)]
    has_more = begin + len(some) < end
    limit = view.agent.file_char_limit
    beginnings = windows.beginnings_of(tx, ((window, limit) for window, _ in some))
    return AgentFilesResponse.of(
        None,
        files=[_json(tx, view, *one, beginnings) for one in some],
        next_cursor=some[-1][0].id if some and has_more else None,
        has_more=has_more,
    )


@_files.patch("/close-all", response_model=list[str])
@_WRITES
def close_all(tx: Transaction, context: RequestContext, agent_id: str) -> list[str]:
    """Close every open file; the answer has their names."""
    view = _view(tx, context, agent_id)
    return [view.path_of(file) for file in windows.close_windows(tx, view)]


@_files.patch("/{file_id}/open", response_model=list[str])
@_WRITES
def open_file(tx: Transaction, context: RequestContext, agent_id: str, file_id: str) -> list[str]:
    """Open a file of the agent's folders; the answer has the names of those that were closed for
    it.
    """
    view = _view(tx, context, agent_id)
    _, closed = windows.open_windows(tx, view, [(_file(tx, context, view, file_id), None, None)])
    return [view.path_of(file) for file in closed]


@_files.patch("/{file_id}/close", response_model=Json)
@_WRITES
def close_file(tx: Transaction, context: RequestContext, agent_id: str, file_id: str) -> Json:
    """Close a file; one that is closed already stays so."""
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
    tx: Transaction, view: View, window: AgentFile, file: File, beginnings: Mapping[str, str]
) -> Json:
    folder = next(one for one in view.folders if one.id == file.folder_id)
    limit = view.agent.file_char_limit
    text = (
        windows.shown(tx, file, window, limit, beginnings.get(file.id)) if window.is_open else None
    )
    return AgentFileResponse.of(
        window,
        file_name=view.path_of(file),
        folder_id=folder.id,
        folder_name=folder.name,
        visible_content=text,
        start_line=None if window.start_line is None else window.start_line + 1,
    )


router.routes += _files.routes
