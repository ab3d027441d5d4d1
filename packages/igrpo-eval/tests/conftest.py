"""fixtures: an agent with a scripted engine in the miniature world; nothing of ours is imported at module level."""

import zlib

import numpy as np
import pytest


class ScriptedSampler:
    """An engine without a model: a response is a function of context and random stream, as a real one's is.

    A prefix is the list of its contexts, each with its tail apart. With `fixed`, every response is that text.
    """

    def __init__(self, tokenizer, fixed=None):
        self.tokenizer = tokenizer
        self.fixed = fixed
        self.generated = []

    def prefill(self, base, rows, segments, tails):
        stems = [()] * len(segments) if base is None else [base[row][0] for row in rows]
        return [((*stem, *segment), tail) for stem, segment, tail in zip(stems, segments, tails, strict=True)]

    def generate(self, prefix, rows, keys, *, temperature, max_tokens):
        from igrpo_train.search.sampling import Completion

        self.generated.append(len(rows))
        completions = []
        for row, key in zip(rows, keys, strict=True):
            stem, tail = prefix[row]
            words = self.tokenizer.decode((*stem, *tail)).split()
            ids = tuple(self.tokenizer(self._respond(words, key, temperature), add_special_tokens=False)["input_ids"])
            completions.append(Completion(ids, (0.0,) * len(ids), "stop"))
        return completions

    def score(self, prefix, rows, continuations):
        raise AssertionError("an evaluation scores nothing")

    def take_recomputed(self):
        return 0

    def _respond(self, words, key, temperature):
        """Search for the name, or answer with a candidate, or break the protocol; all of it drawn."""
        from igrpo_theory.randomness import uniforms

        if self.fixed is not None:
            return self.fixed
        stream = np.array([zlib.crc32(" ".join(words).encode())], dtype=np.uint64)
        if temperature > 0:
            stream = stream ^ np.asarray([key], dtype=np.uint64)
        kind, which = uniforms(stream, np.arange(2))
        asked = words.index("?")
        if kind < 0.4:
            return f"<search> {' '.join(words[asked - 2 : asked])} founder </search>"
        if kind < 0.5:
            return "<think> found done </think>"
        place = asked + 1 + 3 * int(4 * which)
        return f"<think> found done </think> <answer> {' '.join(words[place : place + 2])} </answer>"


@pytest.fixture(scope="session")
def questions():
    """Questions of the miniature world with different numbers of hops."""
    from igrpo_train.question import read_questions

    return read_questions("miniature:leak/test")[::40]


@pytest.fixture
def make_agent():
    """Build an agent on a `ScriptedSampler`."""
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.miniature.protocol import USER_TEMPLATE
    from igrpo_train.miniature.retriever import MiniatureRetriever
    from igrpo_train.miniature.tokenizer import build_tokenizer
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.scoring import AnswerScorer
    from igrpo_train.search.world import SearchAgent

    def build(fixed=None, **settings):
        tokenizer = build_tokenizer()
        sampler = ScriptedSampler(tokenizer, fixed)
        prompting = Prompting(
            tokenizer,
            Agent(
                template=USER_TEMPLATE,
                observation_open=" <information> ",
                document="{text} ",
                observation_close="</information>",
                no_documents="none ",
                **settings,
            ),
            Scoring(preamble="<answer>"),
        )
        retriever = MiniatureRetriever("miniature:leak/test")
        return SearchAgent(sampler, prompting, retriever, AnswerScorer(sampler, prompting, Scoring()))

    return build


@pytest.fixture
def make_record():
    """Build a record; fields may be given."""
    from igrpo_eval.records import Record

    def build(**fields):
        defaults = {
            "id": "q",
            "sample": 0,
            "question": "who?",
            "source": "",
            "hops": 0,
            "golds": ("Ghent",),
            "prediction": "Ghent",
            "answered": True,
            "exact_match": 1.0,
            "f1": 1.0,
            "turns": 2,
            "searches": 1,
            "invalid_turns": 0,
            "tool_calls_official": 1,
            "truncated_turns": 0,
            "response_tokens": 9,
            "prompt_tokens": 40,
            "root_score": None,
            "scores": (None, None),
            "answer_seen": (False, True),
            "transcript": ({"text": "é <answer>\u2028Ghent</answer>", "action": "answer"},),
            "seconds": 0.5,
        }
        return Record(**{**defaults, **fields})

    return build
