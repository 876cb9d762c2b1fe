"""The embedding model that is installed as a package."""

import asyncio
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ricordo.errors import Unavailable
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import (
    LEAST_LIKE,
    NEAREST,
    TABLE,
    TOKENIZER,
    EmbeddedModel,
    RelatedWords,
    is_installed,
    package_folder,
    pooled,
)
from tests.support.sharing import LOAD


@pytest.fixture(autouse=True)
def _each_loads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the model in each test; other tests share a loaded one."""
    monkeypatch.setattr(embedded, "_load", LOAD)


@pytest.fixture(scope="module")
def model() -> EmbeddedModel:
    return EmbeddedModel()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the package's two files."""
    source = package_folder()
    assert source is not None
    for name, _ in (TABLE, TOKENIZER):
        (tmp_path / name).parent.mkdir()
        shutil.copyfile(source / name, tmp_path / name)
    return tmp_path


def dot_product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_related_texts_are_more_similar_than_unrelated_ones(model: EmbeddedModel) -> None:
    question, near, far = await model.embed(
        [
            "Which animal does she keep?",
            "Ada has a small dog and two cats.",
            "The train to Rome leaves at nine.",
        ]
    )
    assert dot_product(question, near) > dot_product(question, far) + 0.1


async def test_a_vector_has_length_one_and_the_announced_dimensions(
    model: EmbeddedModel,
) -> None:
    texts = [
        "a",
        "Ciao, come stai?",
        "日本語のテキスト",
        "😀",
        "\x00",
        "\ud800",
        "x" * 50_000,
        "word " * 50_000,
    ]
    vectors = await model.embed(texts)
    assert [len(vector) for vector in vectors] == [model.info.dimensions] * len(texts)
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx(
        [1.0] * len(texts), abs=1e-5
    )


async def test_a_text_without_words_gives_zeros(model: EmbeddedModel) -> None:
    empty, word = await model.embed(["", "word"])
    assert empty == [0.0] * len(word)
    assert await model.embed([]) == []


async def test_a_text_has_the_same_vector_alone_and_in_a_batch(model: EmbeddedModel) -> None:
    texts = [f"sentence {number} of a long list" for number in range(300)]
    together = await model.embed(texts)
    assert together[7] == (await model.embed([texts[7]]))[0]
    assert together[299] == (await model.embed([texts[299]], purpose="query"))[0]


async def test_concurrent_callers_load_the_model_once_and_short_texts_need_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    load = embedded._load

    def counted(folder: Path | None) -> Any:
        threads.append(threading.current_thread())
        return load(folder)

    monkeypatch.setattr(embedded, "_load", counted)
    model = EmbeddedModel()
    assert threads == []
    vectors = await asyncio.gather(*(model.embed(["tea"]) for _ in range(20)))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    assert all(vector == vectors[0] for vector in vectors)
    monkeypatch.setattr(asyncio, "to_thread", None)
    assert await model.embed(["tea"]) == vectors[0]


async def test_many_texts_are_embedded_in_another_thread(
    model: EmbeddedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    pool = embedded.pooled

    def noted(table: Any, tokens: Sequence[int]) -> Any:
        threads.add(threading.current_thread())
        return pool(table, tokens)

    monkeypatch.setattr(embedded, "pooled", noted)
    await model.embed(["a few words"] * 500)
    assert threads
    assert threading.main_thread() not in threads


async def test_the_tokenizer_caches_few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Tokenizers:
        def from_buffer(self, _: bytes) -> "Tokenizers":
            return self

        def no_padding(self) -> None: ...

        no_truncation = no_padding

        @property
        def model(self) -> "Tokenizers":
            return self

        def _resize_cache(self, size: int) -> None:
            sizes.append(size)

    monkeypatch.setattr("tokenizers.Tokenizer", Tokenizers())
    await EmbeddedModel()._load()
    assert sizes == [embedded.CACHED_TEXTS]
    assert embedded.CACHED_TEXTS <= 100


async def test_a_very_long_text_is_cut_to_its_beginning(model: EmbeddedModel) -> None:
    start = "tea " * (embedded.MOST_CHARACTERS // 4)
    whole, cut = await model.embed([start + "coffee " * 1_000_000, start])
    assert whole == cut


async def test_a_file_that_was_changed_is_refused(folder: Path) -> None:
    assert len((await EmbeddedModel(folder).embed(["tea"]))[0]) == 256
    path = folder / TABLE[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        Unavailable,
        match=r"is not the version that this Ricordo needs\. Install it with: pip install",
    ):
        await EmbeddedModel(folder).embed(["tea"])


@pytest.mark.parametrize("damage", ["gone", "empty"])
async def test_a_missing_or_empty_file_is_named_and_used_once_it_is_restored(
    folder: Path, damage: str
) -> None:
    path = folder / TOKENIZER[0]
    whole = path.read_bytes()
    path.unlink()
    if damage == "empty":
        path.touch()
    model = EmbeddedModel(folder)
    with pytest.raises(Unavailable, match=f"The file {TOKENIZER[0]} of the package wordllama"):
        await model.embed(["tea"])
    path.write_bytes(whole)
    assert len((await model.embed(["tea"]))[0]) == 256


async def test_without_its_packages_the_model_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(
            Unavailable,
            match=r'needs the package tokenizers\. .*pip install "ricordo\[embeddings\]"',
        ):
            await EmbeddedModel().embed(["tea"])
    assert is_installed()
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package")
    assert not is_installed()
    with pytest.raises(Unavailable, match=r'pip install "ricordo\[embeddings\]"'):
        await EmbeddedModel().embed(["tea"])


def test_the_model_works_without_network_and_imports_only_what_it_needs() -> None:
    code = (
        "import asyncio, socket, sys\ndef refuse(*_): raise AssertionError('no network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\nfrom ricordo.llm.embedding.embedded "
        "import EmbeddedModel\nassert 'numpy' not in sys.modules and 'tokenizers' not in "
        "sys.modules\nvectors = asyncio.run(EmbeddedModel().embed(['tea']))\nloaded = "
        "{name.partition('.')[0] for name in sys.modules}\nprint(len(vectors[0]), sorted(loaded & "
        "{'wordllama', 'safetensors', 'huggingface_hub', 'requests', 'torch'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"HOME": "/nowhere"},
        check=False,
    )
    assert done.stdout.strip() == "256 []", done.stderr


VECTORS = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 0], [-1, 0, 0]], np.float16)


@pytest.mark.parametrize("tokens", [[], [2], [0, 3]])
def test_tokens_that_cancel_out_give_zeros(tokens: list[int]) -> None:
    vector = pooled(VECTORS, tokens)
    assert vector.tolist() == [0.0, 0.0, 0.0]
    assert vector.dtype == np.float32


def test_pooling_a_long_text_loses_no_precision() -> None:
    # In float16 this sum would stop growing at 2,048.
    assert pooled(VECTORS, [0] * 5_000 + [1] * 5_000) == pytest.approx(
        [1 / math.sqrt(5), 2 / math.sqrt(5), 0]
    )


async def test_related_words_are_near_in_meaning_and_few(model: EmbeddedModel) -> None:
    related = await model.related("which job do they have")
    assert {"jobs", "work", "career"} & set(related["job"])
    assert len(related["job"]) <= 12


async def test_names_numbers_and_other_scripts_have_no_related_words(model: EmbeddedModel) -> None:
    assert await model.related("Caroline NATO 2023 Haus Ελλάδα 名前 été foo_bar") == {}
    assert await model.related("") == {}


async def test_only_the_beginning_of_a_very_long_query_gets_related_words(
    model: EmbeddedModel,
) -> None:
    related = await model.related("job " * 100_000 + "career")
    assert set(related) <= {"job"}


def test_the_fast_search_for_related_words_finds_the_exact_nearest_words() -> None:
    tokenizer, table = embedded._load(None)
    words = sorted(
        token[1:]
        for token in tokenizer.get_vocab()
        if token.startswith("▁job") or token.startswith("▁wal")
    )
    near = RelatedWords(tokenizer, table).of(" ".join(words))
    whole = sorted(
        (id, token[1:]) for token, id in tokenizer.get_vocab().items() if embedded_word(token)
    )
    vectors = table[[id for id, _ in whole]].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert len(near) > 5
    for word, found in near.items():
        vector = table[tokenizer.encode(word, add_special_tokens=False).ids].sum(
            axis=0, dtype=np.float32
        )
        likeness = vectors @ (vector / np.linalg.norm(vector))
        exact = [
            whole[place][1]
            for place in np.argsort(-likeness)[:NEAREST]
            if likeness[place] >= LEAST_LIKE
        ]
        assert list(found) == exact


def embedded_word(token: str) -> bool:
    return (
        token.startswith("▁")
        and len(token) > 3
        and token[1:].isascii()
        and token[1:].isalpha()
        and token.islower()
    )
