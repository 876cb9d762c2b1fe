"""System prompts by key."""

from pathlib import Path

import pytest

from ricordo.agents.custom_prompts import FOLDER, chosen_system, system_text
from ricordo.errors import Invalid, NotFound, Unavailable
from ricordo.prompt.texts import text


def test_a_prompt_in_the_folder_is_found_by_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "pirate.v2.txt").write_text("\n Arr, ☠.\n", "utf-8")
    assert system_text("pirate.v2", tmp_path) == "Arr, ☠."


def test_a_built_in_prompt_wins_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "react.txt").write_text("Mine.", "utf-8")
    assert system_text("react", tmp_path) == text("react")


def test_the_folder_is_made_at_first_use_and_a_missing_prompt_says_where_to_put_it(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "system_prompts"
    with pytest.raises(NotFound) as missing:
        system_text("pirate", folder)
    assert folder.is_dir()
    assert 'no system prompt "pirate"' in str(missing.value)
    assert "system_prompts/pirate.txt in the data folder" in str(missing.value)
    assert "letta_v1" in str(missing.value)
    (folder / "pirate.txt").write_text("Arr.", "utf-8")
    assert system_text("pirate", folder) == "Arr."


@pytest.mark.parametrize(
    "key", ["../secret", "a/b", "/etc/passwd", "..", ".hidden", "", "a\0b", "a\\b", "x" * 101, "a\n", "C:x", "é"]
)
def test_a_key_is_a_plain_name(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret.txt").write_text("Hidden.", "utf-8")
    folder = tmp_path / "system_prompts"
    with pytest.raises(Invalid, match="cannot be the key of a system prompt"):
        system_text(key, folder)
    assert not folder.exists()


@pytest.mark.parametrize(("content", "told"), [(b"\xff\xfe", "not UTF-8"), (b" \n", "is empty")])
def test_a_file_that_holds_no_prompt_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "pirate.txt").write_bytes(content)
    with pytest.raises(Invalid, match=told):
        system_text("pirate", tmp_path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "pirate.txt").mkdir()
    with pytest.raises(Unavailable, match=r"pirate\.txt cannot be read"):
        system_text("pirate", tmp_path)


def test_an_agent_can_be_given_a_prompt_by_its_key(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "tutor.txt").write_text("You teach Greek.", "utf-8")
    assert chosen_system("prompt:tutor", "letta_v1", tmp_path) == "You teach Greek."
    assert chosen_system("Be brief.", "letta_v1", tmp_path) == "Be brief."
    assert chosen_system(None, "workflow", tmp_path) == system_text("workflow", tmp_path)
    with pytest.raises(NotFound, match="chemistry"):
        chosen_system("prompt:chemistry", "letta_v1", tmp_path)
