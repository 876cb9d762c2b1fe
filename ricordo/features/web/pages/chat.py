"""The chat with an agent: messages, changes of memory, and visible blocks.

A person who opens an agent's chat gets a personal conversation; a caller without memory gets the
shared one. Any other conversation is opened by its own address. The page says who can read the
conversation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import Request, Response

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.api.routing import needs
from ricordo.domain.ids import new_id
from ricordo.domain.scope import NOBODY, REQUEST_SCOPE, Scope
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import find_block
from ricordo.features.web.pages.memory_text import panel_lines
from ricordo.features.web.pages.queries import RunChanges
from ricordo.features.web.pages.turn_endings import ending_of
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.navigation import own_memory
from ricordo.pages.shell import Pages, address_of, done, form_of, is_part, render, require_id
from ricordo.pages.titles import title_of
from ricordo.storage import (
    agents,
    conversation_overviews,
    conversation_versions,
    conversations,
    memory_overviews,
)
from ricordo.storage import messages as message_rows
from ricordo.storage.conversation_versions import TurnVersions
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/agents/{agent_id}/chat", scope="messages")
_PANEL_CHARACTERS = 4_000  # characters of a block's text in the panel beside the chat
_CONFLICT = 409
_PRECONDITION_FAILED = 412
# Names of the states of a proposal, for the line of its tool call.
_PROPOSAL_WORDS = {"open": "proposed", "conflicted": "proposed", "rejected": "declined"}
_PAGE = 40  # stored messages on a page
_BEFORE = 10  # messages on a page before the message that a link leads to
Json = dict[str, Any]


@dataclass(slots=True)
class ShownTurn:
    """One run on a page: its messages in order, with steps folded.

    The items are (kind, content): "user", "agent", "fold", "approval". `changes` are its changes of
    memory; None if the caller may not see them. `versions` are the conversations that continued
    differently at this turn. `ending` says why the answer is missing or cut off; "" if it is
    complete, or if the turn has not ended.
    """

    run_id: str | None
    items: list[tuple[str, Json]] = field(default_factory=list)
    changes: RunChanges | None = None
    versions: TurnVersions | None = None
    ending: str = ""

    @property
    def question(self) -> str:
        """Return the id of the user's message that the turn answers; empty if there is none."""
        return next((item["id"] for kind, item in self.items if kind == "user"), "")

    @property
    def last_answer(self) -> str:
        return next((item["id"] for kind, item in reversed(self.items) if kind == "agent"), "")


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of a conversation, and the caller's right to write in it.

    `kind` is "own" for a conversation of the caller, "shared" for one without a user, and "other"
    for one of another user, whose name is `name`. `is_chosen` is set if the request names the
    conversation, in its query or its form.
    """

    kind: str
    name: str
    may_write: bool
    is_chosen: bool


@router.get("")
async def show_chat(request: Request, agent_id: str) -> Response:
    """Show the newest part of a conversation.

    `before` or `message` select another part; `edit` puts a message into the input box.
    """
    return await _page(request, agent_id)


@router.get("/part")
async def show_part(request: Request, agent_id: str) -> Response:
    """Show the messages after `after`, which the page appends, and the current memory."""
    api = Api(request)
    query = request.query_params
    conversation = await _conversation(request, agent_id, query.get("conversation"))
    page = {"order": "asc", "after": query.get("after") or None, "limit": _PAGE}
    new_messages = await api.get(f"/v1/conversations/{conversation['id']}/messages", **page)
    agent = await api.get(f"/v1/agents/{agent_id}")
    return await render(
        request,
        "chat_part.html",
        agent=agent,
        conversation=conversation,
        readers=await _readers(request, conversation, is_chosen=bool(query.get("conversation"))),
        turns=await _turns(
            request,
            conversation,
            new_messages,
            before_id=query.get("after") or None,
            is_end=len(new_messages) < _PAGE,
        ),
        lists=await _lists(request, agent_id, conversation),
        blocks=await _blocks(request, agent, conversation),
        run=await _running(api, conversation),
    )


@router.post("")
async def say(request: Request, agent_id: str) -> Response:
    """Send a message and wait for the answer, for a browser without scripts."""
    form = await form_of(request)
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    text = form.get("message", "").strip()
    if not text:
        return done(request, _path(agent_id, conversation), "Write something first.")
    message = {"role": "user", "content": text, "otid": form.get("otid") or new_id("otid")}
    return await _send(request, agent_id, conversation, [message], draft=text)


@router.post("/decide")
async def decide(request: Request, agent_id: str) -> Response:
    """Approve or deny all waiting tool calls."""
    form = await form_of(request)
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    answer = {
        "type": "approval",
        "approve": form.get("decision") == "approve",
        "reason": form.get("reason") or None,
        "approval_request_id": form.get("request") or None,
    }
    return await _send(request, agent_id, conversation, [answer])


@router.post("/stop")
async def stop(request: Request, agent_id: str) -> Response:
    api = Api(request)
    form = await form_of(request)
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    notice = "The turn is being stopped."
    try:
        outcome = await api.ask("POST", f"/v1/conversations/{conversation['id']}/cancel")
    except RefusedByApi as refusal:
        if refusal.status != _CONFLICT:
            raise
        outcome = {}
    if "cancelled" not in outcome.values():
        notice = "The turn had ended already."
    return done(request, _path(agent_id, conversation), notice)


@router.post("/new")
async def begin(request: Request, agent_id: str) -> Response:
    """Begin another conversation with the agent: personal, shared, or with a user."""
    form = await form_of(request)
    body: Json = {}
    scope: Scope = request.scope[REQUEST_SCOPE]
    if user := form.get("user", "").strip():
        body["user_id"] = user
    elif own_memory(scope) and not form.get("shared"):
        body["user_id"] = scope.user_id
    conversation = await Api(request).ask(
        "POST", "/v1/conversations/", body, {"agent_id": agent_id}
    )
    return done(request, _path(agent_id, conversation))


@router.post("/fork")
async def fork(request: Request, agent_id: str) -> Response:
    """Continue from a message in a new conversation.

    With `edit`, it continues from the previous message, as another version of this conversation.
    The input box then contains the message's text.
    """
    form = await form_of(request)
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    message_id = form.get("message") or None
    if not form.get("edit"):
        forked = await _fork(request, conversation, message_id, description=None)
        return done(request, _path(agent_id, forked), "This is a separate conversation now.")
    forked = await _version_before(request, conversation, message_id or "")
    return done(
        request,
        address_of(_path(agent_id, forked), edit=message_id, of=conversation["id"]),
    )


@router.post("/again")
async def answer_again(request: Request, agent_id: str) -> Response:
    """Let the agent answer a message again, in another version of the conversation."""
    form = await form_of(request)
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    message_id = form.get("message", "")
    message = await _message(Api(request), message_id, conversation["id"])
    if message is None:
        return done(request, _path(agent_id, conversation), "This message was deleted.")
    forked = await _version_before(request, conversation, message_id)
    body = {"role": "user", "content": message["content"], "otid": new_id("otid")}
    return await _send(request, agent_id, forked, [body])


@router.get("/versions")
async def show_versions(request: Request, agent_id: str) -> Response:
    """Show the versions of a turn side by side."""
    query = request.query_params
    conversation = await _conversation(request, agent_id, query.get("conversation"))
    api = Api(request)
    home = f"/v1/conversations/{conversation['id']}/messages"
    first_id = query.get("message") or ""
    messages = await _messages(api, home, before=None, around=first_id)
    turns = await _turns(request, conversation, messages)
    turn = next((turn for turn in turns if turn.items[0][1]["id"] == first_id), None)
    columns = []
    for id in turn.versions.ids if turn and turn.versions else [conversation["id"]]:
        other = await api.find(f"/v1/conversations/{id}")
        if other is None:
            continue
        history = await _turn_after(api, id, messages, first_id)
        columns.append({"conversation": other, "turn": next(iter(turns_of(history)), None)})
    return await render(
        request,
        "chat_versions.html",
        agent=await api.get(f"/v1/agents/{agent_id}"),
        conversation=conversation,
        columns=columns,
        is_large=True,
    )


@router.post("/line")
@needs("memory:write", "agents:write")
async def change_line(request: Request, agent_id: str) -> Response:
    """Change one line of a block beside the chat, or delete it, and return the blocks."""
    form = await form_of(request)
    scope: Scope = request.scope[REQUEST_SCOPE]
    block_keys = {"block_id": form.get("block", "")}
    if form.get("user"):
        block_keys = {"user_id": require_id(form["user"], "user"), "label": form.get("label", "")}
    address = await request.app.state.runtime.store.read(
        lambda tx: find_block(tx, scope, block_keys)
    )
    # `find_block` comes first, so that a foreign block is refused before a conversation may begin.
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    old = form.get("old", "")
    lines = address.block.value.split("\n") if address.block else []
    number = int(form["number"]) if form.get("number", "").isdecimal() else -1
    notice = "This line has changed meanwhile. Load the page again."
    if number < len(lines) and lines[number : number + 1] == [old]:
        lines[number : number + 1] = [form["new"]] if form.get("new", "").strip() else []
        notice = await _save_lines(request, address, lines)
    agent = await Api(request).get(f"/v1/agents/{agent_id}")
    return await render(
        request,
        "chat_memory.html",
        blocks=await _blocks(request, agent, conversation),
        words=notice,
    )


async def _save_lines(request: Request, address: Any, lines: Sequence[str]) -> str:
    """Save the block's text, and return the error message; "" for no error."""
    text = "\n".join(lines)
    method, body = "PATCH", {"value": text}
    if address.owner.kind == "user":
        method, body = "PUT", {"body": text}
    try:
        await Api(request).ask(method, address.api, body, if_match=address.version or None)
    except RefusedByApi as error:
        if error.status == _PRECONDITION_FAILED:
            return "This memory changed in the meantime. Load the page again."
        return str(error)
    return ""


@router.post("/change")
async def change(request: Request, agent_id: str) -> Response:
    """Rename the conversation, archive it or delete it."""
    api = Api(request)
    form = await form_of(request)
    conversation = await _conversation(request, agent_id, form.get("conversation"))
    home = f"/v1/conversations/{conversation['id']}"
    if form.get("do") == "delete":
        await api.ask("DELETE", home)
        return done(request, f"/ui/agents/{agent_id}/chat", "The conversation was deleted.")
    body: Json = {"summary": form.get("title", "").strip() or None}
    if form.get("do"):
        body = {"archived": form["do"] == "archive"}
    await api.ask("PATCH", home, body)
    return done(request, _path(agent_id, conversation), "The conversation was changed.")


@router.post("/undo")
@needs("memory:approve", "memory:override")
async def undo(request: Request, agent_id: str) -> Response:
    """Undo a run's changes of a user's memory."""
    api = Api(request)
    form = await form_of(request)
    user_id = require_id(form.get("user", ""), "user")
    run_id = require_id(form.get("run", ""), "run")
    await api.ask("POST", f"/users/{user_id}/runs/{run_id}/undo")
    page = address_of(f"/ui/agents/{agent_id}/chat", conversation=form.get("conversation"))
    return done(request, page, "The memory changes of this turn were undone.")


async def _page(
    request: Request,
    agent_id: str,
    conversation: Json | None = None,
    *,
    status: int = 200,
    problem: str = "",
    draft: str = "",
) -> Response:
    """Return the page of this conversation; None: of the one that the query names."""
    api = Api(request)
    query = request.query_params
    agent = await api.get(f"/v1/agents/{agent_id}")
    is_chosen = conversation is not None or bool(query.get("conversation"))
    if conversation is None:
        conversation = await _conversation(request, agent_id, query.get("conversation"))
    home = f"/v1/conversations/{conversation['id']}/messages"
    messages = await _messages(api, home, before=query.get("before"), around=query.get("message"))
    older = ""
    before_id = None
    if messages:
        first_id = messages[0]["id"]
        if earlier := await api.get(home, before=first_id, order="asc", limit=1):
            before_id = earlier[-1]["id"]
            older = address_of(_path(agent_id, conversation), before=first_id)
    is_newest = not query.get("before") and not query.get("message")
    turns = await _turns(request, conversation, messages, before_id=before_id, is_end=is_newest)
    if turns and turns[-1].ending == problem:
        # The turn began, so the history has the problem and the message.
        problem = ""
        draft = ""
    if query.get("edit"):
        draft = await _text_of(api, query["edit"], query.get("of") or conversation["id"])
    return await render(
        request,
        "chat.html",
        status=status,
        agent=agent,
        conversation=conversation,
        readers=await _readers(request, conversation, is_chosen=is_chosen),
        may_delete=not _is_default(conversation),
        lists=await _lists(request, agent_id, conversation),
        turns=turns,
        last=messages[-1]["id"] if messages else "",
        older=older,
        is_newest=is_newest,
        blocks=await _blocks(request, agent, conversation),
        run=await _running(api, conversation),
        sought=query.get("message") or "",
        otid=new_id("otid"),
        words=problem,
        draft=draft,
        has_no_memory=request.scope[REQUEST_SCOPE].subject_id == NOBODY,
        better_model=request.app.state.runtime.models.better_than(agent["model"]) or "",
        is_large=True,
    )


async def _lists(request: Request, agent_id: str, conversation: Json) -> Json:
    """Return the lists of conversations: first the caller's, then others of this agent."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    user_id = scope.subject or (scope.user_id if own_memory(scope) else "")

    def read(tx: Transaction) -> Json:
        others = conversation_versions.conversations_of_agent(tx, scope, agent_id, user_id)
        return {
            "own": conversation_versions.own_conversations(tx, scope, user_id) if user_id else [],
            "shared": [entry for entry in others if entry.user_id is None],
            "others": [entry for entry in others if entry.user_id is not None],
        }

    return {**await request.app.state.runtime.store.read(read), "here": conversation["id"]}


async def _send(
    request: Request, agent_id: str, conversation: Json, messages: Sequence[Json], draft: str = ""
) -> Response:
    body = {"messages": list(messages), "streaming": False, "agent_id": agent_id}
    try:
        await Api(request).ask("POST", f"/v1/conversations/{conversation['id']}/messages", body)
    except RefusedByApi as error:
        if is_part(request):
            raise
        # Keep the typed text: if a turn began, it is in the history, otherwise in the input box.
        return await _page(
            request,
            agent_id,
            conversation,
            status=min(error.status, 502),
            problem=str(error),
            draft=draft,
        )
    return done(request, f"{_path(agent_id, conversation)}#end")


async def _messages(api: Api, home: str, before: str | None, around: str | None) -> list[Json]:
    """Return the selected part of a conversation, oldest first."""
    if around:
        earlier = await api.get(home, before=around, order="asc", limit=_BEFORE)
        start = earlier[-1]["id"] if earlier else None
        return [*earlier, *await api.get(home, after=start, order="asc", limit=_PAGE - _BEFORE)]
    if before:
        return list(await api.get(home, before=before, order="asc", limit=_PAGE))
    return list(await api.get(home, limit=_PAGE))[::-1]


async def _turns(
    request: Request,
    conversation: Json,
    messages: Iterable[Json],
    *,
    before_id: str | None = None,
    is_end: bool = False,
) -> list[ShownTurn]:
    """Return the turns with their changes of memory and with their versions.

    With `is_end` no messages follow, so the last turn is complete unless it still runs. The message
    `before_id` comes right before `messages`; it may belong to the first turn.
    """
    turns = list(turns_of(messages))
    scope: Scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    run_ids = {turn.run_id for turn in turns if turn.run_id}
    first_ids = [turn.items[0][1]["id"] for turn in turns]
    note = conversation["description"]

    def read(tx: Transaction) -> tuple[Mapping[str, RunChanges], Any, Any, Any, Any]:
        changes = {}
        states = {}
        if scope.may("memory:read") and run_ids:
            changes = dict(queries.changes_of_runs(tx, scope, run_ids))
            states = dict(memory_overviews.proposal_states(tx, scope, run_ids))
        versions = conversation_versions.versions_of_turns(
            tx, conversation["id"], note, first_ids, before_id=before_id
        )
        ends = conversation_overviews.ends_of_runs(tx, scope, run_ids)
        before = message_rows.by_ids(tx, [before_id]) if before_id else []
        return changes, states, versions, ends, {message.run_id for message in before}

    changes, states, versions, ends, begun_before = await store.read(read)
    await _add_picture_texts(request, turns)
    for turn in turns:
        turn.changes = changes.get(turn.run_id) if turn.run_id else None
        turn.versions = versions.get(turn.items[0][1]["id"])
        for _, item in turn.items:
            status = states.get((item.get("step_id"), item.get("label")))
            if status and item.get("status") == "done":
                item["status"] = _PROPOSAL_WORDS.get(status, status)
    for turn in turns if is_end else turns[:-1]:
        if turn.run_id in ends:
            # The answer of a turn that began before these messages may be among the earlier ones.
            has_answer = bool(turn.last_answer) or turn.run_id in begun_before
            turn.ending = ending_of(ends[turn.run_id], has_answer=has_answer)
    return turns


async def _add_picture_texts(request: Request, turns: Iterable[ShownTurn]) -> None:
    """Add each picture's recognized text as its alternative text."""
    pictures = {
        item["id"]: [part for part in item["content"] if part["type"] == "image"]
        for turn in turns
        for _, item in turn.items
        if isinstance(item.get("content"), list)
    }
    ids = [id for id, parts in pictures.items() if parts]
    if not ids:
        return
    stored = await request.app.state.runtime.store.read(lambda tx: message_rows.by_ids(tx, ids))
    for message in stored:
        for part, picture in zip(pictures[message.id], message.pictures, strict=False):
            part["alt"] = picture.text


def turns_of(messages: Iterable[Json]) -> Iterator[ShownTurn]:
    """Group the API's messages by run, oldest first, and put results at their calls.

    Args:
        messages: Messages of one conversation as the API returns them, oldest first.
    """
    turn = ShownTurn(None)
    calls: dict[str, Json] = {}
    for message in messages:
        if message["message_type"] in ("system_message", "event_message"):
            continue
        if turn.items and message["run_id"] != turn.run_id:
            yield turn
            turn = ShownTurn(message["run_id"])
        turn.run_id = message["run_id"]
        turn.items += _items(message, calls)
    if turn.items:
        yield turn


def _items(message: Json, calls: dict[str, Json]) -> list[tuple[str, Json]]:
    head = {
        "id": message["id"],
        "date": message["date"],
        "name": message.get("name"),
        "step_id": message.get("step_id"),
    }
    match message["message_type"]:
        case "user_message":
            return [("user", {**head, "content": message["content"]})]
        case "assistant_message":
            return [("agent", {**head, "content": message["content"]})]
        case "reasoning_message":
            return [("fold", _fold(head, "Thought", message["reasoning"]))]
        case "summary_message":
            title = "Older messages were summarized"
            return [("fold", _fold(head, title, message["summary"]))]
        case "tool_call_message" | "approval_request_message" as message_type:
            new_calls = [_call(head, call) for call in _listed(message["tool_calls"])]
            calls.update({call["call_id"]: call for call in new_calls})
            kind = "fold" if message_type == "tool_call_message" else "approval"
            return [(kind, call) for call in new_calls]
        case "tool_return_message":
            _add_results(message["tool_returns"], calls)
        case "approval_response_message":
            _add_decisions(message["approvals"], calls)
    return []


def _add_results(tool_returns: Sequence[Json], calls: Mapping[str, Json]) -> None:
    """Add the results to the shown calls."""
    for tool_return in tool_returns:
        if call := calls.get(tool_return["tool_call_id"]):
            status = "done" if tool_return["status"] == "success" else "failed"
            call["result"] = tool_return["tool_return"]
            call["status"] = call["status"] or status


def _add_decisions(approvals: Sequence[Json], calls: Mapping[str, Json]) -> None:
    """Mark the shown calls as approved or denied."""
    for approval in approvals:
        if call := calls.get(approval["tool_call_id"]):
            call["status"] = "approved" if approval.get("approve", True) else "denied"


def _fold(head: Json, title: str, text: str) -> Json:
    return {**head, "title": title, "status": "", "text": text, "result": ""}


def _call(head: Json, call: Json) -> Json:
    try:
        arguments = orjson.loads(call["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = {}
    subject: Any = ""
    if isinstance(arguments, dict):
        subject = arguments.get("label") or arguments.get("query") or ""
    # A tool may take any value under these names.
    if not isinstance(subject, str):
        subject = ""
    title = str(call["name"])
    if subject:
        title = f"{title} · {subject}"
    fold = _fold(head, title, call["arguments"] or "")
    return {**fold, "call_id": call["tool_call_id"], "label": subject}


def _listed(calls: Any) -> list[Json]:
    return calls if isinstance(calls, list) else [calls]


async def _conversation(request: Request, agent_id: str, conversation_id: str | None) -> Json:
    """Return the conversation with this id; by default, the caller's with the agent.

    Raises RefusedByApi, also for a conversation of another agent, and NotFound.
    """
    if conversation_id and conversation_id != DEFAULT:
        require_id(conversation_id, "conv")
    if not conversation_id:
        conversation_id = await own_conversation(request, agent_id)
    conversation: Json = await Api(request).get(
        f"/v1/conversations/{conversation_id}", agent_id=agent_id
    )
    if conversation["agent_id"] != agent_id:
        raise RefusedByApi(404, {"detail": f"Conversation with ID {conversation_id} not found"})
    return conversation


def _is_default(conversation: Json) -> bool:
    """Return True for a default conversation, which the API does not delete."""
    agent_id = conversation["agent_id"]
    default_ids = [conversations.default_id(agent_id)]
    if user_id := conversation["user_id"]:
        default_ids.append(conversations.users_default_id(agent_id, user_id))
    return conversation["id"] in default_ids


async def own_conversation(request: Request, agent_id: str) -> str:
    """Return the id of the caller's conversation with the agent; a missing one is created.

    A caller without memory gets the agent's default conversation, which is shared.

    Args:
        request: The request for the page.
        agent_id: The agent.

    Raises:
        NotFound: The caller may not use such an agent.
    """
    scope: Scope = request.scope[REQUEST_SCOPE]
    if scope.subject is None and own_memory(scope):
        scope = replace(scope, subject_id=scope.user_id)
    runtime = request.app.state.runtime
    return (await open_conversation(runtime, scope, DEFAULT, agent_id)).id


async def _readers(request: Request, conversation: Json, *, is_chosen: bool) -> Readers:
    scope: Scope = request.scope[REQUEST_SCOPE]
    user_id = conversation["user_id"]
    kind = "other"
    name = ""
    if user_id is None:
        kind = "shared"
    elif user_id == (scope.subject or scope.user_id):
        kind = "own"
    else:
        store = request.app.state.runtime.store
        names = await store.read(
            lambda tx: conversation_overviews.names_of_users(tx, scope, [user_id])
        )
        name = names.get(user_id, "another user")
    may_write = scope.may("messages:write") and scope.owns(user_id)
    return Readers(kind, name, may_write, is_chosen)


async def _blocks(request: Request, agent: Json, conversation: Json) -> list[Json]:
    """Return the conversation's visible blocks: the agent's, then the user's further blocks."""
    scope: Scope = request.scope[REQUEST_SCOPE]
    user_id = conversation["user_id"]
    store = request.app.state.runtime.store
    visible = []
    if scope.may("agents:read"):
        state = await store.read(lambda tx: agents.load(tx, scope, agent["id"], conversation["id"]))
        visible = [block for block in state.blocks if not block.hidden]
    shown = [
        _shown_block(
            scope,
            {name: getattr(block, name) for name in ("id", "label", "title", "value", "limit")},
            user_id if block.is_users else None,
            is_writable=not block.read_only,
        )
        for block in visible
    ]
    ids = {block.id for block in visible}
    if not user_id:
        return shown
    return shown + [
        _shown_block(scope, {**block, "value": block["body"]}, user_id)
        for block in await Api(request).find(f"/users/{user_id}/blocks") or []
        if block["id"] not in ids
    ]


def _shown_block(
    scope: Scope, block: Json, user_id: str | None, *, is_writable: bool = True
) -> Json:
    """Return the block with its page, and with the right to edit it in the panel."""
    path = f"/ui/blocks/{block['id']}"
    may_edit = is_writable and scope.may("agents:write")
    if user_id:
        path = f"/ui/people/{user_id}/blocks/{quote(block['label'])}"
        may_edit = scope.may("memory:write") and scope.may_decide_for("user", user_id)
    lines = panel_lines(block["value"][:_PANEL_CHARACTERS])
    is_cut = len(block["value"]) > _PANEL_CHARACTERS
    title = block["label"]
    if user_id and user_id == scope.user_id:
        title = title_of(title, block.get("title"), scope.user_name, is_self=True)
    shown = {"path": path, "user_id": user_id or "", "may_edit": may_edit, "title_here": title}
    return {**block, **shown, "lines": lines, "is_cut": is_cut}


async def _running(api: Api, conversation: Json) -> Json | None:
    runs = await api.find("/v1/runs/", conversation_id=conversation["id"], active="true", limit=1)
    return runs[0] if runs else None


async def _text_of(api: Api, message_id: str, conversation_id: str) -> str:
    """Return the text of a user's message in this conversation; empty if there is none."""
    message = await _message(api, message_id, require_id(conversation_id, "conv"))
    content = message["content"] if message else ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


async def _message(api: Api, message_id: str, conversation_id: str) -> Json | None:
    """Return a user's message in this conversation; None without one."""
    home = f"/v1/conversations/{conversation_id}/messages"
    earlier = await api.find(home, before=message_id, order="asc", limit=1) or []
    after = earlier[-1]["id"] if earlier else None
    messages: list[Json] = await api.find(home, after=after, order="asc", limit=1) or []
    users = [message for message in messages if message["message_type"] == "user_message"]
    return next(iter(users), None)


async def _turn_after(
    api: Api, conversation_id: str, shown: Sequence[Json], first_id: str
) -> list[Json]:
    """Return another version's messages from the place of the message `first_id` on.

    The first turn in them is the other version of the turn that begins with `first_id`.
    """
    ids = [message["id"] for message in shown]
    index = ids.index(first_id) if first_id in ids else 0
    before = ids[index - 1] if index else None
    home = f"/v1/conversations/{conversation_id}/messages"
    return list(await api.find(home, after=before, order="asc", limit=_PAGE) or [])


async def _version_before(request: Request, conversation: Json, message_id: str) -> Json:
    """Fork before a message, as another version of the conversation."""
    home = f"/v1/conversations/{conversation['id']}/messages"
    before = await Api(request).get(home, before=message_id, order="asc", limit=1)
    note = conversation_versions.version_note(conversation["id"], conversation["description"])
    earlier_id = before[-1]["id"] if before else None
    return await _fork(request, conversation, earlier_id, description=note)


async def _fork(
    request: Request, conversation: Json, message_id: str | None, *, description: str | None
) -> Json:
    """Fork a conversation after a message. With a `description` the fork is a hidden version."""
    api = Api(request)
    query: Json = {"hidden": "true" if description else "false"}
    if message_id:
        query["message_id"] = message_id
    forked = await api.ask("POST", f"/v1/conversations/{conversation['id']}/fork", None, query)
    if forked["description"] == description:
        return dict(forked)
    changes = {"description": description}
    return dict(await api.ask("PATCH", f"/v1/conversations/{forked['id']}", changes))


def _path(agent_id: str, conversation: Json) -> str:
    return address_of(f"/ui/agents/{agent_id}/chat", conversation=conversation["id"])
