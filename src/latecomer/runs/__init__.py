"""A run on disk: its settings, its folder, and how it is stopped and resumed."""
