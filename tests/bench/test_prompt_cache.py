"""The share of input tokens that the cache of a model's server gives, for each kind of server."""

import pytest

from bench.prompt_cache import CACHED_SHARE, KINDS, talks


async def test_with_five_edits_in_fifty_turns_nine_tenths_come_from_the_cache() -> None:
    async with talks() as talking:
        for kind in KINDS:
            cache, share = await talking.talk(kind, "lazy", 50, 5)
            assert share >= CACHED_SHARE, kind
            assert share == pytest.approx(cache.reused / cache.tokens, abs=0.001), kind
