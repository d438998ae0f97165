"""Names that settings had before, with what they are now, and settings that are gone."""

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
GONE_SETTINGS = {
    "mirror": "a run trains in a bucket by --workdir gs://BUCKET/RUN, and `flaxformer-lite sync RUN COPY` copies a run",
}
"""Settings that are gone, and what does their work."""
RENAMED_FIELDS = re.compile("(label_separator)|([a-z_]+)_(?:field|column)s?")


def renamed(setting: str) -> str:
    """Returns what the older name of a setting is now, or what is in its place, as the end of a message; "" for any other name."""
    name = setting.rpartition(".")[2]
    if name in GONE_SETTINGS:
        return f"it is gone: {GONE_SETTINGS[name]}"
    older = RENAMED_FIELDS.fullmatch(name)
    now = RECORDS.get(older[1] or older[2]) if older else None
    here = f"it is now in a source's record: {now}, of flaxformer_lite.files.records; `fit` has --text and --label"
    return here if now else ""
