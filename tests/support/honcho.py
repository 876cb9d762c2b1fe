"""A small Honcho server over HTTP.

Its routes and shapes are those of version 3 of the API, as the official client 2.7 uses them.
"""

from typing import Any

from tests.support.json_server import JsonServer, Refusal

_AT = "2026-11-25T12:00:00Z"


class FakeHoncho(JsonServer):
    """A fake Honcho server with its data.

    `sessions` have their messages in order. `asked` holds questions with the peer, `knows` the
    answers by peer. `conclusions` are texts by id, with the peer that each is about; `cards` are
    lines by peer.
    """

    def __init__(self) -> None:
        self.peers: dict[str, Any] = {}
        self.sessions: dict[str, Any] = {}
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.knows: dict[str, str] = {}
        self.conclusions: dict[str, tuple[str, str]] = {}
        self.cards: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.drops_answers = (
            0  # This number of messages is stored, but the response reports a failure.
        )
        super().__init__()

    def said_no(self, _status: int, words: str) -> Any:
        return {"detail": words}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        match method, parts[:2], parts[2:]:
            case "POST", ["v3", "workspaces"], []:
                return {"id": body["id"], "created_at": _AT}
            case "POST", ["v3", "workspaces"], [workspace, "peers"]:
                self.peers.setdefault(body["id"], body)
                return {"id": body["id"], "workspace_id": workspace, "created_at": _AT}
            case "POST", ["v3", "workspaces"], [_, "peers", peer, "chat"]:
                self.asked.append((peer, body["query"]))
                return {"content": self.knows.get(peer)}
            case "POST", ["v3", "workspaces"], [workspace, "sessions"]:
                self.sessions[body["id"]] = body
                self.messages.setdefault(body["id"], [])
                return {
                    "id": body["id"],
                    "workspace_id": workspace,
                    "is_active": True,
                    "created_at": _AT,
                }
            case "POST", ["v3", "workspaces"], [workspace, "sessions", session, "messages"]:
                made = [
                    {
                        "id": f"m{number}",
                        "session_id": session,
                        "workspace_id": workspace,
                        "token_count": 1,
                        **one,
                    }
                    for number, one in enumerate(body["messages"], len(self.messages[session]))
                ]
                assert 1 <= len(made) <= 100
                self.messages[session] += made
                if self.drops_answers:
                    self.drops_answers -= 1
                    raise Refusal(502, self.said_no(502, "bad gateway"))
                return made
            case "POST", ["v3", "workspaces"], [_, "sessions", session, "messages", "list"]:
                found = self.messages[session][::-1][:100]
                return {"items": found, "total": len(found), "page": 1, "size": 100, "pages": 1}
            case "DELETE", ["v3", "workspaces"], [_, "sessions", session]:
                del self.messages[session], self.sessions[session]
                return {}
        return self._concluded(method, parts, body)

    def _concluded(self, method: str, parts: list[str], body: Any) -> Any:
        """Answer requests about conclusions and cards."""
        match method, parts[:2], parts[2:]:
            case "POST", ["v3", "workspaces"], [_, "conclusions", "list"]:
                about = (body or {}).get("filters", {}).get("observed_id")
                items = [
                    {
                        "id": id,
                        "content": text,
                        "observer_id": peer,
                        "observed_id": peer,
                        "created_at": _AT,
                    }
                    for id, (peer, text) in self.conclusions.items()
                    if about in (None, peer)
                ]
                return {"items": items, "total": len(items), "page": 1, "size": 100, "pages": 1}
            case "DELETE", ["v3", "workspaces"], [_, "conclusions", id]:
                del self.conclusions[id]
                return {}
            case "GET", ["v3", "workspaces"], [_, "peers", peer, "card"]:
                return {"peer_card": self.cards.get(peer)}
            case "PUT", ["v3", "workspaces"], [_, "peers", peer, "card"]:
                self.cards[peer] = body["peer_card"]
                return {"peer_card": self.cards[peer]}
        raise Refusal(404, self.said_no(404, "not found"))

    def said(self, session: str) -> list[tuple[str, str]]:
        return [
            (one["peer_id"].partition("-")[0], one["content"])
            for one in self.messages.get(session, [])
        ]
