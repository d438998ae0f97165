"""Kinds of records: what a line of data can be, and how tokenizers read it; `base.py` has the contract.

`texts.py`: pairs, documents, and texts with classes or numbers. `conversations.py`: conversations. `words.py`: words with labels,
and texts with entities. `candidates.py`: queries with candidates. `questions.py`: questions on texts. A new kind adds its name.
"""

import typing

from flaxformer_lite.files.records.base import Reading, Record
from flaxformer_lite.files.records.candidates import Candidates
from flaxformer_lite.files.records.conversations import Conversations
from flaxformer_lite.files.records.questions import Questions
from flaxformer_lite.files.records.texts import Classes, Documents, Pairs
from flaxformer_lite.files.records.words import Entities, Words

RecordKinds = Pairs | Documents | Classes | Conversations | Words | Entities | Candidates | Questions
"""The records that a source can have."""
READERS: dict[str, type[Record]] = {kind.reads: kind for kind in typing.get_args(RecordKinds)}
"""A kind for each thing that an objective reads: it knows the reader."""

__all__ = [
    "Candidates",
    "Classes",
    "Conversations",
    "Documents",
    "Entities",
    "Pairs",
    "Questions",
    "Reading",
    "Record",
    "Words",
]
