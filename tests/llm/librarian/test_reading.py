"""What the librarian takes people's words for."""

import pytest

from ricordo.llm.librarian.reading import Ask, Forget, Help, Intent, SmallTalk, Task, Tell, is_personal, read, sentences


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("my name is ada", Tell("my name is ada")),
        ("remember that the exam is on 12 May", Tell("the exam is on 12 May")),
        ("Can you please remember that I like tea?", Tell("I like tea")),
        ("You should remember that I hate Mondays.", Tell("I hate Mondays.")),
        ("Remember: buy milk", Tell("buy milk", is_note=True)),
        ("don't forget that I see the dentist on Monday", Tell("I see the dentist on Monday")),
        ("When I was a child I lived in Rome.", Tell("When I was a child I lived in Rome.")),
        ("Ich habe am 12. Mai Geburtstag.", Tell("Ich habe am 12. Mai Geburtstag.")),
        ("remind me to call my mother", Tell("remind me to call my mother")),
        ("Call me Ada", Tell("Call me Ada")),
        ("请记住我对花生过敏", Tell("我对花生过敏")),
        ("Remember my name?", Ask("Remember my name?")),
        ("do you remember my name", Ask("do you remember my name")),
        ("where do I live", Ask("where do I live")),
        ("What time is the meeting", Ask("What time is the meeting")),
        ("find the recipe with eggs", Ask("find the recipe with eggs")),
        ("tell me about my sister", Ask("tell me about my sister")),
        ("remind me what I said about tea", Ask("remind me what I said about tea")),
        ("I forgot where I parked", Ask("I forgot where I parked")),
        ("nuts", Ask("nuts")),
        ("wo wohne ich", Ask("wo wohne ich")),
        ("我对什么过敏", Ask("我对什么过敏")),
        ("please forget my address", Forget("my address")),
        ("Could you forget that I'm allergic to nuts?", Forget("I'm allergic to nuts")),
        ("never mind", SmallTalk("okay")),
        ("Hello Sam!", SmallTalk("hello")),
        ("hi, how are you?", SmallTalk("wellbeing")),
        ("thanks a lot", SmallTalk("thanks")),
        ("Auf Wiedersehen!", SmallTalk("bye")),
        ("That's great!", SmallTalk("okay")),
        ("What are you?", Help()),
        ("How can I use a real model?", Help()),
        ("Tell me a joke", Task()),
        ("call a taxi", Task()),
    ],
)
def test_a_sentence_is_read_for_what_it_means(text: str, intent: Intent) -> None:
    assert read(text) == (intent,)


def test_sentences_are_read_one_by_one_and_pronouns_stay_with_their_nouns() -> None:
    assert read("Hi! My sister is Emma. She is a doctor. I live in Turin. Where do I live?") == (
        SmallTalk("hello"),
        Tell("My sister is Emma. She is a doctor."),
        Tell("I live in Turin."),
        Ask("Where do I live?"),
    )


def test_a_list_with_a_question_after_it_is_kept_and_answered() -> None:
    assert read("Shopping:\n- milk\n- eggs\nHow many eggs do I have?") == (
        Tell("Shopping:\n- milk\n- eggs\nHow many eggs do I have?", is_note=True),
        Ask("How many eggs do I have?"),
    )
    long_question = "I have been thinking about the harbour for a long time, " * 6 + "where was it?"
    assert read(long_question) == (Ask(long_question),)


def test_abbreviations_and_ordinals_do_not_end_sentences() -> None:
    assert sentences("Dr. Rossi comes on the 12. of May. He brings cake! 好。走吧。") == [
        "Dr. Rossi comes on the 12. of May.",
        "He brings cake!",
        "好。",
        "走吧。",
    ]
    assert read("") == read(" \n ") == read("!?") == ()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I play the violin", True),
        ("Mein Zug fährt um acht", True),
        ("我叫艾达", True),
        ("The meeting is on Friday", False),
        ("We decided to use PostgreSQL", False),
        ("会议在星期五", False),
    ],
)
def test_personal_is_what_is_about_the_speaker(text: str, answer: bool) -> None:
    assert is_personal(text) is answer
