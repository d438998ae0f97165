"""The recipe for rerankers: from queries with texts that answer them, and texts that do not."""

from flaxformer_lite.core.objectives import Reranking
from flaxformer_lite.tasks.embed.recipe import negatives_in, record_of
from flaxformer_lite.tasks.recipe import Examples, Recipe, poolers_of_texts, with_poolers


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: the rows have no queries with negatives."""
    record = record_of(examples)
    number = 0 if record is None else negatives_in(examples, record)
    if record is None or number == 0:
        return None
    return Recipe(
        task="rank",
        source=examples.sources[0](record),
        objective=Reranking(num_candidates=number + 1),
        models=with_poolers(poolers_of_texts(1)),
        best_metric="ndcg@10",
        rate=2e-5,
        rows=8,
        epochs=(1, 3),
        kept=("pair_template",),
    )
