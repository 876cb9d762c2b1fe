"""Canaries on each path by which a text may leave: each part of a prompt, each kind of call.

Each path is a function in PATHS. It plants a canary under a policy, and lets the server work.
Afterwards no byte that the forbidden provider got may hold the canary.
"""

import base64
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.features.automation.schedules.conftest import make_due
from tests.features.egress.providers import (
    CLOUD,
    EMBEDDING,
    LOCAL,
    World,
    says,
    wait_for_jobs,
)
from tests.features.egress.test_blocks import agent_of, allow, block_of, say, switch
from tests.seams.http import ok, refused
from tests.seams.waiting import wait_for

CANARY = "vuqkzoq-path"
SECRET = f"Her code word is {CANARY}."


def conversation_of(http: httpx2.Client, agent: str) -> str:
    return str(ok(http.post("/v1/conversations/", params={"agent_id": agent}, json={}))["id"])


def tell(http: httpx2.Client, conversation: str, text: str) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "streaming": False}
    return ok(http.post(f"/v1/conversations/{conversation}/messages", json=body))


def local_agent(http: httpx2.Client, **more: Any) -> str:
    """Make an agent whose block has the canary, with a local model."""
    agent = agent_of(http, ("human", SECRET), model=LOCAL, **more)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    return agent


def compact(http: httpx2.Client, agent: str, **settings: Any) -> None:
    body = {"compaction_settings": settings} if settings else {}
    answer = http.post(f"/v1/agents/{agent}/summarize", json=body)
    assert answer.status_code in (200, 204), answer.text


def in_a_block(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")


def in_a_description(world: World, http: httpx2.Client) -> None:
    blocks = [{"label": "human", "value": "Text.", "description": SECRET}]
    agent = ok(http.post("/v1/agents/", json={"model": CLOUD, "memory_blocks": blocks}))["id"]
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    say(http, agent, "Hello.")


def in_a_streamed_turn(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    http.post(f"/v1/agents/{agent}/messages/stream", json=body).read()


def with_a_borrowed_model(world: World, http: httpx2.Client) -> None:
    say(http, local_agent(http), "Hello.", override_model=CLOUD)


def in_a_conversations_own_model(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    conversation = conversation_of(http, agent)
    ok(http.patch(f"/v1/conversations/{conversation}", json={"model": CLOUD}))
    tell(http, conversation, "Hello.")


def in_an_answer(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(says(f"In other words: {CANARY}"))
    say(http, agent, "What do you know?")
    switch(http, agent, CLOUD)
    say(http, agent, "Say it again.")


def in_a_calls_arguments(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(says("", ("conversation_search", {"query": CANARY})))
    say(http, agent, "Look.")
    switch(http, agent, CLOUD)
    say(http, agent, "Say it again.")


def in_the_result_of_a_memory_tool(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(
        says("", ("memory_insert", {"label": "human", "new_string": "Likes tea."}))
    )
    say(http, agent, "I like tea.")
    switch(http, agent, CLOUD)
    say(http, agent, "Say it again.")


def in_a_new_block(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http, tools=["memory"])
    arguments = {"command": "create", "path": "/memories/new", "description": "New"}
    world.local.script.append(
        says("", ("memory", {**arguments, "file_text": f"In other words: {CANARY}"}))
    )
    say(http, agent, "Note it.")
    switch(http, agent, CLOUD)
    say(http, agent, "Say it again.")


def in_the_user_s_earlier_message(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    say(http, agent, f"Remember: {SECRET}")
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")


def in_a_copy_in_another_block(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", SECRET), ("notes", f"- {SECRET}"))
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    say(http, agent, "Hello.")


def in_a_search_of_another_conversation(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(says(f"The orchid is {CANARY}"))
    say(http, agent, "What about the orchid?")
    switch(http, agent, CLOUD)
    conversation = conversation_of(http, agent)
    world.cloud.script.append(says("", ("conversation_search", {"query": "orchid"})))
    tell(http, conversation, "Search for the orchid.")
    assert not world.cloud.script


def in_a_passage(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http, tools=["archival_memory_insert", "archival_memory_search"])
    world.local.script.append(
        says("", ("archival_memory_insert", {"content": f"The orchid is {CANARY}"}))
    )
    say(http, agent, "Archive it.")
    wait_for_jobs(world.server)
    switch(http, agent, CLOUD)
    world.cloud.script.append(says("", ("archival_memory_search", {"query": "orchid"})))
    say(http, agent, "Search for the orchid.")
    assert not world.cloud.script


def in_the_vectors_of_answers(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(says(f"The orchid is {CANARY}"))
    say(http, agent, "Hello.")
    wait_for_jobs(world.server)
    ok(http.post("/v1/messages/search", json={"query": "orchid", "agent_id": agent}))
    assert any("Hello." in body for body in world.cloud.bodies)


def in_the_vector_of_a_question(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(says("", ("conversation_search", {"query": SECRET})))
    say(http, agent, "Look.")


def in_a_summary_by_another_model(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    for number in range(4):
        world.local.script.append(says(f"Answer {number}: {CANARY}"))
        say(http, agent, f"Question {number}.")
    compact(http, agent, model=CLOUD, mode="all")
    assert world.cloud.bodies


def in_a_summary_by_the_agent_s_model(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    for number in range(4):
        world.local.script.append(says(f"Answer {number}: {CANARY}"))
        say(http, agent, f"Question {number}.")
    switch(http, agent, CLOUD)
    compact(http, agent, mode="self_compact_all")
    assert world.cloud.bodies


def in_a_summary_that_a_local_model_wrote(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    for number in range(4):
        say(http, agent, f"Question {number}.")
    world.local.script.append(says(f"A summary with {CANARY}"))
    compact(http, agent, mode="all")
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")


def in_a_preview_of_the_payload(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    payload = http.post(f"/v1/agents/{agent}/messages/preview-raw-payload", json=body).text
    assert CANARY not in payload


def in_a_temporary_chat(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    body = {"model": agent, "messages": [{"role": "user", "content": "Hello."}]}
    headers = {"x-openwebui-chat-id": "local:1"}
    ok(http.post("/v1/chat/completions", json=body, headers=headers))


def in_a_question_about_the_user(world: World, http: httpx2.Client) -> None:
    ok(http.put("/users/ask/blocks/human", json={"body": SECRET}))
    blocks = ok(http.get("/v1/blocks/", params={"user_id": "ask", "value_search": SECRET}))
    block = next(block for block in blocks if block["value"] == SECRET)
    user = {"x-ricordo-user": "ask"}
    ok(http.put(f"/v1/blocks/{block['id']}/egress", json={"allowed": ["local"]}, headers=user))
    http.post("/users/ask/ask", json={"question": "What is her code word?", "model": CLOUD})


def in_a_conversation(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    tell(http, conversation, SECRET)
    switch(http, agent, CLOUD)
    body = {"messages": [{"role": "user", "content": SECRET}], "streaming": False}
    answer = http.post(f"/v1/conversations/{conversation}/messages", json=body)
    assert "does not allow openai" in refused(answer, 403)


def in_earlier_messages_of_a_conversation(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    tell(http, conversation, f"The orchid: {CANARY}")
    allow(http, f"conversations/{conversation}", "local")
    switch(http, agent, CLOUD)
    world.cloud.script.append(says("", ("conversation_search", {"query": "orchid"})))
    tell(http, conversation_of(http, agent), "Search for the orchid.")
    assert not world.cloud.script


def in_a_fork(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    tell(http, conversation, SECRET)
    switch(http, agent, CLOUD)
    fork = ok(http.post(f"/v1/conversations/{conversation}/fork", json={}))["id"]
    body = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
    refused(http.post(f"/v1/conversations/{fork}/messages", json=body), 403)
    ok(http.put(f"/v1/conversations/{fork}/egress", json={"allowed": None}))
    ok(http.post(f"/v1/conversations/{fork}/messages", json=body))


def in_a_memory_made_of_a_conversation(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("notes", ""), model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    world.local.script.append(says("", ("memory_insert", {"label": "notes", "new_string": SECRET})))
    tell(http, conversation, SECRET)
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")


def folder_of(http: httpx2.Client, world: World, agent: str) -> str:
    name = f"folder-{agent[-8:]}"
    folder = ok(http.post("/v1/folders/", json={"name": name, "embedding": EMBEDDING}))["id"]
    allow(http, f"folders/{folder}", "local")
    text = f"The orchid is {CANARY}\nThe rose is red.\n"
    upload = {"file": ("plants.txt", text.encode(), "text/plain")}
    ok(http.post(f"/v1/folders/{folder}/upload", files=upload))
    wait_for_jobs(world.server)
    ok(http.patch(f"/v1/agents/{agent}/folders/attach/{folder}"))
    return str(folder)


def in_an_open_file(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=CLOUD)
    folder_of(http, world, agent)
    say(http, agent, "Hello.")


def by_tools_of_files(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=CLOUD)
    folder_of(http, world, agent)
    names = ("semantic_search_files", "grep_files", "open_files")
    for arguments in (
        {"query": "orchid"},
        {"pattern": "orchid"},
        {"file_requests": [{"file_name": "plants.txt"}]},
    ):
        world.cloud.script.append(says("", (names[len(world.cloud.script)], arguments)))
    say(http, agent, "Search for the orchid.")
    assert not world.cloud.script


def in_an_answer_made_of_a_file(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    folder_of(http, world, agent)
    world.local.script.append(says(f"In other words: {CANARY}"))
    say(http, agent, "What is the orchid?")
    assert world.local.saw(CANARY)
    switch(http, agent, CLOUD)
    say(http, agent, "Say it again.")


def told_to_another_agent(world: World, http: httpx2.Client) -> None:
    other = agent_of(http, model=CLOUD)
    agent = local_agent(http, tools=["send_message_to_agent_and_wait_for_reply"])
    arguments = {"message": f"In other words: {CANARY}", "other_agent_id": other}
    world.local.script.append(says("", ("send_message_to_agent_and_wait_for_reply", arguments)))
    say(http, agent, "Tell the other agent.")
    assert world.cloud.saw("withheld from openai")


def heard_from_another_agent(world: World, http: httpx2.Client) -> None:
    other = local_agent(http)
    agent = agent_of(http, model=CLOUD, tools=["send_message_to_agent_and_wait_for_reply"])
    arguments = {"message": "What do you know?", "other_agent_id": other}
    world.cloud.script.append(says("", ("send_message_to_agent_and_wait_for_reply", arguments)))
    world.local.script.append(says(f"In other words: {CANARY}"))
    say(http, agent, "Ask the other agent.")
    assert not world.local.script


def in_a_group(world: World, http: httpx2.Client) -> None:
    first, second = local_agent(http), agent_of(http, model=CLOUD)
    body = {
        "agent_ids": [first, second],
        "description": "Two",
        "manager_config": {"manager_type": "round_robin"},
    }
    group = ok(http.post("/v1/groups/", json=body))["id"]
    world.local.script.append(says(f"In other words: {CANARY}"))
    said = {"messages": [{"role": "user", "content": "Hello."}]}
    ok(http.post(f"/v1/groups/{group}/messages", json=said))
    assert world.cloud.bodies


def by_a_sleeping_agent(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http, enable_sleeptime=True)
    (group,) = [ok(http.get(f"/v1/agents/{agent}"))["multi_agent_group"]]
    (sleeper,) = [id for id in group["agent_ids"] if id != agent]
    switch(http, sleeper, CLOUD)
    world.local.script.append(says(f"In other words: {CANARY}"))
    say(http, agent, "Hello.")
    wait_for_jobs(world.server)


def in_a_supervised_group(world: World, http: httpx2.Client) -> None:
    manager, member = local_agent(http), agent_of(http, model=CLOUD)
    config = {"manager_type": "supervisor", "manager_agent_id": manager}
    body = {"agent_ids": [member], "description": "Two", "manager_config": config}
    group = ok(http.post("/v1/groups/", json=body))["id"]
    arguments = {"message": f"In other words: {CANARY}"}
    tool = "send_message_to_all_agents_in_group"
    world.local.script.append(says("", (tool, arguments)))
    said = {"messages": [{"role": "user", "content": "Hello."}]}
    ok(http.post(f"/v1/groups/{group}/messages", json=said))
    assert world.cloud.bodies


def in_a_batch(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    world.local.script.append(says(f"In other words: {CANARY}"))
    say(http, agent, "Hello.")
    switch(http, agent, CLOUD)
    request = {"agent_id": agent, "messages": [{"role": "user", "content": "Hello."}]}
    ok(http.post("/v1/messages/batches", json={"requests": [request]}))
    wait_for_jobs(world.server)
    assert world.cloud.saw("withheld from openai")


def in_a_background_turn(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    ok(http.post(f"/v1/agents/{agent}/messages/async", json=body))
    wait_for_jobs(world.server)
    assert world.cloud.saw("withheld from openai")


def in_a_scheduled_turn(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    at = time.time() + 3600
    body = {
        "messages": [{"role": "user", "content": "Hello."}],
        "schedule": {"type": "one-time", "scheduled_at": at * 1000},
    }
    made = ok(http.post(f"/v1/agents/{agent}/schedule", json=body))
    make_due(world.server, made["id"])
    wait_for(lambda: world.cloud.saw("withheld from openai"))


def chat(
    http: httpx2.Client, agent: str, *said: tuple[str, str], path: str = "", name: str = ""
) -> str:
    """Send a whole chat, as OpenAI's clients do; return the answer."""
    messages = [{"role": role, "content": text} for role, text in said]
    headers = {"x-openwebui-chat-id": name} if name else {}
    body = {"model": agent, "messages": messages}
    answer = http.post(f"/v1/chat/completions{path}", json=body, headers=headers)
    return str(ok(answer)["choices"][0]["message"]["content"])


def restricted_chat(
    world: World, http: httpx2.Client, name: str
) -> tuple[str, list[tuple[str, str]]]:
    """Make a chat in which a local model said the canary; then change the agent's model."""
    agent = local_agent(http)
    world.local.script.append(says(f"In other words: {CANARY}"))
    said = [("user", "What do you know?")]
    said.append(("assistant", chat(http, agent, *said, name=name)))
    assert CANARY in said[-1][1]
    switch(http, agent, CLOUD)
    return agent, said


def in_a_chat_of_an_openai_client(world: World, http: httpx2.Client) -> None:
    agent, said = restricted_chat(world, http, "")
    chat(http, agent, *said, ("user", "Say it again."))
    assert world.cloud.bodies


def in_an_edited_chat(world: World, http: httpx2.Client) -> None:
    agent, said = restricted_chat(world, http, "")
    chat(http, agent, ("user", "Another question."), said[1], ("user", "Say it again."))
    assert world.cloud.bodies


def in_an_edited_chat_with_a_name(world: World, http: httpx2.Client) -> None:
    agent, said = restricted_chat(world, http, "edited")
    chat(http, agent, ("user", "No."), said[1], ("user", "Again."), name="edited")
    assert world.cloud.bodies


def in_an_answer_of_the_api(world: World, http: httpx2.Client) -> None:
    agent, _ = restricted_chat(world, http, "")
    body = {"model": agent, "input": "What do you know?"}
    ok(http.post("/v1/responses", json=body))
    assert world.cloud.saw("withheld from openai")


def in_a_copy_that_a_client_shows(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    chat(http, agent, ("user", "A."), ("assistant", SECRET), ("user", "Again."))
    assert world.cloud.bodies


def in_a_title(world: World, http: httpx2.Client) -> None:
    agent, said = restricted_chat(world, http, "title")
    history = "\n".join(f"{role.upper()}: {text}" for role, text in said)
    task = f"### Task:\nGenerate a title.\n<chat_history>\n{history}\nUSER: {SECRET}\n"
    chat(http, agent, ("user", task), name="title")
    assert world.cloud.saw("Generate a title.")


def in_the_history_of_a_temporary_chat(world: World, http: httpx2.Client) -> None:
    agent, said = restricted_chat(world, http, "kept")
    chat(http, agent, *said, ("assistant", SECRET), ("user", "Again."), name="local:2")
    assert world.cloud.bodies


def in_a_call(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http)
    switch(http, agent, CLOUD)
    body = {"messages": [{"role": "user", "content": "Hello."}], "stream": True}
    http.post(f"/v1/voice-beta/{agent}/chat/completions", json=body).read()
    assert world.cloud.saw("withheld from openai")


def in_notes_of_a_question(world: World, http: httpx2.Client) -> None:
    agent = local_agent(http, model_profile="notes")
    world.local.script.append(says(f"Is it still {CANARY}?"))
    say(http, agent, "Hello.")
    wait_for_jobs(world.server)
    switch(http, agent, CLOUD)
    say(http, agent, "I like green tea.")
    wait_for_jobs(world.server)
    assert any("green tea" in body and "Message: " in body for body in world.cloud.bodies)


def in_notes_of_a_conversation(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", ""), model=LOCAL, model_profile="notes")
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    tell(http, conversation, f"I like the orchid {CANARY}.")
    wait_for_jobs(world.server)
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")
    assert world.cloud.bodies


def in_facts_read_by_another_model(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", ""), model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    tell(http, conversation, f"I live in {CANARY}.")
    wait_for_jobs(world.server)
    switch(http, agent, CLOUD)
    say(http, agent, "I like maths.")
    assert world.cloud.bodies


def in_a_past_message(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    past = [{"role": "user", "content": f"The orchid is {CANARY}"}]
    body = {"conversation_id": conversation, "messages": past}
    ok(http.post(f"/v1/agents/{agent}/messages/import", json=body))
    switch(http, agent, CLOUD)
    world.cloud.script.append(says("", ("conversation_search", {"query": "orchid"})))
    say(http, agent, "Search for the orchid.")
    assert not world.cloud.script


def in_the_text_of_a_picture(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    source = {"type": "base64", "media_type": "image/gif", "data": "R0lGODlhAQABAAAAACw="}
    body = {
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
        "streaming": False,
    }
    world.local.script += [says("Nice."), says(f"The orchid is {CANARY}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RICORDO_PICTURE_TEXT", "model")
        ok(http.post(f"/v1/conversations/{conversation}/messages", json=body))
        wait_for_jobs(world.server)
    search = {"query": "orchid", "agent_id": agent}
    assert ok(http.post("/v1/messages/search", json=search))[0]["in_picture"]
    switch(http, agent, CLOUD)
    world.cloud.script.append(says("", ("conversation_search", {"query": "orchid"})))
    say(http, agent, "Search for the orchid.")
    assert not world.cloud.script


def by_the_memory_tool(world: World, http: httpx2.Client) -> None:
    path = "/users/tooled/blocks/human"
    ok(http.put(path, json={"body": SECRET}))
    user = {"x-ricordo-user": "tooled"}
    blocks = ok(http.get("/v1/blocks/", params={"user_id": "tooled", "value_search": SECRET}))
    block = next(block for block in blocks if block["value"] == SECRET)
    ok(http.put(f"/v1/blocks/{block['id']}/egress", json={"allowed": ["local"]}, headers=user))
    arguments = {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/old"}
    ok(http.post("/v1/users/tooled/memory-tool", json=arguments))
    http.post("/users/tooled/ask", json={"question": "What is her code word?", "model": CLOUD})


PATHS: tuple[Callable[[World, httpx2.Client], None], ...] = (
    in_a_block,
    in_a_description,
    in_a_streamed_turn,
    with_a_borrowed_model,
    in_a_conversations_own_model,
    in_an_answer,
    in_a_calls_arguments,
    in_the_result_of_a_memory_tool,
    in_a_new_block,
    in_the_user_s_earlier_message,
    in_a_copy_in_another_block,
    in_a_search_of_another_conversation,
    in_a_passage,
    in_the_vectors_of_answers,
    in_the_vector_of_a_question,
    in_a_summary_by_another_model,
    in_a_summary_by_the_agent_s_model,
    in_a_summary_that_a_local_model_wrote,
    in_a_preview_of_the_payload,
    in_a_temporary_chat,
    in_a_question_about_the_user,
    in_a_conversation,
    in_earlier_messages_of_a_conversation,
    in_a_fork,
    in_a_memory_made_of_a_conversation,
    in_an_open_file,
    by_tools_of_files,
    in_an_answer_made_of_a_file,
    told_to_another_agent,
    heard_from_another_agent,
    in_a_group,
    by_a_sleeping_agent,
    in_a_supervised_group,
    in_a_batch,
    in_a_background_turn,
    in_a_scheduled_turn,
    in_a_chat_of_an_openai_client,
    in_an_edited_chat,
    in_an_edited_chat_with_a_name,
    in_an_answer_of_the_api,
    in_a_copy_that_a_client_shows,
    in_a_title,
    in_the_history_of_a_temporary_chat,
    in_a_call,
    in_notes_of_a_question,
    in_notes_of_a_conversation,
    in_facts_read_by_another_model,
    in_a_past_message,
    in_the_text_of_a_picture,
    by_the_memory_tool,
)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_no_restricted_text_reaches_the_forbidden_provider(
    path: Callable[[World, httpx2.Client], None], world: World, http: httpx2.Client
) -> None:
    path(world, http)
    wait_for_jobs(world.server)
    leaks = [body for body in world.cloud.bodies if CANARY in body]
    assert leaks == []


def test_pictures_in_a_withheld_message_are_not_sent(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    data = base64.b64encode(CANARY.encode()).decode()
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
    body = {"messages": [{"role": "user", "content": [picture]}], "streaming": False}
    ok(http.post(f"/v1/conversations/{conversation}/messages", json=body))
    assert world.local.saw(data)
    allow(http, f"conversations/{conversation}", "local")
    switch(http, agent, CLOUD)
    fork = ok(http.post(f"/v1/conversations/{conversation}/fork", json={}))["id"]
    ok(http.put(f"/v1/conversations/{fork}/egress", json={"allowed": None}))
    said = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
    ok(http.post(f"/v1/conversations/{fork}/messages", json=said))
    assert not world.cloud.saw(data)
