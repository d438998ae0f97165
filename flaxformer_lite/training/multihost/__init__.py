"""Several processes that train one model together, on one host or many: they meet, agree, and end together.

All run the same command and take the same steps. Each reads its rows of a batch and holds its share of the state. The first one
alone reports and writes files, except for checkpoints, which all write together into a folder that all can reach.

`meeting.py` connects the processes before JAX looks for devices, and ends all of them when one fails. `agreement.py` is the
trainer's interface to them (`Processes`).
"""
