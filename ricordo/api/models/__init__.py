"""Request and response models, one of each for a noun."""
