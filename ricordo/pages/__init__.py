"""The frame of the pages for people: layout, filters, static files, and calls of the API.

The pages load nothing from other hosts.
"""
