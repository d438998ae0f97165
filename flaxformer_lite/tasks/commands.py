"""The command that a run answers, by its config, for messages and for the last line of a training. It loads no JAX."""

from typing import Any

OF_RECORDS = {"classes": "classify", "words": "label", "questions": "answer", "candidates": "rank"}
"""The command of the task that reads such records, by `BaseObjective.reads`."""


def use_command(config: Any) -> str:
    """Returns the command that uses the run of a `Config`: of the task for its records, else by the parts of the model.

    The config that CTranslate2 needs has only the kind of an objective that it does not know: a model of two stacks translates.
    A metric of translations has no command of its own: an option of `evaluate` names it.
    """
    model, objective = config.model, config.objective
    reads = objective.reads
    rating = objective.rating
    has_vectors = model.sentence_embedding is not None
    fits = {
        "evaluate --metric": model.estimator is not None
        or bool(rating and (rating.with_reference or rating.without_reference)),
        "translate": getattr(objective, "translates", model.has_two_stacks),
        OF_RECORDS.get(reads, ""): reads in OF_RECORDS and not (has_vectors and reads == "candidates"),
        "embed": has_vectors,
        "generate": model.continues_texts,
        "fill-mask": not model.num_decoder_layers and model.head is not None,
    }
    return next((command for command, is_fit in fits.items() if is_fit), "evaluate")
