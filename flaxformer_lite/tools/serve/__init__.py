"""A server for runs: a page to try them, JSON endpoints by what a run is, and OpenAI's interface. Needs the extra `serve`.

A request (`requests.py`) comes by an endpoint (`endpoints.py`). `runs.py` checks and tokenizes its texts, the one
thread of `worker.py` answers them together with others, and `service.py` is the way to it and back. `guard.py` stands before all,
`app.py` joins them, and `server.py` opens the socket. `limits.py` has the limits, `metrics.py` the numbers for Prometheus.
"""

from flaxformer_lite.tools.serve.limits import Limits

__all__ = ["Limits"]
