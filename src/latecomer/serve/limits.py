"""How often somebody may ask: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

MOST = 100_000  # whoever was not seen for longest is forgotten, and may have a full bucket again


class Buckets:
    """Buckets by name; a new one is full."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, float(burst)
        self.levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, name: str, now: float) -> float:
        """Take a token, or say in how many seconds there will be one."""
        tokens, then = self.levels.pop(name, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.rate)
        wait = max(0.0, (1 - tokens) / self.rate)
        self.levels[name] = (tokens if wait else tokens - 1, now)
        if len(self.levels) > MOST:
            self.levels.popitem(last=False)
        return wait


def whose(address: str) -> str:
    """Whom an address stands for: one of IPv6 for its network, since a machine has as many as it likes."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a proxy says something else, or it is a test
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
