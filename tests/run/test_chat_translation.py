"""Decoders that translate. Oracle: the same prompts by `completions_of_ids`, and what the rules leave of a text by hand."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.serialize import as_tree
from flaxformer_lite.core.base.progress import no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model.attention import DotProduct
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.norms import RMSNorm
from flaxformer_lite.core.model.positions import Rotary
from flaxformer_lite.core.objectives import CausalLM, Instruction
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.engine import engine_run
from flaxformer_lite.engine.engine_run import open_obeying
from flaxformer_lite.engine.exports import RunWeights, own_part
from flaxformer_lite.engine.rules import CannotAnswer
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import ChatTokenizers
from flaxformer_lite.files.chats.translation_prompt import PLAIN_SENTENCE, SOURCE_ALONE, TranslationPrompt
from flaxformer_lite.files.data import DataConfig, ParallelText
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.interop.exporting import export_hf
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import Run, load, write_run
from flaxformer_lite.run.scoring import ScoredData, rated_pairs, score
from flaxformer_lite.tools.pair import teaching
from flaxformer_lite.training import train
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_saved_params
from tests.support import needs
from tests.support.chats import SPECIAL, TEMPLATES, ours
from tests.support.commands import Command
from tests.support.experiments import rows, tiny_config, with_train
from tests.support.paths import ROOT

TEXTS = ["an all", "", "is an", "Ha all an"]
BETWEEN = TranslationPrompt(text="{source_language}>{target_language}: {text}")


def config_of(folder: Path, **changes: Any) -> Config:
    model = ModelConfig(
        vocab_size=len(SPECIAL) + 256 + 9, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=0, num_decoder_layers=1,
        positions=Rotary(), scale_embeddings=False,
    )  # fmt: skip
    lengths = {"max_source_length": 90, "max_target_length": 90}
    data = DataConfig(tokenizer=FromRun(path=str(folder)), translation=BETWEEN, **lengths)
    decode = DecodeConfig(max_new_tokens=9, eos_ids=(1,), bos_id=0, pad_id=1)
    return dataclasses.replace(Config(model=model, objective=CausalLM(), data=data, decode=decode), **changes)


def written(folder: Path, **changes: Any) -> Path:
    """A decoder with random parameters and a chat template."""
    config, rng = config_of(folder, **changes), np.random.default_rng(3)
    params = jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)), abstract_saved_params(config))
    write_run(RunFolder(folder), config, 0, params, "drawn", tokenizers=Tokenizers(*[ours()] * 2))
    (folder / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("chat") / "run")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(folder)


def asked_with(run: Run, prompt: TranslationPrompt | None) -> Run:
    """The run with another message."""
    data = dataclasses.replace(run.config.data, translation=prompt)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))


def asking(run: Run) -> Asking:
    assert isinstance(run.translator.form, Asking)
    return run.translator.form


def with_beam(decode: DecodeConfig) -> DecodeConfig:
    return dataclasses.replace(decode, beam_size=2)


def prompt_of(text: str, source: str = "En", target: str = "De") -> list[int]:
    return ours().encode(f"<|im_start|>user\n{source}>{target}: {text}<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_are_the_answers_to_the_prompts(run: Run, beam_size: int) -> None:
    found = run.between("En", "De").hypotheses(TEXTS, beam_size=beam_size, num_hypotheses=beam_size)
    prompts = [prompt_of(text) for text in TEXTS if text]
    ends = (*run.config.decode.eos_ids, SPECIAL.index("<|im_end|>"))
    expected = run.completions_of_ids(prompts, beam_size=beam_size, num_hypotheses=beam_size, eos_ids=ends)
    assert [one[0].text for one in found][1] == "" and found[1] == [("", 0.0)]
    for ranked, answers in zip([found[0], *found[2:]], expected, strict=True):
        assert [one.score for one in ranked] == [one.score for one in answers]
        lines = [ours().decode(one.tokens).strip().splitlines() for one in answers]
        assert [one.text for one in ranked] == [" ".join(map(str.strip, of_one)) for of_one in lines]


@needs.ctranslate2
@pytest.mark.slow
def test_the_engine_translates_as_jax_does(run: Run) -> None:
    directed = run.between("En", "De")
    assert directed.translate(TEXTS, engine="ctranslate2") == directed.translate(TEXTS)


@needs.ctranslate2
@pytest.mark.slow
def test_a_command_translates_by_the_engine_without_jax(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(TEXTS) + "\n")
    words = ["", "translate", str(run.folder.path), str(tmp_path / "lines"), "--from", "En", "--to", "De", "--engine"]
    code = "import sys; sys.argv = WORDS; from flaxformer_lite.cli.main import main; main()"
    code += "; print(*sorted({'jax', 'flax'} & {*sys.modules}))"
    printed = {}
    for engine in ("ctranslate2", "jax"):
        program = [sys.executable, "-c", code.replace("WORDS", repr([*words, engine]))]
        lines = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
        *printed[engine], modules, _ = lines
        assert modules == ("" if engine == "ctranslate2" else "flax jax")
    assert printed["ctranslate2"] == printed["jax"] == run.between("En", "De").translate(TEXTS)
    with pytest.raises(CannotAnswer, match=r"does not obey decode\.eos_ids"):
        open_obeying("Translator", with_beam, RunWeights(str(run.folder.path)), own_part(as_tree(run.config)))


def test_settings_that_the_engine_lacks_are_refused_before_an_export(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_run, "open_engine", lambda *given: pytest.fail("an export was opened"))
    own = own_part(as_tree(run.config))
    banned = own._replace(decode=dataclasses.replace(own.decode, no_repeat_ngram=2))
    with pytest.raises(CannotAnswer, match=r"does not obey decode\.no_repeat_ngram 2"):
        open_obeying("Translator", lambda decode: decode, RunWeights(str(run.folder.path)), banned)


def test_languages_are_named_by_the_call_or_by_the_settings(run: Run) -> None:
    with pytest.raises(ValueError, match="from is missing"):
        run.translate(["an"])
    named = asked_with(run, dataclasses.replace(BETWEEN, source_language="En", target_language="De"))
    assert named.translate(TEXTS) == run.between("En", "De").translate(TEXTS)
    assert asking(named.between(target="Fr")).translation.target_language == "Fr"


def test_the_usual_message_is_that_of_the_training(run: Run) -> None:
    plain = asked_with(run, None)
    tuned = dataclasses.replace(plain, config=dataclasses.replace(plain.config, objective=Instruction()))
    assert asking(plain).translation is PLAIN_SENTENCE
    assert asking(tuned).translation is SOURCE_ALONE


def test_what_does_not_go_together_is_refused(run: Run, tmp_path: Path) -> None:
    directed = run.between("En", "De")
    with pytest.raises(ValueError, match="terms, placeholders and prefix are for encoder–decoders"):
        directed.translate(["an"], prefix="all")
    bare = dataclasses.replace(run, folder=RunFolder(tmp_path))
    with pytest.raises(ValueError, match=r"cannot translate: use generate, or, .* chat_template\.jinja"):
        bare.translate(["an"])
    encoder = dataclasses.replace(run.config.model, num_encoder_layers=1)
    with pytest.raises(ValueError, match=r"data\.translation is set, but model\.num_encoder_layers is 1"):
        dataclasses.replace(run.config, model=encoder)


def test_token_ids_have_no_place_in_a_prompt(folder: Path, command: Command) -> None:
    said = command.mistake("translate", folder, "--ids", "--from", "En", "--to", "De", stdin=b"5 6\n")
    assert "--ids is for encoder–decoders" in said


@pytest.mark.slow
def test_a_run_of_conversations_reads_and_rates_pairs_in_its_languages(run: Run) -> None:
    reader = ChatTokenizers(ours(), ours(), asking(run).template, 91, False, BETWEEN)
    config = dataclasses.replace(run.config, objective=Instruction())
    tuned = dataclasses.replace(run, config=config, tokenizers=reader).between("En", "De")
    (read,) = tuned.required_tokenizers.encode_pairs([Pair("an all", "is")])
    assert read.target[: len(prompt_of("an all"))] == prompt_of("an all")
    pairs = [Pair("an all", "<think>so</think> is")]
    data = ScoredData("eval", pairs, {}, config.metrics)
    assert rated_pairs(tuned, data) == [Pair("an all", "is")] and rated_pairs(run, data) == pairs
    assert score(tuned, data, {})[1] is None and len(score(tuned, data, {}, asks=["metric"])[1] or []) == 1
    chat = Pair("", '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
    with pytest.raises(ValueError, match=r"data\.eval has 1 row without a source"):
        rated_pairs(tuned, data._replace(pairs=[*pairs, chat]))


def test_a_long_source_is_cut_with_a_warning(run: Run) -> None:
    told: list[str] = []
    run.between("En", "De").translate(["a", "b" * 200], warn=told.append)
    assert len(told) == 1 and told[0].startswith("line 2: the prompt has ") and "max_target_length 90" in told[0]


@pytest.mark.slow
def test_the_commands_translate_and_score(folder: Path, run: Run, tmp_path: Path, command: Command) -> None:
    for name, texts in (("lines", TEXTS), ("source", ["an all", "is"]), ("target", ["all an", "si"])):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    languages = ("--from", "En", "--to", "De")
    said = command("translate", folder, tmp_path / "lines", *languages, "--beam-size", "2")
    directed = run.between("En", "De")
    assert said.lines == directed.translate(TEXTS, beam_size=2)
    command("translate", folder, tmp_path / "lines", *languages, "-o", f"{tmp_path}/out/")
    (piece,) = (tmp_path / "out").glob("0*.txt")
    assert piece.read_text().splitlines() == directed.translate(TEXTS)
    files = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    report = json.loads(command("evaluate", folder, *files, *languages).out)
    expected = CHRF().corpus_score(directed.translate(["an all", "is"]), [["all an", "si"]]).score
    assert report["chrf"] == pytest.approx(expected)
    assert report["sentences"] == 2 and report["engine"] == "jax" and "loss" not in report


def test_the_server_translates(run: Run) -> None:
    pytest.importorskip("pydantic", reason='the server is not installed: pip install -e ".[serve]"')
    from flaxformer_lite.tools.serve.limits import Limits, Refusal
    from flaxformer_lite.tools.serve.runs import ServedRun

    served = ServedRun("chat", run, Limits())
    assert served.tasks == ("generate", "translate")
    texts = [text for text in TEXTS if text]
    job = served.translation_job(texts, beam_size=2, direction=("En", "De"))
    answers = served.answer(job.key, job.items)
    assert [ranked[0].text for ranked in answers] == run.between("En", "De").translate(texts, beam_size=2)
    for options, message in (({"prefix": "a"}, "is a decoder"), ({"placeholders": True}, "is a decoder")):
        with pytest.raises(Refusal, match=message):
            served.translation_job(texts, direction=("En", "De"), **options)
    with pytest.raises(Refusal, match="a text is empty"):
        served.translation_job(TEXTS, direction=("En", "De"))
    with pytest.raises(ValueError, match="from is missing"):
        served.translation_job(texts)
    assert served.chat is not None
    served.chat.close()


@pytest.mark.slow
def test_an_imported_model_has_the_message_of_its_card(tmp_path: Path) -> None:
    """Oracle: the same model before it left, with that message. Its tokenizer and its template come back with it."""
    attention = DotProduct(bias=False, qk_norm=RMSNorm(), qk_norm_place="after_rotation")
    parts = {"activation": "swiglu", "norm": RMSNorm(), "feed_forward_bias": False, "attention": attention}
    model = dataclasses.replace(config_of(tmp_path).model, **parts)
    longer = dataclasses.replace(config_of(tmp_path / "start").data, max_source_length=200, max_target_length=200)
    start = written(tmp_path / "start", model=model, data=longer)
    export_hf(start, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "hunyuan_v1_dense"
    run = load(import_hf(tmp_path / "hf", tmp_path / "again"))
    card = run.config.data.translation
    assert card is not None and card.text.startswith("Translate the following segment into {target_language}, without")
    same = asked_with(load(start), card).between(target="German")
    found = run.between(target="German")
    read = [asking(one).sources(TEXTS, lambda *_: pytest.fail("too long")) for one in (found, same)]
    assert read[0] == read[1]
    assert found.translate(TEXTS, max_new_tokens=9) == same.translate(TEXTS)


@pytest.mark.slow
def test_a_training_scores_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: chrF by sacreBLEU of the answers that the trained run gives, and the same by `evaluate`."""
    (tmp_path / "a").write_text("".join(f"{text or 'all'}\n" for text in TEXTS * 4))
    (tmp_path / "b").write_text("".join(f"{text or 'is'}\n" for text in reversed(TEXTS * 4)))
    start = written(tmp_path / "start")
    source = ParallelText(source=str(tmp_path / "a"), target=str(tmp_path / "b"))
    named = dataclasses.replace(BETWEEN, source_language="En", target_language="De")
    base = config_of(start)
    data = dataclasses.replace(base.data, train=source, eval=source, translation=named)
    steps = dict.fromkeys(("steps", "eval_every", "checkpoint_every", "log_every"), 2)
    settings = {"train": tiny_config().train, "optimizer": tiny_config().optimizer}
    base = dataclasses.replace(base, objective=Instruction(), data=data, **settings)
    config = with_train(base, **steps, text_metrics=("chrf", "exact_match"), init_from=str(start))
    train(config, tmp_path / "run")
    run = load(tmp_path / "run")
    texts = [text or "all" for text in TEXTS * 4]
    answers, references = run.translate(texts), (tmp_path / "b").read_text().splitlines()
    (row,) = [row for row in rows(tmp_path / "run") if "chrf" in row]
    expected = CHRF().corpus_score(answers, [references]).score
    assert row["chrf"] == pytest.approx(expected) and row["exact_match"] == 0
    assert (tmp_path / "run" / "hypotheses" / "eval-step-00000002.txt").read_text().splitlines() == answers
    report = run.evaluate("eval")
    assert report["chrf"] == pytest.approx(expected) and report["loss"] == pytest.approx(row["loss"], rel=1e-5)
    assert "user\nEn>De: an all" in "".join(row.target for row in run.rows(1))


def test_as_a_teacher_it_marks_what_its_own_limit_may_have_cut(run: Run) -> None:
    """By hand: answers have at most 9 tokens, their end included; a prompt above 90 tokens loses the end of its source."""
    teacher = run.between("En", "De")
    rows = teaching.answered(teacher, [*TEXTS, "a" * 90], "auto", no_progress).decode().splitlines()
    labels, texts = zip(*(row.split("\t") for row in rows), strict=True)
    assert [*texts] == [" ".join(text.split()) for text in teacher.translate([*TEXTS, "a" * 90])]
    expected = ["cut" if len(ours().encode(text)) + 1 >= 9 else "" for text in texts[:-1]]
    assert [*labels] == [*expected, "cut"] and "" in labels
