"""The embedding model of tests and demos."""

import asyncio
import math
import subprocess
import sys

import pytest

from ricordo.llm.embedding.scripted import ScriptedEmbedder


async def test_texts_that_share_words_lie_close() -> None:
    tea, more_tea, train = await ScriptedEmbedder().embed(["jasmine tea", "Jasmine tea, please", "a train to Rome"])
    near, far = (sum(a * b for a, b in zip(tea, other, strict=True)) for other in (more_tea, train))
    assert near > 0.6 > far
    assert [math.hypot(*vector) for vector in (tea, more_tea, train)] == pytest.approx([1, 1, 1])


def test_a_text_has_the_same_vector_in_every_process() -> None:
    code = (
        "import asyncio; from ricordo.llm.embedding.scripted import ScriptedEmbedder\n"
        "print(asyncio.run(ScriptedEmbedder(dimensions=8).embed(['jasmine tea'])))"
    )
    found = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        found.add(done.stdout.strip())
    assert found == {str(asyncio.run(ScriptedEmbedder(dimensions=8).embed(["jasmine tea"])))}
