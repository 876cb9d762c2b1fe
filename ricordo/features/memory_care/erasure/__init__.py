"""Erasure: forgetting a user, over HTTP and on the command line.

The user is hidden at once. A job then erases the rows, and a signed receipt confirms it.
"""
