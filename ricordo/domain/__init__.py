"""The nouns of Ricordo: frozen values without I/O. Each is one class that all layers share."""
