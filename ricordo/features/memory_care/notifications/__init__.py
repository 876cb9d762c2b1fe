"""Notifications: owners get digests of proposals that wait, by e-mail and webhook.

Each digest has one-time links that open exactly one decision.
"""
