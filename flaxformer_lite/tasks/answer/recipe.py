"""The recipe for questions with answers in texts."""

from flaxformer_lite.core.objectives import AnswerSpans
from flaxformer_lite.files.records import Questions
from flaxformer_lite.tasks.recipe import Examples, Recipe, poolers_of_tokens, with_poolers

CONTEXTS = ("context", "text", "passage", "paragraph", "document")
SQUAD_WINDOW = 384
"""The tokens of a question with a part of its text, as Devlin et al. 2018, arXiv:1810.04805, have them for SQuAD."""


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: the rows have no questions with answers in texts. Raises: ValueError for a bad row."""
    record = record_of(examples)
    if record is None:
        return None
    unanswerable = any(pair.label == "[]" for pair in examples.pairs(record))
    return Recipe(
        task="answer",
        source=examples.sources[0](record),
        objective=AnswerSpans(unanswerable=unanswerable),
        models=with_poolers(poolers_of_tokens(2)),
        best_metric="answer_f1",
        rate=3e-5,
        longest=SQUAD_WINDOW,
    )


def record_of(examples: Examples) -> Questions | None:
    """Returns the fields of the question, of its text and of the answers; None if the rows have none."""
    if examples.has("data", list):
        return Questions()
    question, text = (
        examples.texts
        if len(examples.texts) == 2
        else (examples.first(["question"], str), examples.first(CONTEXTS, str))
    )
    answers = examples.labels[0] if examples.labels else examples.first(["answers", "answer"], str, dict, list)
    if not question or not text or not answers:
        return None
    return Questions(question=question, text=text, answers=answers, start=examples.first(["answer_start"], str, int))
