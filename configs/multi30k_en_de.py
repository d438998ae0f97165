"""English to German on Multi30k, lower-cased and tokenised: the Transformer-Tiny of a well-known comparison.

Source:   Wu et al. 2021, "Good for misconceived reasons" (ACL), section 4: 4+4 layers, width 128, 10,000 joint subwords,
          dropout 0.3. Here with the norm before the sublayers, which trains at a third of the warm-up, and 4,096 tokens
          a step. Rate and warm-up by the validation loss after 600 steps: 2.64 at 0.005/400, 2.82 at 0.003/400, 2.90 at
          0.005/800, 3.06 at 0.002/400.
Command:  python train.py configs/multi30k_en_de.py      (docs/results.md: where the data is published)
          flaxformer-lite evaluate runs/multi30k_en_de
Expected: about 95 minutes of one CPU core for the 40 epochs; validation loss 1.694, still falling; test BLEU 39.05
          (tokenize=none) with the mean of 10 checkpoints, 38.77 with 5, 38.51 with the last, 38.38 with the best. With a rate
          of 0.003, test BLEU was 38.29 after 27 epochs.
Vary it:  --train.steps 16000 goes on; residual=POST_NORM is the paper's own form and wants warmup_steps=2000;
          lab/multi30k.md has BPE dropout and more.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import PRE_NORM, DropoutRates, ModelConfig
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.optim import AdamW, InverseSquareRoot, OptimizerConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.files.data import DataConfig, ParallelText
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.metrics import MetricConfig

FOLDER = "data/multi30k"


def get_config() -> Config:
    def pairs(split: str) -> ParallelText:
        return ParallelText(source=f"{FOLDER}/{split}.lc.norm.tok.en.gz", target=f"{FOLDER}/{split}.lc.norm.tok.de.gz")

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
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.98, eps=1e-9),
            schedule=InverseSquareRoot(peak_rate=5e-3, warmup_steps=400),
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
        metrics=MetricConfig(bleu_tokenizer="none"),  # the text is tokenized already
        decode=DecodeConfig(beam_size=5, length_penalty="average", alpha=1.0),
        weights="average:10",
    )
