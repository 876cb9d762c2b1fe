"""Facts about users, each one sentence with the words that it rests on."""
