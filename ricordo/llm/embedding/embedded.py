"""The embedding model from an installed package: WordLlama, which averages token vectors.

It needs no key, no download and no network. Only the two data files of the package `wordllama`
(MIT) are used. Its code is not used: it would import more packages, and try a download. The table
of vectors is mapped into memory, so that only the used rows take space.
"""

import asyncio
import hashlib
import importlib.util
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.errors import Unavailable
from ricordo.llm.tokens import writable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HANDLE = "ricordo/wordllama-256"
PACKAGE = "wordllama"
INSTALL = (
    'Install it with: pip install "ricordo[embeddings]", or set RICORDO_EMBEDDING to another '
    "model or to none."
)
# Relative path and SHA-256 of the files of wordllama 0.4.0.post1.
TABLE = (
    "weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
)
TOKENIZER = (
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)
# After some pages, further words hardly change the mean of all words, but they cost time.
MOST_CHARACTERS = 8_000
# Shorter texts take less than a millisecond, which is not worth a worker thread.
INLINE_CHARACTERS = 2_000


class EmbeddedModel:
    """WordLlama's vectors, loaded once at the first use, in a worker thread.

    `folder` holds the two files.
    """

    info = EmbeddingInfo(HANDLE, "ricordo", "wordllama-256", "openai", 256)
    handle = HANDLE

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loaded: tuple[Any, NDArray[np.float16]] | None = None
        self._loading = asyncio.Lock()
        self._related: RelatedWords | None = None

    async def embed(
        self,
        texts: Sequence[str],
        *,
        purpose: EmbeddingPurpose = "document",  # noqa: ARG002
    ) -> list[list[float]]:
        """Return one vector of length 1 for each text.

        A text without words gets zeros. Only the first 8,000 characters of a text count. Raises
        Unavailable if the model cannot be loaded.
        """
        loaded = await self._load()
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return _embed(*loaded, texts)
        return await asyncio.to_thread(_embed, *loaded, texts)

    async def related(self, text: str) -> Mapping[str, Sequence[str]]:
        """Return words with a similar meaning for each word of a question, nearest first.

        Raises Unavailable if the model cannot be loaded.
        """
        loaded = await self._load()
        async with self._loading:
            if self._related is None:
                self._related = await asyncio.to_thread(RelatedWords, *loaded)
        return self._related.of(text)

    async def _load(self) -> "tuple[Any, NDArray[np.float16]]":
        async with self._loading:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(_load, self._folder)
        return self._loaded


def is_installed() -> bool:
    return package_folder() is not None and all(
        importlib.util.find_spec(name) for name in ("tokenizers", "numpy")
    )


def package_folder() -> Path | None:
    """Return the folder of the package's files.

    Returns None if it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def load_now() -> "tuple[Any, NDArray[np.float16]]":
    """Return the tokenizer and the table of vectors, for work in a thread.

    Raises Unavailable if they cannot be loaded.
    """
    return _load(None)


def _load(folder: Path | None) -> "tuple[Any, NDArray[np.float16]]":
    folder = folder or package_folder()
    if folder is None:
        raise Unavailable(f"The embedding model {HANDLE} needs its package. {INSTALL}")
    try:
        import numpy as np
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Unavailable(
            f"The embedding model {HANDLE} needs the package {error.name}. {INSTALL}"
        ) from error
    tokenizer = Tokenizer.from_buffer(_checked(folder, *TOKENIZER)[:])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # By default the tokenizer caches 10,000 texts of 2 KB each, although texts hardly ever repeat.
    tokenizer.model._resize_cache(CACHED_TEXTS)
    mapped = _checked(folder, *TABLE)
    data_start = 8 + int.from_bytes(mapped[:8], "little")
    tensor = orjson.loads(mapped[8:data_start])["embedding.weight"]
    start, end = tensor["data_offsets"]
    numbers = np.frombuffer(mapped, "<f2", (end - start) // 2, data_start + start)
    return tokenizer, numbers.reshape(tensor["shape"])


def _embed(tokenizer: Any, table: "NDArray[np.float16]", texts: Sequence[str]) -> list[list[float]]:
    # One by one: a batch would start a thread for each processor.
    encodings = (
        tokenizer.encode(writable(text[:MOST_CHARACTERS]), add_special_tokens=False)
        for text in texts
    )
    return [pooled(table, encoding.ids).tolist() for encoding in encodings]


def _checked(folder: Path, name: str, expected: str) -> "mmap.mmap":
    """Return the mapped file.

    Raises Unavailable if it is not the file that the stored vectors were made with.
    """
    try:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"The file {name} of the package {PACKAGE} cannot be read: {error}. {INSTALL}"
        ) from error
    if digest != expected:
        raise Unavailable(
            f"The file {name} of the package {PACKAGE} is not the version that this Ricordo "
            f"needs. {INSTALL}"
        )
    return mapped


def pooled(table: "NDArray[np.float16]", tokens: Sequence[int]) -> "NDArray[np.float32]":
    """Return a text's vector of length 1, shape (dimensions,).

    A text without tokens gets zeros.

    `table` holds a row for each token, shape (vocabulary, dimensions). One text at a time is faster
    than a batch, since its rows stay in the processor's cache.
    """
    import numpy as np

    # The sum has the same direction as the mean, and only the direction is used.
    total: NDArray[np.float32] = table[list(tokens)].sum(axis=0, dtype=np.float32)
    length = float(np.linalg.norm(total))
    return total / length if length else total


# Capitalized names are excluded, since the nearest words of a name are other names.
_WORD = re.compile(r"(?<!\w)[a-z]{3,30}(?!\w)")
_WHOLE = re.compile(r"▁[a-z]{3,}")
MOST_WORDS = 24
NEAREST = 12
LEAST_LIKE = 0.5
# The signs of two near words differ in at most this many of 256 dimensions. The maximum over all
# near pairs in the vocabulary is 105.
MOST_APART = 108
_CACHED_WORDS = 20_000
CACHED_TEXTS = 16  # in the tokenizer


class RelatedWords:
    """Words near in meaning to a question's words: hike for walk, job for work.

    A search looks for them too, with less weight than for the question's words. Only English has
    enough whole words in the vocabulary. `table` has a row of 256 numbers for each token.
    """

    def __init__(self, tokenizer: Any, table: "NDArray[np.float16]") -> None:
        import numpy as np

        vocabulary = sorted(
            (id, token) for token, id in tokenizer.get_vocab().items() if _WHOLE.fullmatch(token)
        )
        self._words = [token[1:] for _, token in vocabulary]
        vectors: NDArray[np.float32] = table[[id for id, _ in vocabulary]].astype(np.float32)
        self._vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        self._signs = np.ascontiguousarray(np.packbits(self._vectors > 0, axis=1).view(np.uint64).T)
        self._tokenizer = tokenizer
        self._table = table
        self._near: Callable[[str], tuple[str, ...]] = lru_cache(_CACHED_WORDS)(self._look_up)

    def of(self, text: str) -> dict[str, tuple[str, ...]]:
        """Return the nearest words for the first 24 lower-case words of a question, nearest first.

        A word without near words is left out. The word itself may be among its nearest words.
        """
        question_words = list(dict.fromkeys(_WORD.findall(text[:2000])))[:MOST_WORDS]
        return {word: near for word in question_words if (near := self._near(word))}

    def _look_up(self, word: str) -> tuple[str, ...]:
        import numpy as np

        ids = self._tokenizer.encode(word, add_special_tokens=False).ids
        vector: NDArray[np.float32] = self._table[list(ids)].sum(axis=0, dtype=np.float32)
        length = float(vector @ vector) ** 0.5
        if not length:
            return ()
        direction = vector / np.float32(length)
        # First compare the signs of the dimensions, packed 64 to an integer. This is ten times as
        # fast as comparing the numbers. A counter that overflows, as for an opposite vector, only
        # adds one more candidate.
        signs = np.packbits(direction > 0).view(np.uint64)
        apart = np.zeros(self._signs.shape[1], dtype=np.uint8)
        for row, sign in zip(self._signs, signs, strict=True):
            apart += np.bitwise_count(row ^ sign)
        candidates = np.flatnonzero(apart <= MOST_APART)
        likeness = self._vectors.take(candidates, axis=0) @ direction
        near = np.flatnonzero(likeness >= LEAST_LIKE)
        nearest = candidates[near[np.argsort(-likeness[near])][:NEAREST]]
        return tuple([self._words[index] for index in nearest.tolist()])
