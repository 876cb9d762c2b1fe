"""What tests run against besides the product: scripted servers, databases, processes that are forked and killed, and campaigns."""
