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
        LINK_URL: str = Field(
            "", description="Address of the server in users' browsers, if that is another one."
        )

    def __init__(self) -> None:
        self.valves = self.Valves()

    async def pipes(self) -> list[dict[str, str]]:
        """Return the agents as models; where there are none to be had, one whose name says why."""
        try:
            async with self._client() as client:
                answer = (await client.get("/v1/agents/", params={"limit": 200})).raise_for_status()
        except httpx.HTTPStatusError as error:
            return [
                {"id": "none", "name": f"Ricordo refuses API_KEY ({error.response.status_code})"}
            ]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return [
                {
                    "id": "none",
                    "name": f"Ricordo does not answer at SERVER_URL ({type(error).__name__})",
                }
            ]
        return [{"id": agent["id"], "name": agent["name"]} for agent in answer.json()]

    async def pipe(
        self,
        body: dict[str, Any],
        __user__: dict[str, Any],
        __chat_id__: str | None = None,
        __task__: str | None = None,
        __event_emitter__: Any = None,
    ) -> Any:
        """Return the answer piece by piece. Titles, tags and follow-ups are not the agent's work and stay out of its memory."""
        if __task__:
            return (
                "{}"  # so that what the user said is the title, and what is looked up in documents
            )
        messages = [
            {"role": each["role"], "content": each.get("content") or ""}
            for each in body["messages"]
        ]
        asked = {
            "user_id": f"open-webui:{__user__['id']}",
            "chat_id": __chat_id__ or None,
            "model": body["model"].rpartition(".")[2],
            "messages": messages,
        }
        pieces = self._answer(asked, __event_emitter__)
        return pieces if body.get("stream") else "".join([piece async for piece in pieces])

    async def _answer(self, asked: dict[str, Any], emitter: Any) -> AsyncIterator[str]:
        """Yield the text of the answer; what the agent does besides is shown as a status above it."""
        conversation, has_links = "", False
        async with self._client() as client:
            try:
                async for event in _events(client, asked):
                    conversation = event.get("conversation_id") or conversation
                    match event["type"]:
                        case "message" if event["content"].startswith("data:"):
                            # Open WebUI takes such a piece for an event of its own, and shows nothing of it.
                            yield "data"
                            yield event["content"][4:]
                        case "message":
                            yield event["content"]
                        case "error":
                            yield f"Ricordo refused: {event['message']}"
                        case "done" if not has_links:  # the last status stays above the answer
                            await _show(emitter, "Done", done=True)
                        case "artifact":
                            await _embed(client, event["path"], asked["user_id"], emitter)
                        case "tool_call":
                            await _show(emitter, f"Used {event['name']}")
                        case "status":
                            link = f" ({self._link(event['url'])})" if event.get("url") else ""
                            has_links |= bool(link)
                            await _show(emitter, f"{event['content']}{link}", done=bool(link))
            except asyncio.CancelledError:
                if conversation:
                    with suppress(httpx.HTTPError):
                        headers = {"X-Ricordo-User": asked["user_id"]}
                        await client.post(
                            f"/v1/conversations/{conversation}/cancel", headers=headers
                        )
                raise
            except httpx.HTTPError as error:
                yield f"Ricordo does not answer ({type(error).__name__}). Check SERVER_URL and the server."
            except _RequestRefused as error:
                yield f"Ricordo refused: {error}"

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
    """What the server said."""


async def _events(
    client: httpx.AsyncClient, asked: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", "/chat/stream", json=asked) as answer:
        if answer.is_error:
            await answer.aread()
            with suppress(ValueError):
                raise _RequestRefused(answer.json().get("detail"))
            raise _RequestRefused(answer.status_code)
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


async def _show(emitter: Any, description: str, *, done: bool = False) -> None:
    if emitter:
        await emitter({"type": "status", "data": {"description": description, "done": done}})


async def _embed(client: httpx.AsyncClient, path: str, user: str, emitter: Any) -> None:
    """Show a document that the agent made, such as notes, beside the answer. It is no part of the text, so no model reads it."""
    if emitter and path.startswith("/users/"):
        made = await client.get(path, headers={"X-Ricordo-User": user})
        if made.is_success:
            await emitter({"type": "embeds", "data": {"embeds": [made.text]}})
