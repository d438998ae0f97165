"""The flight recorder: what a run has read, and what it would have been without a row. Nothing of a run is changed.

`run/recording.py` has the rows of a step, and `rows.py` shows them. Here `seen.py` finds records by their text or line, with the
steps that read them; `rerun.py` repeats steps without a row.
"""
