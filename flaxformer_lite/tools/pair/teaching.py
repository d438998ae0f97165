"""Taught pairs: teachers translate the sources of the pairs and further lines, and what looks wrong is removed.

RUN/taught_by.json         their names and licences, and those of their own teachers, which the cards of exports state
RUN/data/answers/          their translations, in pieces: a killed command goes on with the missing ones
RUN/data/taught/           pairs.*, and removed.tsv and made_of.json as in `data`; the folder appears whole
RUN/evaluations/teacher.json   their scores on the test that the pairs held out
"""

import functools
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.base.console import Progress, note
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.data import Pair
from flaxformer_lite.engine import Engine
from flaxformer_lite.files.chats.form import warn_of_left_out
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.text.normal_form import bare_words
from flaxformer_lite.metrics.translations import MetricConfig, resolve, text_report, with_language
from flaxformer_lite.run import Run
from flaxformer_lite.tools import corpus
from flaxformer_lite.tools.pair.cleaning import OF_ANSWERS, RULES, PairRule, clean, each
from flaxformer_lite.tools.pair.folder import as_line, parallel, read_lines, write_pairs
from flaxformer_lite.tools.pair.models import Models
from flaxformer_lite.workdir import RunFolder

LINES_OF_PIECE = 1_024
"""Lines in a piece: what a kill loses at most."""


def taught_pairs(models: Models, output: Path, off: Collection[str], engine: Engine) -> ParallelText:
    """Returns the pairs that the teachers make; translates and filters what no earlier call has.

    off: rules that remove nothing.
    """
    data = output / "data"
    if not (data / "taught").is_dir():
        run = models.load_teachers()
        for one in run.members:
            RunFolder(output).add_teachers([one.folder.as_teacher(), *one.folder.teachers])
        score_teachers(run, output, engine)
        people = list(parallel(data, "train").stream())
        sources = dict.fromkeys([*(pair.source for pair in people), *read_lines(str(data / "mono.txt"))])
        answers = translated(run, [*sources], data / "answers", models, engine)
        filter_answers(people, answers, off, data)
    return parallel(data, "taught/pairs")


def score_teachers(run: Run, output: Path, engine: Engine) -> None:
    """Writes and tells the scores of the teachers on the test: a wrong direction is seen before hours of translation."""
    file = teacher_scores(output)
    test = parallel(output / "data", "test")
    if file.is_file():
        return
    pairs = list(test.stream())
    references = [pair.target for pair in pairs]
    with Progress(len(pairs)) as progress:
        progress.update("translating the test")
        texts = run.translate([pair.source for pair in pairs], engine=engine, progress=progress.within)
    metrics = resolve(with_language(MetricConfig(), test.target_names()), references)
    scores = {"split": "test", "weights": "teacher", **text_report(texts, references, metrics)}
    note(f"the teacher has BLEU {scores['bleu']:.2f} on {len(pairs):,} sentences held out")
    write_json(file, scores)


def teacher_scores(output: Path) -> Path:
    return output / "evaluations" / "teacher.json"


def translated(run: Run, sources: Sequence[str], folder: Path, models: Models, engine: Engine) -> list[Pair]:
    """Returns the sources with the translations by the teachers; "cut" is the label of one that may be cut.

    Raises: ValueError if an earlier start had other teachers or sources; Failure if a piece failed twice.
    """
    facts = {"teachers": run.origin, "direction": [models.source, models.target], "pieces": LINES_OF_PIECE}
    note(f"the teacher translates {len(sources):,} lines into {folder}")
    corpus.answer_pieces(corpus.Corpus(folder, ".tsv.gz"), facts, pieces_of_lines(run, sources, engine), corpus.Part())
    rows = (line.split("\t") for line in read_lines(str(corpus.join(folder))))
    return [Pair(source, text, label) for source, (label, text) in zip(sources, rows, strict=True)]


def pieces_of_lines(run: Run, sources: Sequence[str], engine: Engine) -> Iterator[corpus.Piece]:
    for index, start in enumerate(range(0, len(sources), LINES_OF_PIECE)):
        lines = sources[start : start + LINES_OF_PIECE]
        end = start + len(lines)
        answer = functools.partial(answered, run, lines, engine)
        place = f"the sources {start + 1} to {end}"
        content = corpus.digest("\n".join(lines).encode())
        yield corpus.Piece(index, place, len(lines), content, answer, end / len(sources))


def answered(run: Run, lines: Sequence[str], engine: Engine, progress: ProgressCallback) -> bytes:
    """Returns a row for each line: "cut" or nothing, a tab, the translation."""
    return "".join(f"{label}\t{as_line(text)}\n" for label, text in labelled(run, lines, engine, progress)).encode()


def labelled(run: Run, lines: Sequence[str], engine: Engine, progress: ProgressCallback) -> list[tuple[str, str]]:
    """Returns the translation of each line, an empty one of an empty line, behind "cut" or nothing.

    "cut": the line is longer than the teachers read, or their answer, thoughts and all, as long as they write.
    """
    decoder = run.translator.decoder()
    form = run.translator.form
    long = set[int]()
    end = decoder.config.forced_eos_id is not None  # which ends an answer that is cut
    read = form.sources(lines, lambda place, length: long.add(place))
    sources = {i: ids for i, ids in enumerate(read) if ids}
    answers = run.hypotheses_of_ids([*sources.values()], progress=progress, engine=engine)
    notes = list[str]()
    rows = [("", "")] * len(lines)
    for (i, ids), (best, *_) in zip(sources.items(), answers, strict=True):
        cut = i in long or len(best.tokens) + end >= decoder.max_length(ids)
        rows[i] = ("cut" if cut else "", form.written(best.tokens, lines[i], notes.append))
    warn_of_left_out(notes)
    return rows


def filter_answers(people: Sequence[Pair], answers: Sequence[Pair], off: Collection[str], data: Path) -> None:
    """Writes the folder `taught`. The rules count in the pairs of people too, which are not removed here.

    Raises: ValueError if nothing is left.
    """
    held = set[str]()
    for name in ("valid", "test"):
        for pair in parallel(data, name).stream():
            held |= {bare_words(pair.source), bare_words(pair.target)}
    held_out = PairRule("a sentence that is held out", each(lambda pair: bare_words(pair.target) in held))
    rules = {**OF_ANSWERS, "held_out": held_out, **RULES}
    cleaned = clean([*people, *answers], off, rules)
    before = len(people)
    of_answers = {name: [i - before for i in numbers if i >= before] for name, numbers in cleaned.found.items()}
    kept = [answers[i - before] for i in cleaned.kept if i >= before]
    if not kept:
        raise ValueError(
            f"none of the {len(answers):,} translations of the teacher is kept: look at them in {data / 'answers'}; --from and "
            "--to name the languages, and --keep switches a rule off"
        )
    facts = json.loads((data / "made_of.json").read_bytes())
    write_pairs(data / "taught", {"pairs": kept}, answers, of_answers, rules, {"ends": facts["ends"]})
