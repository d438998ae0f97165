"""Tools beside the core, each behind its command; the core imports none of them.

`serve/` answers requests, `report/` draws, `pair/` makes a translator from two files, `corpus/` writes answers piece by piece,
`planning/` predicts the cost of a step, `research/` has recipes of papers, `scores.py` scores and compares runs, `sweep.py`
trains several, `ops/` helps to run, to inspect and to debug. `pages.py` has what HTML pages share.
"""
