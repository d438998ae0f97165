"""English to German on WMT14: the base model of the paper that the Transformer comes from.

Source:   Vaswani et al. 2017, arXiv:1706.03762: sections 5.1 to 5.4 and table 3 (base): 6+6 layers, width 512, 25,000 tokens of
          each side a step, Noam's rate with 4,000 steps of warm-up, label smoothing 0.1, the mean of the last 5 checkpoints,
          beam 4 with alpha 0.6. The vocabulary is joint, 37,000 subwords.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/transformer_base_wmt14.py
          flaxformer-lite evaluate runs/transformer_base_wmt14
Expected: 27.3 BLEU on newstest2014 in the paper, tokenised with compounds split; sacreBLEU's figure is about a point lower. 100,000
          steps, 12 hours on 8 P100 GPUs there. Not run here; 63 million parameters.
Vary it:  residual=PRE_NORM trains at a tenth of the warm-up; configs/transformer_big_wmt14.py is the big one.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import POST_NORM, DropoutRates, ModelConfig
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.optim import AdamW, Noam, OptimizerConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.files.data import DataConfig, HubDataset
from flaxformer_lite.files.records import Pairs
from flaxformer_lite.files.tokenizers import SentencePiece


def get_config() -> Config:
    def pairs(split: str) -> HubDataset:
        return HubDataset(
            path="wmt/wmt14",
            name="de-en",
            split=split,
            record=Pairs(source="translation.en", target="translation.de"),
            empty_lines="drop",
        )

    return Config(
        model=ModelConfig(
            vocab_size=37_000,
            d_model=512,
            num_heads=8,
            d_ff=2048,
            num_encoder_layers=6,
            num_decoder_layers=6,
            activation="relu",
            residual=POST_NORM,
            dropout=DropoutRates(embedding_rate=0.1, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.1),
            dtype="bfloat16",
        ),
        objective=Seq2Seq(label_smoothing=0.1),
        data=DataConfig(
            train=pairs("train"),
            eval=pairs("validation"),
            test=pairs("test"),
            tokenizer=SentencePiece(model_type="bpe", character_coverage=0.9995),
            tokens_per_batch=25_000,
            rows_multiple=8,
            bucket_lengths=(16, 24, 32, 40, 48, 64, 96, 128, 256),
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.98, eps=1e-9), schedule=Noam(warmup_steps=4_000), clip_norm=None
        ),
        train=TrainConfig(
            steps=100_000,
            log_every=100,
            eval_every=1_500,
            checkpoint_every=1_500,
            keep_latest=5,
            text_metrics=("bleu",),
        ),
        decode=DecodeConfig(beam_size=4, length_penalty="gnmt", alpha=0.6, max_length_ratio=1.0, max_length_extra=50),
        weights="average:5",
    )
