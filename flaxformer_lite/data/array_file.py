"""Arrays in files, of which a part at a time is read."""

import os
import weakref
from pathlib import Path

import numpy as np


class ArrayFile:
    """A one-dimensional array in an .npy file. A slice is read when it is asked for.

    A mapped file would leave every page that was read in the memory of the process, and end it if the file is cut meanwhile.
    Several threads may read at once.

    Raises: ValueError for a file of another form, OSError for one that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        mapped = np.load(path, mmap_mode="r")
        self.path, self.dtype = path, mapped.dtype
        self._length, self._offset, self._itemsize = len(mapped), mapped.offset, mapped.dtype.itemsize
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> np.ndarray:
        """Returns a slice without a step, which cannot be written. Raises: ValueError if the file has become shorter."""
        start, stop, _ = part.indices(self._length)
        wanted = max(stop - start, 0) * self._itemsize
        content = os.pread(self._descriptor, wanted, self._offset + start * self._itemsize)
        if len(content) < wanted:
            raise ValueError(f"{self.path}: damaged (it ends too early); delete its folder, and it is made again")
        return np.frombuffer(content, self.dtype)
