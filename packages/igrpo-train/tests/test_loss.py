"""Loss: against a slow twin, exact policy gradients, and what padding must not change."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import Family
from torch import Tensor

from igrpo_train.config import Aggregation, Loss, RatioLevel
from igrpo_train.learn import loss as loss_module
from igrpo_train.learn.batch import Batch, collate
from igrpo_train.learn.loss import TokenLogprobs, aggregate, k3, policy_loss, token_logprobs
from igrpo_train.learn.packing import TurnRow

tiny_model = partial(tiny_models.tiny_model, initializer_range=0.5)


def random_rows(rng: np.random.Generator, num_rows: int) -> list[TurnRow]:
    rows = []
    for path in range(num_rows):
        context, response = rng.integers(1, 9), rng.integers(1, 6)
        row = TurnRow(
            question=0,
            path=path,
            turn=0,
            context_ids=tuple(rng.integers(1, 23, context).tolist()),
            response_ids=tuple(rng.integers(1, 23, response).tolist()),
            old_logprobs=tuple((-rng.uniform(0.1, 4, response)).tolist()),
            advantage=float(rng.normal()),
        )
        rows.append(row)
    return rows


def random_case(seed: int, num_rows: int = 4) -> tuple[Batch, TokenLogprobs, Tensor]:
    """Rows, log-probabilities that make every branch of the loss occur, and reference log-probabilities."""
    rng = np.random.default_rng(seed)
    batch = collate(random_rows(rng, num_rows), pad_id=0, dtype=torch.float64)
    shape = tuple(batch.sampled.shape)
    new = batch.old_logprobs + torch.from_numpy(rng.normal(0, 0.7, shape))
    reference = new + torch.from_numpy(rng.normal(0, 0.5, shape))
    return batch, TokenLogprobs(new, torch.from_numpy(rng.uniform(0.5, 3, shape))), reference


def slow_loss(new: TokenLogprobs, batch: Batch, config: Loss, reference: Tensor | None) -> float:
    """The loss of a whole minibatch, one token at a time, from the text of the papers."""
    row_terms: list[list[float]] = []
    for row in range(len(batch.advantages)):
        columns = [column for column in range(batch.sampled.shape[1]) if batch.sampled[row, column]]
        logs = [float(new.logprobs[row, column] - batch.old_logprobs[row, column]) for column in columns]
        advantage = float(batch.advantages[row])
        terms = []
        for column, own in zip(columns, logs, strict=True):
            ratio = math.exp(sum(logs) / len(logs) if config.ratio_level == "sequence" else own)
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            term = max(-advantage * ratio, -advantage * clipped)
            if advantage < 0 and config.dual_clip > 0:
                term = min(term, -advantage * config.dual_clip)
            if config.importance_cap:
                weight = math.exp(float(batch.old_logprobs[row, column] - batch.engine_logprobs[row, column]))
                term *= min(weight, config.importance_cap)
            if reference is not None:
                gap = float(reference[row, column] - new.logprobs[row, column])
                term += config.kl_coefficient * (math.exp(gap) - gap - 1)
            terms.append(term - config.entropy_coefficient * float(new.entropy[row, column]))
        row_terms.append(terms)
    if config.aggregation == "token_mean":
        return float(np.mean([term for terms in row_terms for term in terms]))
    return float(np.mean([np.mean(terms) for terms in row_terms]))


def loss_of(new: TokenLogprobs, batch: Batch, config: Loss, reference: Tensor | None = None) -> Tensor:
    """Loss of a minibatch that is one batch."""
    num_tokens, num_rows = int(batch.sampled.sum()), len(batch.advantages)
    return policy_loss(new, batch, config, num_tokens=num_tokens, num_rows=num_rows, reference=reference).loss


AGGREGATIONS: tuple[Aggregation, ...] = ("token_mean", "sequence_mean")
LEVELS: tuple[RatioLevel, ...] = ("token", "sequence")
CONFIGS = [
    Loss(
        aggregation=aggregation,
        ratio_level=level,
        dual_clip=dual,
        clip_high=0.28,
        entropy_coefficient=0.01,
        kl_coefficient=0.1,
    )
    for aggregation, level, dual in itertools.product(AGGREGATIONS, LEVELS, (0.0, 3.0))
]


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda config: f"{config.aggregation}-{config.ratio_level}-{config.dual_clip}"
)
def test_loss_equals_its_slow_twin(config: Loss) -> None:
    for seed in range(20):
        batch, new, reference = random_case(seed)
        for given_reference in (reference, None):
            expected = slow_loss(new, batch, config, given_reference)
            assert float(loss_of(new, batch, config, given_reference)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda config: f"{config.aggregation}-{config.ratio_level}-{config.dual_clip}"
)
def test_gradient_equals_finite_differences(config: Loss) -> None:
    batch, new, reference = random_case(3)
    shape = new.logprobs.shape

    def function(logprobs: Tensor, entropy: Tensor) -> Tensor:
        return loss_of(TokenLogprobs(logprobs.reshape(shape), entropy), batch, config, reference)

    leaves = (new.logprobs.clone().requires_grad_(True), new.entropy.clone().requires_grad_(True))
    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("cap", [1.0, 1.5, 1e6])
def test_engine_weights_multiply_the_policy_loss_of_each_token_and_nothing_else(cap: float) -> None:
    batch, new, reference = random_case(7)
    gap = torch.from_numpy(np.random.default_rng(1).normal(0, 0.7, batch.sampled.shape))
    batch = batch._replace(engine_logprobs=torch.where(batch.sampled, batch.old_logprobs - gap, 0.0))
    logprobs = new.logprobs.clone().requires_grad_(True)

    def value_and_gradient(config: Loss, batch: Batch) -> tuple[float, Tensor]:
        loss = loss_of(TokenLogprobs(logprobs, new.entropy), batch, config, reference)
        return float(loss.detach()), torch.autograd.grad(loss, logprobs)[0]

    # Without advantages the KL term is all that is left.
    worthless = batch._replace(advantages=torch.zeros_like(batch.advantages))

    for config in CONFIGS:
        value, gradient = value_and_gradient(replace(config, importance_cap=cap), batch)
        assert value == pytest.approx(slow_loss(new, batch, replace(config, importance_cap=cap), reference), rel=1e-12)
        plain, kl = value_and_gradient(config, batch)[1], value_and_gradient(config, worthless)[1]
        expected = kl + gap.exp().clamp(max=cap) * (plain - kl)
        torch.testing.assert_close(gradient, torch.where(batch.sampled, expected, 0.0), rtol=0, atol=1e-12)


def test_parts_of_a_minibatch_add_up_to_its_loss() -> None:
    batch, new, reference = random_case(5, num_rows=6)
    counts = {"num_tokens": int(batch.sampled.sum()), "num_rows": 6}
    for config in CONFIGS:
        whole = policy_loss(new, batch, config, **counts, reference=reference)
        parts = [
            policy_loss(
                TokenLogprobs(new.logprobs[part], new.entropy[part]),
                batch._replace(
                    sampled=batch.sampled[part],
                    old_logprobs=batch.old_logprobs[part],
                    advantages=batch.advantages[part],
                ),
                config,
                **counts,
                reference=reference[part],
            )
            for part in (slice(0, 2), slice(2, 6))
        ]
        assert float(parts[0].loss + parts[1].loss) == pytest.approx(float(whole.loss), rel=1e-12)
        for name in ("tokens", "clipped", "k3", "entropy", "difference"):
            total = sum(float(getattr(part.sums, name)) for part in parts)
            assert total == pytest.approx(float(getattr(whole.sums, name)), rel=1e-12)


def one_token(ratio: float, advantage: float, config: Loss) -> tuple[float, float, float]:
    """Loss, its gradient in the log-probability, and the clip count of one token."""
    row = TurnRow(
        question=0, path=0, turn=0, context_ids=(1,), response_ids=(2,), old_logprobs=(-1.0,), advantage=advantage
    )
    batch = collate([row], pad_id=0, dtype=torch.float64)
    logprobs = torch.tensor([[-1.0 + math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    new = TokenLogprobs(logprobs, torch.zeros_like(logprobs))
    output = policy_loss(new, batch, config, num_tokens=1, num_rows=1)
    output.loss.backward()
    assert logprobs.grad is not None
    return float(output.loss.detach()), float(logprobs.grad), float(output.sums.clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, 3.0, -2.0, -2.0, 0),
        (1.0, -2.0, 3.0, 2.0, 2.0, 0),
        (1.5, 2.0, 3.0, -2.4, 0.0, 1),
        (0.5, 2.0, 3.0, -1.0, -1.0, 0),
        (0.5, -2.0, 3.0, 1.6, 0.0, 1),
        (1.5, -2.0, 3.0, 3.0, 3.0, 0),
        # The dual clip bounds the loss of a bad token that became likely, and never touches a good one.
        (5.0, -2.0, 3.0, 6.0, 0.0, 1),
        (5.0, -2.0, 0.0, 10.0, 10.0, 0),
        (5.0, 2.0, 3.0, -2.4, 0.0, 1),
        (5.0, 0.0, 3.0, 0.0, 0.0, 0),
    ],
)
def test_clips_act_on_the_side_that_they_should(
    ratio: float, advantage: float, dual_clip: float, loss: float, gradient: float, clipped: int
) -> None:
    got = one_token(ratio, advantage, Loss(dual_clip=dual_clip))
    assert got == pytest.approx((loss, gradient, clipped), abs=1e-12)


def test_extreme_ratios_keep_the_gradient_finite() -> None:
    for log_ratio in (-300.0, 300.0):
        row = TurnRow(
            question=0, path=0, turn=0, context_ids=(1,), response_ids=(2,), old_logprobs=(0.0,), advantage=-1.0
        )
        logprobs = torch.tensor([[log_ratio]], requires_grad=True)
        output = policy_loss(
            TokenLogprobs(logprobs, torch.zeros(1, 1)), collate([row], pad_id=0), Loss(), num_tokens=1, num_rows=1
        )
        output.loss.backward()
        assert logprobs.grad is not None
        assert logprobs.grad.isfinite().all()


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_rows_of_a_shared_turn_equal_one_row_with_positive_and_negative_weight(seed: int, copies: int) -> None:
    rng = np.random.default_rng(seed)
    config = Loss(kl_coefficient=0.1)
    row = random_rows(rng, 1)[0]
    advantages = rng.normal(size=copies)
    batch = collate([row] * copies, pad_id=0, dtype=torch.float64)._replace(advantages=torch.from_numpy(advantages))
    log_ratio = rng.normal(0, 1, batch.sampled.shape[1])
    new_L = batch.old_logprobs[0] + torch.from_numpy(log_ratio)
    reference_L = new_L + torch.from_numpy(rng.normal(0, 0.5, len(new_L)))
    new = TokenLogprobs(new_L.expand(copies, -1), torch.zeros(batch.sampled.shape, dtype=torch.float64))
    got = loss_of(new, batch, config, reference_L.expand(copies, -1))

    ratio = np.exp(log_ratio)
    good, bad = advantages[advantages > 0].sum(), advantages[advantages < 0].sum()
    gain = good * np.minimum(ratio, 1 + config.clip_high)
    gain = gain + bad * np.minimum(np.maximum(ratio, 1 - config.clip_low), config.dual_clip)
    gap = (reference_L - new_L).numpy()
    cost = -gain + config.kl_coefficient * copies * (np.exp(gap) - gap - 1)
    assert float(got) == pytest.approx(cost.sum() / (copies * len(ratio)), rel=1e-10, abs=1e-12)


def test_gradient_is_the_exact_policy_gradient_of_a_softmax_policy() -> None:
    # One row an action, weighted by its probability: the loss's gradient is minus that of E[reward].
    logits_V = torch.tensor([0.3, -1.0, 0.7, 0.1], dtype=torch.float64, requires_grad=True)
    rewards_V = torch.tensor([1.0, 0.0, -0.5, 2.0], dtype=torch.float64)
    probabilities_V = logits_V.softmax(0)
    exact = torch.autograd.grad((probabilities_V * rewards_V).sum(), logits_V)[0]
    logprobs_V = logits_V.log_softmax(0)
    rows = [
        TurnRow(
            question=0,
            path=action,
            turn=0,
            context_ids=(1,),
            response_ids=(action,),
            old_logprobs=(float(logprobs_V[action].detach()),),
            advantage=float((probabilities_V[action] * rewards_V[action]).detach()),
        )
        for action in range(4)
    ]
    batch = collate(rows, pad_id=0, dtype=torch.float64)
    new = TokenLogprobs(logprobs_V[:, None], torch.zeros(4, 1, dtype=torch.float64))
    for config in CONFIGS:
        plain = Loss(aggregation=config.aggregation, ratio_level=config.ratio_level, dual_clip=config.dual_clip)
        loss = policy_loss(new, batch, plain, num_tokens=1, num_rows=1).loss
        gradient = torch.autograd.grad(loss, logits_V, retain_graph=True)[0]
        torch.testing.assert_close(gradient, -exact, rtol=0, atol=1e-12)


def test_k3_is_never_negative_and_its_mean_is_the_divergence() -> None:
    gap = torch.cat([torch.linspace(-30, 30, 10_001), torch.logspace(-12, 0, 1_000), -torch.logspace(-12, 0, 1_000)])
    for dtype in (torch.float32, torch.float64):
        values = k3(torch.zeros(len(gap), dtype=dtype), gap.to(dtype))
        assert float(values.min()) >= 0
        assert values.isfinite().all()
    new_V = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64).log_softmax(0)
    reference_V = torch.tensor([0.1, 0.4, -0.2], dtype=torch.float64).log_softmax(0)
    exact = (new_V.exp() * (new_V - reference_V)).sum()
    torch.testing.assert_close((new_V.exp() * k3(new_V, reference_V)).sum(), exact, rtol=0, atol=1e-14)


def test_aggregation_ignores_what_is_masked() -> None:
    values, mask = torch.tensor([[1.0, math.nan], [math.inf, 5.0]]), torch.tensor([[True, False], [False, True]])
    assert float(aggregate(values, mask, "token_mean", num_tokens=2, num_rows=2)) == 3
    assert float(aggregate(values, mask, "sequence_mean", num_tokens=2, num_rows=2)) == 3


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs_equal_the_plain_forward_pass(
    family: Family, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK_TOKENS", 3)
    model = tiny_model(family)
    rows = random_rows(np.random.default_rng(2), 5)
    got = token_logprobs(model, collate(rows, pad_id=0, dtype=torch.float64), temperature)
    for index, row in enumerate(rows):
        logits_TV = model(torch.tensor([row.context_ids + row.response_ids])).logits[0] / temperature
        start, stop = len(row.context_ids), row.num_tokens
        full_LV = logits_TV[start - 1 : stop - 1].log_softmax(-1)
        expected_L = full_LV[range(stop - start), row.response_ids]
        torch.testing.assert_close(got.logprobs[index, : stop - start], expected_L, rtol=0, atol=1e-12)
        entropy_L = torch.distributions.Categorical(logits=full_LV).entropy()
        torch.testing.assert_close(got.entropy[index, : stop - start], entropy_L, rtol=0, atol=1e-12)
        assert not got.logprobs[index, stop - start :].any()


def test_the_vocabulary_is_scored_only_where_something_was_sampled() -> None:
    model = tiny_model("qwen2")
    rows = random_rows(np.random.default_rng(4), 6)
    seen: list[int] = []
    handle = model.get_output_embeddings().register_forward_hook(lambda _m, _a, out: seen.append(out.numel() // 23))
    token_logprobs(model, collate(rows, pad_id=0, dtype=torch.float64), 1.0)
    handle.remove()
    assert seen == [sum(len(row.response_ids) for row in rows)]
    # The hook is gone: a plain forward pass scores every column again.
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 23)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_padding_changes_neither_loss_nor_gradient(family: Family) -> None:
    rows = random_rows(np.random.default_rng(6), 4)
    num_tokens = sum(len(row.response_ids) for row in rows)

    def gradients(batches: list[list[TurnRow]], pad_id: int) -> list[Tensor]:
        model = tiny_model(family)
        for part in batches:
            batch = collate(part, pad_id, dtype=torch.float64)
            new = token_logprobs(model, batch, 1.0)
            policy_loss(new, batch, Loss(), num_tokens=num_tokens, num_rows=len(rows)).loss.backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    alone = gradients([[row] for row in rows], pad_id=0)
    for padded in (gradients([rows], pad_id=0), gradients([rows[::-1]], pad_id=22)):
        assert len(padded) == len(alone)
        for one, other in zip(alone, padded, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
