"""Texts of blocks in lists are whole up to a limit. Longer texts are cut, and end with a mark.

A cut text is never written back.
"""

from collections.abc import Iterator

import httpx2
import pytest

from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread, StrictLetta, serving

CAP, LIST = 5000, 1024 * 1024 // 8
SIZES = (0, 1, 4095, 4096, 4097, CAP, CAP + 1, 20_000)


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(
        tmp_path_factory.mktemp("data"), max_listed_characters=CAP, max_answer_mb=1
    ) as server:
        yield server


def text_of(size: int) -> str:
    return ("é, word\n" * (size // 8 + 1))[:size]


def test_a_list_cuts_texts_beyond_the_cap_and_says_where_to_read_the_rest(
    http: httpx2.Client, client: StrictLetta
) -> None:
    own = [{"label": f"size_{size}", "value": text_of(size), "tags": ["a", "b"]} for size in SIZES]
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": own}))
    listed = [
        ok(http.get("/v1/blocks/", params={"limit": 100})),
        ok(http.get(f"/v1/agents/{agent['id']}/core-memory/blocks")),
        ok(http.get("/v1/agents/"))[0]["blocks"],
        ok(http.get("/v1/agents/"))[0]["memory"]["blocks"],
        ok(http.get(f"/v1/blocks/{agent['blocks'][0]['id']}/agents"))[0]["blocks"],
    ]
    for found in listed:
        shown = {block["label"]: block for block in found}
        for size in SIZES:
            block, text = shown[f"size_{size}"], text_of(size)
            assert (block["is_cut"], block["tags"]) == (size > CAP, ["a", "b"])
            mark = (
                f"\n[cut: {CAP:,} of {size:,} characters are shown; GET /v1/blocks/{block['id']} "
                "has them all]"
            )
            assert block["value"] == (text if size <= CAP else text[:CAP] + mark), size
            whole = ok(http.get(f"/v1/blocks/{block['id']}"))
            assert (whole["value"], whole["is_cut"]) == (text, False)
            rest = {"value", "is_cut"}
            assert {k: v for k, v in block.items() if k not in rest} == {
                k: v for k, v in whole.items() if k not in rest
            }
    for block in client.agents.retrieve(agent["id"]).blocks:
        assert block.value == text_of(int((block.label or "").removeprefix("size_"))), (
            "blocks of a single agent are complete"
        )
    assert max(len(block.value) for block in client.agents.blocks.list(agent["id"])) < CAP + 200
    ok(http.delete(f"/v1/agents/{agent['id']}"))


def test_a_text_that_a_list_cut_cannot_be_written_back(http: httpx2.Client) -> None:
    made = ok(http.post("/v1/blocks/", json={"label": "long", "value": text_of(20_000)}))
    cut = next(
        one
        for one in ok(http.get("/v1/blocks/", params={"label": "long"}))
        if one["id"] == made["id"]
    )
    for text in (cut["value"], cut["value"] + "\n", "Changed. " + cut["value"]):
        assert "as a list shortened it" in refused(
            http.patch(f"/v1/blocks/{made['id']}", json={"value": text}), 400
        )
    assert ok(http.get(f"/v1/blocks/{made['id']}"))["value"] == text_of(20_000)
    assert ok(http.patch(f"/v1/blocks/{made['id']}", json={"value": cut["value"] + "\nMore."})), (
        "a text that contains the notice and more is accepted"
    )
    ok(http.delete(f"/v1/blocks/{made['id']}"))


def test_many_long_texts_in_a_list_are_cut_to_a_common_limit(http: httpx2.Client) -> None:
    shared = [
        ok(
            http.post(
                "/v1/blocks/", json={"label": f"shared_{number}", "value": text_of(4900 + number)}
            )
        )["id"]
        for number in range(10)
    ]
    agents = [
        ok(
            http.post(
                "/v1/agents/", json={"model": MODEL, "name": f"a{number}", "block_ids": shared}
            )
        )["id"]
        for number in range(4)
    ]
    answer = http.get("/v1/agents/", params={"limit": 4})
    whole = [block for agent in ok(answer) for block in agent["blocks"]]
    assert sum(len(block["value"]) for block in whole) < LIST * 2
    assert any(block["is_cut"] for block in whole), (
        "four agents with ten blocks of 5 kB exceed the limit"
    )
    one = ok(http.get("/v1/agents/", params={"limit": 1}))[0]
    assert not any(block["is_cut"] for block in one["blocks"])
    for agent in agents:
        ok(http.delete(f"/v1/agents/{agent}"))
