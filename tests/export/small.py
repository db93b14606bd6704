"""Small untrained models that say a lot, and recordings for them."""

from types import SimpleNamespace

import torch

from brctc.data import FeatureConfig, Row, TokenConfig, Tokenizer, extract_features, pad, write_manifest
from brctc.models import Model, System, SystemConfig, TrimConfig, save_model
from tests.data.sounds import write
from tests.decode.streams import sound
from tests.models.toys import finish_early

WORDS = "zero one two three four five"
SIZES = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "kernel_size": 3, "subsampling_channels": 3}
OFFLINE = {"kind": "conformer", "first_layers": 1, "second_layers": 1, "positions": "sinusoidal", **SIZES}
CONTEXTS = {"chunk_frames": 3, "left_context_frames": 4, "right_context_frames": 2, "memory_size": 2}
ONLINE = {"kind": "emformer", "layers": 2, **SIZES, **CONTEXTS}
ATTENTION = {"kind": "attention", "layers": 2, "dim": 12, "heads": 2, "feed_forward_dim": 20}
TRANSDUCER = {"kind": "transducer", "prediction_dim": 10, "prediction_layers": 2, "joint_dim": 14}
TRIM = TrimConfig(threshold=0.3, margin=1)


def small_model(encoder=OFFLINE, trim=None, features=None, texts=None, seed=1, **system) -> Model:
    """`texts` are those of the vocabularies, by name."""
    torch.manual_seed(seed)
    texts = texts or {"transcript": WORDS}
    tokenizers = {text: Tokenizer.train([said], TokenConfig(kind="word")) for text, said in texts.items()}
    sizes = {text: tokenizer.size for text, tokenizer in tokenizers.items()}
    config = SystemConfig.model_validate({"encoder": encoder, **system})
    heard = config.encoder.input == "frames"
    features = features or FeatureConfig() if heard else None
    made = System(config, features.dim if features else sizes["source"], sizes)
    spread = 0.2 * (16 / config.encoder.dim) ** 0.5  # a sum of more terms is no larger, nor is its rounding
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
        for head in made.heads.values():
            head.weight.mul_(3)  # frames that differ a little shall say something else
    if features:
        known = torch.from_numpy(extract_features(sound(9), features))
        if config.normalisation == "global":
            made.set_statistics(known.mean(0), known.std(0))
        if trim is not None:
            finish_early(made, SimpleNamespace(source=pad([known, known[:160], known[60:]])))
    return Model(made.eval(), tokenizers, features, trim, {})


def save(model: Model, folder) -> None:
    system, recipe = model.system, {"corpus": {"source": str(folder)}, "decode": {"beam": 3}}
    save_model(folder, system, model.tokenizers, model.features, model.trim, {"recipe": recipe})


def recordings(folder, count=3):
    """Files of noise whose level changes, and a manifest of them."""
    rows = []
    for i in range(count):
        path = write(folder / f"u{i}.wav", sound(i, 1.0 + 0.7 * i))
        rows.append(Row(f"u{i}", "one two", path, 1.0 + 0.7 * i))
    write_manifest(folder / "test.tsv", rows)
    return [row.path for row in rows]
