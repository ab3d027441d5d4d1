"""fixtures: a byte-level BPE tokenizer and tiny random models; nothing of ours is imported at module level."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for retrieval_servers, in every import mode

_TEXT = [
    "<think> I need the mayor of Ghent. </think>\n<search>mayor of Ghent</search>",
    "<answer>Paris</answer> <information>Doc 1(Title: Ghent) Ghent is a city in Belgium.</information>",
    "Question: who founded the town? Answer: Émile Zola, 1871.",
]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def toy_tokenizer():
    """Byte-level BPE of about 400 ids with a chat template; its tokens straddle tag borders."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_TEXT * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<|pad|>", eos_token="<|im_end|>")
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def toy_model(toy_tokenizer):
    """A random two-layer Qwen2 decoder over the toy vocabulary, float32, evaluation mode."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(toy_tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=toy_tokenizer.eos_token_id,
        pad_token_id=toy_tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def smollm2():
    """Folder of the converted SmolLM2-135M-Instruct; tests that need it are skipped where it was never fetched."""
    from igrpo_train.fetch import smollm2_folder

    folder = smollm2_folder()
    if not (folder / "config.json").is_file():
        pytest.skip("needs SmolLM2: call igrpo_train.fetch.fetch_smollm2() once, with a network")
    return folder
