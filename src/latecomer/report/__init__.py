"""Finished runs beside each other, on one page that needs no network: tables, curves, a map of the clients."""
