"""TODO header"""

from configs.multi30k_en_de import with_text
from flaxformer_lite.config import Config


def get_config() -> Config:
    return with_text("", tokenized=False)
