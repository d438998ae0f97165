"""Oracle: printed lines written by hand, for answers that need no run."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flaxformer_lite.cli.answering import Answering, answer_lines, free, printed
from flaxformer_lite.cli.commands.generate import Chatting, Continuing, escaped_line
from flaxformer_lite.cli.commands.task import TaskAnswering
from flaxformer_lite.cli.input_lines import LineChunk, NoBadLines, TextColumns, chosen_blocks
from flaxformer_lite.cli.translation import Translating
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.run import ClassPrediction, TokenPrediction
from flaxformer_lite.tasks.classify.lines import Lines as ClassifyLines
from flaxformer_lite.tasks.embed.lines import Lines as EmbedLines
from flaxformer_lite.tasks.fill_mask.lines import Lines as FillMaskLines
from flaxformer_lite.tasks.lines import Columns, TaskLines
from flaxformer_lite.tasks.rank.answers import in_order
from flaxformer_lite.tasks.rank.lines import Lines as RankLines


def run_of(pooler: Any = None, threshold: float | None = None) -> Any:
    """A run of which only the pooler and the threshold of labels are asked."""
    model, objective = SimpleNamespace(pooler=pooler), SimpleNamespace(label_threshold=threshold)
    return SimpleNamespace(config=SimpleNamespace(model=model, objective=objective))


RUN = run_of()


@dataclass(frozen=True)
class Repeating(Answering[int]):
    """Writes as many lines as a line says; with `names` one line beside the row of a table."""

    names: tuple[str, ...] = ()

    @property
    def columns(self) -> Columns[int]:
        return dict.fromkeys(self.names, str)

    def read(self, block: LineChunk, number: int) -> int:
        if not block.lines[number].isdecimal():
            with block.naming(number):
                raise ValueError("no number")
        return int(block.lines[number])

    def answers(self, block: LineChunk) -> tuple[int, ...]:
        return block.read

    def written(self, index: int, answer: int) -> list[list[str]]:
        return [[f"{index}: {answer}"]] if self.names else [[f"{index}: {number}"] for number in range(answer)]

    def unanswered(self, index: int) -> list[list[str]]:
        return [[f"{index}: bad"]]


def test_answers_are_numbered_through_all_files_bad_lines_too(tmp_path: Path, capsys: pytest.CaptureFixture):
    for name, text in (("a", b"1\nx\n0\n"), ("b", b"\xff\n2\n")):
        (tmp_path / name).write_bytes(text)
    answer_lines(chosen_blocks([str(tmp_path / name) for name in "ab"], "repeat"), Repeating())
    out, err = capsys.readouterr()
    assert out.splitlines() == ["0: 0", "1: bad", "3: bad", "4: 0", "4: 1"]
    assert err.count("; its answer is empty") == 2 and "a, line 2: no number" in err and "b, line 1: not UTF-8" in err


def test_lines_without_any_answer_are_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture):
    """In all files together; no line at all is none."""
    for name, text in (("a", b"x\n" * 3), ("b", b"\xff\ny\n"), ("c", b"z\n1\n"), ("d", b"")):
        (tmp_path / name).write_bytes(text)
    for names, refused in (("ab", True), ("abc", False), ("d", False)):
        blocks = chosen_blocks([str(tmp_path / name) for name in names], "repeat", size=2)
        with pytest.raises(ValueError, match="no line has an answer") if refused else contextlib.nullcontext():
            answer_lines(blocks, Repeating())
        lines = [f"{number}: bad" for number in range(5)]
        assert capsys.readouterr().out.splitlines()[:5] == ([] if names == "d" else lines)


@dataclass(frozen=True)
class Answers:
    """A task that answers all by a function."""

    answer: Callable[[Any], Any]

    def check_asked(self, model: Any, asked: Any, line: int) -> None: ...

    def answers(self, model: Any, asked: Sequence[Any], **report: object) -> list[Any]:
        return list(map(self.answer, asked))


def answering(form: TaskLines[Any], answer: Callable[[Any], Any]) -> TaskAnswering:
    return TaskAnswering(RUN, cast(Any, Answers(answer)), form)


def test_a_blank_line_is_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Law: it has an empty answer, without a report, and the lines after it keep their numbers, as have the rows of a table."""
    asked = list[str]()

    def upper(text: str) -> ClassPrediction:
        asked.append(text)
        return ClassPrediction(text.upper(), 0.5, {}, [])

    (tmp_path / "lines").write_text("a\n\n \t \nb\n")
    answer_lines(chosen_blocks([str(tmp_path / "lines")], "classify"), answering(ClassifyLines(scores=False), upper))
    out, err = capsys.readouterr()
    assert out == "A\t0.500000\n\n\nB\t0.500000\n" and err == "" and asked == ["a", "b"]
    (tmp_path / "rows.csv").write_text("text,n\na,1\n,2\n")
    columns = TextColumns((("text",),), header=True, typed=True)
    answer_lines(
        chosen_blocks([str(tmp_path / "rows.csv")], "classify", columns), answering(ClassifyLines(False), upper)
    )
    assert capsys.readouterr().out.splitlines() == ["text,n,label,probability", "a,1,A,0.500000", ",2,,"]
    (tmp_path / "lines").write_text("\n\n")
    answer_lines(chosen_blocks([str(tmp_path / "lines")], "fill"), answering(FillMaskLines(2), lambda text: 1 / 0))
    assert capsys.readouterr() == ("", "")


def test_a_column_that_the_table_has_gets_another_name(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "rows.csv").write_text("text,label\na,good\n")
    columns = TextColumns((("text",),), header=True, typed=True)
    form = answering(ClassifyLines(scores=False), lambda text: ClassPrediction("bad", 0.5, {}, []))
    answer_lines(chosen_blocks([str(tmp_path / "rows.csv")], "classify", columns), form)
    assert capsys.readouterr().out.splitlines() == ["text,label,predicted_label,probability", "a,good,bad,0.500000"]
    assert [free(name, ["label", "predicted_label"]) for name in ("label", "n")] == ["predicted_predicted_label", "n"]


def test_a_ranking_is_written_with_the_id_of_its_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    lines = (
        '{"query": "q", "candidates": ["a", "abc", "b"]}',
        '{"id": "ü7", "query": "q", "candidates": ["ab"], "more": 3}',
        '{"query": "q", "docs": ["a"]}',
        '{"query": "q", "candidates": ["a", 3]}',
        '{"id": 3, "query": "q", "candidates": []}',
    )
    (tmp_path / "lines").write_text("\n".join(lines), encoding="utf-8")
    answer_lines(
        chosen_blocks([str(tmp_path / "lines")], "rank"),
        answering(RankLines(), lambda one: in_order(list(map(len, one.candidates)))),
    )
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        '[{"index": 1, "score": 3.0}, {"index": 0, "score": 1.0}, {"index": 2, "score": 1.0}]',
        '{"id": "ü7", "ranking": [{"index": 0, "score": 2.0}]}',
        "",
        "",
        '{"id": 3, "ranking": []}',
    ]
    assert "line 3: no field candidates; the fields are query, docs; its answer is empty" in err
    assert 'line 4: write {"query": "…", "candidates": ["…", …]}, all of them texts' in err


def test_answers_stand_beside_the_rows_of_their_tables(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Law: the header is printed once for tables that share it."""
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / name).write_text("n\tmore\n7\tA\n\tB\n")
    paths = [str(tmp_path / name) for name in ("a.tsv", "b.tsv")]
    answer_lines(chosen_blocks(paths, "repeat", TextColumns((("n",),), header=True, typed=True)), Repeating(("found",)))
    lines = ["n\tmore\tfound", "7\tA\t0: 7", "\tB\t1: bad", "7\tA\t2: 7", "\tB\t3: bad"]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(("name", "row"), [("a.tsv", "7\tA\ta b\t0.500000"), ("a.csv", "7,A,a\tb,0.500000")])
def test_a_tab_in_the_name_of_a_class_makes_no_column(tmp_path: Path, name: str, row: str):
    (tmp_path / name).write_text("7\tA\n" if name == "a.tsv" else "7,A\n")
    (block,) = chosen_blocks([str(tmp_path / name)], "repeat", TextColumns(((0,),), typed=True))
    prediction = ClassPrediction("a\tb", 0.5, {}, [])
    assert [*printed(block, answering(ClassifyLines(scores=False), lambda text: prediction))] == [row]


def test_one_mistake_among_prompts_stops_all(capsys: pytest.CaptureFixture):
    with pytest.raises(ValueError, match="the arguments, prompt 2: no number"):
        answer_lines([LineChunk(["1", "x"], "the arguments", 0, "prompt", NoBadLines())], Repeating())
    assert capsys.readouterr() == ("", "")


def test_a_class_is_written_with_its_probability_or_all_of_them():
    label, value = (
        ClassPrediction("good", 0.75, {"good": 0.75, "bäd": 0.25}, ["good"]),
        ClassPrediction("", 1234567.0, {}, []),
    )
    best, scores = ClassifyLines(scores=False), ClassifyLines(scores=True)
    assert best.written("a", label, RUN) == [["good", "0.750000"]] and [*best.columns(RUN)] == ["label", "probability"]
    assert scores.written("a", label, RUN) == [['{"good": 0.75, "bäd": 0.25}']] and [*scores.columns(RUN)] == ["scores"]
    regression = run_of(SimpleNamespace(num_classes=1))
    assert best.written("a", value, regression) == [["1.23457e+06"]] and [*best.columns(regression)] == ["value"]


def test_several_labels_are_written_as_one_object_each():
    run = run_of(SimpleNamespace(num_classes=1), threshold=0.5)
    two = ClassPrediction("b", 0.75, {"a": 0.625, "b": 0.75, "c": 0.25}, ["b", "a"])
    none = ClassPrediction("a", 0.125, {"a": 0.125}, [])
    chosen, scores = ClassifyLines(scores=False), ClassifyLines(scores=True)
    assert chosen.written("", two, run) == [['{"b": 0.75, "a": 0.625}']] and [*chosen.columns(run)] == ["labels"]
    assert chosen.written("", none, run) == [["{}"]]
    assert scores.written("", two, run) == [['{"a": 0.625, "b": 0.75, "c": 0.25}']]
    assert [*scores.columns(run)] == ["scores"]


def test_tokens_of_masks_have_the_numbers_of_line_and_mask():
    masks = [[TokenPrediction("a", 0.5, 7), TokenPrediction("\n", 0.25, 8)], [TokenPrediction(" ", 1.0, 9)]]
    lines = ["4 ||| 0 ||| a ||| 0.500000", r"4 ||| 0 ||| \n ||| 0.250000", "4 ||| 1 |||   ||| 1.000000"]
    filling = answering(FillMaskLines(2), lambda text: masks)
    assert filling.written(4, ("", masks)) == [[line] for line in lines] and filling.unanswered(4) == []


def test_a_translation_is_written_alone_with_its_score_or_among_the_best():
    hypotheses = [ScoredText("a b", -1.5), ScoredText("c", -2.0)]
    plain = Translating(RUN, {}, scores=False, n_best=False)
    scored, best = replace(plain, scores=True), replace(plain, n_best=True)
    assert plain.written(6, [ScoredText("a\r\nb\nc", -1.5)]) == [["a b c"]], "one line for each line"
    assert plain.written(6, hypotheses) == [["a b"]] and plain.unanswered(6) == [[""]]
    assert scored.written(6, hypotheses) == [["a b", "-1.500000"]] and scored.unanswered(6) == [["", "0.000000"]]
    assert best.written(6, hypotheses) == [["6 ||| a b ||| -1.500000"], ["6 ||| c ||| -2.000000"]]
    assert best.unanswered(6) == [["6 |||  ||| 0.000000"]]
    assert [[*one.columns] for one in (plain, scored, best)] == [["translation"], ["translation", "score"], []]


def test_a_bad_prompt_has_an_empty_line_for_each_sample():
    decoder = cast(Any, SimpleNamespace(config=SimpleNamespace(num_hypotheses=3)))
    continuing = Continuing(RUN, decoder, {}, escaped_line)
    assert continuing.written(0, ["a\\\n", "b\r"]) == [[r"a\\\n"], [r"b\r"]] and continuing.unanswered(0) == [[]] * 3


@dataclass
class Talking:
    """A run whose answer to a conversation is the number of its messages."""

    asked: list[tuple[int, int]]

    def chat(self, messages: list[dict[str, str]], *, warn: object, first_index: int) -> Iterator[str]:
        self.asked.append((len(messages), first_index))
        yield from (str(len(messages)), "\n")


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_remembers_what_was_said(streams: bool, capsys: pytest.CaptureFixture):
    run = Talking([])
    messages = [{"role": "system", "content": "S"}]
    answer_lines([LineChunk(["a", "b"], "x", 0)], Chatting(cast(Any, run), {}, escaped_line, streams, messages))
    assert capsys.readouterr().out == ("2\n\n4\n\n" if streams else "2\\n\n4\\n\n")
    assert run.asked == [(2, 2), (4, 4)] and [message["content"] for message in messages] == [
        "S",
        "a",
        "2\n",
        "b",
        "4\n",
    ]


def test_vectors_are_written_as_lists_as_cosines_or_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture):
    embedding = answering(EmbedLines(False, None, None), lambda text: np.float32([len(text), 1]))
    (tmp_path / "lines").write_bytes(b"abc\n\xff\na\n")
    answer_lines(chosen_blocks([str(tmp_path / "lines")], "embed"), embedding)
    assert capsys.readouterr().out == "[3.0, 1.0]\n\n[1.0, 1.0]\n"
    two_values = replace(embedding, model=cast(Any, SimpleNamespace(vector_width=2)))
    with (tmp_path / "vectors.npy").open("wb") as file:
        two_values.save(file, chosen_blocks([str(tmp_path / "lines")], "embed"))
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), np.float32([[3, 1], [np.nan, np.nan], [1, 1]]))
    (tmp_path / "pairs").write_text("abc\ta\nabc\n")
    comparing = answering(EmbedLines(True, None, None), lambda pair: 4 / np.sqrt(20) if pair == ("abc", "a") else None)
    answer_lines(chosen_blocks([str(tmp_path / "pairs")], "embed"), comparing)
    assert capsys.readouterr().out == "0.894427\n\n"
