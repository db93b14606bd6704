"""What a decoder of translations looks at, drawn where the frames are."""

import numpy as np
import pytest
import torch

from brctc.data import Prepared, Row, pad
from brctc.decode import Recognizer
from brctc.decode.methods import recipe_search
from brctc.models import load_model
from brctc.models.phases import phase_order
from brctc.report.pictures import decoder_attention
from brctc.train import train
from tests.train.translations import mt_recipe


@pytest.fixture(scope="module", params=[1, 3])
def translator(request, tmp_path_factory):
    """A tiny system, with frames in order and in phases, that keeps some frames and drops others."""
    folder = tmp_path_factory.mktemp("translator")
    recipe = mt_recipe(folder)
    encoder = recipe.model.encoder.model_dump() | {"phases": request.param}
    model = recipe.model.model_dump() | {"encoder": encoder}
    directory = train(mt_recipe(folder, model=model), folder / "run", progress=False)
    return load_model(directory), Prepared(folder / "prepared", "test"), request.param


def test_attention_is_where_the_frames_are(translator):
    model, prepared, phases = translator
    found = 0
    for index, example in enumerate(prepared.examples):
        drawn = decoder_attention(model, prepared, index)
        assert drawn is not None
        weights, labels = drawn
        tokens = model.tokenizers["source"].encode(example.texts["source"])
        encoded = model.system.encode(pad([torch.tensor(tokens)]), model.trim)
        memory, total = encoded.memory("attention"), 3 * len(tokens)
        kept = int(memory.lengths[0])
        assert weights.shape == (len(labels), total)
        if not labels:
            continue
        found += 0 < kept < total
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
        assert (weights[:, kept:] == 0).all()
        row = Row(example.id, example.texts["source"])
        (result,) = Recognizer(model).recognize([row], times=False, **recipe_search(model.description))
        labelled = torch.tensor([result.tokens])
        expected = model.system.decoders["attention"].attention_weights(memory, labelled)[0].mean((0, 1))
        frames = phase_order(total, phases)[:kept]
        for place, frame in enumerate(frames):
            rank = sorted(frames).index(frame)  # behind trimming, frames are in order
            np.testing.assert_allclose(weights[:, place], expected[:-1, rank], rtol=1e-5)
    assert found, "nothing was trimmed: this test has seen nothing"
