"""Search by runs: figures on judged queries, and hard negatives for a training.

`folder.py` has the files, `searching.py` the search and its figures, `mining.py` the negatives.
"""

from flaxformer_lite.tools.search.folder import SearchFolder, read_results, read_search_folder, write_results
from flaxformer_lite.tools.search.mining import Mining, mine
from flaxformer_lite.tools.search.searching import evaluate_search, save_search, search_report

__all__ = [
    "Mining",
    "SearchFolder",
    "evaluate_search",
    "mine",
    "read_results",
    "read_search_folder",
    "save_search",
    "search_report",
    "write_results",
]
