"""From stored state to model input. Pure: the same state gives the same prompt."""
