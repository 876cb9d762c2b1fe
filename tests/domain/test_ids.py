"""Public ids."""

import re
import uuid

from ricordo.domain.ids import is_id, new_id, part_otid, pattern, unique

ID = "message-1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e5f6"


def test_every_new_id_holds_a_uuid4_that_the_standard_library_accepts() -> None:
    made = [new_id("agent") for _ in range(500)]
    for one in made:
        parsed = uuid.UUID(one.removeprefix("agent-"))
        assert parsed.version == 4
        assert parsed.variant == uuid.RFC_4122
        assert one == f"agent-{parsed}"
    assert len(set(made)) == len(made)
    assert {one.removeprefix("agent-")[19] for one in made} == set("89ab")


def test_an_id_matches_the_pattern_of_its_prefix_only() -> None:
    assert re.fullmatch(pattern("message"), ID)
    assert is_id(ID, "message")
    assert not is_id(ID, "agent")


def test_what_is_nearly_an_id_is_none() -> None:
    for text in (
        "",
        "message-",
        ID + "\n",
        ID + "0",
        "x" + ID,
        ID.upper(),
        ID.replace("-4d2b", "-5d2b"),
        ID.replace("-8c3f", "-7c3f"),
        ID.removeprefix("message-"),
    ):
        assert not is_id(text, "message"), text


def test_the_otid_of_a_part_replaces_the_last_byte_by_its_number() -> None:
    assert part_otid(ID, 0) == "1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e500"
    assert part_otid(ID, 11) == "1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e50b"
    assert part_otid(ID, -1) == "1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e580"


def test_unique_keeps_the_first_of_each_in_order() -> None:
    assert unique(["b", "a", "b", "c", "a"]) == ["b", "a", "c"]
