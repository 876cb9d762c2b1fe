"""Egress policies of single fields, set by the schema of a typed block."""

import httpx2

from tests.features.egress.providers import CLOUD, LOCAL, World, says
from tests.features.egress.test_blocks import block_of, say, switch
from tests.seams.http import ok

SCHEMA = """
title = "A student"

[fields.goals]
description = "What they want."

[fields.health]
kind = "text"
egress = ["local"]
"""
TEXT = "## Goals\nLearn algebra.\n\n## Health\nHas vuqkzoq-field.\nAnd more.\n"


def test_a_withheld_field_is_mentioned_and_the_other_fields_are_sent(
    world: World, http: httpx2.Client
) -> None:
    folder = world.server.settings.data_dir / "block_schemas"
    folder.mkdir(exist_ok=True)
    (folder / "student.toml").write_text(SCHEMA)
    blocks = [{"label": "student", "value": TEXT, "schema_ref": "student"}]
    agent = ok(http.post("/v1/agents/", json={"model": CLOUD, "memory_blocks": blocks}))["id"]
    world.cloud.script.append(
        says("", ("memory_insert", {"label": "student", "new_string": "More.", "insert_line": 1}))
    )
    say(http, agent, "Hello.")
    sent = world.cloud.last
    assert "Learn algebra." in sent
    assert "[2 lines withheld from openai by an egress policy]" in sent
    assert not world.cloud.saw("vuqkzoq-field")
    # An edit of the text with gaps would lose the withheld lines, so the block is read-only.
    block = ok(http.get(f"/v1/blocks/{block_of(http, agent, 'student')}"))
    assert block["value"] == TEXT
    switch(http, agent, LOCAL)
    world.local.script.append(says("In other words: vuqkzoq-field"))
    say(http, agent, "Hello.")
    assert world.local.saw("Has vuqkzoq-field.")
    switch(http, agent, CLOUD)
    say(http, agent, "Again.")
    assert not world.cloud.saw("vuqkzoq-field")
