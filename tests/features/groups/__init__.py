"""Groups of agents: records, talks, sleeping agents and tools between agents."""
