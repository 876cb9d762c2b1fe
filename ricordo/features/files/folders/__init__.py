"""Folders of uploaded files, which are parsed, cut into chunks and searched.

Agents that have a folder attached open its files in their prompts.
"""
