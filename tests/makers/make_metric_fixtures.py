"""Makes tests/fixtures/metrics: tiny random MetricX and COMET models, converted by the scripts of examples/, with scores.

It imports only the other side: torch, transformers and COMET, and the file `metricx23/models.py` of google-research/metricx. By
hand, in an environment of Python 3.11 with `pip install "unbabel-comet==2.2.7" "transformers==4.30.2" "sentencepiece==0.1.99"
"protobuf==3.20.3" "setuptools<81" safetensors`:

    python -m tests.makers.make_metric_fixtures metricx23/models.py
"""

import importlib.metadata
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
import torch
import yaml
from comet.models import ReferencelessRegression, RegressionMetric, load_from_checkpoint
from transformers import MT5Config, T5TokenizerFast, XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast

from tests.support.paths import FIXTURES, ROOT

OUTPUT = FIXTURES / "metrics"
THEIR_ROW, ROW = "250089", "89"
"""The row of the head that MetricX reads: with theirs, a fixture would have a vocabulary of 250,112."""
WORDS = (
    "der die das ein eine Hund Katze Haus Mann Frau läuft sitzt steht rot blau grün auf in vor mit und nicht zwei drei"
)
ENGLISH = "the a an dog cat house man woman runs sits stands red blue green on in before with and not two three"
WORDINGS = {
    "23": "candidate: {translation} reference: {reference}",
    "23-qe": "candidate: {translation} source: {source}",
    "24": "source: {source} candidate: {translation} reference: {reference}",
    "24 without reference": "source: {source} candidate: {translation}",
}
"""As `_make_input` in their two files `predict.py` puts the text together."""


def sentences(words: str, draw: random.Random, number: int) -> list[str]:
    return [" ".join(draw.choices(words.split(), k=draw.randint(1, 14))) for _ in range(number)]


def made_tokenizer(folder: Path, **options: int) -> str:
    """Trains a small tokenizer on made-up sentences. Returns its file."""
    draw = random.Random(1)
    lines = sentences(WORDS, draw, 300) + sentences(ENGLISH, draw, 300) + ["source: candidate: reference:"] * 30
    prefix = str(folder / "sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=prefix,
        vocab_size=120,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
        **options,
    )
    return f"{prefix}.model"


def convert(name: str, *arguments: str) -> None:
    """Runs a script of examples/ as a reader does, but for the row."""
    script = (ROOT / "examples" / f"convert_{name}.py").read_text(encoding="utf-8")
    subprocess.run([sys.executable, "-c", script.replace(THEIR_ROW, ROW), *arguments], check=True)


def drawn(model: torch.nn.Module) -> None:
    """Gives all parameters values that differ from layer to layer."""
    with torch.no_grad():
        for name, x in sorted(model.named_parameters()):
            if x.ndim > 1:
                x.normal_(std=0.4 if "relative" in name or "embed" in name else x.shape[-1] ** -0.5)
            else:
                x.add_(torch.randn(x.shape) * (0.8 if "scalar" in name else 0.2))


def make_metricx(models: Path, texts: dict[str, list[str]]) -> dict:
    source = models.read_text().replace(THEIR_ROW, ROW)
    namespace: dict = {}
    exec(compile(source, str(models), "exec"), namespace)  # the file that its maker named
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = made_tokenizer(folder, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        tokenizer = T5TokenizerFast(vocab_file=file, extra_ids=0)
        tokenizer.save_pretrained(folder / "tokenizer")
        config = MT5Config(
            vocab_size=128,
            d_model=16,
            d_kv=5,
            d_ff=24,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=3,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=20,
        )
        torch.manual_seed(0)
        model = namespace["MT5ForRegression"](config).eval()
        drawn(model)
        seen = []
        handle = model.decoder.register_forward_hook(lambda _, __, outputs: seen.append(outputs[0][0, 0].detach()))
        scores(model, tokenizer, texts, WORDINGS["24"])
        handle.remove()
        mean = torch.stack(seen).mean(0)
        with torch.no_grad():  # most numbers lie between the bounds
            model.lm_head.weight[int(ROW)] = 9 * mean / (mean @ mean) + torch.randn(16)
        config.save_pretrained(folder / "theirs")
        torch.save(model.state_dict(), folder / "theirs" / "pytorch_model.bin")
        shutil.rmtree(OUTPUT / "metricx", ignore_errors=True)
        convert("metricx", str(folder / "theirs"), "24", str(folder / "tokenizer"), str(OUTPUT / "metricx"))
        return {name: scores(model, tokenizer, texts, wording) for name, wording in WORDINGS.items()}


@torch.no_grad()
def scores(
    model: torch.nn.Module, tokenizer: T5TokenizerFast, texts: dict[str, list[str]], wording: str
) -> list[float]:
    """Returns the numbers as their `predict.py` computes them: one text a batch, without the end."""
    numbers = []
    for values in zip(*texts.values(), strict=True):
        text = wording.format(**dict(zip(texts, values, strict=True)))
        read = tokenizer(text, max_length=1536, truncation=True)
        ids, mask = (torch.tensor([read[name][:-1]]) for name in ("input_ids", "attention_mask"))
        numbers.append(float(model(input_ids=ids, attention_mask=mask).predictions[0]))
    return numbers


def make_comet(name: str, kind: type, texts: dict[str, list[str]], **settings: object) -> dict:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = made_tokenizer(folder)
        pretrained = folder / "pretrained"
        XLMRobertaTokenizerFast(vocab_file=file).save_pretrained(pretrained)
        config = XLMRobertaConfig(
            vocab_size=130,
            hidden_size=12,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=20,
            max_position_embeddings=66,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        )
        torch.manual_seed(1)
        XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(pretrained)
        model = kind(pretrained_model=str(pretrained), load_pretrained_weights=True, hidden_sizes=[9, 5], **settings)
        drawn(model)
        (folder / "checkpoints").mkdir()
        saved = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
        torch.save(saved | {"pytorch-lightning_version": "1.8.2"}, folder / "checkpoints" / "model.ckpt")
        (folder / "hparams.yaml").write_text(yaml.safe_dump(dict(model.hparams)))
        shutil.rmtree(OUTPUT / name, ignore_errors=True)
        convert("comet", str(folder), str(OUTPUT / name))
        loaded = load_from_checkpoint(str(folder / "checkpoints" / "model.ckpt"))
        theirs = {"source": "src", "translation": "mt", "reference": "ref"}
        samples = [
            {theirs[side]: text for side, text in zip(texts, row, strict=True)}
            for row in zip(*texts.values(), strict=True)
        ]
        answer = loaded.predict(samples, batch_size=4, gpus=0, num_workers=0, progress_bar=False)
        return {"scores": [float(x) for x in answer.scores], "system": float(answer.system_score)}


def main(models: str) -> None:
    draw = random.Random(0)
    references = sentences(WORDS, draw, 9)
    texts = {
        "source": sentences(ENGLISH, draw, 9),
        "translation": [*sentences(WORDS, draw, 6), *references[6:]],
        "reference": references,
    }
    OUTPUT.mkdir(exist_ok=True)
    kinds = {"activations": "Tanh", "pool": "avg", "layer_norm": False, "layer_transformation": "sparsemax"}
    others = {"activations": "Tanh", "pool": "max", "layer_norm": True, "layer_transformation": "softmax"}
    written = {
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "unbabel-comet")},
        "texts": texts,
        "metricx": make_metricx(Path(models), texts),
        "comet": make_comet("comet", RegressionMetric, texts, **kinds),
        "comet_qe": make_comet("comet_qe", ReferencelessRegression, texts, **others),
    }
    text = json.dumps(written, ensure_ascii=False, indent=1)
    (OUTPUT / "scores.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
