<<<<<<< HEAD
"""Tests of agents that work together."""
=======
"""Groups of agents: records, talks, sleeping agents and tools between agents."""
>>>>>>> main
