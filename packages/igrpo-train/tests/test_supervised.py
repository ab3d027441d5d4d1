"""The supervised loop: loss on responses only, whatever the batch looks like."""

import math
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_train.learn.supervised import (
    SupervisedRow,
    SupervisedSettings,
    bucket_batches,
    pad_rows,
    supervised_loss,
    train_supervised,
)


def _rows(count, seed=0, vocabulary=200):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        context, response = rng.integers(1, 12), rng.integers(1, 6)
        rows.append(
            SupervisedRow(
                context_ids=tuple(rng.integers(1, vocabulary, context).tolist()),
                response_ids=tuple(rng.integers(1, vocabulary, response).tolist()),
                weights=(*rng.choice([0.0, 1.0, 4.0], response - 1).tolist(), 1.0),
            )
        )
    return rows


def _plain_loss(model, rows):
    """One row at a time, one token at a time, from the full logits."""
    import torch

    total = weight = 0.0
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.context_ids + row.response_ids])).logits[0].double()
        for i, (token, w) in enumerate(zip(row.response_ids, row.weights, strict=True)):
            total -= w * torch.log_softmax(logits[len(row.context_ids) + i - 1], dim=-1)[token].item()
            weight += w
    return total / weight


def test_the_loss_is_the_weighted_mean_over_response_tokens(toy_model):
    rows = _rows(7)
    assert supervised_loss(toy_model, pad_rows(rows, 0)).item() == pytest.approx(_plain_loss(toy_model, rows), abs=1e-5)


def test_padding_does_not_change_the_loss(toy_model):
    rows = _rows(5, seed=1)
    padded = pad_rows(rows, 0)
    other = pad_rows(rows, 3)
    assert supervised_loss(toy_model, padded).item() == pytest.approx(
        supervised_loss(toy_model, other).item(), abs=1e-6
    )


def test_gradients_of_a_batch_are_the_weighted_mean_of_its_rows(toy_model):
    import torch

    rows = _rows(4, seed=2)
    parameters = list(toy_model.parameters())
    weights = [sum(row.weights) for row in rows]
    together = torch.autograd.grad(supervised_loss(toy_model, pad_rows(rows, 0)), parameters)
    apart = [torch.autograd.grad(supervised_loss(toy_model, pad_rows([row], 0)), parameters) for row in rows]
    for i, gradient in enumerate(together):
        mean = sum(w * row[i] for w, row in zip(weights, apart, strict=True)) / sum(weights)
        torch.testing.assert_close(gradient, mean, atol=2e-6, rtol=1e-4)


@given(count=st.integers(1, 60), max_tokens=st.integers(1, 90), seed=st.integers(0, 1000))
def test_batches_hold_every_row_once_within_the_budget(count, max_tokens, seed):
    rows = _rows(count, seed)
    batches = bucket_batches(rows, max_tokens, np.random.default_rng(seed))
    assert sorted(row for batch in batches for row in batch) == sorted(rows)
    for batch in batches:
        padded = len(batch) * max(row.num_tokens for row in batch)
        assert padded <= max_tokens or len(batch) == 1


def test_batches_repeat_with_their_generator():
    rows = _rows(30)
    first, again, other = (bucket_batches(rows, 40, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_training_learns_a_row_by_heart(toy_model):
    import copy

    model = copy.deepcopy(toy_model)
    rows = _rows(3, seed=4)
    steps = []
    losses = train_supervised(
        model,
        repeat(rows),
        SupervisedSettings(learning_rate=0.01, steps=40, warmup_steps=5),
        pad_id=0,
        on_step=lambda step, loss: steps.append((step, loss)),
    )
    assert losses[-1] < 0.2 * losses[0]
    assert steps == list(enumerate(losses, start=1))
    assert not model.training


def test_too_few_batches_are_refused(toy_model):
    import copy

    settings = SupervisedSettings(learning_rate=1e-3, steps=3)
    with pytest.raises(ValueError, match="steps asks for 3 batches, got 2: give more rows or fewer steps"):
        train_supervised(copy.deepcopy(toy_model), [_rows(2), _rows(2)], settings, pad_id=0)


@given(steps=st.integers(1, 300), warmup=st.integers(0, 50), decay=st.floats(0.01, 1))
def test_the_rate_stays_between_zero_and_its_peak(steps, warmup, decay):
    settings = SupervisedSettings(learning_rate=2.0, steps=steps, warmup_steps=warmup, decay_share=decay)
    rates = [settings.rate(step) for step in range(steps)]
    assert all(0 < rate <= 2.0 and math.isfinite(rate) for rate in rates)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("steps", 0, "steps must be at least 1, got 0"),
        ("learning_rate", 0.0, "learning_rate must be finite and above 0, got 0.0"),
    ],
)
def test_senseless_settings_are_refused(field, value, text):
    with pytest.raises(ValueError, match=text):
        SupervisedSettings(**{"learning_rate": 1e-3, "steps": 1, field: value})
