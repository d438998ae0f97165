"""The config of an experiment: every setting that decides its numbers, as one tree of frozen dataclasses.

`train.py` has the settings of training, `experiment.py` joins all rooms' settings to a `Config` and checks them together. `load.py`
reads a config file, `options.py` applies the options of a command line, `serialize.py` writes and reads config.json. There
`settings.py` lists all settings with their marks, and `outside.py` names and finds variants from outside the package.
`differences.py` compares two configs.
"""

from flaxformer_lite.config.differences import differences
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.config.train import TrainConfig

__all__ = ["Config", "TrainConfig", "differences", "from_json", "load_config", "to_json"]
