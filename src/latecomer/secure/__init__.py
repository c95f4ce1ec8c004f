"""Means of which the server learns the sum and no client's part: fixed point, secret shares, and the protocol."""
