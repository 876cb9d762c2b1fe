"""The audit log: a row for each change and each refusal.

The rows form a chain of hashes, so that a removed or changed row is detected.
"""
