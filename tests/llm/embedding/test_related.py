"""Words near in meaning, by the embedded model's own vectors."""

import numpy as np

from ricordo.llm.chat import KnowsWords
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import LEAST_LIKE, NEAREST, EmbeddedModel, RelatedWords
from ricordo.llm.embedding.scripted import ScriptedEmbedder


async def test_a_word_is_given_words_near_in_meaning_nearest_first() -> None:
    related = await EmbeddedModel().related("which job do they have")
    assert {"jobs", "work", "career"} & set(related["job"])
    assert len(related["job"]) <= 12


async def test_names_numbers_and_other_scripts_are_given_none() -> None:
    model = EmbeddedModel()
    assert await model.related("Caroline NATO 2023 Haus Ελλάδα 名前 été foo_bar") == {}
    assert await model.related("") == {}


async def test_a_very_long_question_is_read_at_its_beginning() -> None:
    related = await EmbeddedModel().related("job " * 100_000 + "career")
    assert set(related) <= {"job"}


def test_only_a_model_that_knows_words_is_asked() -> None:
    assert isinstance(EmbeddedModel(), KnowsWords)
    assert not isinstance(ScriptedEmbedder(), KnowsWords)


def test_the_first_look_at_signs_loses_no_word_that_is_near() -> None:
    tokenizer, table = embedded._load(None)
    words = sorted(token[1:] for token in tokenizer.get_vocab() if token.startswith("▁job") or token.startswith("▁wal"))
    near = RelatedWords(tokenizer, table).of(" ".join(words))
    whole = sorted((id, token[1:]) for token, id in tokenizer.get_vocab().items() if embedded_word(token))
    vectors = table[[id for id, _ in whole]].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert len(near) > 5
    for word, found in near.items():
        vector = table[tokenizer.encode(word, add_special_tokens=False).ids].sum(axis=0, dtype=np.float32)
        likeness = vectors @ (vector / np.linalg.norm(vector))
        exact = [whole[place][1] for place in np.argsort(-likeness)[:NEAREST] if likeness[place] >= LEAST_LIKE]
        assert list(found) == exact


def embedded_word(token: str) -> bool:
    """Whether a token is a whole small word of three letters or more."""
    return token.startswith("▁") and len(token) > 3 and token[1:].isascii() and token[1:].isalpha() and token.islower()
