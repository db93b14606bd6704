"""Which search a method means, for every kind of system."""

import pytest

from brctc.decode.methods import SEARCHES, WITH_BEAM, choose_search, decoder_of
from brctc.models import AttentionConfig, SystemConfig, TransducerConfig

ATTENTION, TRANSDUCER = AttentionConfig(), TransducerConfig()
CTC = SystemConfig()
HYBRID = SystemConfig(decoders={"any-name": ATTENTION})
HEARD = SystemConfig(decoders={"attention": TRANSDUCER})
BOTH = SystemConfig(decoders={"t": TRANSDUCER, "a": ATTENTION})


@pytest.mark.parametrize("method", ["auto", None])
@pytest.mark.parametrize(
    ("system", "search"),
    [(CTC, "ctc-greedy"), (HYBRID, "attention"), (HEARD, "transducer"), (BOTH, "attention")],
)
def test_auto_takes_the_decoder_that_there_is(method, system, search):
    assert choose_search(method, system) == search


@pytest.mark.parametrize("method", SEARCHES)
def test_a_search_is_itself_or_refused(method):
    """By the kinds of the decoders; their names do not count."""
    assert choose_search(method, BOTH) == method
    for system in (CTC, HYBRID, HEARD):
        kinds = {decoder.kind for decoder in system.decoders.values()} | {None}
        if decoder_of(method) in kinds:
            assert choose_search(method, system) == method
        else:
            with pytest.raises(ValueError, match=f'method is "{method}", but the model has no such decoder'):
                choose_search(method, system)


def test_ctc_is_short_for_greedy():
    assert {choose_search("ctc", system) for system in (CTC, HYBRID, HEARD, BOTH)} == {"ctc-greedy"}


def test_decoders_of_other_texts_do_not_count():
    other = SystemConfig(decoders={"d": ATTENTION.model_copy(update={"text": "translation"})})
    assert choose_search("auto", other) == "ctc-greedy"
    with pytest.raises(ValueError, match='method is "attention", but the model has no such decoder'):
        choose_search("attention", other)
    assert choose_search("auto", other.model_copy(update={"output": "translation"})) == "attention"


def test_unknown_methods():
    for method in ("viterbi", "greedy", ""):
        with pytest.raises(ValueError, match=f"method is '{method}', expected one of auto, ctc, ctc-greedy"):
            choose_search(method, BOTH)


def test_what_searches_need():
    needed = {"ctc-greedy": None, "ctc-beam": None, "attention": "attention"}
    needed |= {"transducer": "transducer", "transducer-greedy": "transducer"}
    assert {search: decoder_of(search) for search in SEARCHES} == needed
    assert all({greedy, beam} <= set(SEARCHES) for greedy, beam in WITH_BEAM.items())
    assert all(decoder_of(greedy) == decoder_of(beam) for greedy, beam in WITH_BEAM.items())
