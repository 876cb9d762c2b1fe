"""The model that benches talk to: a process of its own on loopback, that answers at once. "edit" makes it edit memory first."""

import asyncio

from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call

_SAYS_OK = completion("ok")


def reply(seen: Seen) -> Answer:
    """One memory edit where the user's last word asks for it, else plain text."""
    if seen.method == "GET":
        return Answer({"object": "list", "data": [{"id": "bench", "object": "model"}]})
    last = seen.raw.rfind(b'"role":')
    if b'"user"' in seen.raw[last : last + 20] and b"edit" in seen.raw[last:]:
        return completion(None, [tool_call("memory_insert", {"label": "human", "new_string": "likes tea"})])
    return _SAYS_OK


async def _serve() -> None:
    server = ModelServer(reply, keeps=False)
    await server.start(0)
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
