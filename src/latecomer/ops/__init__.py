"""Operations: one file each, with the plain definition, how `vmap` and gradients reach it, its kernels, and the rule
that says which way is taken.

Whoever calls an operation writes for one client and knows nothing of devices. An operation looks at what it is given
(mapping.py) and takes its kernel only where that was measured to be better; the plain definition serves everywhere
else, and says what the result must be.
"""
