"""A client's own machine in a federation: a process that stays, answers messages, and survives being killed.

host.py      what its owner has, and agrees to
desk.py      its folder: what it was sent and has not answered, what it keeps of every training, what it has given away
stay.py      the loop: take a message, answer it, write down, send
stock.py     the same answers on a stock SuperNode of Flower's
settings.py  its settings
"""
