"""Accounts: API keys, users, organizations, and identities of older clients.

They are managed over HTTP and on the command line.
"""
