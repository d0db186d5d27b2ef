"""Per-class counts, what follows from them, and how it is drawn."""
