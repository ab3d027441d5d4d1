"""tokenizer: the words of the miniature world -> an ordinary fast tokenizer, one token a word.

Source: ours. Example:
    >>> tokenizer = build_tokenizer()
    >>> tokenizer.decode(tokenizer.encode("<search> ba ka founder </search>"))
    '<search> ba ka founder </search>'
"""

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from igrpo_train.miniature.protocol import MAX_TOKENS, TURN, vocabulary

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %} {{ message['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %} " + TURN + "{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; its chat template is `<bos>`, the message, `<turn>`."""
    words = (*SPECIAL_TOKENS.values(), *vocabulary())
    model = WordLevel({word: index for index, word in enumerate(words)}, unk_token=SPECIAL_TOKENS["unk_token"])
    backend = Tokenizer(model)
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL_TOKENS.values()])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=MAX_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        **SPECIAL_TOKENS,
    )
