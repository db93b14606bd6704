"""Manifests, features, augmentation, tokens, batches and the corpora built in."""
