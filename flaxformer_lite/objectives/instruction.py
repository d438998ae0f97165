"""Instruction tuning: a decoder reads whole conversations, and learns the answers in them."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import warn_once
from flaxformer_lite.data import Lengths, Pair
from flaxformer_lite.data.packing import Pieces, pack
from flaxformer_lite.data.records import Pack, TokenPair
from flaxformer_lite.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.objectives.batch import Batch, concat_pieces
from flaxformer_lite.objectives.causal_lm import CausalLM
from flaxformer_lite.text import SpecialIds, Tokenizer, Tokenizers
from flaxformer_lite.text.chat import (
    BOS,
    EOS,
    MARK,
    PLAIN,
    REFUSED,
    ChatTemplate,
    ChatTokenizers,
    read_chat_template,
)
from flaxformer_lite.text.files import check_file
from flaxformer_lite.text.kinds import CHAT_TEMPLATE
from flaxformer_lite.text.messages import Conversation


@dataclass(frozen=True, kw_only=True)
class Instruction(CausalLM):
    """Language modelling of conversations. The loss counts only answers: their tokens, and the one that ends each.

    A record is a conversation (`messages_field` of a source) or a pair, which is a user's message and its answer. Several share a
    row; none attends to another, and each has positions from 0. A conversation of more than `data.max_target_length` tokens and
    one loses its first turns; a system prompt stays if it can. One whose last answer does not fit is left out.
    """

    kind: Literal["instruction"] = "instruction"  # type: ignore[assignment]  # of a class that is another kind
    answers: Literal["all", "last"] = "all"
    """The answers of a conversation that count."""
    template: str | None = None
    """File of a chat template in Jinja. None: that of the tokenizer's run, or a plain one if it has none. The run folder keeps a
    copy of what the run began with."""

    unit = "conversations"
    reads_messages = True

    def _template(self) -> str:
        """Returns the text of the template for a run without one of its own. Raises: ValueError if its file cannot be read."""
        if self.template is None:
            return PLAIN
        check_file(self.template)
        return Path(self.template).read_text(encoding="utf-8")

    def tokenizer_texts(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        template = ChatTemplate(self._template(), {"bos_token": BOS, "eos_token": EOS})
        template.compile()
        for pair in pairs:
            with contextlib.suppress(
                ValueError
            ):  # of one that the template refuses, which is told when it is tokenized
                messages, tools, *_ = template.fitted(*Conversation.of_pair(*pair[:2]))
                yield Pair("", MARK.sub("", template.conversation(messages, tools)))

    def reader(self, tokenizers: Tokenizers, folder: Path, longest: Lengths) -> ChatTokenizers:
        """Returns the tokenizers with the run's template, which `folder` gets if it has none.

        Raises: ValueError if the plain template is needed, and the tokenizer has no EOS.
        """
        file, found = folder / CHAT_TEMPLATE, read_chat_template(folder, tokenizers.target)
        if found is None or (self.template is not None and not file.is_file()):
            if self.template is None and tokenizers.target.eos_id is None:
                raise ValueError(
                    "the tokenizer has no id that ends a text (eos), so no answer could end: set objective.template to the file of "
                    "a chat template"
                )
            write_whole(file, self._template())
            found = read_chat_template(folder, tokenizers.target)
        assert found is not None
        return ChatTokenizers(tokenizers.source, tokenizers.target, found, longest.target + 1, self.answers == "last")

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns packs of the conversations that have an answer, of at most `longest.target` positions."""
        arrays = TokenArrays.of(records)
        counts, sizes = np.ones(len(arrays), np.int64), np.maximum(arrays.sizes[:, 1] - 1, 0)
        if tokenizer is not None:
            counts = (arrays.num_answers > 0).astype(np.int64)
            self._report(arrays, int(counts.sum()), longest)
        # A piece is the number of a conversation; one that is left out has no piece.
        packs = pack(Pieces(counts, lambda i, _: np.array([i])), sizes[counts > 0], longest.target, seed)

        def make(i: int) -> Pack:
            found = [arrays[int(number)] for number in np.concatenate(packs[i].pieces)]
            return Pack(
                tuple(record.target for record in found),
                answers=tuple(np.zeros(0, np.bool) if record.answers is None else record.answers for record in found),
            )

        return Rows(packs.lengths, make, origins=packs.origins)

    def _report(self, arrays: TokenArrays, num_kept: int, longest: Lengths) -> None:
        """Warns of conversations that were cut or left out. Raises: ValueError if none is left."""
        refused = len(arrays.labelled(REFUSED))
        labels = np.array([bool(label) for label in arrays.labels])
        cut, too_long = int(labels.sum()) - refused, int((labels & (arrays.sizes[:, 1] == 0)).sum()) - refused
        without = len(arrays) - num_kept - too_long - refused
        reasons = (
            (refused, "were left out, as they are none or the chat template refuses them"),
            (cut - too_long, f"lost their first turns to fit in data.max_target_length {longest.target}"),
            (
                too_long,
                f"were left out, as their last turn alone does not fit in data.max_target_length {longest.target}",
            ),
            (without, "were left out, as they have no answer"),
        )
        said = f"of {len(arrays):,} conversations " + "; ".join(f"{n:,} {reason}" for n, reason in reasons if n)
        if not num_kept:
            raise ValueError(f"no conversation is left to learn from: {said}")
        if cut or without:
            warn_once(said)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        counts = concat_pieces([answers[1:].astype(np.int32) for answers in record.answers], lengths.target, 0).tokens
        return super().example(record, lengths, generator, special)._replace(weights=counts.astype(np.float32))  # type: ignore[arg-type]
