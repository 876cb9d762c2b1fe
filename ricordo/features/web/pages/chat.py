"""The chat with an agent: what was said, what was remembered or proposed, and the memory that the conversation sees."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.ids import new_id
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.queries import RunChanges
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, form_of, is_part, render

router = Pages("/ui/agents/{agent_id}/chat", scope="messages")
# Stored messages on a page, and of those how many stand before the one that a link leads to.
_PAGE, _BEFORE = 40, 10
_OTHER_CONVERSATIONS = 50
Json = dict[str, Any]


@dataclass(slots=True)
class ShownTurn:
    """What a page shows of one run: messages in their order, the steps between them folded, and what it changed in memory.

    The items are (kind, content): "user", "agent", "fold", "approval", "note". `changes` is None until it is known.
    """

    run_id: str | None
    items: list[tuple[str, Json]] = field(default_factory=list)
    changes: RunChanges | None = None


@router.get("")
async def show_chat(request: Request, agent_id: str) -> Response:
    """The newest part of a conversation, or the part before `before` or around `message`; `edit` puts a message into the box."""
    return await _page(request, agent_id)


@router.get("/part")
async def show_part(request: Request, agent_id: str) -> Response:
    """What was said after the message `after`, as it is put below what the page shows already; and the memory as it is now."""
    api, asked = Api(request), request.query_params
    conversation = await _conversation(api, agent_id, asked.get("conversation"))
    query = {"order": "asc", "after": asked.get("after") or None, "limit": _PAGE}
    said = await api.get(f"/v1/conversations/{conversation['id']}/messages", **query)
    agent = await api.get(f"/v1/agents/{agent_id}")
    return await render(
        request,
        "chat_part.html",
        agent=agent,
        conversation=conversation,
        turns=await _turns(request, said),
        blocks=await _blocks(api, agent, conversation),
        run=await _running(api, conversation),
        may_say=_may_say(request),
    )


@router.post("")
async def say(request: Request, agent_id: str) -> Response:
    """Say something and wait for the answer: what a browser without scripts does."""
    api, form = Api(request), await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    words = form.get("message", "").strip()
    if not words:
        return done(request, _path(agent_id, conversation), "Write something first.")
    message = {"role": "user", "content": words, "otid": form.get("otid") or new_id("otid")}
    return await _send(request, agent_id, conversation, [message], draft=words)


@router.post("/decide")
async def decide(request: Request, agent_id: str) -> Response:
    """Approve or deny the tool calls that wait, all of them alike."""
    api, form = Api(request), await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    answer = {
        "type": "approval",
        "approve": form.get("decision") == "approve",
        "reason": form.get("reason") or None,
    }
    request_id = form.get("request") or None
    return await _send(
        request, agent_id, conversation, [{**answer, "approval_request_id": request_id}]
    )


@router.post("/stop")
async def stop(request: Request, agent_id: str) -> Response:
    api, form = Api(request), await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    await api.ask("POST", f"/v1/conversations/{conversation['id']}/cancel")
    return done(request, _path(agent_id, conversation), "The turn is being stopped.")


@router.post("/new")
async def begin(request: Request, agent_id: str) -> Response:
    """Begin another conversation with the agent, by itself or with a user."""
    form = await form_of(request)
    body = {"user_id": form["user"].strip()} if form.get("user", "").strip() else {}
    made = await Api(request).ask("POST", "/v1/conversations/", body, {"agent_id": agent_id})
    return done(request, _path(agent_id, made))


@router.post("/fork")
async def fork(request: Request, agent_id: str) -> Response:
    """Go on from a message in another conversation; with `edit` from the one before it, and its words in the box."""
    api, form = Api(request), await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    home, message = f"/v1/conversations/{conversation['id']}", form.get("message") or None
    edited = message if form.get("edit") else None
    if edited:
        before = await api.get(f"{home}/messages", before=edited, order="asc", limit=1)
        message = before[-1]["id"] if before else None
    made = await api.ask("POST", f"{home}/fork", None, {"message_id": message} if message else {})
    return done(
        request,
        address_of(_path(agent_id, made), edit=edited, of=conversation["id"] if edited else None),
    )


@router.post("/change")
async def change(request: Request, agent_id: str) -> Response:
    """Rename the conversation, archive it or delete it."""
    api, form = Api(request), await form_of(request)
    conversation = await _conversation(api, agent_id, form.get("conversation"))
    home = f"/v1/conversations/{conversation['id']}"
    if form.get("do") == "delete":
        await api.ask("DELETE", home)
        return done(request, f"/ui/agents/{agent_id}/chat", "The conversation was deleted.")
    body = (
        {"archived": form["do"] == "archive"}
        if form.get("do")
        else {"summary": form.get("title", "").strip() or None}
    )
    await api.ask("PATCH", home, body)
    return done(request, _path(agent_id, conversation), "The conversation was changed.")


@router.post("/undo")
@needs("memory:approve", "memory:override")
async def undo(request: Request, agent_id: str) -> Response:
    """Take back what a run changed in a user's memory."""
    api, form = Api(request), await form_of(request)
    await api.ask("POST", f"/users/{form.get('user', '')}/runs/{form.get('run', '')}/undo")
    page = address_of(f"/ui/agents/{agent_id}/chat", conversation=form.get("conversation"))
    return done(request, page, "What was remembered in this turn was taken back.")


async def _page(
    request: Request, agent_id: str, *, status: int = 200, words: str = "", draft: str = ""
) -> Response:
    api, asked = Api(request), request.query_params
    agent = await api.get(f"/v1/agents/{agent_id}")
    conversation = await _conversation(api, agent_id, asked.get("conversation"))
    home = f"/v1/conversations/{conversation['id']}/messages"
    said = await _said(api, home, before=asked.get("before"), around=asked.get("message"))
    first = said[0]["id"] if said else None
    older = await api.get(home, before=first, order="asc", limit=1) if first else []
    if asked.get("edit"):
        draft = await _words_of(api, asked["edit"], asked.get("of") or conversation["id"])
    return await render(
        request,
        "chat.html",
        status=status,
        agent=agent,
        conversation=conversation,
        others=await api.find("/v1/conversations/", agent_id=agent_id, limit=_OTHER_CONVERSATIONS)
        or [],
        turns=await _turns(request, said),
        last=said[-1]["id"] if said else "",
        older=address_of(_path(agent_id, conversation), before=first) if older else "",
        is_newest=not asked.get("before") and not asked.get("message"),
        blocks=await _blocks(api, agent, conversation),
        run=await _running(api, conversation),
        sought=asked.get("message") or "",
        otid=new_id("otid"),
        words=words,
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
        # Nothing that was typed is lost: a turn that began has it in the history, any other in the box.
        return await _page(
            request, agent_id, status=min(error.status, 502), words=str(error), draft=draft
        )
    return done(request, f"{_path(agent_id, conversation)}#end")


async def _said(api: Api, home: str, before: str | None, around: str | None) -> list[Json]:
    """The wanted part of a conversation, oldest first."""
    if around:
        earlier = await api.get(home, before=around, order="asc", limit=_BEFORE)
        start = earlier[-1]["id"] if earlier else None
        return [*earlier, *await api.get(home, after=start, order="asc", limit=_PAGE - _BEFORE)]
    if before:
        return list(await api.get(home, before=before, order="asc", limit=_PAGE))
    return list(await api.get(home, limit=_PAGE))[::-1]


async def _turns(request: Request, said: Iterable[Json]) -> list[ShownTurn]:
    turns = list(turns_of(said))
    scope, store = request.scope[REQUEST_SCOPE], request.app.state.runtime.store
    ids = {turn.run_id for turn in turns if turn.run_id}
    if scope.may("memory:read") and ids:
        changes = await store.read(lambda tx: queries.changes_of_runs(tx, scope, ids))
        for turn in turns:
            turn.changes = changes.get(turn.run_id) if turn.run_id else None
    return turns


def turns_of(said: Iterable[Json]) -> Iterator[ShownTurn]:
    """The messages of the API, oldest first, by the runs they were said in, with results beside the calls they answer."""
    turn, calls = ShownTurn(None), dict[str, Json]()
    for message in said:
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
    shown = {"id": message["id"], "date": message["date"], "name": message.get("name")}
    match message["message_type"]:
        case "user_message":
            return [("user", {**shown, "content": message["content"]})]
        case "assistant_message":
            return [("agent", {**shown, "content": message["content"]})]
        case "reasoning_message":
            return [
                (
                    "fold",
                    {
                        **shown,
                        "title": "Thought",
                        "status": "",
                        "text": message["reasoning"],
                        "result": "",
                    },
                )
            ]
        case "summary_message":
            title = "Older messages were summarized"
            return [
                (
                    "fold",
                    {
                        **shown,
                        "title": title,
                        "status": "",
                        "text": message["summary"],
                        "result": "",
                    },
                )
            ]
        case "tool_call_message" | "approval_request_message" as kind:
            made = [_call(shown, one) for one in _listed(message["tool_calls"])]
            calls.update({one["call_id"]: one for one in made})
            return [("fold" if kind == "tool_call_message" else "approval", one) for one in made]
        case "tool_return_message":
            for one in message["tool_returns"]:
                if call := calls.get(one["tool_call_id"]):
                    ended = "done" if one["status"] == "success" else "failed"
                    call |= {"result": one["tool_return"], "status": call["status"] or ended}
        case "approval_response_message":
            for one in message["approvals"]:
                if call := calls.get(one["tool_call_id"]):
                    call["status"] = "approved" if one.get("approve", True) else "denied"
    return []


def _call(shown: Json, call: Json) -> Json:
    try:
        arguments = orjson.loads(call["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = {}
    about = (
        arguments.get("label") or arguments.get("query") or ""
        if isinstance(arguments, dict)
        else ""
    )
    title = f"{call['name']} · {about}" if about and isinstance(about, str) else str(call["name"])
    fields = {"call_id": call["tool_call_id"], "title": title, "text": call["arguments"] or ""}
    return {**shown, **fields, "status": "", "result": ""}


def _listed(calls: Any) -> list[Json]:
    return calls if isinstance(calls, list) else [calls]


async def _conversation(api: Api, agent_id: str, named: str | None) -> Json:
    """The conversation with this id, or the caller's own with the agent. Raises RefusedByApi also for one of another agent."""
    found: Json = await api.get(f"/v1/conversations/{named or 'default'}", agent_id=agent_id)
    if found["agent_id"] != agent_id:
        raise RefusedByApi(404, {"detail": f"Conversation with ID {named} not found"})
    return found


async def _blocks(api: Api, agent: Json, conversation: Json) -> list[Json]:
    """The blocks that the conversation sees: the agent's, and behind them those of its user that are not among them."""
    own = [{**block, "path": f"/ui/blocks/{block['id']}"} for block in agent["blocks"]]
    if not conversation["user_id"]:
        return own
    user = conversation["user_id"]
    theirs = await api.find(f"/users/{user}/blocks") or []
    ids = {block["id"] for block in theirs}
    return [block for block in own if block["id"] not in ids] + [
        {**block, "value": block["body"], "path": f"/ui/people/{user}/blocks/{block['label']}"}
        for block in theirs
    ]


async def _running(api: Api, conversation: Json) -> Json | None:
    runs = await api.find("/v1/runs/", conversation_id=conversation["id"], active="true", limit=1)
    return runs[0] if runs else None


async def _words_of(api: Api, message_id: str, conversation_id: str) -> str:
    """The words of a message of this conversation; an empty text where it is not there."""
    home = f"/v1/conversations/{conversation_id}/messages"
    earlier = await api.find(home, before=message_id, order="asc", limit=1) or []
    found = (
        await api.find(home, after=earlier[-1]["id"] if earlier else None, order="asc", limit=1)
        or []
    )
    content = next((one["content"] for one in found if one["message_type"] == "user_message"), "")
    return (
        content
        if isinstance(content, str)
        else "\n".join(part["text"] for part in content if "text" in part)
    )


def _may_say(request: Request) -> bool:
    return bool(request.scope[REQUEST_SCOPE].may("messages:write"))


def _path(agent_id: str, conversation: Json) -> str:
    return address_of(f"/ui/agents/{agent_id}/chat", conversation=conversation["id"])
