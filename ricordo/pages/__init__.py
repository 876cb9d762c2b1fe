"""The frame of the pages for people: layout, filters, static files, and the API as pages call it.

Pages load nothing from other hosts.
"""
