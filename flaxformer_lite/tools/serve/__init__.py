"""A server for runs: a page to try them, JSON endpoints by what a run is, and OpenAI's interface. Needs the extra `serve`.

A request is checked and tokenized (`served_run.py`), waits in a queue (`job_queue.py`), and is answered with others by the one
thread that computes (`worker.py`); `service.py` is its way there and back, with the limits of `limits.py`. The endpoints are in
`own_api.py` and `openai_api.py`, their shapes in `requests.py` and `openai_shapes.py`. `guard.py` stands before them, `app.py`
joins them, and `server.py` opens the socket. `page.py` has the page, and `text/chat.py` the chat templates.
"""

from flaxformer_lite.tools.serve.limits import Limits

__all__ = ["Limits"]
