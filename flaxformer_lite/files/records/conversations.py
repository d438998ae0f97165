"""Records of conversations, for instruction tuning; `files/chats/messages.py` has their spellings, `chat.py` their templates."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.files.chats.chat import (
    BOS,
    EOS,
    MARK,
    PLAIN_TEMPLATE,
    ChatTemplate,
    ChatTokenizers,
    read_chat_template,
)
from flaxformer_lite.files.chats.messages import BESIDE, Conversation
from flaxformer_lite.files.chats.translation_prompt import SOURCE_ALONE
from flaxformer_lite.files.records.base import Field, Reading, Record
from flaxformer_lite.files.text.files import check_file
from flaxformer_lite.files.text.json_objects import field_value
from flaxformer_lite.files.tokenizers.kinds import CHAT_TEMPLATE

if TYPE_CHECKING:
    from flaxformer_lite.core.objectives import Instruction  # with JAX


@dataclass(frozen=True, kw_only=True)
class Conversations(Record):
    """A conversation. For the objective `instruction`, which also reads a pair: a question and its answer."""

    kind: Literal["conversations"] = "conversations"
    messages: Field = "messages"
    """Field of the messages, a list with `role` and `content`, or its JSON; the fields `tools` and `system` go with them. In a
    table a column: a number from 0, or a name in the header."""

    reads, published = "conversations", True
    beside = BESIDE

    def pair(self, row: Any) -> Pair:
        messages = field_value(row, self.messages)
        return Pair("", Conversation.of_record(row, messages).text)

    @classmethod
    def reader(cls, tokenizers: Tokenizers, reading: Reading) -> Tokenizers:
        """Returns the tokenizers of conversations. A run folder without a chat template gets one.

        Raises: ValueError if the plain template is needed, and the tokenizer has no EOS.
        """
        objective = reading.objective
        file = reading.folder / CHAT_TEMPLATE
        template = read_chat_template(reading.folder, tokenizers.target)
        if template is None or (objective.template is not None and not file.is_file()):
            if objective.template is None and tokenizers.target.eos_id is None:
                raise ValueError(
                    "the tokenizer has no id that ends a text (eos), so no answer could end: set objective.template to the file of "
                    "a chat template"
                )
            write_whole(file, own_template(objective))
            template = read_chat_template(reading.folder, tokenizers.target)
        assert template is not None
        last_only = objective.answers == "last"
        both = (tokenizers.source, tokenizers.target)
        most = reading.longest.target + 1
        return ChatTokenizers(*both, template, most, last_only, reading.translation or SOURCE_ALONE)

    @classmethod
    def learned(cls, objective: Any, pairs: Iterable[Pair]) -> Iterator[Pair]:
        template = ChatTemplate(own_template(objective), {"bos_token": BOS, "eos_token": EOS})
        template.compile()
        for pair in pairs:
            with contextlib.suppress(ValueError):  # a pair that the template refuses is reported when it is tokenized
                messages, tools, *_ = template.fitted(*Conversation.of_pair(*pair[:2]))
                yield Pair("", MARK.sub("", template.conversation(messages, tools)))


def own_template(objective: "Instruction") -> str:
    """Returns the text of the template for a run without one of its own. Raises: ValueError if its file cannot be read."""
    if objective.template is None:
        return PLAIN_TEMPLATE
    check_file(objective.template)
    return Path(objective.template).read_text(encoding="utf-8")
