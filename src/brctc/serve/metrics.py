"""What a server counts, for Prometheus."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""Where several processes add up what they count, if this variable of the environment names it."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
LATENCIES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 3, 5)


class Metrics:
    """Of one process; `text` shows those of all of them."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.streams = Gauge(
            "brctc_streams", "Open now.", ["protocol"], registry=registry, multiprocess_mode="livesum"
        )
        self.opened = Counter("brctc_streams_opened", "Since the start.", ["protocol"], registry=registry)
        self.refusals = Counter(
            "brctc_refusals", "Refused or closed, and why.", ["reason"], registry=registry
        )
        self.audio = Counter("brctc_audio_seconds", "Heard.", ["model"], registry=registry)
        self.tokens = Counter("brctc_tokens", "Said.", ["model"], registry=registry)
        sizes = (1, 2, 4, 8, 16, 32, 64)
        self.batch = Histogram("brctc_batch_size", "Streams of a turn.", buckets=sizes, registry=registry)
        self.step = Histogram("brctc_step_seconds", "What a turn takes.", buckets=SECONDS, registry=registry)
        self.queue = Histogram(
            "brctc_queue_seconds", "How long audio waits for its turn.", buckets=SECONDS, registry=registry
        )
        self.spike = Histogram(
            "brctc_spike_to_send_seconds",
            "From the arrival of the audio under a token's spike until the token is sent.",
            buckets=LATENCIES,
            registry=registry,
        )
        self.end = Histogram(
            "brctc_end_of_sentence_seconds",
            "From the end of a segment's last token, in audio, until the segment's end is known.",
            buckets=LATENCIES,
            registry=registry,
        )

    def text(self) -> bytes:
        """As Prometheus reads it."""
        if os.environ.get(SHARED_DIRECTORY):
            shared = CollectorRegistry()
            MultiProcessCollector(shared)
            return generate_latest(shared)
        return generate_latest(self._registry)
