"""Request and response models, one of each a noun."""
