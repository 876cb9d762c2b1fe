"""
title: Ricordo: deleted chats
description: Deletes a chat on the Ricordo server too when its user deletes it here.
version: 0.1.0
"""

# Add it in Open WebUI under Admin Panel, Functions, next to the pipe. It needs the same key. Open
# WebUI 0.12 calls `Event.event` for each of its events (open_webui/events.py).

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
from pydantic import BaseModel, Field

# Ids of Open WebUI's chats; other programs use other names for chats.
_CHAT_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_AT_ONCE = 100


class Event:
    """The class that Open WebUI loads: `event` is called for each event."""

    class Valves(BaseModel):
        """The settings that Open WebUI shows."""

        SERVER_URL: str = Field("http://ricordo:8283", description="Address of the Ricordo server.")
        API_KEY: str = Field("", description="A key made by: ricordo key create --role service")

    def __init__(self) -> None:
        self.valves = self.Valves()

    async def event(self, event: dict[str, Any]) -> None:
        """Delete the conversations of a chat that was deleted, or of all chats of a user.

        After an error, which Open WebUI writes into its log, the server's sync finds the chat
        later.
        """
        subject = event.get("subject") or {}
        data = event.get("data") or {}
        if event["event"] == "chat.deleted":
            owner, chat = data.get("owner_id"), re.escape(str(subject.get("id")))
        elif event["event"] == "chat.deleted_all" and subject.get("type") == "user":
            owner, chat = subject.get("id"), _CHAT_ID
        else:
            return
        if owner:
            await self._delete(f"open-webui:{owner}", re.compile("chat_" + chat))

    async def _delete(self, user: str, summary: re.Pattern[str]) -> None:
        """Delete the user's conversations whose whole summary matches, with their messages."""
        headers = {"X-Ricordo-User": user}
        if self.valves.API_KEY:
            headers["Authorization"] = f"Bearer {self.valves.API_KEY}"
        url = self.valves.SERVER_URL.rstrip("/")
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=60, trust_env=False
        ) as client:
            ids = [
                row["id"]
                async for row in _conversations(client)
                if summary.fullmatch(row["summary"] or "")
            ]
            for conversation_id in ids:
                answer = await client.delete(f"/v1/conversations/{conversation_id}")
                if answer.status_code != httpx.codes.NOT_FOUND:
                    answer.raise_for_status()


async def _conversations(client: httpx.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    """Yield all conversations of the user, archived ones too."""
    query: dict[str, Any] = {"limit": _AT_ONCE, "archive_status": "all", "order_by": "created_at"}
    while True:
        answer = await client.get("/v1/conversations/", params=query)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return  # the user has never talked with an agent
        page = answer.raise_for_status().json()
        for row in page:
            yield row
        if len(page) < _AT_ONCE:
            return
        query["after"] = page[-1]["id"]
