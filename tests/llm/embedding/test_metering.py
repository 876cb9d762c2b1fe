"""Tokens that embedding took: counted by model for whoever asks, and for nobody else."""

import asyncio

from ricordo.llm.embedding.remote import count, metered


async def test_what_tasks_inside_embed_is_counted_by_model() -> None:
    async def embed(handle: str, tokens: int) -> None:
        await asyncio.sleep(0)
        count(handle, tokens)

    with metered() as tokens:
        await asyncio.gather(embed("a/1", 5), embed("a/1", 7), embed("b/1", 1))
    count("a/1", 100)
    assert tokens == {"a/1": 12, "b/1": 1}


def test_what_is_no_count_is_not_counted() -> None:
    with metered() as tokens:
        for reported in (None, 0, -5, True, "7", 1.5):
            count("a/1", reported)
    assert not tokens


async def test_two_who_ask_at_once_count_apart() -> None:
    async def ask(handle: str) -> dict[str, int]:
        with metered() as tokens:
            await asyncio.sleep(0)
            count(handle, 1)
            await asyncio.sleep(0)
        return dict(tokens)

    assert await asyncio.gather(ask("a"), ask("b")) == [{"a": 1}, {"b": 1}]
