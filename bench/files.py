"""The cost of folders: reading 1,000 files of 100 kB, finding lines in them, and searching.

`python -m bench.files` measures this alone, in about three minutes. A tool's time is that of a turn
that calls it, minus that of a turn whose tool does nothing.
"""

import asyncio
import json
import statistics
import time
from typing import Any

import httpx2

from bench import report
from bench.report import Figure
from bench.search.texts import Writer
from bench.servers import Server, model_server, ricordo

FILES, SIZE = 1_000, 100_000  # files, and characters of each
A_FEW = 100  # files of `python -m bench`, which has little time for each bench
_AT_ONCE, _ROUNDS = 4, 40


def texts_of_files(count: int) -> list[str]:
    """Return texts of paragraphs, one for each file."""
    sentences = iter(Writer(7).texts(count * SIZE // 90))
    made = []
    for _ in range(count):
        lines: list[str] = []
        size = 0
        while size < SIZE:
            line = " ".join(next(sentences, "The end.") for _ in range(3))
            lines += [line, ""] if len(lines) % 7 == 0 else [line]
            size += len(line) + 1
        made.append("\n".join(lines)[:SIZE])
    return made


async def ingestion(
    client: httpx2.AsyncClient, server: Server, folder: str, texts: list[str]
) -> list[Figure]:
    """Upload all files, and wait until the last is read."""
    before, began = server.cpu(), time.perf_counter()
    waiting = list(enumerate(texts))[::-1]
    most = 0.0

    async def upload() -> None:
        nonlocal most
        while waiting:
            number, text = waiting.pop()
            sent = {"file": (f"file{number:04}.txt", text.encode())}
            (
                await client.post(f"{server.url}/v1/folders/{folder}/upload", files=sent)
            ).raise_for_status()
            most = max(most, server.memory())

    await asyncio.gather(*(upload() for _ in range(_AT_ONCE)))
    while True:
        files = (await client.get(f"{server.url}/v1/folders/{folder}/files")).json()
        most = max(most, server.memory())
        if all(file["processing_status"] == "completed" for file in files):
            break
        assert not [file for file in files if file["processing_status"] == "error"]
        await asyncio.sleep(0.5)
    seconds = time.perf_counter() - began
    return [
        Figure(
            f"files of {SIZE // 1000} kB read a second",
            len(texts) / seconds,
            "/s",
            20,
            more_is_better=True,
        ),
        Figure("  processor time of one", (server.cpu() - before) / len(texts) * 1000, "ms"),
        Figure("  chunks of one", statistics.mean(file["total_chunks"] for file in files), ""),
        Figure("  most memory meanwhile", most, "MB"),
    ]


async def tools(
    client: httpx2.AsyncClient, server: Server, folder: str, texts: list[str]
) -> list[Figure]:
    """Measure the times of the three tools."""
    body = {"name": "bench", "folder_ids": [folder]}
    agent = (
        (await client.post(f"{server.url}/v1/agents/", json=body)).raise_for_status().json()["id"]
    )

    async def called(name: str, **arguments: Any) -> float:
        await client.patch(f"{server.url}/v1/agents/{agent}/reset-messages", json={})
        said = {"messages": [{"role": "user", "content": f"call {name} {json.dumps(arguments)}"}]}
        began = time.perf_counter()
        answer = (
            (await client.post(f"{server.url}/v1/agents/{agent}/messages", json=said))
            .raise_for_status()
            .json()
        )
        took = (time.perf_counter() - began) * 1000
        (result,) = [
            one for one in answer["messages"] if one["message_type"] == "tool_return_message"
        ]
        assert result["status"] == "success", result
        return took

    idle = statistics.median([await called("open_files", file_requests=[]) for _ in range(_ROUNDS)])
    asked = Writer(7).questions([text[50_000:50_200] for text in texts], _ROUNDS + 5)
    searches = [await called("semantic_search_files", query=question) - idle for question in asked][
        5:
    ]
    common = [await called("grep_files", pattern="the") - idle for _ in range(5)]
    rare = [await called("grep_files", pattern=r"zzz\d+") - idle for _ in range(5)]
    return [
        Figure("turn with a tool that has nothing to do", idle, "ms"),
        Figure("semantic_search_files over it, median", statistics.median(searches), "ms", 15),
        Figure("  95 of 100", sorted(searches)[int(len(searches) * 0.95)], "ms"),
        Figure("grep_files over it: a word of every line", statistics.median(common), "ms", 1000),
        Figure("grep_files over it: a word of no line", statistics.median(rare), "ms", 1000),
    ]


async def measure(server: Server, count: int) -> list[Figure]:
    """Measure everything with this number of files, on a server that has just started."""
    texts = texts_of_files(count)
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
        made = await client.post(f"{server.url}/v1/folders/", json={"name": "bench"})
        folder = made.raise_for_status().json()["id"]
        figures = await ingestion(client, server, folder, texts)
        while any((await client.get(f"{server.url}/v1/jobs/active")).json()):  # noqa: ASYNC110 - vectors follow
            await asyncio.sleep(0.5)
        return figures + await tools(client, server, folder, texts)


def file_costs(model_url: str, count: int = FILES) -> list[Figure]:
    """Return all figures for this number of files."""
    with ricordo(model_url) as server:
        return asyncio.run(measure(server, count))


if __name__ == "__main__":
    with model_server() as url:
        report.show(file_costs(url))
