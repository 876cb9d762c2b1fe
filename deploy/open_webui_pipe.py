"""
title: Ricordo
description: The agents of a Ricordo server as models. Each user meets them with a memory of their own, each chat is a conversation.
version: 0.1.0
"""

# Add it in Open WebUI under Admin Panel, Functions; then give it the address of the server and a key of the role `service`.

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
from pydantic import BaseModel, Field


class Pipe:
    """What Open WebUI calls: `pipes` for the list of models, `pipe` for each answer."""

    class Valves(BaseModel):
        """The settings that Open WebUI shows."""

        SERVER_URL: str = Field("http://ricordo:8283", description="Address of the Ricordo server.")
        API_KEY: str = Field("", description="A key made by: ricordo key create --role service")

    def __init__(self) -> None:
        self.valves = self.Valves()

    async def pipes(self) -> list[dict[str, str]]:
        """Return the agents as models."""
        async with self._client() as client:
            answer = (await client.get("/v1/agents/", params={"limit": 200})).raise_for_status()
        return [{"id": agent["id"], "name": agent["name"]} for agent in answer.json()]

    async def pipe(
        self,
        body: dict[str, Any],
        __user__: dict[str, Any],
        __chat_id__: str | None = None,
        __task__: str | None = None,
    ) -> Any:
        """Return the answer piece by piece. Titles, tags and follow-ups are not the agent's work and stay out of its memory."""
        if __task__:
            return ""
        pieces = self._answer(
            body["model"].rpartition(".")[2], _last_text(body["messages"]), __user__["id"], __chat_id__
        )
        return pieces if body.get("stream") else "".join([piece async for piece in pieces])

    async def _answer(self, agent: str, text: str, user: str, chat: str | None) -> AsyncIterator[str]:
        async with self._client(user) as client:
            try:
                conversation = await self._conversation(client, agent, chat) if chat else ""
                path = f"/v1/conversations/{conversation}" if conversation else f"/v1/agents/{agent}"
                try:
                    async for piece in _stream(client, f"{path}/messages", text):
                        yield piece
                except asyncio.CancelledError:
                    with suppress(httpx.HTTPError):
                        await client.post(f"{path}/cancel" if conversation else f"{path}/messages/cancel")
                    raise
            except httpx.HTTPError as error:
                yield f"Ricordo does not answer ({type(error).__name__}). Check SERVER_URL and the server."
            except _Refused as error:
                yield f"Ricordo refused: {error}"

    async def _conversation(self, client: httpx.AsyncClient, agent: str, chat: str) -> str:
        """Return the conversation of this chat, which is made at its first message."""
        name = f"Open WebUI chat {chat}"
        found = await client.get("/v1/conversations/", params={"agent_id": agent, "summary_search": name})
        # A user who is new to the server is made by the POST.
        if found.status_code != httpx.codes.NOT_FOUND and (items := _checked(found).json()):
            return str(items[0]["id"])
        made = await client.post("/v1/conversations/", params={"agent_id": agent}, json={"summary": name})
        return str(_checked(made).json()["id"])

    def _client(self, user: str | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.valves.API_KEY}"} if self.valves.API_KEY else {}
        if user:
            headers["X-Ricordo-User"] = f"open-webui:{user}"
        return httpx.AsyncClient(
            base_url=self.valves.SERVER_URL.rstrip("/"), headers=headers, timeout=600, trust_env=False
        )


class _Refused(Exception):
    """What the server said."""


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        with suppress(ValueError):
            raise _Refused(answer.json().get("detail"))
        raise _Refused(answer.status_code)
    return answer


async def _stream(client: httpx.AsyncClient, path: str, text: str) -> AsyncIterator[str]:
    body = {"messages": [{"role": "user", "content": text}], "streaming": True, "stream_tokens": True}
    async with client.stream("POST", path, json=body) as answer:
        if answer.is_error:
            await answer.aread()
            _checked(answer)
        async for line in answer.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: {") else {}
            match event.get("message_type"):
                case "assistant_message":
                    yield _text(event["content"])
                case "approval_request_message":
                    yield "\n\n*This waits for an approval on the Ricordo server.*"
                case "error_message":
                    raise _Refused(event.get("message"))


def _last_text(messages: list[dict[str, Any]]) -> str:
    return next((_text(each["content"]) for each in reversed(messages) if each["role"] == "user"), "")


def _text(content: Any) -> str:
    """The text of a message, which is a string or a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
