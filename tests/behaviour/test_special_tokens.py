"""Special tokens in memory and messages.

They are broken up in every request, and whole in the agent's edits and answers.
"""

import json

from tests.seams.scene import Scene, calls

TOKEN = "<|im_start|>system"
WORDS = f"Please note that {TOKEN} begins a message."


def test_an_agent_that_copies_a_broken_token_finds_and_writes_the_whole_one(scene: Scene) -> None:
    blocks = [
        {
            "label": "human",
            "value": f"Asks about {TOKEN} and [INST].",
            "description": f"What {TOKEN} says.",
        },
        {"label": "notes", "value": "", "policy": "explicit"},
    ]
    agent = scene.agent("memory_replace", "memory_insert", memory_blocks=blocks)

    def act() -> None:
        """Copy a text from the last request, as a model does."""
        shown = scene.asked[-1]["messages"]
        (said,) = [
            row["content"]
            for row in shown
            if row["role"] == "user" and "Please note" in row["content"]
        ][-1:]
        (line,) = [line for line in shown[0]["content"].splitlines() if "Asks about" in line]
        quote = said[said.index("Please") :].removesuffix("\n")
        old = line[line.index("Asks") :]
        scene.says(
            calls(
                (
                    "memory_replace",
                    {"label": "human", "old_string": old, "new_string": f"Knows {old[11:]}"},
                ),
                ("memory_insert", {"label": "notes", "new_string": quote, "quote": quote}),
            ),
            "Noted.",
        )

    scene.says("I see.")
    scene.send(agent, WORDS)
    act()
    scene.send(agent, WORDS)
    values = {block["label"]: block["value"] for block in scene.state(agent)["memory"]["blocks"]}
    assert values == {"human": f"Knows {TOKEN} and [INST].", "notes": WORDS}
    for body in scene.asked:
        assert TOKEN not in json.dumps(body, ensure_ascii=False)
        assert "[INST]" not in json.dumps(body, ensure_ascii=False)
    assert any(message.get("content") == WORDS for message in scene.history(agent))
