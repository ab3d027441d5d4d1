"""Making and loading the policies of the miniature world."""

import json
from pathlib import Path

import pytest

import igrpo_train.miniature

SHIPPED = Path(igrpo_train.miniature.__file__).parent / "checkpoints"
NAMES = ("leak", "plain")


def _short_build(**changes):
    from igrpo_train.learn.supervised import SupervisedSettings
    from igrpo_train.miniature.build import Build

    settings = {"num_worlds": 2, "measure_questions": 4, **changes}
    return Build(optimiser=SupervisedSettings(learning_rate=4e-3, steps=3), **settings)


def test_the_same_build_gives_the_same_weights():
    import torch

    from igrpo_train.miniature.build import build_policy

    first, again, other = (build_policy(_short_build(seed=seed)).model.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_curriculum_starts_with_one_hop_and_ends_with_mistakes():
    from igrpo_train.learn.supervised import SupervisedSettings
    from igrpo_train.miniature.build import Build, demonstration_batches
    from igrpo_train.miniature.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    index = tokenizer.get_vocab()
    build = Build(num_worlds=2, optimiser=SupervisedSettings(learning_rate=1e-3, steps=60))
    batches = demonstration_batches(build, index)
    first = list(next(batches))
    for _ in range(60):
        last = next(batches)
    assert all(tokenizer.decode(list(row.context_ids + row.response_ids)).count(" of ") == 1 for row in first)
    assert any(tokenizer.decode(list(row.context_ids + row.response_ids)).count(" of ") > 1 for row in last)
    assert all(row.response_ids[0] in (index["<think>"], index["<answer>"]) or row.weights[0] == 4 for row in last)


def test_a_saved_policy_loads_as_any_transformers_model(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from igrpo_train.miniature.build import build_policy, save_policy

    build = _short_build()
    policy = build_policy(build)
    save_policy(policy, build, tmp_path, seconds=1.0)
    model, tokenizer = (auto.from_pretrained(tmp_path) for auto in (AutoModelForCausalLM, AutoTokenizer))
    text = "<bos> question what is the home of ba ka ? . <turn>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == policy.tokenizer.encode(text)
    assert model.num_parameters() == policy.model.num_parameters()
    record = json.loads((tmp_path / "build.json").read_text(encoding="utf-8"))
    assert set(record["exact_match"]) == {"greedy", "sampled"}
    assert record["settings"]["optimiser"]["steps"] == 3


def test_a_full_folder_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    from igrpo_train.miniature import build

    (tmp_path / "thesis.txt").touch()
    monkeypatch.setattr("sys.argv", ["build", f"--out={tmp_path}"])
    monkeypatch.setattr(build, "build_policy", lambda *_: pytest.fail("trained"))
    with pytest.raises(FileExistsError, match="folder must be new or empty, got .*: name another one or remove it"):
        build.main()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", 2**64, r"seed must be between 0 and 2\*\*64 - 1, got 18446744073709551616"),
        ("batch_tokens", 0, "batch_tokens must be at least 1, got 0"),
        ("measure_questions", -1, "measure_questions must be at least 0, got -1"),
        ("context_weight", float("nan"), "context_weight must be finite and at least 0, got nan"),
    ],
)
def test_settings_that_build_nothing_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        _short_build(**{field: value})


def test_wrong_shares_are_refused():
    with pytest.raises(ValueError, match="one_hop_share must be between 0 and clean_share"):
        _short_build(one_hop_share=0.9, clean_share=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_policies_are_small_and_load(name):
    from igrpo_train.config import Model
    from igrpo_train.miniature.tokenizer import build_tokenizer
    from igrpo_train.policy import load_policy

    assert sum(file.stat().st_size for file in (SHIPPED / name).iterdir()) < 700_000
    policy = load_policy(Model(path=f"miniature:{name}", dtype="float32"))
    assert policy.tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert policy.model.config.vocab_size == len(policy.tokenizer)
    assert 120_000 < policy.model.num_parameters() < 140_000
    assert policy.context_limit == 512


@pytest.mark.parametrize("name", NAMES)
def test_shipped_policies_search_and_leave_something_to_learn(name):
    from igrpo_train.config import Model
    from igrpo_train.miniature.build import measure
    from igrpo_train.policy import load_policy

    measured = measure(load_policy(Model(path=f"miniature:{name}", dtype="float32")), f"miniature:{name}/test", 60)
    # Fixed questions and keys: these numbers repeat; the margins are for other versions of torch.
    assert 0.15 < measured["sampled"]["1_hop"] < 0.7
    assert measured["sampled"]["3_hop"] < 0.3
    assert measured["greedy"]["2_hop"] > 0.05


@pytest.mark.parametrize("name", NAMES)
def test_shipped_policies_were_made_with_the_default_settings(name):
    from dataclasses import asdict

    from igrpo_train.miniature.build import Build

    record = json.loads((SHIPPED / name / "build.json").read_text(encoding="utf-8"))
    assert record["settings"] == json.loads(json.dumps(asdict(Build(world=name))))
