"""test_config: wrong settings are refused before anything loads, with what, got and remedy."""

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from igrpo_train import config
from igrpo_train.config import Recipe

REFUSED = [
    ("tree", "gamma", -0.5, r"tree.gamma must be finite and at least 0, got -0.5"),
    ("tree", "gamma", float("nan"), r"tree.gamma must be finite and at least 0, got nan"),
    ("tree", "gamma", float("inf"), r"tree.gamma must be finite and at least 0, got inf"),
    ("tree", "budget", 0, r"tree.budget must be at least 1, got 0"),
    ("tree", "cap", 0, r"tree.cap must be at least 1, got 0"),
    ("tree", "cap_decay_steps", -1, r"tree.cap_decay_steps must be at least 0, got -1"),
    *(
        (
            "tree",
            "scheme",
            scheme,
            rf"got '{scheme}': {scheme} .* takes no cap; set tree.cap = 5 and tree.cap_decay_ste",
        )
        for scheme in ("systematic", "residual", "stratified")
    ),
    ("agent", "template", "{history}", r"agent.template must be a text with one {question}, got '{history}'"),
    ("agent", "template", "{question}", r"agent.template must be a text with one {history}, got '{question}'"),
    ("agent", "template", "{question}{question}{history}", r"agent.template must be a text with one {question}"),
    ("agent", "template", "{history} {question}", r"with {question} before {history}, .*: a tree shares its prefixes"),
    ("agent", "document", "{title}", r"agent.document must be a text with {text}, {title} or {rank} only, got"),
    ("agent", "document", "{text} {url}", r"agent.document must be a text with {text}, {title} or {rank} only, got"),
    ("agent", "max_turns", 0, r"agent.max_turns must be at least 1, got 0"),
    ("agent", "top_k", 0, r"agent.top_k must be at least 1, got 0"),
    ("data", "hops", (2, 0), r"data.hops must be positive numbers, got \(2, 0\)"),
    ("model", "path", "", r"model.path must be a hub id, a folder or miniature:NAME, got ''"),
    ("retrieval", "b", 1.5, r"retrieval.b must be between 0 and 1, got 1.5"),
    ("retrieval", "k1", -1.0, r"retrieval.k1 must be finite and at least 0, got -1.0"),
    ("retrieval", "timeout_s", 1e12, r"retrieval.timeout_s must be above 0 and at most 86400, got 1000000000000.0"),
    *(
        ("retrieval", "url", url, r"retrieval.url must be an address like http://127.0.0.1:8000/retrieve, got '")
        for url in (" http://a/r", "http://a..b/r", "http://a b/r", "http://" + "x" * 64, "http://a:70000", "a:80")
    ),
    ("retrieval", "kind", "miniature", r"data.corpus must be miniature:NAME/SPLIT, got 'hf://"),
    (
        "tree",
        "criterion",
        "zero",
        r"reward.truncated must .* got 'rescaled': .* scoring.always = true \(--scoring.always True\)",
    ),
    ("scoring", "warn_below", 2.0, r"scoring.warn_below must be between 0 and 1, got 2.0"),
    ("sampling", "cache_tokens", -1, r"sampling.cache_tokens must be at least 0, got -1"),
    (
        "sampling",
        "cache_tokens",
        18431,
        r"sampling.cache_tokens must be 0 or at least 18432, 4 \(agent.max_prompt_tokens \+ .*, got 18431: half of it",
    ),
    ("sampling", "temperature", 0.0, r"sampling.temperature must be finite and above 0, got 0.0: a greedy policy"),
    ("sampling", "memory_share", 1.0, r"sampling.memory_share must be above 0 and below 1, got 1.0"),
    ("sampling", "cache_gib", -1.0, r"sampling.cache_gib must be finite and at least 0, got -1.0"),
    ("sampling", "timeout_s", -1.0, r"sampling.timeout_s must be between 0 \(no limit\) and 86400, got -1.0"),
    ("sampling", "timeout_s", 1e12, r"sampling.timeout_s must be between 0 \(no limit\) and 86400, got 1000000000000"),
    ("sampling", "block_tokens", 40, r"sampling.block_tokens must be a multiple of 16, got 40"),
    ("sampling", "warn_difference", -1.0, r"sampling.warn_difference must be finite and at least 0, got -1.0"),
    ("reward", "switch_fraction", -0.1, r"reward.switch_fraction must be between 0 and 1, got -0.1"),
    ("reward", "invalid_penalty", -0.1, r"reward.invalid_penalty must be finite and at least 0, got -0.1"),
    ("advantage", "std_floor", -1.0, r"advantage.std_floor must be finite and at least 0, got -1.0"),
    ("loss", "clip_low", 1.2, r"loss.clip_low must be between 0 and 1, got 1.2"),
    ("loss", "clip_high", -0.2, r"loss.clip_high must be finite and at least 0, got -0.2"),
    ("loss", "dual_clip", 0.5, r"loss.dual_clip must be 0 \(off\) or above 1, got 0.5"),
    ("loss", "importance_cap", 0.9, r"loss.importance_cap must be 0 \(off\) or at least 1, got 0.9"),
    ("loss", "importance_cap", float("inf"), r"loss.importance_cap must be 0 \(off\) or at least 1, got inf"),
    ("loss", "kl_coefficient", -1.0, r"loss.kl_coefficient must be finite and at least 0, got -1.0"),
    ("optimiser", "learning_rate", 0.0, r"optimiser.learning_rate must be finite and above 0, got 0.0"),
    ("optimiser", "betas", (0.9, 1.0), r"optimiser.betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
    ("optimiser", "weight_decay", -0.1, r"optimiser.weight_decay must be finite and at least 0, got -0.1"),
    ("optimiser", "warmup_fraction", 1.1, r"optimiser.warmup_fraction must be between 0 and 1, got 1.1"),
    ("optimiser", "update_rows", 0, r"optimiser.update_rows must be at least 1, got 0"),
    ("validation", "every", -1, r"validation.every must be at least 0, got -1"),
    (
        "validation",
        "questions",
        0,
        r"validation.questions must be at least 1, got 0: validation.every = 0 turns it off",
    ),
    ("validation", "temperature", -1.0, r"validation.temperature must be finite and at least 0, got -1.0"),
    ("run", "folder", " ", r"run.folder must be a path, got ' ': runs/NAME is a good one"),
    ("run", "keep_last", 0, r"run.keep_last must be at least 1, got 0"),
    ("validation", "seed", 2**64, r"validation.seed must be between 0 and 2\*\*64 - 1, got 18446744073709551616"),
    ("run", "threads", 100000, r"run.threads must be at most 1024, got 100000: more than the cores are no help"),
    ("run", "threads", -1, r"run.threads must be at least 0, got -1"),
]


def changed(group: str, name: str, value: object) -> Recipe:
    recipe = Recipe()
    return replace(recipe, **{group: replace(getattr(recipe, group), **{name: value})})


@pytest.mark.parametrize(("group", "name", "value", "message"), REFUSED)
def test_a_wrong_setting_is_refused_by_name_value_and_remedy(group, name, value, message) -> None:
    with pytest.raises(ValueError, match=message):
        changed(group, name, value)


@pytest.mark.parametrize("name", ["steps", "questions_per_step"])
def test_a_run_has_steps_and_questions(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0$"):
        Recipe(**{name: 0})


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=rf"^seed must be between 0 and 2\*\*64 - 1, got {seed}$"):
        Recipe(seed=seed)


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("tree", "gamma", 0.0),
        ("tree", "gamma", 1e6),
        ("tree", "cap", 1),
        ("tree", "cap", 500),
        ("loss", "dual_clip", 0.0),
        ("retrieval", "url", "https://[::1]:8000/retrieve"),
        ("retrieval", "url", "http://search_1.internal./retrieve"),
        ("retrieval", "timeout_s", 86400.0),
        ("validation", "every", 0),
        ("run", "threads", 4),
        ("agent", "template", '{"json": 1} {question}{history}'),
    ],
)
def test_settings_at_the_edge_are_accepted(group: str, name: str, value: object) -> None:
    assert getattr(getattr(changed(group, name, value), group), name) == value


@pytest.mark.parametrize("old", ["auto", "sampler", "policy"])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_engine_weights_are_refused_where_the_ratio_holds_them_already(old, engine, dtype) -> None:
    groups = {
        "model": config.Model(dtype=dtype),
        "sampling": config.Sampling(engine=engine),
        "loss": config.Loss(old_logprobs=old, importance_cap=2.0),
    }
    if old == "policy" or (old == "auto" and (engine, dtype) != ("transformers", "float32")):
        assert Recipe(**groups).loss.importance_cap == 2.0
        return
    with pytest.raises(ValueError, match=r"loss.importance_cap must be 0, got 2.0: .* loss.old_logprobs = 'policy'"):
        Recipe(**groups)


def test_systematic_resampling_is_accepted_without_a_cap() -> None:
    assert config.Tree(scheme="systematic", cap=5).scheme == "systematic"
    with pytest.raises(ValueError, match="tree.cap_decay_steps = 0"):
        config.Tree(scheme="systematic", cap=5, cap_decay_steps=10)


def test_a_tree_without_scores_may_drop_or_zero_its_truncated_leaves() -> None:
    tree = config.Tree(criterion="zero")
    for rule in ("zero", "drop"):
        assert Recipe(tree=tree, reward=config.Reward(truncated=rule)).reward.truncated == rule
    assert Recipe(tree=tree, scoring=config.Scoring(always=True)).growth_rule(0).needs_scores


def test_weights_for_the_teacher_need_scores_to_the_last_step() -> None:
    message = "tree.weights must be 'none' or 'pi', got 'mu': .* scores no node; set scoring.always = true"
    for tree in (config.Tree(weights="mu", cap=1), config.Tree(weights="mu", cap_decay_steps=10)):
        with pytest.raises(ValueError, match=message):
            Recipe(tree=tree)
        assert Recipe(tree=tree, scoring=config.Scoring(always=True)).tree.weights == "mu"
        assert Recipe(tree=replace(tree, weights="pi")).tree.weights == "pi"
        assert Recipe(tree=replace(tree, gamma=0.0)).tree.weights == "mu"


def test_the_growth_rule_carries_every_setting_of_the_tree() -> None:
    tree = config.Tree(budget=7, cap=3, gamma=2.0, budget_mode="mid", criterion="gain", root_score="evaluate")
    rule = Recipe(tree=tree, agent=config.Agent(max_turns=6), scoring=config.Scoring(always=True)).growth_rule(step=5)
    shared = ("budget", "cap", "gamma", "budget_mode", "scheme", "criterion", "root_score")
    assert [getattr(rule, name) for name in shared] == [getattr(tree, name) for name in shared]
    assert (rule.turn_limit, rule.score_chains) == (6, True)
    assert {field.name for field in fields(rule)} == {*shared, "turn_limit", "score_chains"}


def test_the_cap_of_the_growth_rule_decays_to_one() -> None:
    recipe = Recipe(tree=config.Tree(cap=3, cap_decay_steps=10))
    assert [recipe.growth_rule(step).cap for step in (0, 9, 10, 19, 20, 99)] == [3, 3, 2, 2, 1, 1]


def test_every_field_has_one_line_of_documentation() -> None:
    source = Path(config.__file__).read_text(encoding="utf-8")
    groups = [value for value in vars(config).values() if is_dataclass(value) and value.__module__ == config.__name__]
    assert len(groups) == 14
    for group in groups:
        for field in fields(group):
            if not is_dataclass(field.default_factory):
                body = source.split(f"\nclass {group.__name__}:")[1].split("\n@dataclass")[0]
                assert re.search(rf"^    {field.name}: .*\n    \"\"\".+\"\"\"$", body, re.M), (
                    f"{group.__name__}.{field.name}"
                )
