"""That the answers of the wild are many-sided enough to prove something."""

from tests.llm.wild.hosted_servers import HOSTED
from tests.llm.wild.local_servers import LOCAL
from tests.llm.wild.openai_shapes import Case


def test_every_server_is_met_with_a_text_a_call_a_stream_and_something_broken() -> None:
    by_server: dict[str, list[Case]] = {}
    for case in (*HOSTED, *LOCAL):
        by_server.setdefault(case.server, []).append(case)
    kinds = {"openai", "azure", "groq", "deepseek", "xai", "mistral", "together", "openrouter"}
    assert set(by_server) == kinds | {"ollama", "lmstudio", "vllm", "llamacpp"}
    for cases in by_server.values():
        assert any(case.streams for case in cases)
        assert any(not case.streams for case in cases)
