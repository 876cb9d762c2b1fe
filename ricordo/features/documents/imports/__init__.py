"""Imports: agents of a Letta database, exported chats, and memories of mem0.

The database is that of the retired Letta V1 server 0.16.8. Chats come from ChatGPT, Claude and Open
WebUI.
"""
