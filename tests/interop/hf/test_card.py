"""Oracle: the card by hand, for a run that was trained here; `tests/interop/test_hub.py` has the card of an imported one."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.objectives import CausalLM, Classification
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.interop.exporting import export_hf
from flaxformer_lite.interop.hf.card import usage
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import load, write_run
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.commands import Command
from tests.support.hf_folders import TRAINED_HERE, copied, random_params

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
CARD = """\
---
library_name: "transformers"
tags: ["flaxformer_lite"]
license: "cc-by-4.0"
---

# out

A model of the family `llama` (`LlamaForCausalLM`) with 3,372 parameters in float32. It was trained with the objective \
`causal_lm` for 5 steps and exported with flaxformer_lite.

## Results

On `test`: step 5, weights last, sentences 1,000, beam_size 4.

| metric | value | signature |
| --- | --- | --- |
| bleu | 35.8643 | nrefs:1\\|case:mixed\\|eff:no\\|tok:13a\\|smooth:exp\\|version:2.6.0 |
| loss | 1.25 |  |

## Configuration
"""
USAGE = """\
```sh
flaxformer-lite import hf out runs/model
```

```python
from transformers import LlamaForCausalLM

model = LlamaForCausalLM.from_pretrained("out")
```

## Licence

cc-by-4.0
"""


@pytest.mark.parametrize("embeds", [False, True])
def test_a_tokenizer_that_the_library_cannot_read_is_not_loaded(embeds: bool, tmp_path: Path) -> None:
    """Of an encoder alone with a SentencePiece model; with a tokenizer.json beside it, it can."""
    (tmp_path / "tokenizer.model").touch()
    (tmp_path / "tokenizer_config.json").touch()
    model = dataclasses.replace(TRAINED_HERE["bert"], sentence_embedding=SentenceEmbedding() if embeds else None)
    text = usage("out", model, "BertModel", tmp_path)
    assert "Tokenizer" not in text and "SentenceTransformer" not in text
    assert 'BertModel.from_pretrained("out")\n```\n\nThe command reads texts by `tokenizer.model`' in text
    (tmp_path / "tokenizer.json").touch()
    text = usage("out", model, "BertModel", tmp_path)
    assert ("SentenceTransformer" if embeds else "AutoTokenizer") in text and "SentencePiece" not in text


@pytest.mark.slow
def test_a_classifier_that_started_from_an_encoder_of_vectors_leaves_as_a_classifier(
    tmp_path: Path, one_device: None
) -> None:
    """And with the licence that the import read."""
    folder = copied("minilm/mean", tmp_path)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    vectors = load(import_hf(folder, tmp_path / "vectors"))
    model = dataclasses.replace(vectors.config.model, pooler=Pooler(num_classes=2))
    config = dataclasses.replace(vectors.config, model=model, objective=Classification(classes=("no", "yes")))
    origin = json.loads((tmp_path / "vectors/imported.json").read_text()) | {"trained": True}
    run = RunFolder(tmp_path / "run")
    write_run(run, config, 5, random_params(model), "a test", tokenizers=vectors.tokenizers, imported=origin)
    shutil.copytree(tmp_path / "vectors/huggingface", run.path / "huggingface", dirs_exist_ok=True)
    export_hf(run.path, tmp_path / "out")
    files, card = {path.name for path in (tmp_path / "out").iterdir()}, (tmp_path / "out/README.md").read_text()
    assert not files & {"modules.json", "1_Pooling", "config_sentence_transformers.json"}
    assert "BertForSequenceClassification.from_pretrained" in card and "SentenceTransformer" not in card
    assert 'license: "apache-2.0"' in card
    export_hf(tmp_path / "vectors", tmp_path / "again")
    assert (tmp_path / "again/1_Pooling").exists() and "SentenceTransformer(" in (
        tmp_path / "again/README.md"
    ).read_text()


@pytest.mark.slow
def test_the_card_of_a_trained_run(tmp_path: Path, command: Command, one_device: None) -> None:
    """The report of `evaluate` on the exported weights, not the one on others; without one, the row of the training."""
    model = TRAINED_HERE["llama"]
    data = DataConfig(tokenizer=None, max_source_length=19, max_target_length=19)
    folder = RunFolder(tmp_path / "run")
    write_run(folder, Config(model=model, objective=CausalLM(), data=data), 5, random_params(model), "a test")
    report = {"run": "a path", "split": "test", "weights": "last", "step": 5, "sentences": 1000, "beam_size": 4}
    scores = {"bleu": 35.86434, "bleu_signature": SIGNATURE, "loss": 1.25}
    (folder.path / "evaluations").mkdir()
    (folder.path / "evaluations/test.json").write_text(json.dumps(report | scores))
    (folder.path / "evaluations/eval.json").write_text(json.dumps(report | scores | {"weights": "average:5"}))
    command("export", "hf", folder.path, tmp_path / "out", "--license", "cc-by-4.0")
    card = (tmp_path / "out/README.md").read_text()
    assert card[: len(CARD)] == CARD and card.endswith(USAGE) and "| `optimizer.algorithm.kind` | adamw |" in card
    (folder.path / "evaluations/test.json").unlink()
    folder.append({"step": 4, "split": "eval", "loss": 0.5})
    folder.append({"step": 5, "split": "eval", "loss": 0.75})
    command("export", "hf", folder.path, tmp_path / "bare")
    card = (tmp_path / "bare/README.md").read_text()
    assert "On `eval`: step 5.\n\n| metric | value |\n| --- | --- |\n| loss | 0.75 |" in card and "license" not in card
    assert folder.results(5, "average:5")[0]["weights"] == "average:5" and folder.results(4, "ema") == []
