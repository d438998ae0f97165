"""A small masked language model on the text of Python's own help topics, in characters: no files, no network.

Source:   Devlin et al. 2018, arXiv:1810.04805, section 3.1 (80/10/10, gelu), much smaller, with the norm before the sublayers,
          in characters, and without next-sentence prediction. Rate and decay are a first choice, not tuned.
Command:  python train.py configs/tiny_mlm.py
          python -m flaxformer_lite evaluate runs/tiny_mlm
Expected: after 400 steps a loss of 2.937 nats and 0.238 right of the characters to be told (held-out topics of Python 3.11), in
          84 seconds of CPU time: little more than their frequencies yet, and it needs many more steps to be of use.
Vary it:  --train.steps 4000 (not run yet); --objective.whole-words True covers whole words, which are harder to tell.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.data.corpora import PythonDocs
from flaxformer_lite.data.pipeline import DataConfig
from flaxformer_lite.layers import PRE_NORM, DropoutRates
from flaxformer_lite.model_config import LanguageModelHead
from flaxformer_lite.objectives import MaskedLM
from flaxformer_lite.optimizer import AdamW, OptimizerConfig
from flaxformer_lite.positions import Learned
from flaxformer_lite.schedules import Cosine
from flaxformer_lite.tokenizer import Characters
from flaxformer_lite.transformer import ModelConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            vocab_size=128,  # the last id covers characters
            d_model=128,
            num_heads=4,
            d_ff=512,
            num_encoder_layers=2,
            num_decoder_layers=0,
            positions=Learned(max_positions=128),
            activation="gelu",
            residual=PRE_NORM,
            scale_embeddings=False,
            head=LanguageModelHead(bias=True, transform="gelu"),
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.1),
            scan_unroll=2,
        ),
        objective=MaskedLM(mask_token=127),
        data=DataConfig(
            train=PythonDocs(split="train"),
            eval=PythonDocs(split="held_out"),
            tokenizer=Characters(),
            tokens_per_batch=16 * 128,
            rows_multiple=16,
            bucket_lengths=(128,),
            max_source_length=128,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.98),
            schedule=Cosine(peak_rate=2e-3, warmup_steps=100, final_rate_fraction=0.1),
            weight_decay=0.01,
        ),
        train=TrainConfig(steps=400, log_every=50, eval_every=200, checkpoint_every=200, best_metric="accuracy"),
    )
