"""Tree packing: the loss, the gradient and the metrics of path rows, with each unique token computed once."""

import logging
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import tiny_models
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import SIZES, VOCABULARY, Family
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from igrpo_theory.paths import root_to_leaf_paths
from igrpo_theory.tree import RolloutTree
from igrpo_train.config import Aggregation, History, Loss, OldLogprobs, Optimiser, Packing, RatioLevel
from igrpo_train.learn import attention
from igrpo_train.learn.attention import QueryBlocks, plan_attention, tree_attention
from igrpo_train.learn.batch import collate
from igrpo_train.learn.loss import policy_loss, token_logprobs
from igrpo_train.learn.packing import TurnRow, micro_batches, pack_paths
from igrpo_train.learn.probe import usable_packing
from igrpo_train.learn.trie import lexicographic_order, plant
from igrpo_train.learn.update import Updater
from igrpo_train.question import Question
from igrpo_train.search.agent import Action, ActionKind
from igrpo_train.search.session import Prompt, SearchNode, SearchTree, Turn

tiny_model = partial(tiny_models.tiny_model, initializer_range=0.3)


def random_tree(rng: np.random.Generator, history: History, num_questions: int) -> SearchTree:
    """Trees of up to 3 turns, in which some siblings draw the same ids."""

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.integers(1, VOCABULARY, rng.integers(low, high + 1)).tolist())

    instructions = ids(1, 5)
    roots: list[SearchNode] = [
        Prompt(
            question=Question(id=str(k), text="", answers=("a",)),
            head_ids=instructions + ids(0, 3),
            # With everything in the history a turn's context goes on where the last response ended.
            tail_ids=ids(1, 3) if history == "documents" else (),
        )
        for k in range(num_questions)
    ]
    tree: SearchTree = RolloutTree.plant(roots)
    frontier = np.arange(num_questions)
    for depth in range(3):
        parents = np.repeat(frontier, rng.integers(1, 4 - depth, len(frontier)))
        turns: list[Turn] = []
        for k in range(len(parents)):
            if k and parents[k] == parents[k - 1] and rng.random() < 0.3:
                turns.append(turns[-1])
                continue
            response = ids(0 if rng.random() < 0.1 else 1, 5)
            observation = ids(0, 5)
            shown = response if history == "everything" else response[1:3]
            turns.append(make_turn(rng, response, (*shown, *observation)))
        terminal = np.array(rng.random(len(parents)) < 0.3) | (depth == 2)
        frontier = tree.append(parents, [*turns], terminal, 3)[~terminal]
        if not len(frontier):
            break
    return tree


def make_turn(rng: np.random.Generator, response: tuple[int, ...], history: tuple[int, ...]) -> Turn:
    return Turn(
        response_ids=response,
        response_logprobs=tuple((-rng.uniform(1.5, 4.5, len(response))).tolist()),
        text="",
        action=Action(kind=ActionKind.NONE, text="", valid=False, start=-1, end=-1),
        history_ids=history,
        observation="",
        documents=(),
        finish="stop",
    )


def random_rows(seed: int, history: History, num_questions: int = 2) -> list[TurnRow]:
    """Rows of random trees; a path may be there twice, as another path."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, history, num_questions)
    paths = root_to_leaf_paths(tree)
    advantages = rng.normal(size=paths.nodes.shape) * 2
    rows = pack_paths(tree, paths, advantages, np.ones(len(paths.leaf), dtype=bool))
    again = len(paths.leaf)
    return rows + [replace(row, path=again, advantage=-1.0) for row in rows if row.path == 0]


def updater_of(
    model: PreTrainedModel, reference: PreTrainedModel | None, loss: Loss, packing: Packing, budget: int
) -> Updater:
    optimiser = Optimiser(
        learning_rate=0.01,
        warmup_fraction=0.0,
        gradient_clip=1e9,
        update_rows=1000,
        tokens_per_micro_batch=budget,
        packing=packing,
    )
    return Updater(Accelerator(cpu=True), model, reference, optimiser, loss, 10, 1.0, 0)


def gradients_of(updater: Updater, rows: list[TurnRow]) -> tuple[list[Tensor], dict[str, float]]:
    """Every gradient tensor that the optimiser step would have used, without stepping."""
    taken: list[list[Tensor]] = []
    updater.optimiser.step = lambda: taken.append([p.grad.clone() for p in updater.model.parameters()])
    metrics = updater.update(rows, step_key=5)
    return taken[-1], metrics


COUNTS = ("update/computed_tokens", "update/padded_tokens")


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    history=st.sampled_from(get_args(History)),
    aggregation=st.sampled_from(get_args(Aggregation)),
    ratio_level=st.sampled_from(get_args(RatioLevel)),
    budget=st.sampled_from([1, 20, 60, 10_000]),
    block=st.sampled_from([4, 128]),
)
def test_loss_gradient_and_metrics_equal_those_of_path_rows(
    family: Family,
    dtype: torch.dtype,
    tolerance: float,
    seed: int,
    history: History,
    aggregation: Aggregation,
    ratio_level: RatioLevel,
    budget: int,
    block: int,
) -> None:
    rows = random_rows(seed, history)
    loss = Loss(
        aggregation=aggregation,
        ratio_level=ratio_level,
        dual_clip=1.5,
        kl_coefficient=0.1,
        entropy_coefficient=0.01,
    )

    def run(packing: Packing) -> tuple[list[Tensor], dict[str, float]]:
        model, reference = tiny_model(family, dtype), tiny_model(family, dtype, seed=2)
        updater = updater_of(model, reference, loss, packing, budget)
        assert updater.packing == packing
        return gradients_of(updater, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_BLOCK", block)
        (expected, path), (got, tree) = run("path"), run("tree")
    assert tree["update/computed_tokens"] == tree["update/padded_tokens"] <= path["update/computed_tokens"]
    whole = math.sqrt(sum(float(gradient.square().sum()) for gradient in expected))
    assert whole > 0
    for ours, theirs in zip(got, expected, strict=True):
        assert float((ours - theirs).norm()) <= tolerance * whole
    # A mean of rounded log-probabilities carries their rounding, also where it is near zero.
    for name in path.keys() - set(COUNTS):
        assert tree[name] == pytest.approx(path[name], rel=tolerance, abs=tolerance, nan_ok=True), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("history", get_args(History))
def test_flex_attention_gives_the_loss_and_the_gradient_of_path_rows(history: History) -> None:
    # Several blocks of queries: shared prefixes reach across their borders.
    rows = [replace(row, question=seed) for seed in range(20) for row in random_rows(seed, history, num_questions=1)]
    batch = collate(rows, 0, "cuda", packing="tree")
    assert batch.num_tokens > 2 * attention._BLOCK
    assert batch.tree is not None
    assert isinstance(batch.tree.tree_plan, BlockMask)

    def run(packing: Packing) -> tuple[float, Tensor]:
        # Heads of 16: the compiled kernel takes no smaller ones.
        model = tiny_model("llama", torch.float32, head_dim=16).cuda()
        assert usable_packing(packing, model, "cuda") == packing
        batch = collate(rows, 0, "cuda", packing=packing)
        with tree_attention(model) if packing == "tree" else nullcontext():
            new = token_logprobs(model, batch, 1.0)
            counts = {"num_tokens": int(batch.sampled.sum()), "num_rows": len(rows)}
            loss = policy_loss(new, batch, Loss(kl_coefficient=0.0, entropy_coefficient=0.01), **counts).loss
            loss.backward()
        return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    (expected, path), (got, tree) = run("path"), run("tree")
    assert float(path.norm()) > 0
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)
    # The kernel and matrix products round in another order, and products on CUDA less finely than on a CPU.
    assert float((tree - path).norm()) <= 1e-4 * float(path.norm())


def test_the_cases_exercise_clips_repeats_and_equal_siblings() -> None:
    rows = [row for seed in range(20) for row in random_rows(seed, "documents")]
    model, reference = tiny_model("llama"), tiny_model("llama", seed=2)
    metrics = updater_of(model, reference, Loss(dual_clip=1.5, kl_coefficient=0.1), "tree", 10_000).update(rows, 0)
    assert 0.1 < metrics["update/clip_fraction"] < 0.9
    assert metrics["update/ratio_min"] < 0.5 < 2 < metrics["update/ratio_max"]
    equal = {}
    for row in random_rows(3, "everything"):
        equal.setdefault(row.context_ids + row.response_ids, set()).add(row.path)
    assert max(map(len, equal.values())) > 1


@pytest.mark.parametrize("history", get_args(History))
def test_one_pass_computes_each_unique_prefix_once(history: History) -> None:
    rows = random_rows(4, history, num_questions=3)
    (batch,) = micro_batches(rows, 10_000, "tree")
    sequences = [row.context_ids + row.response_ids for row in rows]
    prefixes = {sequence[: n + 1] for sequence in sequences for n in range(len(sequence))}
    sampled = {
        sequence[: n + 1]
        for row, sequence in zip(rows, sequences, strict=True)
        for n in range(len(row.context_ids), len(sequence))
    }
    tensors = collate(batch, 0, packing="tree")
    assert tensors.num_tokens == tensors.input_ids.numel() == len(prefixes)
    assert len(tensors.targets) == len(sampled) < int(tensors.sampled.sum())
    for index, row in enumerate(batch):
        read = tensors.targets[tensors.cells[index, tensors.sampled[index]]]
        assert tuple(read.tolist()) == row.response_ids


@given(st.integers(0, 1000), st.integers(1, 80))
def test_passes_hold_every_row_once_within_the_budget(seed: int, budget: int) -> None:
    rows = random_rows(seed, "documents")
    batches = micro_batches(rows, budget, "tree")
    held = [(row.question, row.path, row.turn) for batch in batches for row in batch]
    assert sorted(held) == sorted((row.question, row.path, row.turn) for row in rows)
    sizes = [collate(batch, 0, packing="tree").num_tokens for batch in batches]
    assert all(size <= budget or len(batch) == 1 for size, batch in zip(sizes, batches, strict=True))
    assert sizes == sorted(sizes, reverse=True)
    assert batches == micro_batches(rows[::-1], budget, "tree")
    assert micro_batches([], budget, "tree") == []


def ends(seed: int) -> np.ndarray:
    sequences = [row.context_ids + row.response_ids for row in random_rows(seed, "documents")]
    return plant([sequences[k] for k in lexicographic_order(sequences)]).end


@given(st.integers(0, 1000), st.sampled_from([3, 16, 128]))
def test_blocks_of_queries_see_what_the_ends_say(seed: int, block: int) -> None:
    end = ends(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_BLOCK", block)
        plan = plan_attention(end)
    assert isinstance(plan, QueryBlocks)
    index = np.arange(len(end))
    sees = (index <= index[:, None]) & (index[:, None] < end)
    got, start = np.zeros_like(sees), 0
    for size, keys, mask in zip(plan.sizes, plan.keys.split(plan.key_sizes), plan.masks, strict=True):
        got[start : start + size, keys.numpy()] = mask.numpy()
        start += size
    assert np.array_equal(got, sees)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_sees_none_of_the_first_keys_stays_finite_in_every_format(dtype: torch.dtype) -> None:
    # Two long chains: the second begins within a block, so its first 1,000 keys are hidden, more than a kernel reads
    # at once.
    end = np.repeat([1050, 1200], [1050, 150])
    tensors = torch.randn(3, 2, len(end), 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    query, key, value = (tensor.to(dtype).requires_grad_() for tensor in tensors)
    plan = plan_attention(end)
    assert isinstance(plan, QueryBlocks)
    got = attention._attend_blocks(query, key, value, plan, None, 0.0)
    gradients = torch.autograd.grad(got.double().square().sum(), (query, key, value))
    assert all(bool(tensor.isfinite().all()) for tensor in (got, *gradients))
    for part in (slice(1050), slice(1050, 1200)):
        chain = (tensor[:, part].double() for tensor in (query, key, value))
        expected = nn.functional.scaled_dot_product_attention(*chain, is_causal=True)
        # Rounding of the result and of the weights.
        torch.testing.assert_close(got[:, part].double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)


def test_what_is_in_memory_grows_with_depth_not_with_the_square_of_the_tokens() -> None:
    rng = np.random.default_rng(0)
    prompt = tuple(rng.integers(1, 1000, 40).tolist())
    sequences = [prompt + tuple(rng.integers(1, 1000, 60).tolist()) for _ in range(200)]
    plan = plan_attention(plant(sorted(sequences)).end)
    assert isinstance(plan, QueryBlocks)
    num_tokens = sum(plan.sizes)
    assert num_tokens > 10_000
    assert sum(mask.numel() for mask in plan.masks) <= num_tokens * (100 + attention._BLOCK)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [16, 128])
def test_the_block_mask_of_flex_attention_sees_what_the_ends_say(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_BLOCK", block)
    end = torch.from_numpy(ends(seed))
    num_tokens = len(end)
    mask = attention._block_mask(end)
    slow = create_block_mask(mask.mask_mod, 1, None, num_tokens, num_tokens, device="cpu", BLOCK_SIZE=block)
    assert torch.equal(mask.to_dense() > 0, slow.to_dense() > 0)
    index = torch.arange(num_tokens)
    sees = (index <= index[:, None]) & (index[:, None] < end)
    query, key, value = torch.randn(3, 1, 2, num_tokens, 16, generator=torch.Generator().manual_seed(seed))
    expected = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=sees)
    with torch.no_grad(), warnings.catch_warnings():
        # Uncompiled on purpose, which the library warns of: it is the same function, slower.
        warnings.simplefilter("ignore")
        got = flex_attention(query, key, value, block_mask=mask)
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_gradient_checkpointing_changes_nothing() -> None:
    rows = random_rows(1, "documents")

    def run(packing: Packing, *, checkpointing: bool) -> list[Tensor]:
        model = tiny_model("llama")
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return gradients_of(updater_of(model, None, Loss(kl_coefficient=0.0), packing, 10_000), rows)[0]

    expected = run("path", checkpointing=False)
    for packing in get_args(Packing):
        for ours, theirs in zip(run(packing, checkpointing=True), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_the_model_is_left_with_its_own_attention() -> None:
    model = tiny_model("qwen2")
    own = model.config._attn_implementation
    ids = torch.tensor([[1, 2, 3]])
    before = model(ids).logits
    with tree_attention(model), pytest.raises(ValueError, match="do not get the plan"):
        model(ids)
    assert model.config._attn_implementation == own
    assert torch.equal(model(ids).logits, before)


class DeafQwen(Qwen2ForCausalLM):
    """Takes position ids and forgets them."""

    def forward(self, *args: Any, position_ids: Tensor | None = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tiny_model("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0), "sliding_window"),
        (lambda: DeafQwen(Qwen2Config(**{**SIZES, "initializer_range": 0.3})).eval(), r"differ by \d\.?\d* nats"),
    ],
    ids=["sliding window", "positions"],
)
def test_a_model_that_cannot_take_a_tree_trains_on_path_rows(
    make: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    with caplog.at_level(logging.WARNING, logger="igrpo_train.learn.probe"):
        updater = updater_of(model, None, Loss(kl_coefficient=0.0), "tree", 1000)
    assert updater.packing == "path"
    assert "this model cannot train on packed trees" in caplog.text
    assert len(caplog.records) == 1
    assert re.search(reason, caplog.text)
    rows = random_rows(0, "documents")
    assert updater.update(rows, 0)["update/computed_tokens"] == sum(row.num_tokens for row in rows)


FLAT: dict[str, Any] = {**SIZES, "initializer_range": 0.02}


@pytest.mark.parametrize("hidden_size", [16, 64])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "packing"),
    [
        (lambda size: Qwen2ForCausalLM(Qwen2Config(**{**FLAT, "hidden_size": size})), "tree"),
        (lambda size: LlamaForCausalLM(LlamaConfig(**{**FLAT, "hidden_size": size})), "tree"),
        (lambda size: DeafQwen(Qwen2Config(**{**FLAT, "hidden_size": size})), "path"),
    ],
    ids=["qwen2", "llama", "positions ignored"],
)
def test_flat_weights_hide_no_mistake_and_make_none(make: Any, packing: Packing, half: bool, hidden_size: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make(hidden_size).eval()
    autocast = torch.autocast("cpu", torch.bfloat16) if half else None
    assert usable_packing("tree", model, "cpu", autocast=autocast) == packing


def test_a_model_of_which_nothing_can_be_told_trains_on_path_rows() -> None:
    model = tiny_model("llama")
    nn.init.zeros_(model.get_output_embeddings().weight)
    assert usable_packing("tree", model, "cpu") == "path"


def test_a_model_that_fails_in_mixed_precision_only_trains_on_path_rows() -> None:
    model = tiny_model("llama", torch.float32)

    def fail_in_half(_module: nn.Module, _args: Any) -> None:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("not in half precision")

    model.register_forward_pre_hook(fail_in_half)
    assert usable_packing("tree", model, "cpu") == "tree"
    assert usable_packing("tree", model, "cpu", autocast=torch.autocast("cpu", torch.bfloat16)) == "path"


def test_learned_positions_are_no_obstacle_and_path_asks_nothing() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2)).eval()
    assert usable_packing("tree", model, "cpu") == "tree"
    assert usable_packing("path", nn.Linear(1, 1), "cpu") == "path"


@pytest.mark.parametrize("packing", get_args(Packing))
@pytest.mark.parametrize(
    ("setting", "ratio"), [("policy", True), ("sampler", False), ("auto", False)], ids=["policy", "sampler", "auto"]
)
def test_old_logprobs_come_from_the_policy_where_it_is_asked(
    packing: Packing, setting: OldLogprobs, ratio: bool
) -> None:
    rows = random_rows(2, "documents", num_questions=4)
    loss = Loss(kl_coefficient=0.0, old_logprobs=setting)
    updater = updater_of(tiny_model("llama"), None, loss, packing, 60)
    metrics = updater.update(rows, 0)
    own = {metrics["update/ratio_min"], metrics["update/ratio_max"]} == {1.0}
    assert own == ratio
    # What the sampler said is still compared with the policy.
    assert metrics["update/logprob_difference"] > 0.1


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps the precision of the first accelerator of a process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.parametrize(
    ("mixed_precision", "exact_sampler", "recomputes"), [("no", True, False), ("no", False, True), ("bf16", True, True)]
)
def test_auto_takes_the_logprobs_of_an_exact_sampler_in_full_precision_only(
    fresh_accelerate: None, mixed_precision: str, exact_sampler: bool, recomputes: bool
) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision=mixed_precision)
    loss = Loss(kl_coefficient=0.0)
    model = tiny_model("llama", torch.float32)
    updater = Updater(accelerator, model, None, Optimiser(), loss, 10, 1.0, 0, exact_sampler=exact_sampler)
    assert updater.recomputes is recomputes
    assert updater.packing == "tree"
    assert updater.update(random_rows(2, "documents"), 0)["update/nonfinite"] == 0


def test_old_logprobs_of_later_minibatches_are_those_before_the_first_update() -> None:
    rows = random_rows(2, "documents", num_questions=4)
    twin = tiny_model("llama")
    own = []
    for row in rows:
        with torch.no_grad():
            logprobs = token_logprobs(twin, collate([row], 0, dtype=torch.float64), 1.0).logprobs[0].tolist()
        own.append(replace(row, old_logprobs=tuple(logprobs)))

    def train(rows: list[TurnRow], setting: OldLogprobs) -> tuple[Tensor, dict[str, float]]:
        model = tiny_model("llama")
        settings = {"learning_rate": 0.01, "warmup_fraction": 0.0, "update_rows": 8, "tokens_per_micro_batch": 60}
        loss = Loss(kl_coefficient=0.0, old_logprobs=setting)
        updater = Updater(Accelerator(cpu=True), model, None, Optimiser(**settings), loss, 10, 1.0, 0)
        metrics = updater.update(rows, step_key=3)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), metrics

    (ours, metrics), (theirs, expected) = train(rows, "policy"), train(own, "sampler")
    assert metrics["update/steps"] > 1
    assert metrics["update/ratio_max"] == pytest.approx(expected["update/ratio_max"], rel=1e-9)
    assert metrics["update/ratio_max"] > 1.001
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
