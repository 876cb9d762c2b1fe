"""Batches, order and long texts, against a provider of every temper."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.errors import ModelError
from ricordo.llm.embedding.remote import (
    BATCH_TEXTS,
    BATCH_TOKENS,
    MOST_TOKENS,
    REST_SECONDS,
    RemoteEmbedder,
    count,
    metered,
    unit,
)
from ricordo.llm.tokens import text_tokens
from tests.llm.talk import Waits

INFO = EmbeddingInfo("p/m", "p", "m", "openai")


def mark(text: str) -> list[float]:
    """A vector that tells texts apart by their beginning."""
    return [float(ord(sign)) for sign in text[:6].ljust(6)]


class Provider:
    """Takes so many texts and tokens at once and so many tokens a text, and fails now and then."""

    def __init__(self, texts: int = 10_000, tokens: int = 10**9, text: int = 10**9, fails: Sequence[bool] = ()) -> None:
        self.requests: list[tuple[list[str], EmbeddingPurpose]] = []
        self.taken: list[list[str]] = []
        self._limits = texts, tokens, text
        self._fails = list(fails)

    async def __call__(self, texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        self.requests.append((texts, purpose))
        if self._fails and self._fails.pop():
            raise ModelError("llm_error", "hiccup")
        counts = [text_tokens(text) for text in texts]
        if len(texts) > self._limits[0] or sum(counts) > self._limits[1] or max(counts) > self._limits[2]:
            raise ModelError("context_window_exceeded", "too long")
        self.taken.append(texts)
        return [mark(text) for text in texts]


TEXT = st.one_of(
    st.text(max_size=40),
    st.text("ab é語😀", min_size=1, max_size=30).flatmap(
        lambda text: st.integers(1, 400).map(lambda times: text * times)
    ),
    st.sampled_from(["", " ", "\n\t", "\ud800"]),
)


@given(
    texts=st.lists(TEXT, max_size=80),
    most_texts=st.integers(1, 100),
    most_tokens=st.integers(200, 5_000),
    text=st.integers(70, 3_000),
    fails=st.lists(st.booleans(), max_size=4),
)
async def test_every_text_gets_its_own_vector_whatever_the_provider_takes(
    texts: list[str], most_texts: int, most_tokens: int, text: int, fails: list[bool]
) -> None:
    provider = Provider(most_texts, most_tokens, text, fails)
    found = await RemoteEmbedder(INFO, Waits().policy(5), provider).embed(texts)
    expected = [unit(mark(one.replace("\ud800", "?")), "p") if one.strip() else [0.0] * 6 for one in texts]
    assert found == expected
    assert all(one.strip() for sent, _ in provider.requests for one in sent)


async def test_requests_are_bounded_by_texts_and_by_tokens() -> None:
    provider = Provider()
    await RemoteEmbedder(INFO, Waits().policy(), provider).embed(["a" * 4 * size for size in range(1, 300)])
    assert max(len(texts) for texts in provider.taken) == BATCH_TEXTS
    await RemoteEmbedder(INFO, Waits().policy(), provider).embed(["語" * 1_000_000] * 20)
    sums = [sum(map(text_tokens, texts)) for texts in provider.taken]
    assert max(sums) == BATCH_TOKENS == 8 * MOST_TOKENS


async def test_a_failure_in_the_middle_is_an_error_and_gives_no_half_of_the_vectors() -> None:
    provider = Provider(fails=[True] * 4 + [False])
    with pytest.raises(ModelError, match="hiccup"):
        await RemoteEmbedder(INFO, Waits().policy(3), provider).embed(["tea"] * (BATCH_TEXTS + 1))
    assert len(provider.requests) == 5


async def test_a_question_is_given_up_in_time_and_the_next_ones_at_once_for_a_while() -> None:
    asked, seconds = list[str](), [100.0]

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        asked.append(purpose)
        if purpose == "query" and len(asked) == 1:
            await asyncio.sleep(60)
        return [mark(text) for text in texts]

    embedder = RemoteEmbedder(INFO, Waits().policy(), ask, query_seconds=0.02, now=lambda: seconds[0])
    with pytest.raises(ModelError, match=r"p/m gave no vector within 0\.02 s") as caught:
        await embedder.embed(["tea"], purpose="query")
    assert caught.value.kind == "llm_timeout"
    seconds[0] += REST_SECONDS - 1
    with pytest.raises(ModelError, match="p/m failed a moment ago: p/m gave no vector"):
        await embedder.embed(["tea"], purpose="query")
    assert asked == ["query"]
    # What is not waited for goes on meanwhile.
    assert await embedder.embed(["tea"]) == [unit(mark("tea"), "p")]
    seconds[0] += 2
    assert await embedder.embed(["tea"], purpose="query") == [unit(mark("tea"), "p")]


async def test_a_question_is_tried_again_once_only() -> None:
    provider, waits = Provider(fails=[True] * 9), Waits()
    with pytest.raises(ModelError, match="hiccup"):
        await RemoteEmbedder(INFO, waits.policy(3), provider).embed(["tea"], purpose="query")
    assert (len(provider.requests), len(waits)) == (2, 1)
    provider = Provider(fails=[True])
    assert await RemoteEmbedder(INFO, waits.policy(3), provider).embed(["tea"], purpose="query")


async def test_a_question_that_is_given_up_by_its_asker_makes_nobody_else_wait() -> None:
    opened = asyncio.Event()

    async def ask(texts: list[str], _purpose: EmbeddingPurpose) -> Sequence[Any]:
        await opened.wait()
        return [mark(text) for text in texts]

    embedder = RemoteEmbedder(INFO, Waits().policy(), ask)
    task = asyncio.ensure_future(embedder.embed(["tea"], purpose="query"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    opened.set()
    assert await embedder.embed(["tea"], purpose="query") == [unit(mark("tea"), "p")]


async def test_what_tasks_inside_embed_is_counted_by_model() -> None:
    async def embed(handle: str, tokens: int) -> None:
        await asyncio.sleep(0)
        count(handle, tokens)

    with metered() as tokens:
        await asyncio.gather(embed("a/1", 5), embed("a/1", 7), embed("b/1", 1))
    count("a/1", 100)
    assert tokens == {"a/1": 12, "b/1": 1}


async def test_two_who_ask_at_once_count_apart() -> None:
    async def ask(handle: str) -> dict[str, int]:
        with metered() as tokens:
            await asyncio.sleep(0)
            count(handle, 1)
            await asyncio.sleep(0)
        return dict(tokens)

    assert await asyncio.gather(ask("a"), ask("b")) == [{"a": 1}, {"b": 1}]


def test_a_vector_is_brought_to_length_one() -> None:
    assert unit([3.0, 4.0], "p") == [0.6, 0.8]
    assert unit([3, 4], "p") == [0.6, 0.8]
    assert math.hypot(*unit([1e300, 1e300, -1e-300], "p")) == pytest.approx(1)


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ([1.0, math.nan], "NaN"),
        ([math.inf, 1.0], "NaN"),
        ([], "without numbers"),
        (["a"], "no vector"),
        ([1.0, None], "no vector"),
        ([[1.0, 2.0]], "no vector"),
        (None, "no vector"),
        ({"a": 1}, "no vector"),
        ("not base64!", "no vector"),
        ("YWJj", "no vector"),  # three bytes
        ("", "without numbers"),
    ],
)
def test_what_is_no_vector_is_a_clear_error(vector: Any, words: str) -> None:
    with pytest.raises(ModelError, match=f"ollama gave .*{words}") as caught:
        unit(vector, "ollama")
    assert caught.value.kind == "llm_error"
