"""Real federations: a training over a SuperLink, whose clients have their data on machines of their own.

project.py  the few files of an app that Flower runs
server.py   what its ServerApp does: waits for nodes, trains, goes on where it was stopped, hands out the models
nodes.py    who the clients are: their nodes, numbers, and what they tell of their data
news.py     what the ServerApp tells whoever follows the run
"""
