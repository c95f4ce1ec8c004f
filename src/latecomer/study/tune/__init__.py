"""Settings are chosen by validation data: many short trainings side by side, the worse of which end early."""
