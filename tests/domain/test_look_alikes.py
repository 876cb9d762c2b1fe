"""Names that people would confuse."""

import pytest

from ricordo.domain.look_alikes import are_alike, look_of

# Cyrillic, Greek and mathematical letters, the wide form, and invisible characters.
DISGUISES = (
    *(
        "аda",
        "adа",
        "аdа",
        "ＡＤＡ",
        "ɑda",
        "ａda",
        "𝐚𝐝𝐚",
        "𝖺𝖽𝖺",
        "ⓐⓓⓐ",
        "Ada",
        "ADA",
        "Аda",
        "Αda",
        "aԁa",
    ),
    *(
        "a\u200bda",
        "ad\u200da",
        "ada\u2060",
        "\u202eada",
        "ada\ufe0f",
        "ada\u3164",
        "a\u034fda",
        "a\u00adda",
    ),
)


@pytest.mark.parametrize("name", DISGUISES)
def test_a_name_in_look_alike_letters_equals_the_plain_one(name: str) -> None:
    assert look_of(name) == look_of("ada")
    assert are_alike(name, "ada")
    assert are_alike("ada", name)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Γρηγόρης", "ΓΡΗΓΌΡΗΣ"),
        ("Анна", "AHHA"),
        ("Нugo", "hugo"),
        ("Βοb", "bob"),
        ("раураl", "paypal"),
        ("сarl", "carl"),
    ],
)
def test_look_alikes_are_found_in_either_case(name: str, other: str) -> None:
    assert are_alike(name, other)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("user1", "userl"), ("bill", "bi11"), ("arno", "amo"), ("o0", "oo"), ("ada", "eda")),
        *(
            ("Müller", "Muller"),
            ("José", "Jose"),
            ("Søren", "Soren"),
            ("小明", "小朋"),
            ("Таня", "Ваня"),
            ("한글", "한들"),
        ),
    ],
)
def test_names_that_people_can_tell_apart_stay_different(name: str, other: str) -> None:
    assert not are_alike(name, other)
