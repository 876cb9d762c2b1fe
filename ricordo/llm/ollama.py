"""What window a model really has at an Ollama server, whose OpenAI route cannot be told one and cuts silently.

In this order: what a loaded model was loaded with, what its own file sets, what the server was started with, and else
Ollama's smallest default, never more than the model was made for.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import httpx2
import orjson

from ricordo.domain.model import ModelInfo
from ricordo.llm.provider_table import Provider

# With less than 24 GiB of video memory, as Ollama's documents say; the others get more, and `/api/ps` tells of it.
SMALLEST_DEFAULT = 4_096
SHOW_SECONDS = 5.0
AT_ONCE = 8
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)


async def with_real_windows(
    client: httpx2.AsyncClient, provider: Provider, models: Iterable[ModelInfo]
) -> tuple[ModelInfo, ...]:
    """The models with the windows they have there; one that the server says nothing of gets the smallest default."""
    root = provider.base_url.rstrip("/").removesuffix("/v1")
    found = tuple(models)
    loaded = _loaded(await _asked(client, "GET", f"{root}/api/ps", None)) if found else {}
    places = asyncio.Semaphore(AT_ONCE)

    async def measured(info: ModelInfo) -> ModelInfo:
        if info.name in loaded:
            return replace(info, context_window=loaded[info.name])
        async with places:
            shown = await _asked(client, "POST", f"{root}/api/show", {"model": info.name})
        return replace(info, context_window=window_in(shown, provider.window))

    return tuple(await asyncio.gather(*map(measured, found)))


def window_in(shown: Mapping[str, Any], started_with: int | None) -> int:
    """The window that Ollama will load a model with, by what it shows of it."""
    parameters, facts = shown.get("parameters"), shown.get("model_info")
    set_by_file = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    window = int(set_by_file.group(1)) if set_by_file else started_with or SMALLEST_DEFAULT
    rows = facts.items() if isinstance(facts, dict) else ()
    most = [value for key, value in rows if key.endswith(".context_length") and isinstance(value, int) and value > 0]
    if shown.get("remote_host") and most:  # A model in Ollama's cloud comes with all it has.
        return min(most)
    return min([window, *most]) or SMALLEST_DEFAULT


def _loaded(answer: Mapping[str, Any]) -> dict[str, int]:
    rows = answer.get("models")
    return {
        str(row.get("model") or row.get("name")): row["context_length"]
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("context_length"), int) and row["context_length"] > 0
    }


async def _asked(client: httpx2.AsyncClient, method: str, url: str, body: Any) -> Mapping[str, Any]:
    """The answer, or nothing where there is none: an older server, or one that is busy."""
    content = None if body is None else orjson.dumps(body)
    try:
        response = await client.request(method, url, content=content, timeout=SHOW_SECONDS)
        payload = orjson.loads(response.content) if response.status_code == 200 else None
    except (httpx2.HTTPError, orjson.JSONDecodeError):
        return {}
    return payload if isinstance(payload, dict) else {}
