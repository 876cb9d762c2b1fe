"""The part of the search index that a server caches, by simulation: `python -m bench.scale_memory`.

A million agents belong to ten thousand organizations. They are searched as often as Zipf's law
says: the second most used agent half as often as the first, the third a third as often. The cache
is the server's class, with its limit; entries have the sizes that the server counts. No text is
stored.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.report import Figure, Report
from ricordo.search.partition_view import BYTES_PER_DOCUMENT
from ricordo.search.reader import DOCUMENT, PARTITIONS_LIMIT, SizedCache

AGENTS, ORGANIZATIONS = 1_000_000, 10_000
_SEARCHES, _WARM = 400_000, 200_000
_SEED = 36
# Messages of an agent: half have fewer than the median, one in forty more than sixteen times it.
_MEDIAN, _SPREAD = 100, 1.4
# A vector of 256 dimensions as bytes, its scale, and one bit for each dimension.
_VECTOR = 256 + 4 + 256 // 8
# The records are cached twice, as read and in the view that searches use.
BYTES_PER_MESSAGE = 2 * DOCUMENT.itemsize + BYTES_PER_DOCUMENT + _VECTOR

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """Each agent's index bytes and organization, and the agents in the order of the searches."""

    sizes: Numbers
    organizations: Numbers
    searched: Numbers


@dataclass(frozen=True)
class Outcome:
    """The share of searches that found their agent cached, and the cached data at the end."""

    hits: float
    cached: Numbers  # agents


def zipf(chance: np.random.Generator, kinds: int, count: int) -> Numbers:
    """Return `count` draws from kinds 0, 1, …; kind k comes 1/(k+1) times as often as kind 0."""
    sums = np.cumsum(1 / np.arange(1, kinds + 1))
    return np.searchsorted(sums, chance.random(count) * sums[-1]).astype(np.int64)


def world(agents: int = AGENTS, organizations: int = ORGANIZATIONS) -> World:
    """Return agents whose use, size and organization are independent of each other."""
    chance = np.random.default_rng(_SEED)
    messages = np.ceil(chance.lognormal(np.log(_MEDIAN), _SPREAD, agents))
    return World(
        (messages * BYTES_PER_MESSAGE).astype(np.int64),
        zipf(chance, organizations, agents),
        zipf(chance, agents, _WARM + _SEARCHES),
    )


def search(of: World, limit: int) -> Outcome:
    """Search the agents in order, with a cache of this number of bytes."""
    cache = SizedCache(limit, group=lambda key: key)
    hits = 0
    for number, agent in enumerate(of.searched.tolist()):
        if cache.get(agent) is None:
            cache.put(agent, agent + 1, int(of.sizes[agent]))
        elif number >= _WARM:
            hits += 1
    known = np.unique(of.searched)
    cached = np.array([agent for agent in known.tolist() if cache.get(agent)], np.int64)
    return Outcome(hits / (len(of.searched) - _WARM), cached)


def measure(report: Report) -> None:
    """Report the size of all indexes, and the hit rates of caches of several sizes."""
    report.begin(f"{AGENTS:,} agents of {ORGANIZATIONS:,} organizations")
    of = world()
    by_organization = np.bincount(of.organizations, of.sizes, ORGANIZATIONS)
    report.add(
        [
            Figure("bytes of a message's index in memory", BYTES_PER_MESSAGE, "B"),
            Figure("all indexes", of.sizes.sum() / 1e9, "GB"),
            Figure("  the largest organization's", by_organization.max() / 1e9, "GB"),
            Figure("  the median organization's", float(np.median(by_organization)) / 1e6, "MB"),
        ]
    )
    for factor in (1, 4, 16, 64):
        limit = PARTITIONS_LIMIT * factor
        report.begin(f"a cache of {limit / 2**20:,.0f} MiB")
        outcome = search(of, limit)
        owners = np.bincount(
            of.organizations[outcome.cached], of.sizes[outcome.cached], ORGANIZATIONS
        )
        report.add(
            [
                Figure("searches whose index is cached", outcome.hits, ""),
                Figure("  agents cached", len(outcome.cached), ""),
                Figure("  organizations with something cached", int((owners > 0).sum()), ""),
                Figure("  share of the largest organization", owners.max() / owners.sum(), ""),
            ]
        )


def main() -> None:
    """Measure and print."""
    report = Report()
    measure(report)
    report.end()


if __name__ == "__main__":
    main()
