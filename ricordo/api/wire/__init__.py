"""Domain values in the shapes of the retired Letta V1 server 0.16.8: pure functions, and the models that document them."""
