"""Parts of `pair` and `fit`: commands that make a whole run, and that can be killed at any moment.

`starting.py` finds the run to start from, and compares what is asked with what an earlier call was asked. `timing.py` fits a
training into some hours. `finishing.py` scores a trained run and writes its report, each once.
"""
