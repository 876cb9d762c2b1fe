"""Export an agent as a JSON file, and import such files.

The file holds the agent with its memory, history, tools and files. Other servers can read it.
"""
