"""Rerankers in the layout of sentence-transformers: pairs in the words of a chat template, scores by the logits of words.

    LogitScore   the logit of `true_token_id` behind the pair, minus that of `false_token_id` if there is one; here the only class
                 of a `Pooler`, its kernel the difference of two rows of the head
    message      the chat template writes the pair, from messages of the roles query and document, and of system for an instruction

Reference: sentence-transformers 6.2, `LogitScore`, `InputFormatter.pair_to_messages`.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.core.base.bounds import PLACE
from flaxformer_lite.core.model import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.core.text.pair_template import pair_text
from flaxformer_lite.core.text.special_ids import check_token_ids
from flaxformer_lite.files.chats.chat import INERT, MARK, read_chat_template
from flaxformer_lite.files.tokenizers.kinds import CHAT_TEMPLATE
from flaxformer_lite.interop.options import Options

SCORE = Pooler(token="last", activation=None, num_classes=1, class_bias=False)
"""The head of a decoder that gives a text one number."""
PROBES = ((" a\n", "\tb "), ("", "c"))
"""Pairs with white space and without a query: a chat template may strip texts, or leave out a message."""
WAY = {"method": "forward", "method_output_name": "logits"}


class PairMessages(NamedTuple):
    """The messages in which a chat template gets a pair."""

    instruction: str
    """The message of the role system; "": none."""
    structured: bool
    """Whether the content of a message is a list of parts, and not a text."""
    add_generation_prompt: bool


# Reading --------------------------------------------------------------------------------------------------------------


def read_words(options: Options) -> tuple[int, ...]:
    """Returns the tokens whose logits are the score: that which raises it, and that which lowers it, if there is one."""
    options.only("module_input_name", "causal_logits")
    words = (options.integer("true_token_id"), options.optional_integer("false_token_id"))
    options.finish()
    return tuple(word for word in words if word is not None)


def read_pair_messages(texts: Options, program: Options) -> PairMessages | None:
    """Returns the messages of a pair; None: the tokenizer reads the pair. Raises: ValueError for another way to read it."""
    ways = texts.group("modality_config")
    for name in ("text", "message"):
        for option, value in WAY.items():
            ways.group(name).only(option, value)
    if not ways.has("message"):
        program.only("default_prompt_name")
        return None
    prompts, arguments = program.mapping("prompts"), texts.group("processing_kwargs").group("chat_template")
    arguments.only("restore_suffix", True)
    return PairMessages(
        str(prompts.get(program.text("default_prompt_name", "", ("", *prompts)), "")),
        ways.group("message").text("format", among=("flat", "structured")) == "structured",
        arguments.flag("add_generation_prompt", False),
    )


def read_pair_template(folders: Sequence[Path], messages: PairMessages, tokenizer: Tokenizer) -> str:
    """Returns the text in which a folder's chat template writes a pair, as `objective.pair_template` has it.

    Raises: ValueError if the chat template writes other words around other pairs.
    """
    templates = {folder: read_chat_template(folder, tokenizer) for folder in folders}
    folder = next((folder for folder, known in templates.items() if known is not None), folders[0])
    template = templates[folder]
    if template is None:
        raise ValueError(f"{folder} has no chat template, which writes its pairs of texts: put {CHAT_TEMPLATE} there")

    def written(query: str, document: str) -> str:
        texts = {"system": messages.instruction, "query": query, "document": document}
        given: list[dict[str, Any]] = [
            {"role": role, "content": [{"type": "text", "text": text}] if messages.structured else text}
            for role, text in texts.items()
            if role != "system" or text
        ]
        return template.prompt(given, add_generation_prompt=messages.add_generation_prompt).replace(INERT, "")

    text = written("{query}", "{document}")
    fits = sorted(PLACE.findall(text)) == ["document", "query"] and not MARK.search(text)
    if not fits or any(pair_text(text, *pair) != written(*pair) for pair in PROBES):
        raise ValueError(
            f"the chat template of {folder} writes {text!r} for {{query}} and {{document}}: only a template is implemented that "
            "writes each of them once and unchanged, with the same words around every pair and no other word in braces"
        )
    return text


def with_score(model: ModelConfig, params: PyTree, words: tuple[int, ...]) -> tuple[ModelConfig, PyTree]:
    """Returns the model with the score in place of its logits. Raises: ValueError if the logits are no plain product."""
    flat = flatten_dict(params, sep="/")
    plain = model.head is not None and replace(model.head, loss_chunk=None) == LanguageModelHead()
    if model.num_encoder_layers or not plain or model.embedding_projection is not None:
        raise ValueError(
            "LogitScore is implemented for a decoder whose logits are the product of its last layer and a matrix; model.head is "
            f"{model.head}, model.num_encoder_layers {model.num_encoder_layers}, model.embedding_projection "
            f"{model.embedding_projection}"
        )
    check_token_ids(words, model.vocab_size, "LogitScore has the token")
    kernel = flat.pop("head/kernel", None)
    rows = flat["embedding/embedding"] if kernel is None else kernel.T
    yes, *no = rows[np.array(words)]
    flat["pooler/classes/kernel"] = (yes - sum(no))[:, None]
    return replace(model, head=None, pooler=SCORE), unflatten_dict(flat, sep="/")


# Writing --------------------------------------------------------------------------------------------------------------


def cross_encoder_files(template: str, max_length: int) -> dict[str, Any]:
    """Returns the files of a cross-encoder that reads pairs by this template; "": in the tokenizer's form of a pair."""
    ways = {"text": WAY} | ({"message": WAY | {"format": "flat"}} if template else {})
    return {
        "sentence_bert_config.json": {
            "transformer_task": "sequence-classification",
            "modality_config": ways,
            "module_output_name": "scores",
            "max_seq_length": max_length,
        },
        **({CHAT_TEMPLATE: chat_template_of(template)} if template else {}),
    }


def chat_template_of(template: str) -> str:
    """Returns a chat template that writes a pair as a text with the places {query} and {document}."""
    message = '{{{{ (messages | selectattr("role", "eq", "{}") | first).content }}}}'
    pieces = PLACE.split(template)  # words, a place, words, a place, words
    pieces[::2] = [f"{{{{ {json.dumps(words, ensure_ascii=False)} }}}}" for words in pieces[::2]]
    pieces[1::2] = [message.format(role) for role in pieces[1::2]]
    return "".join(pieces)
