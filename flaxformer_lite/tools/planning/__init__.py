"""The cost of a step on a TPU slice that this machine need not have, predicted by the TPU's own compiler.

`plan.py` compiles the real step and combines the figures; `topology.py` describes chips and slices. `hlo_parser.py` parses the
compiled program, `program.py` counts the bytes that it moves to and from memory and its collectives, `communication.py` gives these
their times. `dry_run.py` shows a training before it begins.
"""

from flaxformer_lite.tools.planning.plan import Plan, make_plan
from flaxformer_lite.tools.planning.topology import CHIPS

__all__ = ["CHIPS", "Plan", "make_plan"]
