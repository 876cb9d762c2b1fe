"""How the librarian understands people's sentences."""

from ricordo.features.librarian.grammar import (
    Intent,
    facts_asked,
    facts_told,
    is_personal,
    read,
    sentences,
    shared,
    topic,
)

READ = {
    "my name is ada": Intent("tell", "my name is ada"),
    "remember that the exam is on 12 May": Intent("tell", "the exam is on 12 May"),
    "Can you please remember that I like tea?": Intent("tell", "I like tea"),
    "You should remember that I hate Mondays.": Intent("tell", "I hate Mondays."),
    "Remember: buy milk": Intent("tell", "buy milk"),
    "don't forget that I see the dentist on Monday": Intent("tell", "I see the dentist on Monday"),
    "When I was a child I lived in Rome.": Intent("tell", "When I was a child I lived in Rome."),
    "Ich habe am 12. Mai Geburtstag.": Intent("tell", "Ich habe am 12. Mai Geburtstag."),
    "remind me to call my mother": Intent("tell", "remind me to call my mother"),
    "Call me Ada": Intent("tell", "Call me Ada"),
    "Remember my name?": Intent("ask", "Remember my name?"),
    "do you remember my name": Intent("ask", "do you remember my name"),
    "where do I live": Intent("ask", "where do I live"),
    "What time is the meeting": Intent("ask", "What time is the meeting"),
    "find the recipe with eggs": Intent("ask", "find the recipe with eggs"),
    "tell me about my sister": Intent("ask", "tell me about my sister"),
    "remind me what I said about tea": Intent("ask", "remind me what I said about tea"),
    "I forgot where I parked": Intent("ask", "I forgot where I parked"),
    "nuts": Intent("ask", "nuts"),
    "我对什么过敏？": Intent("ask", "我对什么过敏？"),
    "please forget my address": Intent("forget", "my address"),
    "What do you know about me?": Intent("list"),
    "list my notes": Intent("list"),
    "never mind": Intent("talk"),
    "Yes, all of them please": Intent("yes"),
    "Hello Sam!": Intent("talk"),
    "thanks a lot": Intent("talk"),
    "What are you?": Intent("help"),
    "How can I use a real model?": Intent("help"),
    "Tell me a joke": Intent("task"),
}


def test_sentences_are_classified_by_intent() -> None:
    assert {text: read(text) for text in READ} == {text: (intent,) for text, intent in READ.items()}


def test_a_text_is_split_into_intents_and_pronouns_stay_with_their_nouns() -> None:
    assert read("Hi! My sister is Emma. She is a doctor. I live in Turin. Where do I live?") == (
        Intent("talk"),
        Intent("tell", "My sister is Emma. She is a doctor."),
        Intent("tell", "I live in Turin."),
        Intent("ask", "Where do I live?"),
    )
    assert read("") == read(" \n ") == read("!?") == ()


def test_a_list_followed_by_a_question_is_stored_and_answered() -> None:
    shopping = "Shopping:\n- milk\n- eggs\nHow many eggs do I have?"
    assert read(shopping) == (
        Intent("tell", shopping, is_note=True),
        Intent("ask", "How many eggs do I have?"),
    )
    long_question = "I have been thinking about the harbour for a long time, " * 6 + "where was it?"
    assert read(long_question) == (Intent("ask", long_question),)


def test_abbreviations_and_ordinals_do_not_end_sentences() -> None:
    text = "Dr. Rossi comes on the 12. of May. He brings cake! 好。走吧。"
    assert sentences(text) == [
        "Dr. Rossi comes on the 12. of May.",
        "He brings cake!",
        "好。",
        "走吧。",
    ]


def test_statements_about_the_speaker_are_personal() -> None:
    told = ("I play the violin", "The meeting is on Friday", "Name: Ada")
    assert [is_personal(text) for text in told] == [True, False, True]


def test_the_kinds_of_facts_in_statements_and_questions_are_recognized() -> None:
    for text, kinds in (
        ("My name is Ada", {"name"}),
        ("Name: Ada", {"name"}),
        ("My sister's name is Emma", {"sister's name"}),
        ("call me a taxi", set()),
        ("I moved to Rome", {"home"}),
        ("I lived in Rome", set()),
        ("My favorite color is blue", {"favourite colour"}),
    ):
        assert facts_told(text) == kinds, text
    for text, kinds in (
        ("Who am I?", {"name"}),
        ("What's my name?", {"name"}),
        ("What is my sister's name?", {"sister's name"}),
        ("Where do I live?", {"home"}),
        ("What is my favourite colour?", {"favourite colour"}),
        ("What is it?", set()),
    ):
        assert facts_asked(text) == kinds, text


def test_inflected_forms_of_a_word_match_and_other_words_do_not() -> None:
    for one, other in (
        ("allergic", "allergies"),
        ("live", "lived"),
        ("running", "runs"),
        ("Nüsse", "nussen"),
        ("过敏", "过敏。"),
    ):
        assert shared(topic(one), f"So: {other}!"), one
    for one, other in (("nut", "nutmeg"), ("exam", "exactly"), ("1234", "1235"), ("tea", "team")):
        assert not shared(topic(one), other), one
