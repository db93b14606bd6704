"""Audio as the sound card records it (the extra `mic`)."""

from collections.abc import Callable, Iterator

import numpy as np

from brctc.extras import check_extra

BLOCK_S = 0.01


def record(sample_rate: int, tell_lost: Callable[[], object]) -> Iterator[np.ndarray]:
    """Blocks of 10 ms of mono samples in [-1, 1] from the default microphone, as long as they are asked for.

    Who asks too late gets what was recorded meanwhile. What the sound card could not keep is lost: nobody
    knows how much, but `tell_lost` is called before the first block behind the gap.
    """
    check_extra(("sounddevice",), "mic")
    try:
        import sounddevice
    except OSError as error:  # the package is there, the system's library is not
        raise OSError(f"{error}: a microphone needs PortAudio (Debian: apt install libportaudio2)") from None
    block = round(BLOCK_S * sample_rate)
    try:
        stream = sounddevice.InputStream(sample_rate, block, channels=1, dtype="float32")
    except (sounddevice.PortAudioError, ValueError) as error:
        raise OSError(f"there is no microphone that records {sample_rate} Hz: {error}") from None
    with stream:
        while True:
            samples, overflowed = stream.read(block)
            if overflowed:
                tell_lost()
            yield samples[:, 0]
