"""test_dry_run: what is here is checked, what is not is said to be unchecked, and what is wrong ends with code 2."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from igrpo_train.__main__ import main
from igrpo_train.config import Data, Model, Recipe, Retrieval, Sampling
from igrpo_train.dry_run import GRID, UNCACHED, dry_run
from igrpo_train.estimate import GB
from igrpo_train.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[3]
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
MINIATURE = str(ROOT / "recipes" / "miniature" / "igrpo.toml")
CONTEXT = {"title": ["Ghent", "Oslo"], "sentences": [["Ghent is a city."], ["Oslo."]]}
ROW = {
    "id": "train_0",
    "question": "Where is Ghent?",
    "golden_answers": ["Belgium", "Flanders"],
    "data_source": "hotpotqa",
    "metadata": {"supporting_facts": {"title": ["Ghent"], "sent_id": [0]}, "context": CONTEXT},
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, no way out, and no runs."""

    def refuse(*_: object) -> None:
        raise AssertionError("a dry run must not reach for the network")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def policy_folder(tmp_path: Path, toy_model, toy_tokenizer) -> str:
    toy_model.save_pretrained(tmp_path / "policy")
    toy_tokenizer.save_pretrained(tmp_path / "policy")
    return str(tmp_path / "policy")


def refusal(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*args, "--dry-run"])
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_recipe_passes_offline(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(path), "--dry-run", "--json", str(tmp_path / "report.json")])
    shown = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    recipe = load_recipe([str(path)])
    from_hub = [spec for spec in (recipe.data.train, recipe.data.validation) if spec.startswith("hf://")]
    unchecked = [part["spec"] for part in report["data"] if part["checked"] == UNCACHED]
    assert set(from_hub) <= set(unchecked)
    assert shown.count(UNCACHED) >= len(from_hub)
    assert report["model"]["parameters"] > 0
    assert len(report["memory"]) == (1 if recipe.model.device == "cpu" else len(GRID))
    if recipe.model.path.startswith("miniature:"):
        assert not unchecked
        assert report["head_tokens"] > 0
    else:
        assert report["model"]["checked"] == f"from the table, {UNCACHED}"


def test_the_paper_s_recipes_fit_the_gpus_that_their_first_line_names() -> None:
    for path, place in {"qwen2.5-3b": (1, "none"), "qwen2.5-7b": (8, "fsdp2")}.items():
        report = dry_run(load_recipe([str(ROOT / "recipes" / path / "igrpo.toml")]), gpu_bytes=141 * GB)
        (part,) = (part for part in report.memory if (part.processes, part.sharding) == place)
        assert part.memory.peak <= 0.9 * 141 * GB
        assert (ROOT / "recipes" / path / "igrpo.toml").read_text("utf-8").startswith(f"# {place[0]} GPU")


def test_local_files_are_read_and_converted(policy_folder: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n", "utf-8")
    (tmp_path / "corpus.jsonl").write_text('{"id": "p", "contents": "Ghent\\nA city."}\n', "utf-8")
    train, corpus = str(tmp_path / "train.jsonl"), str(tmp_path / "corpus.jsonl")
    recipe = Recipe(
        model=Model(path=policy_folder), data=Data(train=train, validation=train, corpus=corpus), agent=small_agent()
    )
    report = dry_run(recipe, gpu_bytes=GB)
    assert report.model.architecture == "Qwen2ForCausalLM"
    assert report.model.shape is not None
    assert report.model.parameters == report.model.shape.parameters
    assert report.data[0].checked == "first row of hotpotqa: id hotpotqa/train_0, 2 answers, 1 gold passages"
    assert report.data[2].checked == "first row: id p"
    assert report.head_tokens is not None
    assert 0 < report.head_tokens < recipe.agent.max_prompt_tokens
    assert report.settings["agent.top_k"] == ("3", "1")


def small_agent():
    from igrpo_train.config import Agent

    return Agent(
        template="{question} {history}",
        max_prompt_tokens=300,
        max_response_tokens=100,
        max_observation_tokens=80,
        top_k=1,
    )


def test_files_of_the_hub_s_cache_are_read(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "datasets--a--b" / "snapshots" / "0" / "x"
    snapshot.mkdir(parents=True)
    (snapshot.parents[2] / "refs").mkdir()
    (snapshot.parents[2] / "refs" / "main").write_text("0")
    (snapshot / "train.jsonl").write_text(json.dumps(ROW) + "\n", "utf-8")
    spec = "hf://datasets/a/b/x/train.jsonl"
    report = dry_run(Recipe(data=Data(train=spec)), gpu_bytes=GB)
    assert [part.checked == UNCACHED for part in report.data] == [False, True, True]


def test_a_model_that_is_nowhere_is_unchecked_and_not_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    main([MINIATURE, "--dry-run", "--model.path", "owner/unknown"])
    shown = capsys.readouterr().out
    assert "owner/unknown: unchecked (not in the hub cache)" in shown
    assert "memory: no estimate, the shape of the model is unknown here" in shown


def test_a_model_of_another_kind_is_counted_and_not_estimated(tmp_path: Path) -> None:
    from transformers import GPT2Config

    GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=5, n_positions=16).save_pretrained(tmp_path)
    report = dry_run(replace(load_recipe([MINIATURE]), model=Model(path=str(tmp_path))), gpu_bytes=GB)
    assert report.model.architecture == "GPT2LMHeadModel"
    assert report.model.parameters == 5 * 8 + 16 * 8 + (4 * 8 + 12 * 64 + 9 * 8) + 2 * 8
    assert report.memory == ()
    assert report.model.tokenizer == "unchecked (no tokenizer.json beside the config)"


def test_services_and_extras_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    recipe = Recipe(retrieval=Retrieval(kind="http"), sampling=Sampling(engine="vllm"))
    report = dry_run(recipe, gpu_bytes=100 * GB)
    assert report.data[-1].checked == "unchecked (asked when the run starts)"
    assert report.engine == "vllm: unchecked (not installed here: pip install 'igrpo-train[vllm]')"
    assert {part.memory.sampler for part in report.memory} == {30 * GB}
    own = dry_run(replace(recipe, sampling=Sampling(engine="vllm", cache_gib=1.0)), gpu_bytes=GB)
    assert own.memory[0].memory.sampler == 2 * 3_085_938_688 + 2**30


def test_a_wrong_row_is_one_message_and_code_2(tmp_path: Path, capsys) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(ROW | {"golden_answers": [None]}) + "\n", "utf-8")
    message = refusal([MINIATURE, f"--data.train={bad}"], capsys)
    assert "bad.jsonl, row 1: golden_answers must be a text or a list of texts, got [None]" in message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data.train=no.jsonl"], "data file must exist"),
        (["--model.path", "a b/c"], "model.path must be a folder or a hub id OWNER/NAME, got 'a b/c'"),
        (["--retrieval.kind=dense", "--retrieval.index=nowhere"], "retrieval.index must be a folder with a finished"),
        (["--json", "."], "json must be a file that can be written, got '.'"),
        (["--gpu_gb=0"], "gpu_gb must be finite and above 0, got 0.0"),
        (["--steps=0"], "steps must be at least 1, got 0"),
    ],
)
def test_an_error_is_one_message_and_code_2(flags: list[str], message: str, capsys) -> None:
    assert message in refusal([MINIATURE, *flags], capsys)


def test_a_model_that_does_not_fit_is_refused(policy_folder: str, capsys) -> None:
    flags = [MINIATURE, "--model.path", policy_folder]
    assert "agent.max_prompt_tokens" in refusal([*flags, "--agent.max_prompt_tokens=4000"], capsys)
    (Path(policy_folder) / "config.json").write_text('{"model_type": "nothing"}')
    assert "model.path must be a causal language model" in refusal(flags, capsys)


def test_a_dry_run_writes_no_run_folder_and_refuses_one_that_holds_a_run(tmp_path: Path, capsys) -> None:
    main([MINIATURE, "--dry-run"])
    assert list(Path().iterdir()) == []
    assert "132,032 parameters" in capsys.readouterr().out
    assert "run.folder must hold a run to resume" in refusal([MINIATURE, "--resume"], capsys)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    message = refusal([MINIATURE, f"--run.folder={folder}"], capsys)
    assert "which holds a run: name another one, go on with --resume" in message


def test_a_dense_index_is_named_with_what_built_it(tmp_path: Path) -> None:
    from igrpo_train.search.dense import MANIFEST

    encoding = {"encoder": "E", "pooling": "mean", "query_prefix": "", "passage_prefix": "", "max_tokens": 9}
    manifest = {"passages": 3, "corpus": "x", "encoding": encoding, "probe": [1.0], "type": "flat"}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    report = dry_run(Recipe(retrieval=Retrieval(kind="dense", index=str(tmp_path))), gpu_bytes=GB)
    assert [part.checked for part in report.data[2:]] == ["flat index of 3 passages by E", UNCACHED]
