"""Agents with many tools see few schemas, and find the others when they need them."""

import json
from typing import Any

import httpx2
import pytest

from ricordo.llm.scripted import call
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread

# Each tool with its description, and a query in other words.
TOOLS = {
    "create_calendar_event": ("Create an event in the calendar.", "put the dentist on my agenda"),
    "list_calendar_events": ("List the events of a day.", "what appointments are there tomorrow"),
    "send_email": ("Send an e-mail to a person.", "write a mail to my landlord"),
    "search_email": ("Search the mailbox.", "look for the mail with the invoice"),
    "get_weather_forecast": ("Return the weather forecast of a city.", "will it rain in Graz"),
    "convert_currency": (
        "Convert an amount into another currency.",
        "how many euros are 20 dollars",
    ),
    "translate_text": ("Translate a text into another language.", "say this in French"),
    "play_music": ("Play a song or an album.", "put on some jazz songs"),
    "set_alarm_clock": ("Set an alarm.", "wake me with an alarm at seven"),
    "start_timer": ("Start a countdown timer.", "start a timer of ten minutes for the pasta"),
    "turn_on_lights": ("Switch lamps on or off.", "switch on the lamp in the kitchen"),
    "set_thermostat": ("Set the temperature of a room.", "make the temperature of the room warmer"),
    "order_groceries": ("Order food from the supermarket.", "order milk and bread"),
    "find_recipe": ("Find a recipe for ingredients.", "a recipe with zucchini"),
    "book_train_ticket": ("Buy a ticket for a train.", "a train to Vienna on Friday"),
    "book_hotel_room": ("Reserve a room in a hotel.", "reserve a hotel in Rome"),
    "track_parcel": ("Say where a parcel is.", "where is my parcel"),
    "read_news": ("Read the headlines of today.", "what are the headlines"),
    "get_stock_price": ("Return the price of a share.", "price of the Apple share"),
    "pay_invoice": ("Pay an invoice by bank transfer.", "pay the electricity invoice"),
    "count_steps": ("Say how many steps somebody walked.", "how many steps did I walk"),
    "log_meal": ("Note a meal with its calories.", "note the calories of my meal"),
    "run_sql_query": ("Run an SQL query on the database.", "query the database for customers"),
    "create_ticket": ("Open an issue in the tracker.", "open an issue about the crash"),
    "deploy_service": ("Deploy a version of a service.", "deploy the new version"),
    "restart_server": ("Restart a machine.", "the machine hangs, restart it"),
    "draw_chart": ("Draw a chart of numbers.", "a chart of the sales numbers"),
    "read_pdf": ("Return the text of a PDF.", "what text is in this PDF"),
    "take_screenshot": ("Take a picture of the screen.", "a picture of the screen"),
    "rename_file": ("Give a file another name.", "give the file another name"),
    "zip_folder": ("Compress a folder.", "compress the folder of photos"),
    "call_taxi": ("Order a taxi.", "a taxi to the airport"),
    "find_pharmacy": ("Find an open pharmacy nearby.", "which pharmacy is open"),
    "solve_equation": ("Solve an equation.", "solve the equation x squared is two"),
    "define_word": ("Return the meaning of a word.", "the meaning of the word serendipity"),
    "quiz_vocabulary": ("Ask for words of a foreign language.", "quiz me on foreign words"),
    "water_plants": ("Switch on the watering of the garden.", "the plants in the garden are dry"),
    "feed_cat": ("Open the food box of the cat.", "the cat is hungry, open its food box"),
    "lock_door": ("Lock the front door.", "is the front door locked, else lock it"),
    "vacuum_floor": ("Send the robot to clean the floor.", "clean the floor"),
}


@pytest.fixture(scope="module")
def tool_ids(running_server: ServerInThread) -> list[str]:
    with running_server.http() as http:
        return [make_tool(http, name, about) for name, (about, _) in TOOLS.items()]


def make_tool(http: httpx2.Client, name: str, about: str) -> str:
    source = "\n".join(
        (
            f"def {name}(detail: str) -> str:",
            f'    """{about}',
            "",
            "    Args:",
            "        detail: What exactly.",
            '    """',
            '    return "Done: " + detail',
        )
    )
    return str(ok(http.post("/v1/tools/", json={"source_code": source}))["id"])


def make_agent(http: httpx2.Client, tool_ids: list[str], **more: Any) -> str:
    sent = {"model": MODEL, "tool_ids": tool_ids, **more}
    return str(ok(http.post("/v1/agents/", json=sent))["id"])


def say(http: httpx2.Client, agent: str, text: str) -> list[dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": text}]}
    messages: list[dict[str, Any]] = ok(http.post(f"/v1/agents/{agent}/messages", json=body))[
        "messages"
    ]
    return messages


def offered(server: ServerInThread) -> list[set[str]]:
    """Return the names of the tools in each request to the model."""
    return [{tool.name for tool in request.tools} for request in server.model.requests]


def size_of_tools(server: ServerInThread, index: int) -> int:
    return sum(
        len(json.dumps([tool.name, tool.description, tool.parameters]))
        for tool in server.model.requests[index].tools
    )


def test_an_agent_with_many_tools_finds_one_calls_it_and_keeps_it(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str]
) -> None:
    agent = make_agent(http, tool_ids)
    server.says(
        call("find_tools", query="add an event to the calendar"),
        call("create_calendar_event", detail="Dentist"),
        "It is in your calendar.",
        "Still there.",
    )
    messages = say(http, agent, "The dentist is on Friday.")
    returns = [one for one in messages if one["message_type"] == "tool_return_message"]
    assert "- create_calendar_event: Create an event in the calendar." in returns[0]["tool_return"]
    assert returns[1]["status"] == "success"
    first, second, third = offered(server)
    assert "find_tools" in first
    assert not first & TOOLS.keys()
    assert "create_calendar_event" in second
    assert len(second & TOOLS.keys()) <= 5
    assert third == second
    # In the next turn the model is offered the tools that occur in its window.
    say(http, agent, "Sure?")
    assert "create_calendar_event" in offered(server)[-1]
    # `find_tools` is not one of the agent's tools.
    listed = {tool["name"] for tool in ok(http.get(f"/v1/agents/{agent}/tools"))}
    assert "find_tools" not in listed


def test_the_first_request_has_few_tool_schemas(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str]
) -> None:
    few = make_agent(http, tool_ids[:20])
    many = make_agent(http, tool_ids)
    none = make_agent(http, [])
    for agent in (none, few, many):
        say(http, agent, "Hi.")
    assert len(offered(server)[1] & TOOLS.keys()) == 20  # all of them, since they are few
    finder = size_of_tools(server, 2) - size_of_tools(server, 0)
    all_schemas = (size_of_tools(server, 1) - size_of_tools(server, 0)) * len(TOOLS) / 20
    assert finder * 10 < all_schemas


def test_tools_named_in_rules_and_in_the_prompt_are_offered(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str]
) -> None:
    agent = make_agent(
        http,
        tool_ids,
        tool_rules=[{"type": "run_first", "tool_name": "read_news"}],
        memory_blocks=[{"label": "persona", "value": "You use lock_door at night."}],
    )
    server.says(call("read_news", detail="today"), "Nothing new.")
    say(http, agent, "Good evening.")
    assert offered(server)[0] & TOOLS.keys() == {"read_news"}
    assert offered(server)[1] & TOOLS.keys() == {"read_news", "lock_door"}


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "constrain_child_tools", "children": ["feed_cat", "lock_door"]},
        {"type": "parent_last_tool", "children": ["feed_cat", "lock_door"]},
        {
            "type": "conditional",
            "child_output_mapping": {"cat": "feed_cat"},
            "default_child": "lock_door",
        },
    ],
)
def test_a_tool_that_a_rule_allows_next_is_offered(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str], rule: dict[str, Any]
) -> None:
    agent = make_agent(http, tool_ids, tool_rules=[{"tool_name": "read_news", **rule}])
    server.says(call("read_news", detail="today"), "Nothing new.")
    say(http, agent, "Good evening.")
    after_news = offered(server)[1]
    assert "lock_door" in after_news
    assert after_news <= {"feed_cat", "lock_door"}


def test_an_agents_own_tool_named_find_tools_disables_the_search(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str]
) -> None:
    mine = make_tool(http, "find_tools", "Find hammers and saws in the shed.")
    for others in (tool_ids[:1], tool_ids):
        agent = make_agent(http, [mine, *others])
        say(http, agent, "Hi.")
        assert len(offered(server)[-1] & {"find_tools", *TOOLS}) == len(others) + 1


def test_calling_a_tool_that_was_not_offered_yet_works(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str]
) -> None:
    agent = make_agent(http, tool_ids)
    server.says(call("feed_cat", detail="now"), "Fed.")
    messages = say(http, agent, "Feed the cat.")
    (result,) = [one for one in messages if one["message_type"] == "tool_return_message"]
    assert (result["status"], "Done: now" in result["tool_return"]) == ("success", True)
    assert "feed_cat" in offered(server)[1]


def test_a_tool_search_without_matches_says_so(
    server: ServerInThread, http: httpx2.Client, tool_ids: list[str]
) -> None:
    agent = make_agent(http, tool_ids)
    server.says(call("find_tools", query=" "), call("find_tools", query="xqzv"), "No.")
    messages = say(http, agent, "Do something odd.")
    empty, nothing = [one for one in messages if one["message_type"] == "tool_return_message"]
    assert "query is empty" in empty["tool_return"]
    assert nothing["tool_return"] == "No tool matches. Try other words."
    assert [tools & TOOLS.keys() for tools in offered(server)] == [set()] * 3


def test_tools_are_found_by_other_words(server: ServerInThread, http: httpx2.Client) -> None:
    tools = [
        tool for tool in ok(http.get("/v1/tools/", params={"limit": 100})) if tool["name"] in TOOLS
    ]
    assert len(tools) == len(TOOLS)
    found = 0
    for name, (_, wish) in TOOLS.items():
        hits = ok(http.post("/v1/tools/search", json={"query": wish, "limit": 5}))
        found += name in [hit["tool"]["name"] for hit in hits]
    assert found >= 36, found  # of 40 tools
