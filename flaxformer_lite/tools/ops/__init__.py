"""Operation and debugging.

`diagnosis.py` collects what `doctor` shows and says what is wrong. `debug_step.py` repeats a step to find its first NaN.
"""
