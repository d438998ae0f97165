"""Makes tests/fixtures/ranking.json: figures of drawn search results by pytrec_eval, and by ranx where no scores are equal.

It imports only the other side, never flaxformer_lite. By hand, with `pip install pytrec-eval-terrier ranx`:

    python -m tests.makers.make_ranking_reference
"""

import importlib.metadata
import json
import random
import warnings

import pytrec_eval
import ranx

from tests.support.paths import FIXTURES

FIGURES = {"ndcg@10": "ndcg_cut_10", "recall@10": "recall_10", "recall@100": "recall_100"}
"""Our name, and trec_eval's, whose reciprocal rank has no limit: it is cut here."""


def drawn(draw: random.Random, ties: bool, depth: int) -> tuple[dict, dict]:
    """Returns judgements and results of 13 queries."""
    judgements, results = {}, {}
    for query in range(13):
        documents = [f"d{number}" for number in range(draw.choice([1, 7, 131]))]
        judged = [*draw.sample(documents, min(len(documents), 11)), "missed"]
        judgements[f"q{query}"] = {one: draw.choice([-1, 0, 0, 1, 1, 2, 3]) for one in judged}
        found = draw.sample(documents, min(len(documents), depth))
        results[f"q{query}"] = {one: round(draw.random(), 1 if ties else 6) for one in found}
    judgements["q0"] = {"missed": 0}
    return judgements, results


def by_trec_eval(judgements: dict, results: dict) -> dict[str, float]:
    evaluator = pytrec_eval.RelevanceEvaluator(judgements, {"ndcg_cut.10", "recall.10,100", "recip_rank"})
    rows = evaluator.evaluate(results).values()
    means = {ours: sum(row[theirs] for row in rows) / len(rows) for ours, theirs in FIGURES.items()}
    firsts = [row["recip_rank"] if row["recip_rank"] >= 0.1 else 0.0 for row in rows]
    return means | {"mrr@10": sum(firsts) / len(firsts)}


def by_ranx(judgements: dict, results: dict) -> dict[str, float]:
    relevant = {q: {d: max(gain, 0) for d, gain in judged.items()} for q, judged in judgements.items()}
    with warnings.catch_warnings(action="ignore"):  # of numbers cast by Numba
        names = [*FIGURES, "mrr@10"]
        return dict(ranx.evaluate(ranx.Qrels(relevant), ranx.Run(results), names))


def main() -> None:
    cases = []
    for number in range(8):
        ties, depth = number % 2 == 1, (5, 200)[number // 2 % 2]
        judgements, results = drawn(random.Random(number), ties, depth)
        figures = by_trec_eval(judgements, results)
        if not ties:
            others = by_ranx(judgements, results)
            assert all(abs(figures[name] - others[name]) < 1e-9 for name in figures), (figures, others)
        name = f"{number}-{'ties' if ties else 'distinct'}-{depth}"
        cases.append({"name": name, "judgements": judgements, "results": results, "figures": figures})
    versions = {name: importlib.metadata.version(name) for name in ("pytrec_eval-terrier", "ranx")}
    text = json.dumps({"versions": versions, "cases": cases}, separators=(",", ":"))
    (FIXTURES / "ranking.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
