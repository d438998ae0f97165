"""Names that settings had before, with what they are now."""

import re

RECORDS = {
    "source": "Pairs(source=…), or Documents(text=…) where it was None",
    "target": "Pairs(target=…), or Documents(text=…)",
    "input": "Pairs(input=…)",
    "label": "Classes(label=…), in conll Words(labels=…)",
    "label_separator": "Classes(separator=…)",
    "messages": "Conversations(messages=…)",
    "negatives": "Candidates(query=…, positives=…, negatives=…)",
    "scores": "Candidates(scores=…)",
    "words": "Words(words=…)",
    "word": "Words(words=…)",
    "word_labels": "Words(labels=…)",
    "spans": "Entities(text=…, spans=…)",
}
"""The records that have the fields and columns of sources: `source_field`, `source_column`."""
RENAMED_FIELDS = re.compile("(label_separator)|([a-z_]+)_(?:field|column)s?")


def renamed(setting: str) -> str:
    """Returns what the older name of a setting is now, as the end of a message; "" for any other name."""
    older = RENAMED_FIELDS.fullmatch(setting.rpartition(".")[2])
    now = RECORDS.get(older[1] or older[2]) if older else None
    here = f"it is now in a source's record: {now}, of flaxformer_lite.files.records; `fit` has --text and --label"
    return here if now else ""
