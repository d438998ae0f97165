"""Numbers for Prometheus: requests by path and status, seconds, the queue, and how full the model's calls are."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from flaxformer_lite.tools.serve.worker import Worker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499
"""The status in the metrics of a request whose client has gone."""


def outcome(status: int) -> str:
    """Returns in words how a request with this status ended."""
    if status == CLIENT_GONE:
        return "left by their clients or cut off"
    if status < 400:
        return "answered"
    return "refused" if status < 500 else "failed"


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name = "flaxformer_lite_"
        given: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(f"{name}requests", "Requests that were answered", ["path", "status"], **given)
        self.seconds = Histogram(f"{name}request_seconds", "Seconds from a request to its answer", ["path"], **given)
        self.texts = Histogram(
            f"{name}call_texts", "Texts that one call to the model answered", ["run", "task"],
            buckets=(1, 2, 4, 8, 16, 32, 64), **given,
        )  # fmt: skip
        self.call_seconds = Histogram(f"{name}call_seconds", "Seconds of a call to the model", ["run", "task"], **given)
        self.waiting = Gauge(f"{name}waiting_texts", "Texts that wait for the model", **given)
        self.streams = Gauge(f"{name}open_streams", "Texts that are streamed", **given)

    def observe_call(self, key: Any, items: int, seconds: float) -> None:
        """Counts a call to the model."""
        self.texts.labels(key.run, key.task).observe(items)
        self.call_seconds.labels(key.run, key.task).observe(seconds)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Counts a request; `path` is one of the server's own, so that there are few."""
        self.requests.labels(path, status).inc()
        self.seconds.labels(path).observe(seconds)

    def summary(self) -> str:
        """Returns in words how the requests to the runs ended; those for the page, health and metrics are not counted."""
        counts = {"answered": 0, "refused": 0, "failed": 0, "left by their clients or cut off": 0}
        for sample in next(iter(self.requests.collect())).samples:
            if sample.name.endswith("_total") and sample.labels["path"].startswith(("/api/", "/v1/")):
                counts[outcome(int(sample.labels["status"]))] += int(sample.value)
        counted = [f"{count:,} {how}" for how, count in counts.items() if count]
        return f"requests: {', '.join(counted) or 'none'}"

    def watch(self, worker: Worker) -> None:
        """Reads the lengths of a worker's queues at each request for the metrics."""
        self.waiting.set_function(lambda: worker.num_waiting)
        self.streams.set_function(lambda: len(worker.streams))

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' format."""
        return generate_latest(self.registry)
