"""Where models come from, and what is refused before anything is loaded."""

import pytest


def test_a_shipped_policy_is_found_by_name_and_others_are_listed():
    from pathlib import Path

    from igrpo_train.policy import resolve_model

    assert (Path(resolve_model("miniature:leak")) / "model.safetensors").is_file()
    with pytest.raises(FileNotFoundError, match=r"must be one of miniature:leak.*, got 'miniature:leek'"):
        resolve_model("miniature:leek")


@pytest.mark.parametrize("path", ["./nothing/here", "/nothing/here", "runs/a/b"])
def test_a_local_path_that_does_not_exist_is_refused(path):
    from igrpo_train.policy import resolve_model

    with pytest.raises(FileNotFoundError, match="must exist, got"):
        resolve_model(path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    from igrpo_train.policy import resolve_model

    with pytest.raises(FileNotFoundError, match=r"folder with a config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "contents", "reason"),
    [
        ("model.safetensors", None, "no file named model.safetensors"),
        ("model.safetensors", b"cut", "Error while deserializing header"),
        ("config.json", b"{", "not a valid JSON file"),
        ("config.json", b'{"model_type": "nosuch"}', "model type `nosuch`"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
    ],
)
def test_a_broken_model_is_refused_with_the_reason(tmp_path, toy_model, toy_tokenizer, name, contents, reason):
    from igrpo_train.config import Model
    from igrpo_train.policy import load_policy

    toy_model.save_pretrained(tmp_path)
    toy_tokenizer.save_pretrained(tmp_path)
    if contents is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(contents)
    message = rf"model\.path must be a causal language model with its tokenizer, got .*{reason}.*: give a whole"
    with pytest.raises(ValueError, match=message):
        load_policy(Model(path=str(tmp_path)))


def test_a_hub_id_is_left_alone():
    from igrpo_train.policy import resolve_model

    assert resolve_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"


def test_a_tokenizer_without_a_padding_token_is_handled(toy_model, toy_tokenizer):
    import copy

    from igrpo_train.policy import Policy

    bare = copy.deepcopy(toy_tokenizer)
    bare.pad_token = None
    assert Policy(toy_model, bare).pad_id == 0
    assert Policy(toy_model, toy_tokenizer).pad_id == toy_tokenizer.pad_token_id


def test_checkpoints_are_read_in_float32(tmp_path, toy_model, toy_tokenizer):
    import torch

    from igrpo_train.config import Model
    from igrpo_train.policy import load_policy

    toy_model.save_pretrained(tmp_path)
    toy_tokenizer.save_pretrained(tmp_path)
    config = Model(path=str(tmp_path), dtype="bfloat16")
    assert load_policy(config).model.dtype == torch.bfloat16
    assert load_policy(config, folder=tmp_path).model.dtype == torch.float32


def test_a_device_is_found_by_name_or_refused():
    from igrpo_train.policy import find_device

    assert find_device("auto").type in ("cpu", "cuda", "mps", "xpu")
    with pytest.raises(ValueError, match=r"model\.device must be auto or a torch device of this machine, got 'banana'"):
        find_device("banana")
    with pytest.raises(ValueError, match=r"a torch device of this machine, got 'cuda:77': give cpu or cuda:0"):
        find_device("cuda:77")


def test_training_on_a_device_that_the_process_does_not_have_is_refused(tmp_path):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    flags = ["--model.device=meta", "--model.dtype=float32", "--model.path=miniature:leak"]
    data = [f"--data.{name}=miniature:leak/train" for name in ("train", "validation", "corpus")]
    with pytest.raises(ValueError, match=r"the accelerator that this process has \(.*\), got 'meta'"):
        Trainer(load_recipe([*flags, *data, f"--run.folder={tmp_path}", "--run.threads=1"]))
