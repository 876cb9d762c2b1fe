"""Words near in meaning, by the embedded model's own vectors."""

from ricordo.llm.chat import KnowsWords
from ricordo.llm.embedding.embedded import EmbeddedModel
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
