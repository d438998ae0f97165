"""Makes tests/fixtures/entity_scores.json: precision, recall and F1 of drawn labels, by seqeval.

It imports only the other side (seqeval), never flaxformer_lite. By hand, where seqeval 1.2.2 is installed:

    python -m tests.makers.make_entity_scores
"""

import json
from importlib.metadata import version

from seqeval.metrics import accuracy_score, classification_report

from tests.support.entities import SCHEMES, drawn_sentences
from tests.support.paths import FIXTURES


def main() -> None:
    document = {"seqeval": version("seqeval")}
    for scheme in SCHEMES:
        true, predicted = drawn_sentences(scheme)
        report = classification_report(true, predicted, output_dict=True, zero_division=0)
        scores = {
            kind: {
                name: float(figures[f"{name}-score" if name == "f1" else name])
                for name in ("precision", "recall", "f1")
            }
            for kind, figures in report.items()
            if kind not in ("macro avg", "weighted avg")
        }
        document[scheme] = {"accuracy": float(accuracy_score(true, predicted)), **scores}
    text = json.dumps(document, indent=1)
    (FIXTURES / "entity_scores.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
