"""The report on runs: one page without a network, or PNG files; extra `report`.

`facts.py` reads what a run folder knows. `scores.py` compares evaluations, `plots.py` has the charts, for notebooks too. `tabs.py`
makes the page's parts of them, and `page.py` the page, from the template `page.html` with its style and its script.
"""

from flaxformer_lite.tools.report.page import write_charts, write_page, write_png
from flaxformer_lite.tools.report.tabs import Charts, ReportContent, make_report

__all__ = ["Charts", "ReportContent", "make_report", "write_charts", "write_page", "write_png"]
