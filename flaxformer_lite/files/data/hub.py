"""Parquet files and Hugging Face datasets as data; both need the extra `hub`."""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flaxformer_lite.base.remote_files import has_file, is_url, open_filesystem
from flaxformer_lite.files.data.source import RecordSource
from flaxformer_lite.files.records import Pairs, Record, RecordKinds
from flaxformer_lite.files.records.base import FileRow
from flaxformer_lite.files.text.files import ReadProgress, file_versions, matching_files

INSTALL_HUB = 'pip install "flaxformer_lite[hub]"'
SAVED = ("dataset_dict.json", "state.json")
"""The files that mark a folder written by `save_to_disk`: one with splits, one without."""


@dataclass(frozen=True, kw_only=True)
class Parquet(RecordSource, at="parquet"):
    """Parquet files, read by pyarrow, which the extra `hub` installs. A label gets the name of its class, if the file has it."""

    kind: Literal["parquet"] = "parquet"
    path: str
    """The file or URL, or a pattern for several, `data/train-*.parquet`, sorted by name."""

    def _fields(self, progress: ReadProgress) -> Iterator[FileRow]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ValueError(f"{self.path}: a Parquet file needs the pyarrow package: {INSTALL_HUB}") from None
        files = matching_files(self.path)
        for before, path in enumerate(files):
            number = 0
            try:
                with contextlib.ExitStack() as stack:
                    stream: Any = path
                    if is_url(path):
                        filesystem, name = open_filesystem(path)
                        stream = stack.enter_context(filesystem.open(name, "rb"))
                    file = stack.enter_context(pyarrow.parquet.ParquetFile(stream))
                    fields = file.schema_arrow.names
                    features = features_in(file.schema_arrow.metadata or {})
                    columns = [name for name in fields if name in outermost(self.record, fields)]
                    for rows in file.iter_batches(batch_size=1024, columns=columns or fields):
                        for row in rows.to_pylist(maps_as_pydicts="lossy"):
                            number += 1
                            yield path, number, with_class_names(row, features)
                        progress((before + number / max(file.metadata.num_rows, 1)) / len(files))
            except (OSError, pyarrow.ArrowException) as error:
                raise ValueError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from None


@dataclass(frozen=True, kw_only=True)
class HubDataset(RecordSource, at="hub_dataset"):
    """A Hugging Face dataset, by its name on the hub or from a local folder. A label that is a class gets the name of the class."""

    kind: Literal["hub_dataset"] = "hub_dataset"
    path: str
    """Name on the hub (`bentrevett/multi30k`), a folder of data files, or a folder written by `save_to_disk`."""
    name: str | None = None
    """The dataset's configuration; None: its default one."""
    split: str = "train"
    """Part of the dataset; on the hub also a slice such as `train[:1000]`."""
    record: RecordKinds = Pairs(source="translation.en", target="translation.de")
    """The kind of a row, and the fields that are read of it."""
    streaming: bool = False
    """Whether rows come over the network as they are tokenized. False: the whole dataset is downloaded first, into the library's
    cache. A folder written by `save_to_disk` is mapped either way."""

    @property
    def _origin(self) -> str:
        return f"{self.path} ({self.split})"

    def versions(self) -> list[str] | None:
        with self._readable() as datasets:
            if self._is_streamed:
                builder = datasets.load_dataset_builder(self.path, self.name)
                data_files = (builder.config.data_files or {}).get(self.split)
                return None if data_files is None else [*map(str, data_files), *map(str, data_files.origin_metadata)]
            dataset = self._load(datasets)
        versions = list[str]()
        for file in dataset.cache_files:
            versions += file_versions(file["filename"])
        return [f"{len(dataset)} records", *versions] if versions else None

    def _fields(self, progress: ReadProgress) -> Iterator[FileRow]:
        with self._readable() as datasets:
            dataset = self._load(datasets)
            number_of_rows = 0 if self._is_streamed else len(dataset)
            names = set(dataset.column_names or ())
            wanted = outermost(self.record, names)
            if wanted and names >= wanted - {*self.record.beside}:
                dataset = dataset.select_columns(sorted(wanted & names))  # pictures and sound are never decoded
            features = dataset.features.to_dict() if dataset.features else {}
            for number, row in enumerate(dataset, 1):
                yield self._origin, number, with_class_names(row, features)
                if number % 1024 == 0 and number_of_rows:
                    progress(number / number_of_rows)

    @property
    def _is_streamed(self) -> bool:
        return self.streaming and not any(has_file(self.path, name) for name in SAVED)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[Any]:
        """Gives the package `datasets`; what it raises becomes a ValueError with the dataset's name."""
        try:
            import datasets
            from huggingface_hub.utils.logging import disable_propagation
        except ImportError:
            raise ValueError(f"{self.path}: a Hugging Face dataset needs the datasets package: {INSTALL_HUB}") from None
        disable_propagation()  # absl gives the root logger a handler: without this, lines on retries appear twice
        try:
            yield datasets
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise ValueError(f"{self._origin}: cannot load this dataset: {reason}") from error

    def _load(self, datasets: Any) -> Any:
        """Returns the split; a saved dataset without splits counts as `train`. Raises: ValueError."""
        with_splits, without = (has_file(self.path, name) for name in SAVED)
        if not with_splits and not without:
            return datasets.load_dataset(self.path, self.name, split=self.split, streaming=self.streaming)
        saved = datasets.load_from_disk(self.path)
        splits = saved if with_splits else {"train": saved}
        if self.name is not None:
            raise ValueError(f"a saved dataset has no configurations: leave out name {self.name!r}")
        if self.split not in splits:
            raise ValueError(f"no split {self.split!r}; it has {', '.join(splits)}")
        return splits[self.split]


def outermost(record: Record, names: Collection[str]) -> set[str]:
    """Returns the outermost names of the fields that are read of rows with these names."""
    fields = map(str, (*record.fields.values(), *record.beside))
    return {field if field in names else field.split(".")[0] for field in fields}


def features_in(metadata: Mapping[bytes, bytes]) -> object:
    """Returns the features that `datasets` wrote in a Parquet file; {} for a file of another program."""
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
        return json.loads(metadata[b"huggingface"])["info"]["features"]
    return {}


def with_class_names(value: object, feature: object) -> Any:
    """Returns a value with the names of classes in the place of their numbers; -1, which stands for no label, stays.

    feature: the value's type as `datasets` writes it in JSON. A list may be a `List`, a `Sequence`, or a list of one type.
    """
    if isinstance(feature, list):
        feature = {"feature": next(iter(feature), None)}
    if not isinstance(feature, Mapping):
        return value
    if isinstance(value, list):
        return [with_class_names(one, feature.get("feature")) for one in value]
    if isinstance(value, dict):
        columns = feature.get("feature") if feature.get("_type") == "Sequence" else None  # a list in each field
        fields = {name: [one] for name, one in columns.items()} if columns else feature
        return {name: with_class_names(one, fields.get(name)) for name, one in value.items()}
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
