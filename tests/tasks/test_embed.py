"""Laws of vectors: each is that of its text alone, with the prompt written out; a file of them is complete or absent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.run import Run
from flaxformer_lite.tasks.rank.answers import Query, Rank
from tests.support.commands import Command
from tests.support.limits import assert_close
from tests.support.text_runs import TEXTS, alone, text_run

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.slow
def test_texts_are_embedded_as_each_alone_and_in_order(run: Run):
    done: list[tuple[str, int, int]] = []
    found = run.embed(TEXTS[:5], progress=lambda *numbers: done.append(numbers), warn=lambda line: None)
    assert found.shape == (5, 12) and found.dtype == np.float32
    assert done[-1] == ("predicting", 5, 5)
    for i in (0, 1, 3):
        np.testing.assert_allclose(found[i], alone(run, TEXTS[i]).embedding[0], rtol=2e-5, atol=2e-6)
    assert run.embed([]).shape == (0, 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "quary"}, r"^the prompt is 'quary': the prompts are 'query'; perhaps you meant query$"),
        ({"width": 13}, r"^the width is 13, but vectors have 12 values: choose 1 to 12$"),
        ({"width": 0}, r"^the width is 0, but"),
    ],
)
def test_an_unknown_prompt_and_an_impossible_width_are_refused(run: Run, options: dict[str, Any], words: str):
    prompted = text_run(objective=SentenceEmbeddings(prompts=(("query", "find "),)))
    for texts in ([], ["abc"]):
        with pytest.raises(ValueError, match=words):
            prompted.embed(texts, **options)
    with pytest.raises(ValueError, match=r"objective\.kind 'classification' has no prompts: leave it out"):
        run.embed(["abc"], prompt="query")


def test_prompts_and_widths_of_vectors(command: Command, tmp_path: Path):
    """Oracle: the vector of the text with its prompt written out, cut and divided by its length; every way to ask says the same."""
    prompts = {"prompts": (("query", "find "), ("text", "the ")), "default_prompt": "text"}
    run = text_run(objective=SentenceEmbeddings(**prompts))
    plain = {before: run.embed([before + "abc"], prompt="")[0] for before in ("", "find ", "the ")}
    for prompt, before in ((None, "the "), ("", ""), ("query", "find ")):
        np.testing.assert_array_equal(run.embed(["abc"], prompt=prompt)[0], plain[before])
    cut = plain["find "][:5] / np.linalg.norm(plain["find "][:5])
    assert_close(run.embed(["abc"], prompt="query", width=5), [cut])
    assert run.embed([], width=5).shape == (0, 5)
    asked = ["--prompt", "query", "--width", "5"]
    (line,), _ = command.on(run, "embed", *asked, stdin=b"abc\n")
    assert_close(json.loads(line), cut)
    command.on(run, "embed", *asked, "--output", str(tmp_path / "x.npy"), stdin=b"abc\nxyz\n")
    assert_close(np.load(tmp_path / "x.npy")[0], cut)
    (line,), _ = command.on(run, "embed", *asked, "--similarity", stdin=b"abc\tabc\n")
    assert float(line) == pytest.approx(1)
    sided = text_run(objective=SentenceEmbeddings(prompts=prompts["prompts"], query_prompt="query"))
    cosine = plain["find "] @ plain[""] / np.linalg.norm(plain["find "]) / np.linalg.norm(plain[""])
    assert sided.relevance([("abc", "abc")])[0] == pytest.approx(cosine, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "query", "document"),
    [
        ({"prompts": (("document", "the "), ("query", "find "))}, "find ", "the "),
        ({"prompts": (("corpus", "xyz "), ("passage", "the "), ("query", "find "))}, "find ", "the "),
        (
            {"prompts": (("document", "the "), ("query", "find ")), "query_prompt": "", "default_prompt": "query"},
            "",
            "the ",
        ),
        ({"prompts": (("corpus", "the "), ("a", "find ")), "query_prompt": "a"}, "find ", "the "),
        ({"prompts": (("query", "find "),)}, "find ", ""),
        ({"prompts": (("a", "the "), ("b", "find ")), "default_prompt": "a"}, "the ", "the "),
        ({"prompts": (("a", "the "), ("b", "find "))}, "", ""),
    ],
)
def test_each_side_of_a_pair_has_its_prompt(settings: dict, query: str, document: str, command: Command):
    """Oracle: the cosine of the texts with their prompts written out. Training, `rank` and `embed --similarity` agree."""
    objective = SentenceEmbeddings(**settings)
    assert objective.prompt_texts == (query, document)
    run = text_run(objective=objective)
    first, second = run.embed([query + "abc", document + "abcdefgh"], prompt="").astype(np.float64)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    (line,), _ = command.on(run, "embed", "--similarity", stdin=b"abc\tabcdefgh\n")
    (ranked,), _ = command.on(run, "rank", stdin=b'{"query": "abc", "candidates": ["abcdefgh"]}\n')
    assert float(line) == json.loads(ranked)[0]["score"] == pytest.approx(cosine, abs=2e-6)


@pytest.mark.parametrize("document", ["", "the "])
def test_a_servers_limit_counts_the_prompt(document: str):
    pytest.importorskip("pydantic")
    from flaxformer_lite.tools.serve.limits import Limits, Refusal
    from flaxformer_lite.tools.serve.runs import ServedRun

    prompts = (("document", document), ("query", "find "))
    served = ServedRun("run", text_run(objective=SentenceEmbeddings(prompts=prompts)), Limits())
    longest = "abcdefghijklmn"[: 14 - len(document)]  # 16 tokens with those at its ends
    assert served.task_job(Rank(), [Query("abc", [longest])]).size == 1
    with pytest.raises(Refusal, match=r"^text 2 has 17 tokens, but run reads at most 16"):
        served.task_job(Rank(), [Query("abc", [longest + "o"])])


def test_vectors_go_into_a_new_file(run: Run, command: Command, tmp_path: Path):
    """Law: the file is complete or absent; an error leaves nothing behind."""
    file = tmp_path / "new" / "x.npy"
    assert command.on(run, "embed", "--output", str(file), stdin=b"abc\nhello\n") == ([], [])
    np.testing.assert_array_equal(np.load(file), run.embed(["abc", "hello"]))
    assert list(file.parent.iterdir()) == [file]
    (tmp_path / "new" / "damaged.gz").write_bytes(b"\x1f\x8b\x08")
    command.mistake("embed", "run", "--output", tmp_path / "y.npy", tmp_path / "new" / "damaged.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
