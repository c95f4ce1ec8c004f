"""Several seeds and settings in one exchange."""
