"""From the encoder's output to text."""

from brctc.extras import check_extra

check_extra()


from brctc.decode.attention_beam import attention_beam
from brctc.decode.ctc import ctc_frames, ctc_greedy, ctc_prefix_beam
from brctc.decode.ctc_prefix import CTCPrefixScorer, PrefixState
from brctc.decode.endpoint import EndpointRules
from brctc.decode.greedy_stream import Segment, StreamedToken
from brctc.decode.hypothesis import Hypothesis
from brctc.decode.output import write_ctm, write_jsonl, write_srt, write_textgrid
from brctc.decode.recognizer import Recognizer
from brctc.decode.result import Alternative, Result
from brctc.decode.simulation import Clock, RealClock, SimulatedClock, play
from brctc.decode.streaming import (
    OnlineRecognizer,
    PushError,
    StreamingRecognizer,
    flush_together,
    push_together,
)
from brctc.decode.transducer import transducer_beam, transducer_frames, transducer_greedy

__all__ = [
    "CTCPrefixScorer",
    "Clock",
    "Alternative",
    "EndpointRules",
    "Hypothesis",
    "OnlineRecognizer",
    "PrefixState",
    "PushError",
    "RealClock",
    "Recognizer",
    "Result",
    "Segment",
    "SimulatedClock",
    "StreamedToken",
    "StreamingRecognizer",
    "attention_beam",
    "ctc_frames",
    "ctc_greedy",
    "ctc_prefix_beam",
    "flush_together",
    "play",
    "push_together",
    "transducer_beam",
    "transducer_frames",
    "transducer_greedy",
    "write_ctm",
    "write_jsonl",
    "write_srt",
    "write_textgrid",
]
