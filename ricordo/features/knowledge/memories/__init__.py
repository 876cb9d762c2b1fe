"""Add and search user memory, for programs that need no agent.

An agent files facts from the messages that a program adds.
"""
