"""The developer's day of docs/agents/tools.md, run unchanged with a model that fails once."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, call
from tests.seams.server import MODEL, ServerInThread, serving
from tests.test_docs import ADDRESS, Python, blocks, page_text


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("shop"), model=MODEL) as server:
        yield server


def assistant(request: ModelRequest) -> Line:
    """A model that asks for apples, then for the fruit in the traceback, and sums up."""
    last = request.messages[-1]
    if last.role == "user":
        return call(
            "price_of",
            **({"fruit": "pear"} if "pear" in last.text else {"fruit": "apples", "kilos": 2}),
        )
    (result,) = last.tool_returns
    if result.status == "error":
        assert "KeyError: 'apples'" in result.content
        return call("price_of", fruit="apple", kilos=2)
    return f"They are {re.search(r'[0-9.]+ euros', result.content)[0]}."  # type: ignore[index]


def test_the_example_in_the_tools_page_prints_the_documented_output(
    shop: ServerInThread, tmp_path: Path
) -> None:
    shop.answers_with(assistant)
    program = tmp_path / "shop.py"
    program.write_text(
        "\n".join(blocks(page_text("tools.md"), "python")).replace(ADDRESS, shop.url)
    )
    shown = Python(tmp_path)(f"import runpy; runpy.run_path({str(program)!r})")
    (trace,) = blocks(page_text("tools.md"), "text")
    assert shown == (
        "price_of takes fruit kilos\n"
        f"error {trace}"
        "success 4.80 euros\n"
        "They are 4.80 euros.\n"
        'approval_request_message {"fruit":"pear"}\n'
        "They are 3.10 euros.\n"
        "success 1.55 euros\n"
        "10 ['The key is [secret SHOP_KEY]'] ['SHOP_KEY']\n"
    )
