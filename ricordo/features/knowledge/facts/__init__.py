"""Facts about users: a fact is one sentence, with quotes of messages as its evidence."""
