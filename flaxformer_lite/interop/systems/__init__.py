"""The five older systems, a file each: a table of options and a table of weights, both read in both directions."""

from flaxformer_lite.interop.systems import bert_tf, matrix_view, nlp_in_action, paddle, torch_transformer
from flaxformer_lite.interop.systems.system import System

MODULES = (paddle, nlp_in_action, bert_tf, matrix_view, torch_transformer)
SYSTEMS: dict[str, System] = {module.SYSTEM.name: module.SYSTEM for module in MODULES}
"""By the name that `import` and `export` take."""
