"""Search by runs: figures on judged queries, and hard negatives for a training.

`folder.py` has the files, `searching.py` the search and its figures, `mining.py` the negatives.
"""

from flaxformer_lite.tools.search.folder import SearchFolder, read_folder, read_results, write_results
from flaxformer_lite.tools.search.mining import Mining, mine
from flaxformer_lite.tools.search.searching import search_report

__all__ = ["Mining", "SearchFolder", "mine", "read_folder", "read_results", "search_report", "write_results"]
