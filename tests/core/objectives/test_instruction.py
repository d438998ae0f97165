"""Laws of conversations from the record to the loss; tokens and answers worked by hand."""

import dataclasses
import datetime
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.base.console import Progress, warn_once
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.objectives import Instruction
from flaxformer_lite.core.text import Bytes, Tokenizers
from flaxformer_lite.core.text.pairs import ANSWER_FLAGS, Extent
from flaxformer_lite.files.chats.chat import PLAIN_TEMPLATE, ChatTemplate, ChatTokenizers
from flaxformer_lite.files.chats.messages import Conversation
from flaxformer_lite.files.data import CSV, DataConfig, DataSource, Dates, JSONLines, Mixture, Parquet
from flaxformer_lite.files.data.held_out import held_out
from flaxformer_lite.files.data.reading import reader_of, tokenize
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.files.data.store import TokenStore
from flaxformer_lite.files.records import Conversations, Documents, Pairs
from flaxformer_lite.training.data import read_data, warn_of_endless_answers
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import RunFolder
from tests.support import chats
from tests.support.experiments import rows, tiny_config, with_train
from tests.support.objectives import assert_packs_lose_what_their_pieces_lose, example

BYTES = Bytes().train([], 260)
BOS, EOS = 2, 3
CHAT = [
    {"role": "system", "content": "S"},
    *({"role": role, "content": text} for a, b in ("ab", "cd", "ef") for role, text in (("user", a), ("assistant", b))),
]


def read(folder: Path, objective: Instruction, *pairs: Pair, most: int = 200) -> tuple[ChatTokenizers, list[TokenPair]]:
    reader = reader_of(objective, Tokenizers(BYTES, BYTES), folder, Lengths(1, most))
    return reader, list(tokenize(pairs, reader))


def conversation(*messages: dict[str, Any]) -> Pair:
    return Pair("", Conversation.of([*messages]).text)


def spelled(record: TokenPair) -> tuple[str, str]:
    """The text of a record, BOS and EOS as < and >, and its answers alone."""

    def text(ids: list[int]) -> str:
        return "".join({BOS: "^", EOS: "$"}.get(i) or BYTES.decode([i]) for i in ids)

    return text(record.target.tolist()), text(record.target[record.array(ANSWER_FLAGS)].tolist())


def test_the_answers_of_conversations_and_of_pairs_count(tmp_path: Path):
    pairs = conversation(*CHAT[:5]), Pair("Who?", "Me")
    _, (chat, pair) = read(tmp_path, Instruction(), *pairs)
    assert spelled(chat) == ("^<|system|>S<|user|>a<|assistant|>b$<|user|>c<|assistant|>d$", "b$d$")
    assert spelled(pair) == ("^<|user|>Who?<|assistant|>Me$", "Me$")
    _, (chat, _) = read(tmp_path, Instruction(answers="last"), *pairs)
    assert spelled(chat)[1] == "d$"


def test_a_pack_by_hand():
    answers = np.array([False, False, True, True]), np.array([False, True, True])
    record = Pack((np.array([BOS, 8, 9, EOS], np.int32), np.array([BOS, 5, EOS], np.int32)), answers=answers)
    inputs, targets, weights, _, _ = example(Instruction(), record, Lengths(0, 7))
    assert inputs.target_tokens.tolist() == [BOS, 8, 9, BOS, 5, 0, 0]
    assert inputs.target_segments.tolist() == [1, 1, 1, 2, 2, 0, 0]
    assert targets.tolist() == [8, 9, EOS, 5, EOS, 0, 0]
    assert weights.tolist() == [0, 1, 1, 1, 1, 0, 0]


def test_long_conversations_lose_their_first_turns(tmp_path: Path):
    """Worked by hand: BOS, system 11, each turn 24; then the system prompt; then the whole conversation."""
    whole = spelled(read(tmp_path, Instruction(), conversation(*CHAT))[1][0])[0]
    turn, system = "<|user|>e<|assistant|>f$", "<|system|>S"
    assert len(whole) == 1 + 11 + 3 * 24
    for room, wanted, extent in (
        (84, whole, Extent.WHOLE),
        (83, "^<|system|>S<|user|>c<|assistant|>d$" + turn, Extent.CUT),
        (59, "^" + system + turn, Extent.CUT),
        (35, "^" + turn, Extent.CUT),
        (24, "", Extent.CUT),
    ):
        _, (record,) = read(tmp_path, Instruction(), conversation(*CHAT), most=room - 1)
        assert (spelled(record)[0], record.extent) == (wanted, extent)


def test_what_is_cut_and_left_out_is_said(tmp_path: Path):
    pairs = conversation(*CHAT), conversation(*CHAT[:2]), Pair("long " * 9, "answer"), Pair("a", "b")
    reader, records = read(tmp_path, Instruction(), *pairs, most=40)
    made = Instruction().make_rows(records, Lengths(1, 40), 0, reader.target)
    assert sum(len(pack.pieces) for pack in made) == 2
    for words in (
        "of 4 conversations 1 lost their first turns",
        "1 were left out, as even their last",
        "1 were left out, as they",
    ):
        assert words in made.note
    with pytest.raises(ValueError, match="no conversation is left"):
        Instruction().make_rows(records[1:3], Lengths(1, 40), 0, reader.target)
    with pytest.raises(ValueError, match="tokens of answers"):
        Instruction().make_rows([TokenPair(np.arange(0), np.arange(3))], Lengths(1, 40), 0, reader.target)


@pytest.mark.parametrize(("eos_ids", "said"), [((EOS,), ""), ((300, EOS), ""), ((300,), "add its last token, 3 (")])
def test_answers_that_do_not_end_in_decoding_are_said(
    eos_ids: tuple[int, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """The first conversation has no answer."""
    _, records = read(tmp_path, Instruction(), conversation(*CHAT[:2]), Pair("a", "b"))
    warn_of_endless_answers(TokenArrays.of(records), eos_ids, BYTES)
    found = capsys.readouterr().err
    assert (said in found and "decode.eos_ids is (300,)" in found) if said else not found


def drawn(number: int) -> list[Pair]:
    rng = random.Random(number)
    found = [chats.drawn_messages(rng) for _ in range(number)]
    return [conversation(*messages) for messages in found if any(m["role"] == "assistant" for m in messages)]


@pytest.mark.slow
def test_packed_conversations_lose_what_they_lose_on_their_own(tmp_path: Path):
    reader, records = read(tmp_path, Instruction(), *drawn(40), most=150)
    packs = Instruction().make_rows(records, Lengths(0, 150), 0, reader.target)
    alone = [Pack((piece,), answers=(a,)) for pack in packs for piece, a in zip(pack.pieces, pack.answers, strict=True)]
    assert_packs_lose_what_their_pieces_lose(Instruction(), packs, alone, Lengths(0, 150), 260, 1e-6)
    assert sum(a.sum() for pack in packs for a in pack.answers) == sum(
        record.array(ANSWER_FLAGS).sum() for record in records
    )


# From files to runs -----------------------------------------------------------------------------------------------------


def test_every_source_gives_the_same_conversations(tmp_path: Path):
    """One conversation, and one question with its input, by JSON lines, CSV and Parquet."""
    messages = [{"role": "user", "content": 'Say "é"\n'}, {"role": "assistant", "content": "é", "name": None}]
    tools = [{"name": "f"}]
    chat = {"messages": messages, "tools": tools}
    asked = [
        {"instruction": "Add", "input": "1, 2", "output": "3"},
        {"instruction": "Go", "input": " ", "output": "no"},
    ]
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat))
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    (tmp_path / "chat.csv").write_text('chat\n"' + json.dumps(chat).replace('"', '""') + '"\n')
    (tmp_path / "asked.csv").write_text('instruction,input,output\nAdd,"1, 2",3\nGo, ,no\n')
    fields: dict[str, Any] = {"record": Pairs(source="instruction", input="input", target="output")}
    columns: dict[str, Any] = {"record": Pairs(source="instruction", input="input", target="output")}
    sources: list[tuple[DataSource, DataSource]] = [
        (
            JSONLines(path=str(tmp_path / "chat.jsonl"), record=Conversations()),
            JSONLines(path=str(tmp_path / "asked.jsonl"), **fields),
        ),
        (
            CSV(path=str(tmp_path / "chat.csv"), header=True, record=Documents(text="chat")),
            CSV(path=str(tmp_path / "asked.csv"), header=True, **columns),
        ),
    ]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        pass
    else:
        for name, table in (("chat", [chat]), ("asked", asked)):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / f"{name}.parquet")
        sources.append(
            (
                Parquet(path=str(tmp_path / "chat.parquet"), record=Conversations()),
                Parquet(path=str(tmp_path / "asked.parquet"), **fields),
            )
        )
    for chats_of, pairs_of in sources:
        (pair,) = chats_of.open()
        found = Conversation.of_pair(*pair[:2])
        assert found.messages == [messages[0], {"role": "assistant", "content": "é"}] and found.tools == tools
        assert pairs_of.open() == [Pair("Add\n\n1, 2", "3"), Pair("Go", "no")]


def test_other_data_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="neither an answer with its question"):
        read(tmp_path, Instruction(), Pair("", "Once upon a time"))


def test_a_store_has_its_own_hash(tmp_path: Path):
    """Law: other answers, another length and no template make another store."""
    (tmp_path / "chat.jsonl").write_text("\n".join(pair.target for pair in drawn(20)))
    source = JSONLines(path=str(tmp_path / "chat.jsonl"), record=Conversations())
    reader, _ = read(tmp_path, Instruction(), *source.open())
    store = TokenStore.of(tmp_path / "stores", source, reader)
    assert store.build(reader, lambda *_: None)
    last, _ = read(tmp_path, Instruction(answers="last"))
    assert tokenize(source.open(), last).fingerprint() != store.records.fingerprint()
    shorter, _ = read(tmp_path, Instruction(), most=70)
    readers = reader, last, shorter, Tokenizers(BYTES, BYTES)
    folders = {TokenStore.of(tmp_path / "stores", source, one).folder for one in readers}
    assert len(folders) == 4


def test_a_batch_has_the_answers_of_both_parts_of_a_mixture(tmp_path: Path):
    objective, data = Instruction(), DataConfig(max_target_length=64, tokens_per_batch=256, rows_multiple=4)
    _, records = read(tmp_path, objective, Pair("abc", "def"), *drawn(9), most=64)
    dataset = Dataset.training(records, objective, data, seed=1, tokenizer=BYTES)
    total = sum(int(dataset.batch(step).weights.sum()) for step in range(dataset.plan.batches_per_epoch))
    assert total == sum(int(record.array(ANSWER_FLAGS).sum()) for record in records)


def config_of(folder: Path, **objective: Any) -> Config:
    """A tiny decoder on a mixture of conversations and of dates, which are pairs."""
    (folder / "chat.jsonl").write_text("\n".join(pair.target for pair in drawn(40)))
    base = with_train(
        tiny_config(), steps=4, eval_every=2, checkpoint_every=2, log_every=1, text_metrics=(), best_metric="accuracy"
    )
    chat = JSONLines(path=str(folder / "chat.jsonl"), record=Conversations())
    data = dataclasses.replace(
        base.data,
        train=Mixture(sources=(chat, Dates(num_examples=30)), names=("chat", "dates")),
        eval=Mixture(sources=(chat, Dates(num_examples=9, split="held_out")), names=("chat", "dates")),
        tokenizer=Bytes(),
        max_target_length=150,
    )
    model = dataclasses.replace(base.model, vocab_size=260, num_encoder_layers=0, num_decoder_layers=1)
    return dataclasses.replace(base, model=model, objective=Instruction(**objective), data=data)


@pytest.mark.slow
def test_a_run_trains_continues_from_a_store_and_is_scored(tmp_path: Path, one_device: None):
    """Law: two steps and two more are four, from memory and from a store; `evaluate` reports what the last evaluation did."""
    config = config_of(tmp_path)
    stored = dataclasses.replace(config, data=dataclasses.replace(config.data, store=str(tmp_path / "stores")))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole)
    train(with_train(stored, steps=2), parts)
    train(stored, parts)
    assert rows(parts) == rows(whole)
    run, last = flaxformer_lite.load(whole), rows(whole)[-1]
    scores = run.metrics(config.data.eval.open("data.eval"))  # type: ignore[union-attr]
    assert {"chat/accuracy", "dates/loss"} <= last.keys()
    for name in ("loss", "accuracy"):
        assert scores[name] == pytest.approx(last[name], rel=1e-5)


def test_the_run_has_a_copy_of_its_template(tmp_path: Path):
    """Its own file, at first; the plain one without; the model's own one before that."""
    mine = tmp_path / "mine.jinja"
    mine.write_text("{% for m in messages %}{{ m.role }}={{ m.content }}{{ eos_token }}{% endfor %}")
    copy = tmp_path / "run" / "chat_template.jinja"
    reader, (record,) = read(tmp_path / "run", Instruction(template=str(mine)), Pair("a", "b"))
    assert copy.read_text() == mine.read_text() == reader.template.source
    assert spelled(record) == ("user=a$assistant=b$", "assistant=b$")
    mine.write_text("changed later")
    assert read(tmp_path / "run", Instruction(template=str(mine)))[0].template.source == reader.template.source
    imported = tmp_path / "imported" / "huggingface"
    imported.mkdir(parents=True)
    (imported / "tokenizer_config.json").write_text(json.dumps({"chat_template": chats.TEMPLATES["chatml"]}))
    assert read(tmp_path / "imported", Instruction())[0].template.source == chats.TEMPLATES["chatml"]
    assert not (imported / "chat_template.jinja").exists()
    with pytest.raises(ValueError, match="no such file"):
        read(tmp_path / "third", Instruction(template=str(tmp_path / "none.jinja")))


def test_a_tokenizer_without_end_needs_a_template(tmp_path: Path):
    nothing = Bytes().train([], 260)
    nothing.eos_id = None
    with pytest.raises(ValueError, match=r"no id that ends a text.*objective\.template"):
        reader_of(Instruction(), Tokenizers(nothing, nothing), tmp_path, Lengths(1, 9))


def test_a_template_of_ones_own_comes_before_that_of_the_tokenizers_run(tmp_path: Path):
    (tmp_path / "run" / "huggingface").mkdir(parents=True)
    (tmp_path / "run" / "huggingface" / "chat_template.jinja").write_text(chats.TEMPLATES["chatml"])
    mine = tmp_path / "mine.jinja"
    mine.write_text("{% for m in messages %}{{ m.role }}={{ m.content + eos_token }}{% endfor %}")
    reader, (record,) = read(tmp_path / "run", Instruction(template=str(mine)), Pair("a", "b"))
    assert reader.template.source == mine.read_text() and spelled(record)[1] == "assistant=b$"
    (texts,) = Conversations.learned(Instruction(template=str(mine)), [Pair("a", "b")])
    assert texts == Pair("", "user=aassistant=b")


def test_the_tokens_of_a_conversation_do_not_depend_on_the_day(tmp_path: Path):
    file = tmp_path / "dated.jinja"
    file.write_text(
        "{{ strftime_now('%d %b %Y') }}{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration %}"
        "{% endfor %}"
    )
    reader, (record,) = read(tmp_path / "run", Instruction(template=str(file)), Pair("a", "b"))
    assert spelled(record)[0].startswith("26 Jul 2024[user]")
    today = datetime.datetime.now().strftime("%b %Y")
    assert today in reader.template.prompt([{"role": "user", "content": "a"}])


def test_what_tables_write_of_conversations_is_read():
    messages = [{"role": "user", "content": "a", "timestamp": datetime.datetime(2024, 1, 2)}]
    assert "2024-01-02 00:00:00" in Conversation.of(messages).text
    tools = [{"name": "add"}]
    assert Conversation.of(messages, json.dumps(tools)) == Conversation.of(messages, tools)
    for wrong in ("{", '{"name": "add"}', {"name": "add"}):
        with pytest.raises(ValueError, match=r"^tools are .*: they must be a list"):
            Conversation.of(messages, wrong)
    with pytest.raises(ValueError, match="a message or a tool has a character between U"):
        ChatTemplate(PLAIN_TEMPLATE, {}).conversation(
            messages[:0] or [{"role": "user", "content": "a"}], [{"name": "\ufdd0"}]
        )


def test_conversations_that_are_left_out_are_counted_by_their_reason(tmp_path: Path):
    """An empty rendering is no long conversation."""
    file = tmp_path / "bare.jinja"
    file.write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    objective = Instruction(template=str(file))
    _, records = read(tmp_path / "run", objective, Pair("a", "bcd"), conversation({"role": "user", "content": " "}))
    made = objective.make_rows(records, Lengths(1, 200), 0, BYTES)
    assert made.note == "of 2 conversations 1 were left out, as they have no answer"


ODD = "{% if messages[0].role == 'assistant' %}{{ raise_exception('begin with a question') }}{% endif %}"


def odd_source(folder: Path, **settings: Any) -> tuple[JSONLines, Instruction]:
    """A file whose third row its template refuses, after a blank line, and whose fifth says what the template leaves out."""
    good, call = conversation(*CHAT[1:3]).target, [{"name": "f", "arguments": {"x": 1}}]
    refused = json.dumps({"messages": [{"role": "assistant", "content": "Hi"}, *CHAT[1:3]]})
    called = json.dumps({"messages": [CHAT[1], {"role": "assistant", "content": None, "tool_calls": call}]})
    (folder / "odd.jsonl").write_text("\n".join([good, "", refused, good, called]))
    (folder / "odd.jinja").write_text(ODD + PLAIN_TEMPLATE.replace("message.tool_calls", "none"))
    source = JSONLines(path=str(folder / "odd.jsonl"), record=Conversations(), empty_lines="drop", **settings)
    return source, Instruction(template=str(folder / "odd.jinja"))


@pytest.mark.parametrize("in_store", [False, True])
def test_a_conversation_that_the_template_refuses_is_a_bad_row_with_its_line(
    in_store: bool, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """In training and in evaluation data, in memory and in a store; dropped, the other rows are those without it."""
    for part in ("train", "eval"):
        for treatment in ("error", "drop"):
            source, objective = odd_source(tmp_path, bad_rows=treatment)
            config = dataclasses.replace(config_of(tmp_path), objective=objective)
            dates = Dates(num_examples=9)
            sources: dict[str, Any] = {"train": dates, "eval": dates} | {part: source}
            store = str(tmp_path / "stores") if in_store else None
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, store=store, **sources))
            folder = RunFolder(tmp_path / f"{part}-{treatment}")
            folder.path.mkdir()
            line = r"odd\.jsonl:3: the chat template refuses these messages: begin with a question"
            called = r"odd\.jsonl:5: the chat template leaves out the call of 'f' in message 2"
            with Progress(1) as progress:
                if treatment == "error":
                    remedy = rf"--data\.{part}\.bad-rows drop"
                    with pytest.raises(
                        ValueError, match=f"^2 bad rows, the first of them: .*{line}; .*{called}; .*{remedy}"
                    ):
                        read_data(config, folder, progress)
                    continue
                data = read_data(config, folder, progress)
            assert re.search(f"2 bad rows were left out, the first of them: .*{line}", capsys.readouterr().err)
            records = data.records if part == "train" else data.eval.records  # type: ignore[union-attr]
            assert [len(record.target) > 0 for record in records] == [True, False, True, False]
            warn_once.cache_clear()
            if in_store and part == "train":  # the texts are not read again for what the first start has told
                with Progress(1) as progress:
                    read_data(config, folder, progress)
                assert "bad rows" not in capsys.readouterr().err


def test_held_out_conversations_obey_the_rule_of_their_source(tmp_path: Path):
    """The remedy names data.train, whose texts are held out, also for a bad row of the evaluation data."""
    source, objective = odd_source(tmp_path, bad_rows="drop")
    reader = reader_of(objective, Tokenizers(BYTES, BYTES), tmp_path / "run", Lengths(1, 200))
    for split, line in (("train", 5), ("eval", 3)):
        rule: dict[str, Any] = {"held": ("eval",), "share": 0.5, "seed": 6, "split": split}
        for treatment in ("drop", "error"):
            part = held_out(dataclasses.replace(source, bad_rows=treatment), **rule)
            pairs, origin = part.open(f"data.{split}"), Origin(part, f"data.{split}")
            if treatment == "drop":
                assert len(tokenize(pairs, reader, origin)) == len(pairs)
                continue
            with pytest.raises(
                ValueError, match=rf"odd\.jsonl:{line}: the chat template .*--data\.train\.bad-rows drop"
            ):
                tokenize(pairs, reader, origin)


def test_a_conversation_without_a_file_is_told_by_its_number(tmp_path: Path):
    (tmp_path / "odd.jinja").write_text(ODD + PLAIN_TEMPLATE)
    objective = Instruction(template=str(tmp_path / "odd.jinja"))
    with pytest.raises(
        ValueError, match=r"^record:2: the chat template refuses these messages: begin with a question$"
    ):
        read(tmp_path, objective, Pair("a", "b"), conversation(*CHAT[2:4]))


def test_a_shorter_conversation_that_the_template_refuses_does_not_fit(tmp_path: Path):
    (tmp_path / "long.jinja").write_text(
        "{% if messages[0].content != 'a' %}{{ raise_exception('no') }}{% endif %}" + PLAIN_TEMPLATE
    )
    objective = Instruction(template=str(tmp_path / "long.jinja"))
    _, (record,) = read(tmp_path, objective, conversation(*CHAT[1:]), most=50)
    assert (len(record.target), record.extent) == (0, Extent.CUT)


def test_a_table_has_the_conversations_of_lines(tmp_path: Path):
    """Law: structs that have the fields of all rows, and maps, are read as the lines that they were written from."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def chat(tool: str, **arguments: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in arguments}}
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return {"messages": messages, "tools": [{"type": "function", "function": {"name": tool, "parameters": schema}}]}

    chats_of = [chat("weather", city="Paris", metric=False), chat("clock", zone="", hours=0)]
    parts = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}], "weight": 0},
            {"role": "assistant", "reasoning": "r"},
        ]
    }
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*chats_of, *chats_of[:1]])))
    (tmp_path / "b.jsonl").write_text(json.dumps(parts))
    parquet.write_table(pyarrow.Table.from_pylist([*chats_of, *chats_of[:1]]), tmp_path / "a.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([parts]), tmp_path / "b.parquet")
    for name in "ab":
        lines = JSONLines(path=str(tmp_path / f"{name}.jsonl"), record=Conversations()).open()
        assert Parquet(path=str(tmp_path / f"{name}.parquet"), record=Conversations()).open() == lines
    call = pyarrow.struct([("name", pyarrow.string()), ("arguments", pyarrow.map_(pyarrow.string(), pyarrow.string()))])
    message = pyarrow.struct([("role", pyarrow.string()), ("tool_calls", pyarrow.list_(call))])
    rows = [[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [("x", "1")]}]}]]
    table = pyarrow.table({"chat": pyarrow.array(rows, pyarrow.list_(message))})
    parquet.write_table(table, tmp_path / "map.parquet")
    (pair,) = Parquet(path=str(tmp_path / "map.parquet"), record=Conversations(messages="chat")).open()
    assert json.loads(pair.target)["messages"][0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": "1"}}


def test_an_input_that_is_null_is_none(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"instruction": "Go", "input": null, "output": "no"}')
    fields: dict[str, Any] = {"record": Pairs(source="instruction", input="input", target="output")}
    assert JSONLines(path=str(tmp_path / "a.jsonl"), **fields).open() == [Pair("Go", "no")]
    with pytest.raises(ValueError, match="no field more"):
        JSONLines(
            path=str(tmp_path / "a.jsonl"), record=Pairs(source="instruction", input="more", target="output")
        ).open()
