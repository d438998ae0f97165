"""The recipe for conversations, and for prompts with their answers."""

from flaxformer_lite.core.objectives import Instruction
from flaxformer_lite.files.records import Conversations, Pairs
from flaxformer_lite.tasks.recipe import Examples, Recipe

MESSAGES = ("messages", "conversations", "conversation")
CHAT_FIELDS = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
)
"""Usual names of the fields of messages, and of a prompt and its answer."""


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: the rows have no conversations."""
    record = record_of(examples)
    if record is None:
        return None
    return Recipe(
        task="chat",
        source=examples.sources[0](record),
        objective=Instruction(),
        models=lambda base: [base],
        best_metric="loss",
        rate=2e-5,
        longest=1024,
        epochs=(3, 3),
        kept=("template",),
    )


def record_of(examples: Examples) -> Conversations | Pairs | None:
    """Returns the field of the messages, or those of a prompt and its answer; None if the rows have neither."""
    named = [*examples.texts, *examples.labels]
    if named and examples.task is None:
        return None  # fields that are named are those of other tasks, unless this one is named too
    messages = named[0] if len(named) == 1 else examples.first(MESSAGES, list)
    if messages:
        return Conversations(messages=messages)
    pair = named or examples.all_of(CHAT_FIELDS)
    return Pairs(source=pair[0], target=pair[1], input=examples.first(["input"], str)) if pair else None
