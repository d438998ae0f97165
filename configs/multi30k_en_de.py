"""TODO header"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.data.pipeline import DataConfig
from flaxformer_lite.data.sources import ParallelText
from flaxformer_lite.decoding import DecodeConfig
from flaxformer_lite.layers import PRE_NORM, DropoutRates
from flaxformer_lite.objectives import Seq2Seq
from flaxformer_lite.optimizer import AdamW, OptimizerConfig
from flaxformer_lite.schedules import InverseSquareRoot
from flaxformer_lite.tokenizer import SentencePiece
from flaxformer_lite.transformer import ModelConfig

FOLDER = "data/multi30k"


def get_config() -> Config:
    return with_text(".lc.norm.tok", tokenized=True)


def with_text(flavour: str, *, tokenized: bool) -> Config:
    """The experiment on one flavour of the text: the part of the file names between the split and the language."""

    def pairs(split: str) -> ParallelText:
        return ParallelText(source=f"{FOLDER}/{split}{flavour}.en.gz", target=f"{FOLDER}/{split}{flavour}.de.gz")

    return Config(
        model=ModelConfig(
            vocab_size=10_000,
            d_model=128,
            num_heads=4,
            d_ff=256,
            num_encoder_layers=4,
            num_decoder_layers=4,
            activation="relu",
            residual=PRE_NORM,
            dropout=DropoutRates(embedding_rate=0.3, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.3),
            scan_unroll=4,
        ),
        objective=Seq2Seq(label_smoothing=0.1),
        data=DataConfig(
            train=pairs("train"),
            eval=pairs("val"),
            test=pairs("test_2016_flickr"),
            tokenizer=SentencePiece(model_type="bpe"),
            tokens_per_batch=4096,
            bucket_lengths=(10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 64),
            max_source_length=64,
            max_target_length=64,
            tokenized=tokenized,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.98, eps=1e-9),
            schedule=InverseSquareRoot(peak_rate=3e-3, warmup_steps=400),
            clip_norm=None,
        ),
        train=TrainConfig(
            steps=4_800,
            eval_every=120,
            checkpoint_every=120,
            keep_latest=10,
            best_metric="bleu",
            text_metrics=("bleu",),
        ),
        decode=DecodeConfig(beam_size=5, length_penalty="average", alpha=1.0),
        weights="average:10",
    )
