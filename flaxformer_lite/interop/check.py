"""Compares what was written for another system with the model, where that system is installed: the answers to random inputs.

Each function returns False if it could not compare. Raises: ValueError if the answers differ, or the system cannot read the files.
"""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.base.remote_files import describe_error
from flaxformer_lite.config import Config
from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.predictions.forward import arguments, forward
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.interop.ctranslate2 import token_names
from flaxformer_lite.interop.name_map import NumpyArrays

ROWS, LENGTH = 3, 5
"""Number and length of the random texts that both sides read."""
TOLERANCE = 0.01
"""Largest difference of two outputs, as a part of the largest one: far above rounding, far below what a lost parameter changes."""
REPORT = "nothing was written; please report the model's settings"
OUTPUTS = (("logits",), ("prediction_logits",), ("start_logits", "end_logits"), ("last_hidden_state",))
"""Hugging Face's names of what is compared, the first that a class has."""


def check_hf(folder: Path, model: ModelConfig, decode: DecodeConfig, params: PyTree) -> bool:
    """Compares a Hugging Face folder by transformers and PyTorch; False also for an architecture that the release does not know,
    and a model that reads no tokens.
    """
    if not model.vocab_size:
        return False
    try:
        import torch
        import transformers
    except ImportError:
        return False
    architecture = json.loads((folder / "config.json").read_bytes())["architectures"][0]
    if not hasattr(transformers, architecture):
        return False
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source, target = model.vocab_sizes
    # Sources end with EOS, where some classifiers read.
    inputs = {"input_ids": [[*row, *decode.eos_ids[:1]] for row in texts(model, decode, source or target)]}
    if arguments(model).get("decoder_input_ids"):
        inputs["decoder_input_ids"] = [[decode.start_id, *row] for row in texts(model, decode, target)]
    library = f"transformers {transformers.__version__}"
    try:
        reader = getattr(transformers, architecture).from_pretrained(str(folder)).float().eval()
        with torch.no_grad():
            answered = reader(**{name: torch.tensor(rows) for name, rows in inputs.items()})
    except Exception as error:
        raise ValueError(f"{library} cannot use this folder ({describe_error(error)}): {REPORT}") from None
    names = next(names for names in OUTPUTS if getattr(answered, names[0], None) is not None)
    theirs = [getattr(answered, name).numpy() for name in names]
    outputs = answers(model, decode, params, **inputs)
    ours = outputs.last_hidden_state if names == ("last_hidden_state",) else outputs.logits
    one = theirs[0] if len(theirs) == 1 else np.stack(theirs, -1)
    if one.shape == ours.shape[:-1]:  # ELECTRA's discriminator: one number of each token
        one = one[..., None]
    if not close(one, ours):
        raise ValueError(f"{library} answers otherwise with this model, by its {' and '.join(names)}: {REPORT}")
    return True


def check_torch(config: Mapping[str, object], arrays: NumpyArrays, model: ModelConfig, params: PyTree) -> bool:
    """Compares weights of `torch.nn.Transformer` by itself, with its arguments as `config`."""
    try:
        import torch
    except ImportError:
        return False
    generator = np.random.default_rng(0)
    source, target = (generator.normal(size=(2, length, model.d_model)).astype(np.float32) for length in (5, 4))
    library = f"PyTorch {torch.__version__}"
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():  # of a faster path that some options have not
            reader = torch.nn.Transformer(**{**config, "batch_first": True}).eval()
            reader.load_state_dict({name: torch.tensor(x) for name, x in arrays.items()})
            causal = reader.generate_square_subsequent_mask(target.shape[1])
            theirs = reader(torch.tensor(source), torch.tensor(target), tgt_mask=causal).numpy()
    except Exception as error:
        raise ValueError(f"{library} cannot use these weights ({describe_error(error)}): {REPORT}") from None
    ours = answers(model, DecodeConfig(), params, inputs_embeds=source, decoder_inputs_embeds=target)
    if not close(theirs, ours.last_hidden_state):
        raise ValueError(f"{library} answers otherwise with these weights: {REPORT}")
    return True


def check_ctranslate2(
    folder: Path, config: Config, params: PyTree, tokenizers: Tokenizers | None, *, end: int | None = None
) -> bool:
    """Compares a folder by CTranslate2: the log-probabilities of answers to sources, or of each next token of texts.

    end: the id of the folder's end token, of a folder that names no start; None: it has both as `decode` says.
    """
    try:
        import ctranslate2
    except ImportError:
        return False
    model, decode = config.model, config.decode
    source, target = (None, None) if tokenizers is None else (tokenizers.source, tokenizers.target)
    options = {"device": "cpu", "compute_type": "float32"}
    sizes = model.vocab_sizes
    rows = texts(model, decode, sizes[1])
    names = token_names(target, sizes[1])
    if not model.num_decoder_layers:
        return check_encoder(ctranslate2.Encoder(str(folder), **options), rows, model, decode, params)
    if model.num_encoder_layers:
        sources = texts(model, decode, sizes[0])
        source_names = token_names(source, sizes[0])
        started = rows if end is None else [[decode.start_id, *row] for row in rows]
        results = ctranslate2.Translator(str(folder), **options).score_batch(
            names_of_ids(sources, source_names), names_of_ids(started, names)
        )
        theirs = np.asarray([result.log_probs for result in results])
        outputs = answers(
            model,
            decode,
            params,
            input_ids=sources if source is None else [source.as_source(row) for row in sources],
            decoder_input_ids=[[decode.start_id, *row] for row in rows],
        )
        ours = log_probs(outputs.logits, [[*row, decode.eos_ids[0] if end is None else end] for row in rows])
    else:
        logits = ctranslate2.Generator(str(folder), **options).forward_batch(names_of_ids(rows, names))
        following = [row[1:] for row in rows]
        theirs = log_probs(np.asarray(logits)[:, :-1], following)
        ours = log_probs(answers(model, decode, params, input_ids=rows).logits[:, :-1], following)
    if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=2 * TOLERANCE):
        difference = float(np.abs(ours - theirs).max())
        raise ValueError(
            f"CTranslate2 answers otherwise with this model: log-probabilities differ by up to {difference:.3g}: {REPORT}"
        )
    return True


def check_encoder(reader: Any, rows: list[list[int]], model: ModelConfig, decode: DecodeConfig, params: PyTree) -> bool:
    """Compares the last layer of CTranslate2's encoder."""
    types = {"token_type_ids": [[i % 2 for i in range(LENGTH)]] * ROWS} if model.num_token_types > 1 else {}
    theirs = np.asarray(reader.forward_batch(rows, **types).last_hidden_state)
    ours = answers(model, decode, params, input_ids=rows, **types).last_hidden_state
    if not close(theirs, ours):
        raise ValueError(f"CTranslate2 answers otherwise with this model, by its last layer: {REPORT}")
    return True


def texts(model: ModelConfig, decode: DecodeConfig, size: int) -> list[list[int]]:
    """Returns random token ids below `size`, none of them special, no longer than a decoder's sliding window."""
    special = {decode.pad_id, decode.bos_id, *decode.eos_ids, *decode.suppress_ids}
    usual = sorted(set(range(size)) - special) or [0]
    window = model.window_of(causal=model.num_decoder_layers > 0)
    length = LENGTH if window is None or not model.num_decoder_layers else min(LENGTH, window.size)
    return np.random.default_rng(size).choice(usual, (ROWS, length)).tolist()


def names_of_ids(rows: list[list[int]], names: Sequence[str]) -> list[list[str]]:
    return [[names[i] for i in row] for row in rows]


def answers(model: ModelConfig, decode: DecodeConfig, params: PyTree, **inputs: Any) -> Any:
    """Returns the model's outputs, computed in float32 on any device."""
    reader = Transformer(dataclasses.replace(model.for_use, dtype="float32"))
    with jax.default_matmul_precision("highest"):
        return forward(reader, {"params": params}, decode, **inputs)


def log_probs(logits: Float[np.ndarray, "B T V"], ids: list[list[int]]) -> Float[np.ndarray, "B T"]:
    of_vocabulary = np.asarray(jax.nn.log_softmax(logits))
    places = np.asarray(ids)[..., None]
    return np.take_along_axis(of_vocabulary, places, -1)[..., 0]


def close(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Returns whether two outputs are equal but for rounding."""
    if theirs.shape != ours.shape:
        return False
    difference = np.abs(theirs - ours).max()
    return bool(difference <= TOLERANCE * np.abs(ours).max())
