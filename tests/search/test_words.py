import math
import time
import unicodedata
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ricordo.search.word_lists import ENDINGS, STOP_WORDS
from ricordo.search.words import (
    QUERY_TERMS,
    TERM_LENGTH,
    fold,
    infix,
    language_of,
    other_forms,
    query_terms,
    related_terms,
    terms,
)

# Per language: what an agent was told, and questions with the number of the text that answers.
TEXTS: dict[str, list[str]] = {
    "en": [
        "My sister Caroline adopted two kittens from the shelter last spring.",
        "The landlord is raising the rent on our apartment by ten percent.",
        "I've been learning to play the violin since I was eight years old.",
        "We flew to Portugal and surfed near Peniche for a week.",
        "The doctor says I should stop drinking coffee because of my heart.",
    ],
    "de": [
        "Meine Krankenversicherung hat die Rechnung des Zahnarztes nicht übernommen.",
        "Wir haben zwei Katzen und einen alten Hund auf dem Bauernhof.",
        "Im Sommer fahren die Kinder mit den Großeltern an die Ostsee.",
        "Der Wohnungsschlüssel liegt immer unter dem Blumentopf neben der Tür.",
        "Meine Tochter studiert in Leipzig Maschinenbau und spielt Handball.",
    ],
    "fr": [
        "L'été dernier nous avons loué une maison au bord de l'océan, près de Biarritz.",
        "Mon frère élève des chevaux et des chèvres dans le Cantal.",
        "Je suis allergique aux arachides et aux fruits de mer.",
        "Le mécanicien a remplacé les freins de la voiture mardi.",
        "J'écris un roman policier qui se déroule à Marseille.",
    ],
    "es": [
        "Mi abuela cocinaba lentejas con chorizo todos los domingos.",
        "Los niños empezaron las clases de natación en septiembre.",
        "Perdí las llaves del coche en la playa de Cádiz.",
        "Trabajo como enfermera en un hospital de Valencia.",
        "Estamos ahorrando para comprar una casa con jardín.",
    ],
    "ru": [
        "Мой брат переехал в Новосибирск и работает программистом.",
        "По вечерам я читаю детям сказки и играю на гитаре.",
        "Врач запретил мне есть орехи и шоколад из-за аллергии.",
        "Мы купили билеты на поезд до Казани на десятое июля.",
        "У нашей кошки родились четыре рыжих котёнка.",
    ],
    "zh": [
        "我姐姐在上海的一家医院当护士。",
        "上个周末我们去爬了长城，天气非常冷。",
        "我对花生过敏，所以不能吃这种蛋糕。",
        "爸爸每天早上六点去公园打太极拳。",
        "我打算明年学习弹钢琴和画画。",
    ],
    "ja": [
        "妹は京都の大学で建築を勉強しています。",
        "毎朝、犬と一緒に海岸を散歩します。",
        "そばアレルギーがあるので、うどんしか食べられません。",
        "先週の日曜日に新しい自転車を買いました。",
        "祖父は若いころ漁師として働いていました。",
    ],
    "ko": [
        "우리 형은 부산에서 작은 식당을 운영하고 있어요.",
        "저는 새우 알레르기가 있어서 해산물을 못 먹습니다.",
        "지난 주말에 친구들과 설악산에 올라갔어요.",
        "고양이 이름은 나비이고 세 살입니다.",
        "내년에 독일에서 음악을 공부할 계획입니다.",
    ],
    "th": [
        "พี่สาวของฉันเป็นครูสอนภาษาอังกฤษที่เชียงใหม่",
        "ฉันแพ้กุ้งและปูจึงกินอาหารทะเลไม่ได้",
        "เราจะไปเที่ยวทะเลที่ภูเก็ตเดือนหน้า",
        "แมวของฉันชื่อส้มและชอบนอนบนโซฟา",
        "พ่อซื้อรถยนต์คันใหม่เมื่อวานนี้",
    ],
    "ar": [
        "تعمل أختي طبيبةً في مستشفى بالقاهرة.",
        "اشترينا سيارة جديدة الأسبوع الماضي.",
        "أحب قراءة الكتب التاريخية قبل النوم.",
        "سافرنا إلى المغرب مع الأطفال في الصيف.",
        "لا أستطيع أكل المكسرات بسبب الحساسية.",
    ],
    "hi": [
        "मेरी बहन दिल्ली के एक अस्पताल में डॉक्टर है।",
        "हमने पिछले साल एक नई गाड़ी खरीदी थी।",
        "मुझे पुरानी किताबें पढ़ना बहुत पसंद है।",
        "बच्चों की परीक्षाएँ मार्च में शुरू होंगी।",
        "मैं मूंगफली नहीं खा सकता क्योंकि मुझे एलर्जी है।",
    ],
}
QUESTIONS: dict[str, list[tuple[str, int]]] = {
    "en": [
        ("Who adopted a kitten?", 0),
        ("How much will renting the apartments cost?", 1),
        ("violins", 2),
        ("Did we go surfing?", 3),
    ],
    "de": [
        ("Welche Versicherung habe ich?", 0),
        ("Hat er eine Katze?", 1),
        ("Wohin fährt mein Kind im Sommer?", 2),
        ("Schlüssel", 3),
        ("Was hat sie in Leipzig studiert?", 4),
    ],
    "fr": [
        ("Où est la maison près de l’ocean ?", 0),
        ("A-t-il un cheval ?", 1),
        ("Quelles allergies ai-je ? arachide", 2),
        ("Qui a changé le frein ?", 3),
        ("De quoi parle mon roman ?", 4),
    ],
    "es": [
        ("¿Qué cocina mi abuela los domingos?", 0),
        ("¿Cuándo empieza la niña la natacion?", 1),
        ("¿Dónde está la llave?", 2),
        ("¿En qué hospitales trabajé?", 3),
    ],
    "ru": [
        ("Где работает мой брат-программист?", 0),
        ("Какую сказку я читал ребёнку?", 1),
        ("аллергия на орех", 2),
        ("Когда поезд в Казань?", 3),
        ("Сколько котят у кошки?", 4),
        ("кошек", 4),
    ],
    "zh": [
        ("谁是护士？", 0),
        ("我们什么时候去长城？", 1),
        ("我对什么过敏？", 2),
        ("爸爸在哪里打太极？", 3),
        ("学钢琴", 4),
    ],
    "ja": [
        ("妹は何を勉強していますか？", 0),
        ("犬の散歩はどこ？", 1),
        ("アレルギー", 2),
        ("自転車をいつ買った？", 3),
        ("祖父の仕事は漁師ですか？", 4),
    ],
    "ko": [
        ("형은 어디에서 식당을 하나요?", 0),
        ("무슨 알레르기가 있나요?", 1),
        ("설악산", 2),
        ("고양이의 이름은?", 3),
        ("독일에서 무엇을 공부하나요?", 4),
    ],
    "th": [("พี่สาวสอนอะไร", 0), ("แพ้อะไร กุ้ง", 1), ("ไปภูเก็ตเมื่อไร", 2), ("แมวชื่ออะไร", 3), ("ใครซื้อรถยนต์", 4)],
    "ar": [
        ("أين تعمل الأخت الطبيبة؟", 0),
        ("متى اشترينا السيارة؟", 1),
        ("كتاب تاريخي", 2),
        ("هل سافر الأطفال إلى المغرب؟", 3),
    ],
    "hi": [("मेरी बहन कहाँ डॉक्टर है?", 0), ("गाड़ियाँ कब खरीदी?", 1), ("किताब", 2), ("परीक्षा कब है?", 3)],
}
# Russian vowels that come and go (кошка, кошек) are more than a stemmer of endings knows.
KNOWN_MISSES = {"ru": ["кошек"]}
ANY_TEXT = st.text(st.characters(exclude_categories=[])) | st.text(
    "aZ9é\u0301ß'’.-_@&,+# かใก가한\u0e31\u094d\u200d\u00adДж️😀", max_size=40
)


def ranked(texts: list[str], question: str) -> list[int]:
    """The numbers of the texts by BM25, best first; what no text holds is looked for inside their terms, at half weight."""
    counts = [Counter(terms(text)) for text in texts]
    vocabulary = set().union(*counts)
    wanted = dict.fromkeys(query_terms(question), 1.0)
    for term in [term for term in wanted if term not in vocabulary]:
        part = infix(term)
        wanted.update({longer: 0.5 for longer in vocabulary if part and part in longer})
    wanted = {**dict.fromkeys(other_forms(question), 0.5), **wanted}
    mean = sum(count.total() for count in counts) / len(counts)
    scores = [0.0] * len(texts)
    for term, weight in wanted.items():
        holders = sum(term in count for count in counts)
        for number, count in enumerate(counts):
            idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
            scores[number] += (
                weight * idf * count[term] * 2.2 / (count[term] + 1.2 * (0.6 + 0.4 * count.total() / mean))
            )
    return sorted((number for number in range(len(texts)) if scores[number]), key=lambda number: -scores[number])


@pytest.mark.parametrize("language", TEXTS)
def test_a_question_finds_its_text_in_any_language(language):
    all_texts = [text for texts in TEXTS.values() for text in texts]
    first = all_texts.index(TEXTS[language][0])
    missed = [
        question for question, answer in QUESTIONS[language] if ranked(all_texts, question)[:1] != [first + answer]
    ]
    assert missed == KNOWN_MISSES.get(language, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("foo_bar foo-bar fooBar __init__", "foo bar foobar foo bar foobar foo bar foobar init"),
        ("GPT-4 GPT4 GPT-3.5", "gpt 4 gpt4 gpt4 gpt 3.5 gpt3.5"),
        ("user@example.com", "user exampl com userexamplecom"),
        ("https://www.example.com/path", "https exampl com examplecom path"),
        ("3.14 v1.2.3 1.2.3 1,000,000 2,500.75 7.5.2023 end.", "3.14 1.2.3 1.2.3 1000000 2500.75 7.5.2023 2023 end"),
        ("Caroline's don't we'll I've", "carolin dont we i"),
        ("l'eau dell’arte qu'il d'Artagnan aujourd'hui", "eau art il artagnan aujourd hui aujourdhui"),
        ("PDFs 1990s C++ C# e-mails email", "pdf 1990 c++ c# e mail email email"),
        ("naïve Café ÅNGSTRÖM Straße łódź", "naiv cafe angstrom strass lodz"),
        ("ﬁne ＡＢＣ ² ٣٤ ३४", "fine abc 2 34 34"),
        ("Kranken\u00adversicherung", "krankenversicherung"),
        ("😀👩\u200d💻🇩🇪❤\ufe0f", "😀 👩 💻 🇩🇪 ❤"),
        ("\ud800a\x00b\x1f\u2028c", "a b c"),
        ("使用Python编程", "使用 python 编程"),
        ("猫 ไทย ខ្មែរ", "猫 ไท ทย ខ្ ្ម មែ ែរ"),
        ("الكتاب كِتَابٌ کتاب کتـاب", "كتاب كتاب كتاب كتاب"),
        ("שָׁלוֹם שלום", "שלום שלום"),
        ("", ""),
        ("... --- ''' ___", ""),
    ],
)
def test_what_the_terms_of_a_text_are(text, expected):
    assert " ".join(terms(text)) == expected


def test_one_letter_more_or_less_of_inflection_gives_the_same_term():
    for forms in (
        *("adopt adopted adopting adopts", "friend friends", "Versicherung Versicherungen", "Freundin Freundinnen"),
        *(
            "canção canções cancao",
            "estación estaciones",
            "cheval chevaux",
            "книга книги книгу",
            "किताब किताबें",
            "λόγος λόγοι λογος",
        ),
    ):
        assert len(set(terms(forms))) == 1, forms


def test_vowel_signs_that_make_the_word_stay():
    assert len(set(terms("कल किल कुल कोल"))) == 4
    assert len(set(terms("மன் மின்"))) == 2
    assert terms("майка") != terms("маика")


@given(ANY_TEXT)
@example("\u0345\u03b9\u0308 ΐ ŉ ﷺ")
@example("a" * 500 + "ß" * 500)
def test_every_text_gives_clean_terms_however_its_accents_are_stored(text):
    found = terms(text)
    for term in found:
        assert 0 < len(term) <= TERM_LENGTH
        assert all(unicodedata.category(letter) not in ("Cc", "Cs", "Zs", "Zl", "Zp") for letter in term)
    assert terms(unicodedata.normalize("NFD", text)) == found
    assert terms(unicodedata.normalize("NFC", text)) == found


@given(ANY_TEXT, ANY_TEXT)
def test_texts_side_by_side_give_the_terms_of_both(one, other):
    assert terms(f"{one} {other}") == terms(one) + terms(other)


@given(ANY_TEXT)
def test_every_question_asks_for_terms_its_text_has(text):
    asked = query_terms(text)
    assert len(asked) == len(set(asked)) <= QUERY_TERMS
    assert set(asked) <= set(terms(text))
    assert bool(asked) == bool(terms(text))
    assert len(other_forms(text)) <= QUERY_TERMS
    for term in asked:
        part = infix(term)
        assert part is None or part in term


def test_a_question_is_without_stop_words_of_its_own_language_only():
    assert query_terms("What did Caroline say about the adoption?") == ["carolin", "adopt"]
    assert query_terms("Wann ist die Prüfung von meiner Tochter?") == ["prufung", "tochter"]
    assert query_terms("When did they die in the war?") == ["die", "war"]
    assert query_terms("Où est la clé de mon vélo ?") == ["cle", "velo"]
    assert query_terms("Где лежит мой паспорт?") == ["леж", "паспорт"]


def test_a_question_of_stop_words_alone_keeps_them():
    assert query_terms("Who is it?") == ["who", "is", "it"]
    assert query_terms("die") == ["die"]


def test_names_that_look_like_stop_words_stay_in_a_question():
    assert query_terms("When did Will move to the US?") == ["will", "move", "us"]
    assert query_terms("WHEN WILL IT MOVE?") == ["move"]
    assert "may" in query_terms("What happened in May?")


def test_a_question_asks_for_64_terms_at_most():
    assert len(query_terms(" ".join(f"w{number}x" for number in range(1_000)))) == QUERY_TERMS


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is it?", "en"),
        ("Kangaroo", "en"),
        ("die hard", "en"),
        ("Wo ist der Hund?", "de"),
        ("Où est-ce que tu as mis les clés ?", "fr"),
        ("¿Dónde está el perro de mi hermana?", "es"),
        ("Dov'è il cane di mia sorella?", "it"),
        ("Onde está o cachorro da minha irmã?", "pt"),
        ("Waar is de hond van mijn zus?", "nl"),
        ("Где собака?", "ru"),
    ],
)
def test_the_language_of_a_question_is_told_by_its_stop_words(text, language):
    assert language_of(text) == language


def test_other_forms_are_offered_where_the_stemmer_does_not_know_the_language():
    assert set(terms("Katze Haus")) <= set(other_forms("Wo sind die Katzen und die Häuser?"))
    assert not set(other_forms("Wo sind die Katzen?")) & set(query_terms("Wo sind die Katzen?"))
    assert other_forms("Where are the cats?") == []


@pytest.mark.parametrize(
    ("term", "part"),
    [
        ("versicherung", "versicherung"),
        ("versicherungen", "versicherung"),
        ("猫", "猫"),
        ("집", "집"),
        ("猫が", None),
        ("3.1415", None),
        ("gpt4turbo", None),
        ("haus", None),
        ("москва", "москва"),
        ("a", None),
    ],
)
def test_only_whole_words_are_looked_for_inside_others(term, part):
    assert infix(term) == part


def test_the_lists_are_spelled_as_words_are_folded():
    for language, words in STOP_WORDS.items():
        assert {word for word in words if fold(word) != word} == set(), language
    assert ENDINGS.keys() <= STOP_WORDS.keys()


@pytest.mark.parametrize("piece", ["a_", "aB", "000,", "1.", "n't", "e\u0301", "我", "é ", "'", "a.", "C#", "ab'cd-"])
def test_the_time_grows_with_the_length_and_no_faster(piece):
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        start = time.process_time()
        terms(text)
        return time.process_time() - start

    seconds(1_000)
    assert min(seconds(80_000) for _ in range(3)) < 16 * max(min(seconds(10_000) for _ in range(3)), 0.002)


def test_related_terms_are_a_few_new_ones_for_each_word_that_is_asked_for() -> None:
    related = {"job": ("jobs", "work", "career", "task", "duty"), "the": ("this",), "hike": ("job", "walk")}
    words = query_terms("the job and the hike")
    found = related_terms(related, words)
    assert found == [term for word in ("work", "career", "task", "walk") for term in terms(word)]
    assert related_terms({}, words) == related_terms(related, []) == []


@pytest.mark.parametrize("question", ["cat dog dog", "dog men", "men and dog cat", "who has die hat", "pour son"])
def test_a_short_question_loses_no_word_to_another_language(question):
    asked = [word for word in question.split() if word not in STOP_WORDS["en"]]
    assert set(query_terms(question)) >= {term for word in asked for term in terms(word)}
