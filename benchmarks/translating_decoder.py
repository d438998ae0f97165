"""Compares the CPU seconds a sentence of a decoder that translates by a prompt with those of an encoder–decoder in NLLB's shape.

python benchmarks/translating_decoder.py [--sentences 64] [--batch 64] [--beam-size 1 4] [--rounds 3]

Both have random weights, the same width, the same vocabulary and as many parameters. A source has 25 tokens, an answer 25. The
decoder reads the source within a prompt of 55 tokens: the template and the sentence that asks for a translation. Sides take turns;
the first pass, which compiles, is not counted. A row has the median of the rounds, and the least and the most.
"""

import argparse
import statistics
from typing import Any

from sides import processor, settle, take_turns

VOCABULARY, WIDTH, HEADS, SOURCE, PROMPT, ANSWER = 8000, 256, 4, 25, 55, 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    settle(1)
    print(processor())

    import jax
    import jax.numpy as jnp
    import numpy as np

    from flaxformer_lite.core.model import DotProduct, Inputs, ModelConfig, RMSNorm, Transformer
    from flaxformer_lite.core.model.positions import Rotary, Sinusoidal
    from flaxformer_lite.core.search import DecodeConfig
    from flaxformer_lite.core.search.decoder import Decoder

    shared: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": WIDTH, "num_heads": HEADS}
    nllb = ModelConfig(**shared, d_ff=4 * WIDTH, num_encoder_layers=6, num_decoder_layers=6, positions=Sinusoidal())
    gated: dict[str, Any] = {
        "positions": Rotary(),
        "activation": "swiglu",
        "norm": RMSNorm(),
        "feed_forward_bias": False,
    }
    attention = DotProduct(num_kv_heads=2, bias=False)
    decoder = ModelConfig(
        **shared, **gated, d_ff=3 * WIDTH, num_encoder_layers=0, num_decoder_layers=14, attention=attention
    )
    rng = np.random.default_rng(0)
    for beam in options.beam_size:
        calls = {}
        for name, model, length in (("encoder–decoder", nllb, SOURCE), ("decoder", decoder, PROMPT)):
            tokens = jnp.ones((1, 2), jnp.int32)
            inputs = Inputs(source_tokens=tokens if model.num_encoder_layers else None, target_tokens=tokens)
            variables = jax.jit(Transformer(model).init)(jax.random.key(0), inputs)
            settings = DecodeConfig(
                beam_size=beam, max_new_tokens=ANSWER, min_new_tokens=ANSWER, batch_tokens=options.batch * 64
            )
            search = Decoder(Transformer(model), settings)
            weights = search.lay_out(variables)
            sources = rng.integers(4, VOCABULARY, (options.sentences, length)).tolist()
            calls[name] = lambda search=search, weights=weights, sources=sources: search.generate(weights, sources)
            number = sum(x.size for x in jax.tree.leaves(variables))
            print(f"{name}: {number:,} parameters")
            calls[name]()
        for name, times in take_turns(calls, options.rounds).items():
            seconds = [1000 * one.cpu / options.sentences for one in times]
            print(
                f"beam {beam}  {name:16} {statistics.median(seconds):8.1f} ms of CPU a sentence ({min(seconds):.1f} to "
                f"{max(seconds):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
