"""OpenAI's HTTP API, in which agents are the models of chat completions and responses.

It serves any OpenAI client, and Open WebUI.
"""

from ricordo.plugins import Feature

feature = Feature(
    settings=("ricordo.features.openai.options:OpenAIApiSettings",),
    tables=("ricordo.features.openai.queries:openai_chats",),
    routes=(
        "ricordo.features.openai.routes",
        "ricordo.features.openai.responses",
        "ricordo.features.openai.voice",
    ),
)
