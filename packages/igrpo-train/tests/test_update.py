"""Update: what must not change the gradient, what must not be applied, and one process against two."""

import io
import json
import logging
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tiny_models import Family, tiny_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from igrpo_train.config import Loss, Optimiser
from igrpo_train.learn.batch import collate
from igrpo_train.learn.loss import token_logprobs
from igrpo_train.learn.packing import TurnRow
from igrpo_train.learn.update import Updater

PLAIN = Loss(kl_coefficient=0.0)


def random_rows(seed: int = 0, num_questions: int = 6) -> list[TurnRow]:
    """Rows of several questions, 2 to 5 each, a third of them with advantage 0."""
    rng = np.random.default_rng(seed)
    rows = []
    for question in range(num_questions):
        for path in range(rng.integers(2, 6)):
            context, response = rng.integers(1, 9), rng.integers(1, 6)
            row = TurnRow(
                question=question,
                path=path,
                turn=0,
                context_ids=tuple(rng.integers(1, 23, context).tolist()),
                response_ids=tuple(rng.integers(1, 23, response).tolist()),
                old_logprobs=tuple((-rng.uniform(2, 4, response)).tolist()),
                advantage=0.0 if rng.random() < 1 / 3 else float(rng.normal()),
            )
            rows.append(row)
    return rows


def with_own_logprobs(rows: list[TurnRow], model: PreTrainedModel) -> list[TurnRow]:
    """The same rows as if the model had sampled them."""
    own = []
    for row in rows:
        with torch.no_grad():
            logprobs = token_logprobs(model, collate([row], 0, dtype=torch.float64), 1.0).logprobs
        own.append(replace(row, old_logprobs=tuple(logprobs[0].tolist())))
    return own


def make_updater(
    model: nn.Module,
    reference: nn.Module | None = None,
    loss: Loss = PLAIN,
    total_steps: int = 10,
    **optimiser: Any,
) -> Updater:
    settings = {"learning_rate": 0.01, "warmup_fraction": 0.0, "gradient_clip": 1e9, "update_rows": 1000, **optimiser}
    return Updater(Accelerator(cpu=True), model, reference, Optimiser(**settings), loss, total_steps, 1.0, 0)


def gradient_of(
    updater: Updater, rows: list[TurnRow], monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, dict[str, float]]:
    """The gradient that the last optimiser step of an update would have used, without stepping."""
    taken: list[Tensor] = []

    def record() -> None:
        taken.append(torch.cat([p.grad.flatten().clone() for p in updater.model.parameters() if p.grad is not None]))

    with monkeypatch.context() as patch:
        patch.setattr(updater.optimiser, "step", record)
        metrics = updater.update(rows, step_key=5)
    return taken[-1], metrics


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


LOSSES = [
    Loss(kl_coefficient=0.1, entropy_coefficient=0.01),
    Loss(kl_coefficient=0.0, aggregation="sequence_mean", ratio_level="sequence"),
]


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("loss", LOSSES, ids=["token", "sequence"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_micro_batch_size_and_row_order_do_not_change_the_gradient(
    family: Family, loss: Loss, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows()

    def gradient(rows: list[TurnRow], tokens_per_micro_batch: int) -> Tensor:
        model, reference = tiny_model(family, dtype), tiny_model(family, dtype, seed=2)
        updater = make_updater(model, reference, loss, tokens_per_micro_batch=tokens_per_micro_batch)
        return gradient_of(updater, rows, monkeypatch)[0]

    whole = gradient(rows, 10_000)
    assert float(whole.norm()) > 0
    for other in (gradient(rows, 1), gradient(rows, 30), gradient(rows[::-1], 50)):
        assert float((other - whole).norm() / whole.norm()) < tolerance


def test_the_gradient_is_the_policy_gradient_at_the_sampling_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    rows = with_own_logprobs(random_rows(), model)
    twin = tiny_model()
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logits = twin(torch.tensor([row.context_ids + row.response_ids])).logits[0].log_softmax(-1)
        for offset, token in enumerate(row.response_ids):
            total = total - row.advantage * logits[len(row.context_ids) - 1 + offset, token]
    (total / sum(len(row.response_ids) for row in rows)).backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
    gradient, metrics = gradient_of(make_updater(model), rows, monkeypatch)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)
    assert metrics["update/gradient_norm"] == pytest.approx(float(expected.norm()), rel=1e-9)
    assert metrics["update/logprob_difference"] < 1e-12
    assert metrics["update/clip_fraction"] == 0


@pytest.mark.parametrize("packing", ["tree", "path"])
@pytest.mark.parametrize("update_rows", [1000, 8], ids=["one step", "several steps"])
def test_engine_weights_stand_between_the_engine_and_the_policy_before_its_first_update(
    packing: str, update_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no learning, every minibatch weighs its rows with the same old policy, whatever came before it."""
    rows, cap = random_rows(), 1.5
    loss = replace(PLAIN, old_logprobs="policy", importance_cap=cap, clip_high=100.0, clip_low=1.0, dual_clip=0.0)
    seen: list[list[TurnRow]] = []
    updater = make_updater(tiny_model(), loss=loss, packing=packing, update_rows=update_rows, tokens_per_micro_batch=40)
    optimise = updater._optimise
    monkeypatch.setattr(
        updater, "_optimise", lambda group, *, own: (seen.append(list(group)), optimise(group, own=own))[1]
    )
    gradient, metrics = gradient_of(updater, rows, monkeypatch)
    assert len(seen) == metrics["update/steps"] == (1 if update_rows == 1000 else 2)
    last = {row.identity for row in seen[-1]}
    twin, total = tiny_model(), torch.zeros((), dtype=torch.float64)
    weights = []
    for row in (row for row in rows if row.identity in last):
        logits = twin(torch.tensor([row.context_ids + row.response_ids])).logits[0].log_softmax(-1)
        for offset, (token, engine) in enumerate(zip(row.response_ids, row.old_logprobs, strict=True)):
            own = logits[len(row.context_ids) - 1 + offset, token]
            weights.append(min(math.exp(float(own.detach()) - engine), cap))
            total = total - row.advantage * weights[-1] * own
    assert min(weights) < 1 < max(weights) == cap
    (total / len(weights)).backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


def test_rows_without_advantage_are_counted_but_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows()
    updater = make_updater(tiny_model())
    gradient, metrics = gradient_of(updater, rows, monkeypatch)
    idle = sum(row.advantage == 0 for row in rows)
    assert 0 < idle < len(rows)
    assert metrics["update/rows"] == len(rows)
    assert metrics["update/rows_skipped"] == idle
    assert metrics["update/tokens"] == sum(len(row.response_ids) for row in rows)
    monkeypatch.setattr(Updater, "_needs_forward", lambda *_: True)
    full, full_metrics = gradient_of(make_updater(tiny_model()), rows, monkeypatch)
    torch.testing.assert_close(gradient, full, rtol=0, atol=1e-12)
    assert full_metrics["update/loss"] == pytest.approx(metrics["update/loss"], rel=1e-9)
    assert full_metrics["update/rows_skipped"] == 0


def test_a_minibatch_without_any_advantage_still_moves_by_momentum() -> None:
    idle = [replace(row, advantage=0.0) for row in random_rows(1)]

    def weights_after(force: bool) -> Tensor:
        updater = make_updater(tiny_model())
        updater.update(random_rows(0), step_key=1)
        before = weights_of(updater.model)
        with pytest.MonkeyPatch.context() as patch:
            if force:
                patch.setattr(Updater, "_needs_forward", lambda *_: True)
            metrics = updater.update(idle, step_key=2)
        after = weights_of(updater.model)
        assert not torch.equal(before, after)
        assert metrics["update/steps"] == 1
        assert metrics["update/loss"] == 0
        return after

    torch.testing.assert_close(weights_after(False), weights_after(True), rtol=0, atol=1e-14)


def test_rows_without_advantage_still_feel_the_kl_term(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [replace(row, advantage=0.0) for row in random_rows()]
    updater = make_updater(tiny_model(), tiny_model(seed=2), Loss(kl_coefficient=0.5))
    gradient, metrics = gradient_of(updater, rows, monkeypatch)
    assert float(gradient.norm()) > 0
    assert metrics["update/rows_skipped"] == 0
    assert metrics["update/kl"] > 0
    assert metrics["update/loss"] == pytest.approx(0.5 * metrics["update/kl"], rel=1e-9)


def test_kl_to_the_starting_policy_is_zero_at_the_start() -> None:
    updater = make_updater(tiny_model(), tiny_model(), Loss(kl_coefficient=0.1))
    assert updater.update(random_rows(), step_key=0)["update/kl"] == 0
    assert updater.update(random_rows(), step_key=1)["update/kl"] > 0
    assert updater.reference is not None
    assert torch.equal(weights_of(updater.reference), weights_of(tiny_model()))


def test_an_update_makes_good_responses_likelier_and_bad_ones_less_likely() -> None:
    model = tiny_model()
    rows = with_own_logprobs(random_rows(), model)
    metrics = make_updater(model, learning_rate=1e-3).update(rows, step_key=0)
    gain = 0.0
    for before, after in zip(rows, with_own_logprobs(rows, model), strict=True):
        gain += before.advantage * (sum(after.old_logprobs) - sum(before.old_logprobs))
    assert gain > 0
    assert metrics["update/nonfinite"] == 0
    assert not model.training


def test_updates_are_cut_at_questions_into_steps_of_about_update_rows() -> None:
    rows = random_rows(num_questions=12)
    metrics = make_updater(tiny_model(), update_rows=10).update(rows, step_key=0)
    assert metrics["update/steps"] == round(len(rows) / 10) > 2


def test_the_gradient_is_clipped_and_its_norm_is_reported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient, metrics = gradient_of(make_updater(tiny_model(), gradient_clip=1e-3), random_rows(), monkeypatch)
    assert float(gradient.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert metrics["update/gradient_norm"] > 1e-2


def test_learning_rate_warms_up_over_training_steps_and_stays() -> None:
    updater = make_updater(tiny_model(), total_steps=20, warmup_fraction=0.2, learning_rate=0.4, update_rows=5)
    rates = [updater.update(random_rows(seed), step_key=seed)["update/learning_rate"] for seed in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert updater.optimiser.param_groups[0]["lr"] == pytest.approx(0.4)
    assert make_updater(tiny_model()).learning_rate(0) == 0.01


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_minibatch_that_is_not_finite_is_never_applied(bad: float, caplog: pytest.LogCaptureFixture) -> None:
    rows = random_rows()
    sick = [replace(rows[0], advantage=bad), *rows[1:]]
    updater = make_updater(tiny_model())
    before = weights_of(updater.model)
    with caplog.at_level(logging.WARNING, logger="igrpo_train.learn.update"):
        metrics = updater.update(sick, step_key=0)
    assert metrics["update/nonfinite"] == 1
    assert metrics["update/steps"] == 0
    assert math.isnan(metrics["update/loss"])
    assert torch.equal(weights_of(updater.model), before)
    assert "skipped an optimiser step" in caplog.text
    # The next update is as if nothing had happened.
    updater.update(rows, step_key=1)
    fresh = make_updater(tiny_model())
    fresh.update(rows, step_key=1)
    assert torch.equal(weights_of(updater.model), weights_of(fresh.model))


def test_a_step_without_rows_changes_nothing_and_counts_as_a_step() -> None:
    updater = make_updater(tiny_model())
    before = weights_of(updater.model)
    metrics = updater.update([], step_key=0)
    assert updater.step == 1
    assert torch.equal(weights_of(updater.model), before)
    assert metrics["update/rows"] == metrics["update/steps"] == metrics["update/nonfinite"] == 0


def test_weights_in_half_precision_are_widened_so_that_small_steps_count() -> None:
    updater = make_updater(tiny_model().bfloat16(), learning_rate=1e-6)
    before = weights_of(updater.model)
    updater.update(random_rows(), step_key=0)
    assert before.dtype == torch.float32
    assert float((weights_of(updater.model) != before).double().mean()) > 0.9


def test_a_kl_term_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loss\.kl_coefficient must be 0 without a reference model, got 0\.001"):
        make_updater(tiny_model(), None, Loss())


@pytest.mark.parametrize("loss", LOSSES, ids=["kl", "plain"])
def test_an_updater_restored_from_its_state_makes_bitwise_the_same_update(loss: Loss) -> None:
    reference = tiny_model(seed=2)
    straight = make_updater(tiny_model(), reference, loss, warmup_fraction=0.5, update_rows=6)
    for step in range(2):
        straight.update(random_rows(step), step_key=step)
    state, weights = straight.state_dict(), {k: v.clone() for k, v in straight.model.state_dict().items()}
    state = torch.load(_saved(state), weights_only=True)
    expected = straight.update(random_rows(2), step_key=2)

    resumed = make_updater(tiny_model(seed=9), reference, loss, warmup_fraction=0.5, update_rows=6)
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.update(random_rows(2), step_key=2) == expected
    assert torch.equal(weights_of(resumed.model), weights_of(straight.model))


def _saved(state: dict[str, Any]) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


def test_gradient_checkpointing_computes_layers_twice_and_changes_nothing() -> None:
    # Dropout would show: checkpointing asks for training mode, and the policy that sampled had none.
    models = [tiny_model(attention_dropout=0.5) for _ in range(2)]
    calls = [0, 0]
    metrics = []
    for k, model in enumerate(models):

        def count(*_: Any, k: int = k) -> None:
            calls[k] += 1

        updater = make_updater(model, None, PLAIN, gradient_checkpointing=bool(k))
        # Inside the layer: its own hooks are run by a first pass only where it is not wrapped.
        model.model.layers[0].mlp.register_forward_pre_hook(count)
        metrics.append(updater.update(random_rows(0), step_key=0))
    assert calls[1] == 2 * calls[0] > 0
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(weights_of(models[1]), weights_of(models[0]), rtol=0, atol=1e-9)
    assert not any(module.training for module in models[1].modules())


@pytest.mark.slow
def test_two_processes_make_the_update_of_one(tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *launcher, __file__, str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = train(Accelerator(cpu=True)), json.loads(out.read_text())
    assert (one["processes"], two["processes"]) == (1, 2)
    np.testing.assert_allclose(two["weights"], one["weights"], rtol=0, atol=1e-9)
    for ours, theirs in zip(one["metrics"], two["metrics"], strict=True):
        # Two processes share fewer prefixes within a pass.
        for name in ("update/computed_tokens", "update/padded_tokens"):
            assert theirs.pop(name) >= ours.pop(name) > 0
        assert theirs == pytest.approx(ours, rel=1e-6, abs=1e-9)


def train(accelerator: Accelerator) -> dict[str, Any]:
    """Three updates, each process on its own questions."""
    optimiser = Optimiser(learning_rate=0.01, warmup_fraction=0.0, update_rows=8, tokens_per_micro_batch=20)
    updater = Updater(accelerator, tiny_model(), None, optimiser, PLAIN, 10, 1.0, 0)
    metrics = []
    for step in range(3):
        rows = random_rows(step)
        # Uneven on purpose: the second process has one question, in the last step none.
        own = [row for row in rows if (row.question == 5 and step < 2) == (accelerator.process_index == 1)]
        metrics.append(updater.update(rows if accelerator.num_processes == 1 else own, step_key=step))
    weights = weights_of(accelerator.unwrap_model(updater.model)).tolist()
    return {"processes": accelerator.num_processes, "weights": weights, "metrics": metrics}


def worker(out: Path) -> None:
    accelerator = Accelerator(cpu=True)
    result = train(accelerator)
    if accelerator.is_main_process:
        out.write_text(json.dumps(result))
    # Gloo hangs when one process takes the group down while another is still busy.
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
