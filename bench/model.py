"""The scripted model of the benches: a separate process on loopback that answers at once.

The message "edit" makes it edit memory first. The message "call NAME {…}" makes it call that tool
with these arguments first.
"""

import asyncio
import json
import re
from collections.abc import Callable

from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call

_SAYS_OK = completion("ok")
_CALL = re.compile(r'\{"role":"user","content":"call (\w+) (\{(?:[^"\\]|\\.)*\})"\}\]')


def reply(seen: Seen) -> Answer:
    """Return the memory edit or tool call that the last message asks for, otherwise plain text."""
    if seen.method == "GET":
        return Answer({"object": "list", "data": [{"id": "bench", "object": "model"}]})
    # The last message begins with its role. The tools come after it in the body, and their texts
    # contain "edit" too.
    start = seen.raw.rfind(b'{"role":')
    if seen.raw[start : seen.raw.find(b"}", start)] == b'{"role":"user","content":"edit"':
        return completion(
            None, [tool_call("memory_insert", {"label": "human", "new_string": "likes tea"})]
        )
    if asked := _CALL.search(seen.raw.decode("utf-8", "replace"), start):
        return completion(None, [tool_call(asked[1], json.loads(f'"{asked[2]}"'))])
    return _SAYS_OK


async def serve(answer: Callable[[Seen], Answer]) -> None:
    """Print the address, then serve a model with these answers until the process ends."""
    server = ModelServer(answer, keeps=False)
    await server.start(0)
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(reply))
