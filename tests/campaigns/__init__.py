"""Short campaigns against a real server, with kills at random moments and many clients at once."""
