"""What tests run against besides the product.

Scripted servers, databases, processes that are forked and killed, and campaigns.
"""
