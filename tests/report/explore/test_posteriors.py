"""What the page has posteriors of."""

import runpy
from pathlib import Path

import pytest
import torch

import brctc
from brctc.report.explore.posteriors import (
    OTHERS,
    Posterior,
    appendix_b,
    of_model,
    plain_scores,
    synthetic,
    uniform,
)
from brctc.report.pictures import look_at, watched_logits
from brctc.report.runs import read_run

EXAMPLES = Path(__file__).parents[3] / "examples"


def loss_of(scores, targets, risk, **options):
    scores = scores.clone().requires_grad_()
    loss = brctc.bayes_risk_ctc_loss(
        scores, torch.tensor(targets), len(scores), len(targets), risk, **options
    )
    (gradient,) = torch.autograd.grad(loss, scores)
    return loss.item(), gradient


def test_toys_are_those_of_the_examples():
    drawn = runpy.run_path(str(EXAMPLES / "path_groups.py"))
    torch.testing.assert_close(appendix_b().scores.exp(), drawn["SCORES"])
    assert list(appendix_b().targets) == drawn["TARGET"]
    gradients = runpy.run_path(str(EXAMPLES / "gradients.py"))
    toy = uniform()
    assert toy.scores.shape == (gradients["T"], gradients["C"])
    _, gradient = loss_of(
        toy.scores.log_softmax(-1), list(toy.targets), brctc.EarlyFinish(10.0), reduction="sum"
    )
    torch.testing.assert_close(
        -gradient.float(), gradients["occupancy"](brctc.EarlyFinish(10.0)), rtol=0, atol=1e-5
    )


def test_the_made_up_word_is_said():
    """Its best path is the word, with both of its l's."""
    made = synthetic()
    best = made.scores.argmax(-1).unique_consecutive().tolist()
    assert "".join(made.classes[c] for c in best if c) == "hello"
    assert [made.classes[c] for c in made.targets] == list("hello")


def test_classes_that_are_summed_up_change_nothing(trained):
    """Loss and gradients of the utterance are those of all classes."""
    run = read_run("vanilla", trained.runs[0])
    index = 1
    logits = watched_logits(run.model, trained.test, index).double()
    look = look_at(run.model, trained.test, index)
    assert logits.argmax(-1).unique_consecutive().ne(0).sum() == len(look.tokens)
    found = of_model("vanilla", run.model, trained.test, index)
    assert found.classes[-1] == OTHERS
    assert len(found.classes) < logits.shape[1]
    text = trained.test.examples[index].texts["transcript"]
    assert "".join(found.classes[c] for c in found.targets) == text
    tokens = run.model.tokenizer.encode(text)
    risk = brctc.EarlyEmission(20.0)
    loss, gradient = loss_of(found.scores, list(found.targets), risk, from_logits=True)
    whole, all_gradients = loss_of(logits, tokens, risk, from_logits=True)
    assert loss == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(gradient[:, list(found.targets)], all_gradients[:, tokens])
    torch.testing.assert_close(gradient[:, 0], all_gradients[:, 0])
    rest = [c for c in range(1, logits.shape[1]) if c not in tokens]
    torch.testing.assert_close(gradient[:, -1], all_gradients[:, rest].sum(1))


def test_numbers_are_json():
    scores = torch.tensor([[0.1, -torch.inf], [-1e-9, 12345678.9]], dtype=torch.double)
    found = plain_scores(Posterior("a", "a", "", ["blank", "b"], scores, [1]))
    assert found == [[0.1, None], [-1e-9, 12345680.0]]
