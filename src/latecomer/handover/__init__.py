"""From a finished run to whoever shows up: `load` it, let it meet clients, and hand them their models."""
