"""Templates: numbered versions of an agent's settings, prompt, tools and memory.

Agents are created from a version, and can be moved to a newer version.
"""
