"""A published bundle over HTTP: descriptors in, models out. `latecomer serve` starts it."""
