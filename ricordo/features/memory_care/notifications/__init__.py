"""Notifications: owners get digests of waiting proposals, by e-mail and webhook.

Each digest has one-time links that open exactly one decision.
"""
