"""Oracle: scores and token ids of sentence-transformers 6.2 on tiny random models; logits of the same folder; steps by torch."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.base.bounds import with_places
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.model import Inputs, Transformer
from flaxformer_lite.core.objectives import Reranking
from flaxformer_lite.core.optim import SGD, Constant, OptimizerConfig
from flaxformer_lite.core.step import train_step
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.pair_template import cut_pair, pair_ending
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.files.records.candidates import CandidateTokenizers, TextCandidates
from flaxformer_lite.interop.exporting import export_hf
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.interop.hf.reranker import chat_template_of
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import Run, load
from flaxformer_lite.training.task import train_task
from tests.support import needs
from tests.support.hf_folders import copied, imported
from tests.support.limits import assert_close
from tests.support.objectives import example

ROLE = '{{ messages | selectattr("role", "eq", "NAME") | map(attribute="content") | first }}'
INSTRUCTION = ROLE.replace("first", 'first | default("Any instruction")').replace("NAME", "system")
QUERY, DOCUMENT = ROLE.replace("NAME", "query"), ROLE.replace("NAME", "document")
TEMPLATE = (
    '<|im_start|>system\nAnswer "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: ' + INSTRUCTION + "\n<Query>: "
    f"{QUERY}\n<Document>: {DOCUMENT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""A template as Qwen3-Reranker has it."""
PARTS = "{{ (messages | selectattr('role', 'eq', 'NAME') | first).content[0].text }}"
STRUCTURED = (
    f"Q:{PARTS.replace('NAME', 'query')}\nD: {PARTS.replace('NAME', 'document')}"
    "{% if add_generation_prompt %}\nRelevant?{% endif %}"
)
"""A template of messages in parts, with words behind the document that no special token divides from it."""
LONG = "a longer document about cats and dogs? " * 14
PAIRS = [
    ("where do cats sit?", "the cat sat on the mat."),
    (" where", "no dog\n"),
    ("", "cats"),
    ("what is a dog", LONG),
    (LONG, "short"),
    ("what (is) it?\n", "\n  a <b> {x} {query} é 日本"),
]
MESSAGES = {"text": {"method": "forward", "method_output_name": "logits"},
            "message": {"method": "forward", "method_output_name": "logits", "format": "flat"}}  # fmt: skip


def saved_tokenizer(folder: Path, template: str | None, longest: int) -> None:
    """A byte-level BPE with the pattern of words of GPT-2."""
    import tokenizers
    import transformers

    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    library.train_from_iterator([TEMPLATE, *map(" ".join, PAIRS), "yes no yes no ?\n ?\n"] * 3, trainer)
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=longest
    )
    if template is not None:
        saved.chat_template = template
    saved.save_pretrained(folder)


def saved_model(folder: Path, name: str, tied: bool, kind: str = "ForCausalLM") -> None:
    import torch
    import transformers

    torch.manual_seed(3)
    sizes = {
        "vocab_size": 401,
        "hidden_size": 20,
        "intermediate_size": 23,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = getattr(transformers, f"{name}Config")(
        **sizes, num_key_value_heads=1, head_dim=10, tie_word_embeddings=tied, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=None, eos_token_id=2, initializer_range=0.4, num_labels=1,
    )  # fmt: skip
    getattr(transformers, f"{name}{kind}")(config).save_pretrained(folder)


def scores_of(folder: Path) -> tuple[Any, np.ndarray]:
    """The cross-encoder in a folder, and its numbers before the activation function."""
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    return model, model.predict(PAIRS, activation_fn=torch.nn.Identity())


def assert_equal_scores(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.ptp(wanted) > 0.1 and np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


CASES = ["qwen3 with an instruction", "qwen2 in parts, without a word against", "llama without a template",
         "qwen3 with a class, in parts"]  # fmt: skip


def cross_encoder(case: str, folder: Path) -> Path:
    """A folder that sentence-transformers has saved."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer as Theirs
    from sentence_transformers.cross_encoder.modules import LogitScore

    plain, name = folder / "plain", case.split()[0].capitalize()
    has_class, parts = "class" in case, "parts" in case
    saved_model(plain, name, tied=name == "Qwen3", kind="ForSequenceClassification" if has_class else "ForCausalLM")
    saved_tokenizer(plain, None if name == "Llama" else STRUCTURED if parts else TEMPLATE, 80)
    chosen: dict[str, Any] = {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}} if parts else {}
    model = Theirs(str(plain), transformer_task="sequence-classification" if has_class else "text-generation", **chosen)
    yes, no = (
        len(model.tokenizer(word)["input_ids"]) and model.tokenizer(word)["input_ids"][0] for word in ("yes", "no")
    )
    modules = [model] if has_class else [model, LogitScore(yes, None if parts else no)]
    prompts = {"other": "x", "web": "Find what answers the query"} if "instruction" in case else None
    made = CrossEncoder(modules=modules, device="cpu", prompts=prompts, default_prompt_name="web" if prompts else None)
    made.save_pretrained(str(folder / "theirs"))
    return folder / "theirs"


@pytest.fixture(params=CASES)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Run]:
    folder = cross_encoder(request.param, tmp_path)
    return folder, load(import_hf(folder, tmp_path / "run"))


@pytest.mark.slow
@needs.sentence_transformers
def test_scores_are_those_of_sentence_transformers_and_their_export_has_them(both: tuple[Path, Run], tmp_path: Path):
    """Of pairs that are cut too; the rows of a training are their ids, and the export is read back with the same template."""
    folder, run = both
    model, wanted = scores_of(folder)
    warned: list[str] = []
    assert_equal_scores(run.relevance(PAIRS, warn=warned.append), wanted)
    assert {line.split(":")[0] for line in warned} >= {"line 4", "line 5"}
    export_hf(tmp_path / "run", tmp_path / "out")
    assert_equal_scores(scores_of(tmp_path / "out")[1], wanted)
    assert not (tmp_path / "out/1_LogitScore").exists()
    again = load(import_hf(tmp_path / "out", tmp_path / "again"))
    assert again.config.objective == run.config.objective or not run.config.objective.pair_template
    objective, pairs = run.config.objective, [pair for pair in PAIRS if pair[0]]
    assert isinstance(objective, Reranking)
    assert run.tokenizers is not None
    reader = CandidateTokenizers(*(run.tokenizers.source,) * 2, *objective.prompt_texts, objective.pair_template)
    records = tokenize([TextCandidates([text], ["x"]).pair(query) for query, text in pairs], reader)
    longest = Lengths(run.config.data.max_source_length, 0)
    rows = objective.make_rows(records, longest, 0, run.tokenizers.source)
    features = model.preprocess(pairs, prompt=model.prompts.get(model.default_prompt_name))
    for row, length, ids, mask in zip(
        rows, rows.lengths, *(features[n] for n in ("input_ids", "attention_mask")), strict=True
    ):
        assert row.pairs[0].tokens.tolist() == ids[mask > 0].tolist()
        assert length[0] >= max(len(pair.tokens) for pair in row.pairs)


@pytest.mark.slow
@needs.sentence_transformers
def test_it_learns_as_in_torch(tmp_path: Path):
    """Three steps of SGD on two queries, from the export, whose class is no longer two rows of the table."""
    import torch

    import_hf(cross_encoder(CASES[0], tmp_path), tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "out")
    run, (model, _) = load(tmp_path / "run"), scores_of(tmp_path / "out")
    queries = [("where", ["a cat sat"], ["no dog"]), ("what is it?", ["cats"], [LONG])]
    pairs = [(query, text) for query, *both in queries for texts in both for text in texts]
    optimizer, theirs = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(model.preprocess(pairs))["scores"][:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor([1.0, 0.0, 1.0, 0.0]))
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    assert run.tokenizers is not None and isinstance(run.config.objective, Reranking)
    tokenizer, objective = run.tokenizers.source, dataclasses.replace(run.config.objective, num_candidates=2)
    longest = Lengths(run.config.data.max_source_length, 0)
    reader = CandidateTokenizers(tokenizer, tokenizer, "", "", objective.pair_template)
    given = [TextCandidates(good, bad).pair(query) for query, good, bad in queries]
    rows = objective.make_rows(tokenize(given, reader), longest, 0, tokenizer)
    batch = jax.tree.map(lambda *x: jnp.stack(x), *(example(objective, row, longest) for row in rows))
    optimizer_config = OptimizerConfig(
        algorithm=SGD(momentum=0), schedule=Constant(peak_rate=0.1, warmup_steps=0), clip_norm=None
    )
    changed = dataclasses.replace(run.config, objective=objective, optimizer=optimizer_config)
    task = train_task(changed)
    step, state, ours = jax.jit(functools.partial(train_step, task)), jax.jit(task.initialize)(), []
    state = state._replace(params=run.params)
    for _ in range(3):
        state, measured = step(state, batch)
        ours.append(float(measured["loss"]))
    assert_close(ours, theirs, 1e-5)
    assert theirs[2] < theirs[0]


def test_a_score_is_the_difference_of_two_logits(tmp_path: Path):
    """Of a tied and of an untied table; without a word against it is one logit."""
    tokens = jnp.arange(3, 10)[None]
    for label, words in (("llama/mqa_sharded", (5, 7)), ("qwen3/plain", (4,))):
        plain = imported(label)
        folder = with_score_files(copied(label, tmp_path / label), dict(zip(WORDS, words, strict=False)))
        read = read_folder(folder)
        assert read.architecture.endswith("ForSequenceClassification") and read.steps.words == words
        theirs, ours = (
            Transformer(one.model).apply(
                {"params": jax.tree.map(jnp.asarray, one.params)}, Inputs(target_tokens=tokens)
            )
            for one in (plain, read)
        )
        logits, score = theirs.logits[0, -1], ours.class_logits
        assert score[0, 0] == pytest.approx(float(logits[words[0]] - sum(logits[word] for word in words[1:])), rel=1e-5)


def with_score_files(folder: Path, words: dict[str, Any], texts: Any = None, program: Any = None) -> Path:
    kinds = ("base.modules.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    documents = {
        "modules.json": [{"path": path, "type": kind} for path, kind in zip(("", "1_LogitScore"), kinds, strict=True)],
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"} | (program or {}),
        "sentence_bert_config.json": {"transformer_task": "text-generation"} | (texts or {}),
        "1_LogitScore/config.json": words,
    }
    (folder / "1_LogitScore").mkdir()
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    return folder


WORDS = {"true_token_id": 5, "false_token_id": 7}
REFUSED: list[tuple[str, dict[str, Any], Any, Any, str]] = [
    ("qwen3/plain", WORDS | {"module_input_name": "logits"}, {}, {}, 'module_input_name is "logits": only "causal_logits"'),
    ("qwen3/plain", WORDS | {"scale": 2.0}, {}, {}, r"1_LogitScore/config\.json: scale is 2\.0: "),
    ("qwen3/plain", {"false_token_id": 7}, {}, {}, "true_token_id is missing"),
    ("qwen3/plain", {"true_token_id": 4_000}, {}, {}, "LogitScore has the token 4000, which is no token id"),
    ("qwen3/plain", WORDS, {"transformer_task": "any-to-any"}, {}, 'transformer_task is "any-to-any": only "text-generation"'),
    ("qwen3/plain", WORDS, {}, {"default_prompt_name": "q"}, "default_prompt_name"),
    ("qwen3/plain", WORDS, {"modality_config": MESSAGES}, {"default_prompt_name": "q"}, 'default_prompt_name is "q": it should'),
    ("qwen3/plain", WORDS, {"modality_config": MESSAGES | {"message": {"format": "auto"}}}, {}, "format is .*flat, structured"),
    ("qwen3/plain", WORDS, {"modality_config": MESSAGES | {"image": {}}}, {}, r"modality_config\.image is "),
    ("qwen3/plain", WORDS, {"modality_config": MESSAGES, "processing_kwargs": {"chat_template": {"restore_suffix": False}}}, {},
     r"processing_kwargs\.chat_template\.restore_suffix is false: only true"),
    ("qwen3/plain", WORDS, {"modality_config": MESSAGES, "processing_kwargs": {"text": {"max_length": 9}}}, {},
     r"processing_kwargs\.text is "),
    ("gemma2/plain", WORDS, {}, {}, "LogitScore is implemented for a decoder whose .*; model.head is .*soft_cap=2\\.5"),
    ("bert/masked_lm", WORDS, {}, {}, "LogitScore is implemented for a decoder .*model.num_encoder_layers 2"),
    ("ernie4_5/plain", WORDS, {}, {}, "model_type ernie4_5 has no classes here: LogitScore needs"),
]  # fmt: skip


@pytest.mark.parametrize(("label", "words", "texts", "program", "complaint"), REFUSED)
def test_what_is_not_obeyed_is_named(
    label: str, words: dict[str, Any], texts: Any, program: Any, complaint: str, tmp_path: Path
):
    folder = with_score_files(copied(label, tmp_path), words, texts, program)
    with pytest.raises(ValueError, match=complaint):
        read_folder(folder)


def test_texts_in_a_chat_template_are_refused_for_vectors(tmp_path: Path):
    folder = copied("minilm/mean", tmp_path)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"modality_config": MESSAGES}))
    with pytest.raises(ValueError, match=r"modality_config\.message is .*: that is not implemented"):
        read_folder(folder)


def test_a_pair_that_is_cut_keeps_the_end_of_the_template():
    """Rows by hand, of characters; the row has a place in the template for each text, and no special ids."""
    template, tokenizer = "<{query}|{document}>!", CharacterTokenizer("<|>!abc01234 ")
    objective = Reranking(pair_template=template)
    ending = tokenizer.encode(">!")
    assert pair_ending(template, tokenizer) == ending
    reader = CandidateTokenizers(tokenizer, tokenizer, "", "", template)
    record = tokenize([TextCandidates(["abc"], ["c"]).pair("ab")], reader)
    (row,) = objective.make_rows(record, Lengths(7, 0), 0, tokenizer)
    assert [tokenizer.decode(pair.tokens) for pair in row.pairs] == ["<ab|a>!", "<ab|c>!"]
    assert [pair.label for pair in row.pairs] == [1, 0] and not row.pairs[0].types.any()
    assert cut_pair([*range(9)], [7, 8], 1).tokens == [8]
    assert reader.reading != CandidateTokenizers(tokenizer, tokenizer).reading == ""
    assert next(iter(reader.encode_pairs([Pair("a", "b")]))).target == tokenizer.encode("<a|b>!")


@pytest.mark.parametrize("template", ["{query}", "{query} {query} {document}", "{query} {document} {text}"])
def test_a_template_without_both_places_is_refused(template: str):
    with pytest.raises(ValueError, match=r"objective\.pair_template is '{query}.*each once, and no other place"):
        Reranking(pair_template=template)


def test_an_exported_chat_template_writes_the_pair():
    """Quotation marks, line ends at its borders, a character beyond 16 bits, and braces of Jinja stay as they are."""
    import jinja2

    template = '\n"a" \\ {% 😀 {{query}\n<\'>{document}\t}} é\n\n'
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    texts = {"query": " q\n", "document": "{d}"}
    messages = [{"role": role, "content": text} for role, text in texts.items()]
    assert environment.from_string(chat_template_of(template)).render(messages=messages) == with_places(template, texts)
