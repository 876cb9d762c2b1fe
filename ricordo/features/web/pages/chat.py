"""The chat with an agent: messages, changes of memory, and visible blocks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import Request, Response

from ricordo.agents.conversations import DEFAULT
from ricordo.api.routing import needs
from ricordo.domain.ids import new_id
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.queries import RunChanges
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, form_of, is_part, render, require_id

router = Pages("/ui/agents/{agent_id}/chat", scope="messages")
_PAGE = 40  # stored messages on a page
_BEFORE = 10  # messages on a page before the one that a link leads to
_OTHER_CONVERSATIONS = 50
Json = dict[str, Any]


@dataclass(slots=True)
class ShownTurn:
    """One run on a page: its messages in order, with steps folded.

    The items are (kind, content): "user", "agent", "fold", "approval", "note". `changes` are its
    changes of memory, None until they are known.
    """

    run_id: str | None
    items: list[tuple[str, Json]] = field(default_factory=list)
    changes: RunChanges | None = None


@router.get("")
async def show_chat(request: Request, agent_id: str) -> Response:
    """Show the newest part of a conversation.

    `before` or `message` select another part; `edit` puts a message into the input box.
    """
    return await _page(request, agent_id)


@router.get("/part")
async def show_part(request: Request, agent_id: str) -> Response:
    """Show the messages after `after`, to be appended, and the current memory."""
    api = Api(request)
    query = request.query_params
    conversation = await _conversation(api, agent_id, query.get("conversation"))
    page = {"order": "asc", "after": query.get("after") or None, "limit": _PAGE}
    new_messages = await api.get(f"/v1/conversations/{conversation['id']}/messages", **page)
    agent = await api.get(f"/v1/agents/{agent_id}")
    return await render(
        request,
        "chat_part.html",
        agent=agent,
        conversation=conversation,
        turns=await _turns(request, new_messages),
        blocks=await _blocks(api, agent, conversation),
        run=await _running(api, conversation),
        may_say=_may_say(request),
    )


@router.post("")
async def say(request: Request, agent_id: str) -> Response:
    """Send a message and wait for the answer, for a browser without scripts."""
    api = Api(request)
    form = await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    text = form.get("message", "").strip()
    if not text:
        return done(request, _path(agent_id, conversation), "Write something first.")
    message = {"role": "user", "content": text, "otid": form.get("otid") or new_id("otid")}
    return await _send(request, agent_id, conversation, [message], draft=text)


@router.post("/decide")
async def decide(request: Request, agent_id: str) -> Response:
    """Approve or deny all waiting tool calls."""
    api = Api(request)
    form = await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
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
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    await api.ask("POST", f"/v1/conversations/{conversation['id']}/cancel")
    return done(request, _path(agent_id, conversation), "The turn is being stopped.")


@router.post("/new")
async def begin(request: Request, agent_id: str) -> Response:
    """Begin another conversation with the agent, by itself or with a user."""
    form = await form_of(request)
    body = {}
    if user := form.get("user", "").strip():
        body["user_id"] = user
    conversation = await Api(request).ask(
        "POST", "/v1/conversations/", body, {"agent_id": agent_id}
    )
    return done(request, _path(agent_id, conversation))


@router.post("/fork")
async def fork(request: Request, agent_id: str) -> Response:
    """Continue from a message in a new conversation.

    With `edit` it continues from the message before, and the input box has the message's text.
    """
    api = Api(request)
    form = await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    home = f"/v1/conversations/{conversation['id']}"
    message_id = form.get("message") or None
    edited_id = message_id if form.get("edit") else None
    if edited_id:
        before = await api.get(f"{home}/messages", before=edited_id, order="asc", limit=1)
        message_id = before[-1]["id"] if before else None
    query = {}
    if message_id:
        query["message_id"] = message_id
    path = _path(agent_id, await api.ask("POST", f"{home}/fork", None, query))
    if edited_id:
        path = address_of(path, edit=edited_id, of=conversation["id"])
    return done(request, path)


@router.post("/change")
async def change(request: Request, agent_id: str) -> Response:
    """Rename the conversation, archive it or delete it."""
    api = Api(request)
    form = await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
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
    return done(request, page, "What was remembered in this turn was taken back.")


async def _page(
    request: Request, agent_id: str, *, status: int = 200, problem: str = "", draft: str = ""
) -> Response:
    api = Api(request)
    query = request.query_params
    agent = await api.get(f"/v1/agents/{agent_id}")
    conversation = await _conversation(api, agent_id, query.get("conversation"))
    home = f"/v1/conversations/{conversation['id']}/messages"
    messages = await _messages(api, home, before=query.get("before"), around=query.get("message"))
    older = ""
    if messages:
        first_id = messages[0]["id"]
        if await api.get(home, before=first_id, order="asc", limit=1):
            older = address_of(_path(agent_id, conversation), before=first_id)
    if query.get("edit"):
        draft = await _text_of(api, query["edit"], query.get("of") or conversation["id"])
    others = await api.find("/v1/conversations/", agent_id=agent_id, limit=_OTHER_CONVERSATIONS)
    return await render(
        request,
        "chat.html",
        status=status,
        agent=agent,
        conversation=conversation,
        others=others or [],
        turns=await _turns(request, messages),
        last=messages[-1]["id"] if messages else "",
        older=older,
        is_newest=not query.get("before") and not query.get("message"),
        blocks=await _blocks(api, agent, conversation),
        run=await _running(api, conversation),
        sought=query.get("message") or "",
        otid=new_id("otid"),
        words=problem,
        draft=draft,
        may_say=_may_say(request),
        better_model=request.app.state.runtime.models.better_than(agent["model"]) or "",
        is_large=True,
    )


async def _send(
    request: Request, agent_id: str, conversation: Json, messages: Sequence[Json], draft: str = ""
) -> Response:
    body = {"messages": list(messages), "streaming": False, "agent_id": agent_id}
    try:
        await Api(request).ask("POST", f"/v1/conversations/{conversation['id']}/messages", body)
    except RefusedByApi as error:
        if is_part(request):
            raise
        # The typed text is not lost: a turn that began has it in the history, else it is in the
        # input box.
        return await _page(
            request, agent_id, status=min(error.status, 502), problem=str(error), draft=draft
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


async def _turns(request: Request, messages: Iterable[Json]) -> list[ShownTurn]:
    turns = list(turns_of(messages))
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    ids = {turn.run_id for turn in turns if turn.run_id}
    if scope.may("memory:read") and ids:
        changes = await store.read(lambda tx: queries.changes_of_runs(tx, scope, ids))
        for turn in turns:
            turn.changes = changes.get(turn.run_id) if turn.run_id else None
    return turns


def turns_of(messages: Iterable[Json]) -> Iterator[ShownTurn]:
    """Group the API's messages by run, oldest first, with results at their calls."""
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
    head = {"id": message["id"], "date": message["date"], "name": message.get("name")}
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
            for tool_return in message["tool_returns"]:
                if call := calls.get(tool_return["tool_call_id"]):
                    status = "done" if tool_return["status"] == "success" else "failed"
                    call["result"] = tool_return["tool_return"]
                    call["status"] = call["status"] or status
        case "approval_response_message":
            for approval in message["approvals"]:
                if call := calls.get(approval["tool_call_id"]):
                    call["status"] = "approved" if approval.get("approve", True) else "denied"
    return []


def _fold(head: Json, title: str, text: str) -> Json:
    return {**head, "title": title, "status": "", "text": text, "result": ""}


def _call(head: Json, call: Json) -> Json:
    try:
        arguments = orjson.loads(call["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = {}
    subject = ""
    if isinstance(arguments, dict):
        subject = arguments.get("label") or arguments.get("query") or ""
    title = str(call["name"])
    if subject and isinstance(subject, str):
        title = f"{title} · {subject}"
    return {**_fold(head, title, call["arguments"] or ""), "call_id": call["tool_call_id"]}


def _listed(calls: Any) -> list[Json]:
    return calls if isinstance(calls, list) else [calls]


async def _conversation(api: Api, agent_id: str, conversation_id: str | None) -> Json:
    """Return the conversation with this id, by default the caller's own with the agent.

    Raises RefusedByApi, also for a conversation of another agent.
    """
    if conversation_id and conversation_id != DEFAULT:
        require_id(conversation_id, "conv")
    conversation: Json = await api.get(
        f"/v1/conversations/{conversation_id or DEFAULT}", agent_id=agent_id
    )
    if conversation["agent_id"] != agent_id:
        raise RefusedByApi(404, {"detail": f"Conversation with ID {conversation_id} not found"})
    return conversation


async def _blocks(api: Api, agent: Json, conversation: Json) -> list[Json]:
    """Return the conversation's visible blocks: the agent's, then its user's others."""
    agent_blocks = [{**block, "path": f"/ui/blocks/{block['id']}"} for block in agent["blocks"]]
    user_id = conversation["user_id"]
    if not user_id:
        return agent_blocks
    user_blocks = [
        {
            **block,
            "value": block["body"],
            "path": f"/ui/people/{user_id}/blocks/{quote(block['label'])}",
        }
        for block in await api.find(f"/users/{user_id}/blocks") or []
    ]
    ids = {block["id"] for block in user_blocks}
    return [block for block in agent_blocks if block["id"] not in ids] + user_blocks


async def _running(api: Api, conversation: Json) -> Json | None:
    runs = await api.find("/v1/runs/", conversation_id=conversation["id"], active="true", limit=1)
    return runs[0] if runs else None


async def _text_of(api: Api, message_id: str, conversation_id: str) -> str:
    """Return the text of a user's message in this conversation; empty without one."""
    home = f"/v1/conversations/{require_id(conversation_id, 'conv')}/messages"
    earlier = await api.find(home, before=message_id, order="asc", limit=1) or []
    after = earlier[-1]["id"] if earlier else None
    for message in await api.find(home, after=after, order="asc", limit=1) or []:
        if message["message_type"] == "user_message":
            content = message["content"]
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if "text" in part)
    return ""


def _may_say(request: Request) -> bool:
    return bool(request.scope[REQUEST_SCOPE].may("messages:write"))


def _path(agent_id: str, conversation: Json) -> str:
    return address_of(f"/ui/agents/{agent_id}/chat", conversation=conversation["id"])
