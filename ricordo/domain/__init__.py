"""The nouns of Ricordo: frozen values without I/O. Each noun is one class that all layers share."""
