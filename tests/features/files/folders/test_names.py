"""A file's name is normalized: uploads from a Mac and typed names match."""

import unicodedata

import pytest

from tests.api.conftest import Api
from tests.features.files.folders.conftest import put
from tests.seams.server import MODEL, call

NAMES = [
    "Grüße",
    "Zoë",
    "Ångström",
    "señor",
    "Čeština",
    "Tiếng Việt",
    "한국어",
    "Ёлка",
    "ガイド",
    "naïve",
    "Gru\u0308\u200bße 2",
]


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def test_a_file_name_matches_in_either_unicode_form(api: Api, folder: str) -> None:
    agent = api.client.agents.create(name="Nina", model=MODEL, folder_ids=[folder])
    for name in NAMES:
        shown = unicodedata.normalize("NFC", name.replace("\u200b", ""))
        file = put(api, folder, f"{decomposed(name)}.md", "one\r\ntwo")
        assert (file.file_name, file.original_file_name) == (f"{shown}.md", f"{shown}.md")
        forms = (f"{shown}.md", f"{decomposed(shown)}.md")
        api.server.says(
            [call("open_files", file_requests=[{"file_name": asked}]) for asked in forms], "Read."
        )
        answer = api.client.agents.messages.create(
            agent.id, messages=[{"role": "user", "content": "Read it."}]
        )
        (returned,) = [one for one in answer.messages if one.message_type == "tool_return_message"]
        results = returned.tool_returns or []
        assert [one.status for one in results] == ["success"] * 2, returned
        assert all(f"/{shown}.md (lines 1-2)" in str(one.tool_return) for one in results)
    # The other form is the same name. It is refused or gets a number, so no two files look the
    # same.
    for name in (NAMES[0], decomposed(NAMES[0])):
        with pytest.raises(Exception, match="409"):
            put(api, folder, f"{name}.md", "x", duplicate_handling="error")
        assert (
            put(api, folder, f"{name}.md", "x", duplicate_handling="skip").file_name == "Grüße.md"
        )
    assert put(api, folder, f"{decomposed(NAMES[0])}.md", "x").file_name == "Grüße_(1).md"
