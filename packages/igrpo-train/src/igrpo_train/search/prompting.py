"""prompting: questions, actions and documents -> token segments.

Every text becomes ids exactly once, here; what the policy sampled stays as it was sampled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from igrpo_train.config import Agent, Scoring
from igrpo_train.question import Passage, Question
from igrpo_train.search.agent import Action, ActionKind
from igrpo_train.search.session import Prompt

_MARK = "\u241e"
"""Stands for the history while the chat template is rendered."""


class Observation(NamedTuple):
    """What came back for an action, as text and as ids."""

    text: str
    ids: tuple[int, ...]
    cut: bool


class ForcedAnswer(NamedTuple):
    """A scoring preamble with a gold answer behind it."""

    token_ids: tuple[int, ...]
    gold: Bool[np.ndarray, " L"]
    """Which ids carry characters of the answer; all ids before them are the preamble."""


class Prompting:
    """Builds the segments of a search agent's contexts for one tokenizer.

    Args:
        tokenizer: a fast tokenizer (character offsets are needed to find the answer's tokens).
        agent: protocol settings.
        scoring: answer-score settings.
        context_limit: the model's own maximum of positions; None when unknown.

    Raises:
        ValueError: the tokenizer has no chat template, or gives no offsets, or the limits cannot hold a turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        agent: Agent,
        scoring: Scoring,
        context_limit: int | None = None,
    ) -> None:
        if agent.chat and not tokenizer.chat_template:
            raise ValueError(
                f"model.path must have a tokenizer with a chat template, got {tokenizer.name_or_path!r} without one: "
                "use an instruct model, or set agent.chat = false (--agent.chat False) to send the plain prompt"
            )
        if not tokenizer.is_fast:
            raise ValueError(f"model.path must have a fast tokenizer, got {type(tokenizer).__name__}: convert it first")
        needed = agent.max_prompt_tokens + agent.max_response_tokens
        if context_limit is not None and needed > context_limit:
            raise ValueError(
                f"agent.max_prompt_tokens + agent.max_response_tokens must be at most the model's {context_limit} "
                f"positions, got {needed}: lower one of them"
            )
        self.tokenizer = tokenizer
        self.agent = agent
        self.scoring = scoring
        self.context_limit = context_limit
        self._forced: dict[str, ForcedAnswer] = {}
        self._open_ids = self._encode(agent.observation_open)
        self._close_ids = self._encode(agent.observation_close)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, without end-of-sequence and other special tokens."""
        text = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def prompt(self, question: Question) -> Prompt:
        """Head and tail of a question's contexts.

        Raises:
            ValueError: instructions and question alone do not fit `agent.max_prompt_tokens`; the chat template fails.
        """
        # The question goes in last, and the last mark is the history's: a question may hold either word.
        content = self.agent.template.replace("{history}", _MARK).replace("{question}", question.text.strip())
        if self.agent.chat:
            content = self._chat(content)
        before, _, after = content.rpartition(_MARK)
        if self.agent.history == "everything":
            before, after = before + after, ""
        prompt = Prompt(question=question, head_ids=self._encode(before), tail_ids=self._encode(after))
        length = len(prompt.head_ids) + len(prompt.tail_ids)
        if length > self.agent.max_prompt_tokens:
            raise ValueError(
                f"question {question.id!r} must fit agent.max_prompt_tokens = {self.agent.max_prompt_tokens} together "
                f"with the instructions, got {length} tokens: raise the limit or drop the question"
            )
        return prompt

    def _chat(self, content: str) -> str:
        messages, name = [{"role": "user", "content": content}], self.tokenizer.name_or_path
        try:
            rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(
                f"model.path must have a chat template that takes one user message, got {name!r} ({error}): mend the "
                "template, or set agent.chat = false (--agent.chat False) to send the plain prompt"
            ) from error
        if not isinstance(rendered, str) or _MARK not in rendered:
            raise ValueError(
                f"model.path must have a chat template that repeats the user message, got {name!r}: mend the template, "
                "or set agent.chat = false (--agent.chat False) to send the plain prompt"
            )
        return rendered

    def observe(self, passages: Sequence[Passage], room: int) -> Observation:
        """Write retrieved passages as an observation of at most `room` ids, cutting documents from the end."""
        documents = "".join(
            self.agent.document.format(rank=rank, title=passage.title, text=passage.text)
            for rank, passage in enumerate(passages, start=1)
        )
        ids = self._encode(documents or self.agent.no_documents)
        space = min(room - len(self._open_ids) - len(self._close_ids), self.agent.max_observation_tokens)
        if space <= 0:
            return Observation("", (), True)
        cut = len(ids) > space
        if cut:
            ids = ids[:space]
            documents = self.decode(ids)
        text = self.agent.observation_open + (documents or self.agent.no_documents) + self.agent.observation_close
        return Observation(text, self._open_ids + ids + self._close_ids, cut)

    def action_ids(self, response_ids: Sequence[int], action: Action) -> tuple[int, ...]:
        """The sampled ids that spell the action: the shortest slice that covers its characters."""
        if action.kind is ActionKind.NONE:
            return ()
        first = self._tokens_within(response_ids, action.start)
        last = self._tokens_within(response_ids, action.end - 1) + 1
        return tuple(response_ids[first:last])

    def _tokens_within(self, response_ids: Sequence[int], character: int) -> int:
        """Index of the token that brings the text past `character`, by bisection over decoded prefixes."""
        low, high = 0, len(response_ids) - 1
        while low < high:
            middle = (low + high) // 2
            if len(self.decode(response_ids[: middle + 1])) > character:
                high = middle
            else:
                low = middle + 1
        return low

    def forced_answer(self, answer: str) -> ForcedAnswer:
        """The scoring preamble followed by an answer, with exactly the answer's tokens marked.

        Tokens count as the answer's when their characters overlap it, as in the official scorer.

        Raises:
            ValueError: the tokenizer drops all of the answer.
        """
        if answer in self._forced:
            return self._forced[answer]
        text = self.scoring.preamble + answer
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        start = len(self.scoring.preamble)
        gold = np.array([end > start for _, end in encoded["offset_mapping"]], dtype=bool)
        if not gold.any():
            raise ValueError(
                f"a gold answer must have tokens of its own, got {answer!r}, of which the tokenizer keeps nothing: "
                "mend the answer or drop its question"
            )
        self._forced[answer] = ForcedAnswer(tuple(encoded["input_ids"]), gold)
        return self._forced[answer]
