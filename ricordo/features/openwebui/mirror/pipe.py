"""
title: Ricordo
description: The agents of a Ricordo server as models, with a memory for each user.
version: 0.2.0
"""

# Add it in Open WebUI under Admin Panel, Functions. Then enter the address of the server, and a key
# of the role `service`.

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import BaseModel, Field

# The longest proposal, in lines and in characters, that is shown in a dialog. A longer one would be
# cut there, and so approved without being seen completely.
_MOST_LINES = 20
_MOST_CHARACTERS = 1500

# Texts that the pipe sends instead of an answer. They are removed from the chat that is sent to the
# server.
_REFUSED = "Ricordo refused: "
_UNREACHABLE = "Ricordo does not answer ("
_FAILURES = (_REFUSED, _UNREACHABLE)


class Pipe:
    """The class that Open WebUI loads: `pipes` lists models, `pipe` answers."""

    class Valves(BaseModel):
        """The settings that Open WebUI shows."""

        SERVER_URL: str = Field("http://ricordo:8283", description="Address of the Ricordo server.")
        API_KEY: str = Field("", description="A key made by: ricordo key create --role service")
        LINK_URL: str = Field(
            "", description="Address of the server in users' browsers, if it differs."
        )
        ASK_IN_CHAT: bool = Field(
            True,
            description="Ask users in the chat whether an agent may remember something. API_KEY "
            "needs the scope memory:approve.",
        )

    def __init__(self) -> None:
        self.valves = self.Valves()

    async def pipes(self) -> list[dict[str, str]]:
        """Return the agents as models; after an error, one model whose name is the reason."""
        try:
            async with self._client() as client:
                answer = (await client.get("/v1/agents/", params={"limit": 200})).raise_for_status()
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            return [{"id": "none", "name": f"Ricordo refuses API_KEY ({status})"}]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = type(error).__name__
            return [{"id": "none", "name": f"Ricordo does not answer at SERVER_URL ({reason})"}]
        return [{"id": agent["id"], "name": agent["name"]} for agent in answer.json()]

    async def pipe(
        self,
        body: dict[str, Any],
        __user__: dict[str, Any],
        __chat_id__: str | None = None,
        __task__: str | None = None,
        __event_emitter__: Any = None,
        __event_call__: Any = None,
        __session_id__: str | None = None,
    ) -> Any:
        """Return the answer; as a stream if Open WebUI asks for one.

        Titles, tags and follow-up questions are not the agent's work, and do not reach its memory.

        Args:
            body: The request of Open WebUI, in the form of OpenAI's chat completions.
            __user__: The user of Open WebUI, with `id` and `name`.
            __chat_id__: The id of the chat. None is a request without a stored chat.
            __task__: The kind of a request other than a message, such as a title. Its answer is
                "{}".
            __event_emitter__: A function that shows an event, such as a status, in the chat.
            __event_call__: A function that asks the user in the browser, and returns the answer.
            __session_id__: The session of the user's browser. Without one, the user is not asked.
        """
        if __task__:
            # After an empty answer, Open WebUI uses the user's message as the title, and as the
            # search query for documents.
            return "{}"
        messages = [
            {"role": message["role"], "content": _without_failure(message)}
            for message in body["messages"]
            if not str(message.get("content") or "").startswith(_FAILURES)
        ]
        chat = {
            "user_id": f"open-webui:{__user__['id']}",
            "user_name": str(__user__.get("name") or "")[:255],
            "chat_id": __chat_id__ or None,
            "model": body["model"].rpartition(".")[2],
            "messages": messages,
        }
        # Without a session there is no browser that could answer a question.
        ask = __event_call__ if __session_id__ and self.valves.ASK_IN_CHAT else None
        pieces = self._answer(chat, __event_emitter__, ask)
        return pieces if body.get("stream") else "".join([piece async for piece in pieces])

    async def _answer(self, chat: dict[str, Any], emitter: Any, ask: Any) -> AsyncIterator[str]:
        """Yield the answer's text; show the agent's other work as a status.

        `ask` shows a question in the user's browser, and returns the answer.
        """
        conversation_id = ""
        has_links = False
        proposals: list[dict[str, Any]] = []
        async with self._client() as client:
            try:
                async for event in _events(client, chat):
                    conversation_id = event.get("conversation_id") or conversation_id
                    for piece in _text_pieces(event):
                        yield piece
                    has_links |= bool(event["type"] == "status" and event.get("url"))
                    if event.get("may_decide"):
                        proposals.append(event)
                    if event["type"] == "artifact":
                        await _embed(client, event["path"], chat["user_id"], emitter)
                    elif event["type"] != "done" or not has_links:
                        # A status with a link stays; "Done" does not replace it.
                        await self._show_status(event, emitter)
                for proposal in proposals:
                    user = chat["user_id"]
                    if not (ask and await self._decide(client, user, proposal, ask, emitter)):
                        await self._show_decision_link(client, user, proposal, emitter)
            except asyncio.CancelledError:
                if conversation_id:
                    await _cancel(client, conversation_id, chat["user_id"])
                raise
            except httpx.HTTPError as error:
                reason = type(error).__name__
                yield f"{_UNREACHABLE}{reason}). Check SERVER_URL and the server."
            except _RequestRefused as error:
                yield f"{_REFUSED}{error}"

    async def _show_status(self, event: dict[str, Any], emitter: Any) -> None:
        match event["type"]:
            case "done":
                await _show(emitter, "Done", done=True)
            case "tool_call":
                verb = {"running": "Using", "failed": "Could not use"}.get(event["status"], "Used")
                await _show(emitter, f"{verb} {event['name']}")
            case "status":
                link = f" ({self._link(event['url'])})" if event.get("url") else ""
                await _show(emitter, f"{event['content']}{link}", done=bool(link))

    async def _decide(
        self,
        client: httpx.AsyncClient,
        user: str,
        proposal: dict[str, Any],
        ask: Any,
        emitter: Any,
    ) -> bool:
        """Let the user decide about a proposal in the chat; return whether a decision was made.

        If both questions are cancelled or the browser does not answer, the proposal keeps waiting.
        The user is not asked about a proposal that is too long for a dialog.
        """
        shown = _proposal_text(proposal)
        if shown is None:
            return False
        later = f"{shown}\n\nCancel: do not remember it now."
        rejected = f"{shown}\n\nConfirm: it is not remembered. Cancel: it waits for you."
        try:
            if await ask(_question("Remember this?", later)):
                decision = "approve"
            elif await ask(_question("Reject it?", rejected)):
                decision = "reject"
            else:
                return False
        except Exception:  # Open WebUI raises various errors if the browser has left
            return False
        status = await _send_decision(client, user, proposal["id"], decision)
        notices = {"approved": "Remembered", "rejected": "Not remembered"}
        if status in notices:
            await _show(emitter, f"{notices[status]}: {proposal['label']}", done=True)
        return status in notices

    async def _show_decision_link(
        self, client: httpx.AsyncClient, user: str, proposal: dict[str, Any], emitter: Any
    ) -> None:
        """Show the address that opens this decision without a login."""
        with suppress(httpx.HTTPError, ValueError, LookupError):
            answer = await client.post(
                f"/users/{quote(user, safe='')}/decision-links",
                json={"proposal_id": proposal["id"]},
            )
            address = self._link(answer.raise_for_status().json()["path"])
            await _show(emitter, f"{proposal['content']} – decide at {address}", done=True)

    def _link(self, url: str) -> str:
        base = self.valves.SERVER_URL.rstrip("/")
        return (self.valves.LINK_URL.rstrip("/") or base) + url.removeprefix(base)

    def _client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.valves.API_KEY}"} if self.valves.API_KEY else {}
        return httpx.AsyncClient(
            base_url=self.valves.SERVER_URL.rstrip("/"),
            headers=headers,
            timeout=600,
            trust_env=False,
        )


class _RequestRefused(Exception):
    """The server refused the request; the message is its reason."""


def _without_failure(message: dict[str, Any]) -> Any:
    """Return the message's content; if the pipe added texts after the answer, they are cut off."""
    content = message.get("content") or ""
    if message["role"] != "assistant" or not isinstance(content, str):
        return content
    for failure in _FAILURES:
        content = content.partition(failure)[0]
    return content


def _text_pieces(event: dict[str, Any]) -> list[str]:
    """Return the event's part of the answer's text."""
    if event["type"] == "error":
        return [f"{_REFUSED}{event['message']}"]
    if event["type"] != "message":
        return []
    content = event["content"]
    # Open WebUI would read a piece with this beginning as one of its events, and not show it.
    return ["data", content[4:]] if content.startswith("data:") else [content]


async def _events(client: httpx.AsyncClient, chat: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", "/chat/stream", json=chat) as answer:
        if answer.is_error:
            await answer.aread()
            with suppress(ValueError):
                raise _RequestRefused(answer.json().get("detail"))
            raise _RequestRefused(answer.status_code)
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def _question(title: str, message: str) -> dict[str, Any]:
    """Return the event of Open WebUI's dialog, with Confirm and Cancel."""
    return {"type": "confirmation", "data": {"title": title, "message": message}}


def _proposal_text(proposal: dict[str, Any]) -> str | None:
    """Return the whole proposal as Markdown, or None if it is too long for a dialog.

    The dialog renders Markdown. Lines that are indented by four spaces are shown as they are.
    """
    lines = [f"+ {line}" for line in proposal["added"].splitlines()]
    lines += [f"− {line}" for line in proposal["removed"].splitlines()]
    reason = str(proposal.get("reason") or "").strip()
    if len(lines) > _MOST_LINES or len("".join(lines)) + len(reason) > _MOST_CHARACTERS:
        return None
    parts = ["\n".join(f"    {line}" for line in [f"{proposal['label']}:", *lines])]
    if reason:
        parts += ["Why:", "\n".join(f"    {line}" for line in reason.splitlines())]
    return "\n\n".join(parts)


async def _send_decision(
    client: httpx.AsyncClient, user: str, proposal_id: str, decision: str
) -> str:
    """Approve or reject the proposal; return its status, `failed` on an error."""
    try:
        answer = await client.post(
            f"/users/{quote(user, safe='')}/diffs/{decision}", json={"ids": [proposal_id]}
        )
        return str(answer.raise_for_status().json()[0]["status"])
    except (httpx.HTTPError, ValueError, LookupError):
        return "failed"


async def _cancel(client: httpx.AsyncClient, conversation_id: str, user: str) -> None:
    with suppress(httpx.HTTPError):
        await client.post(
            f"/v1/conversations/{conversation_id}/cancel", headers={"X-Ricordo-User": user}
        )


async def _show(emitter: Any, description: str, *, done: bool = False) -> None:
    if emitter:
        await emitter({"type": "status", "data": {"description": description, "done": done}})


async def _embed(client: httpx.AsyncClient, path: str, user: str, emitter: Any) -> None:
    """Show a document of the agent, such as notes, next to the answer.

    It is not part of the text, so no model reads it.
    """
    if emitter and path.startswith("/users/"):
        document = await client.get(path, headers={"X-Ricordo-User": user})
        if document.is_success:
            await emitter({"type": "embeds", "data": {"embeds": [document.text]}})
