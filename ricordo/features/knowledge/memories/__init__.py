"""Add and search user memory, for programs that need no agent.

An agent files the facts of the messages that a program adds.
"""
