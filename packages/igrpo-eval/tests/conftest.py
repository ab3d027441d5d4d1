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
        self.scores = False
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
        """Log-probabilities that are a function of context and continuation."""
        from igrpo_theory.randomness import uniforms

        assert self.scores, "an evaluation that was not asked to scores nothing"
        logprobs = []
        for row, ids in zip(rows, continuations, strict=True):
            stem, tail = prefix[row]
            text = f"{[*map(int, (*stem, *tail))]}{list(ids)}"
            logprobs.append(np.log(uniforms(np.array([zlib.crc32(text.encode())], np.uint64), np.arange(len(ids)))))
        return logprobs

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
            "tool_calls_official": 1,
            "invalid_turns": 0,
            "truncated_turns": 0,
            "prompt_tokens": 40,
            "response_tokens": 9,
            "root_score": None,
            "scores": (None, None),
            "answer_seen": (True, True),
            "transcript": ({"text": "é <answer>\u2028Ghent</answer>", "action": "answer"},),
            "seconds": 0.5,
        }
        return Record(**{**defaults, **fields})

    return build


@pytest.fixture(scope="session")
def agent_flags():
    """The protocol of the miniature policy."""
    return (
        "--agent.template=question {question} . {history}",
        "--agent.max_prompt_tokens=192",
        "--agent.max_response_tokens=12",
        "--agent.document={text} ",
        "--agent.observation_open=<information> ",
        "--agent.observation_close=</information>",
        "--agent.no_documents=none ",
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A saved miniature model that has learnt nothing."""
    from igrpo_train.miniature.build import build_model
    from igrpo_train.miniature.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run_flags(agent_flags, model_folder):
    """Everything that an evaluation of that model needs but a folder."""
    data = ("--data.validation=miniature:leak/test", "--data.corpus=miniature:leak/test", "--retrieval.kind=miniature")
    model = (f"--model.path={model_folder}", "--model.dtype=float32", "--model.device=cpu")
    return (*data, *model, *agent_flags, "--temperature=1")


@pytest.fixture
def command(run_flags, tmp_path):
    """Run the command in process on a few test questions; returns its folder."""
    from igrpo_eval.__main__ import main

    def run(*flags, out="out", limit=6):
        main(["run", *run_flags, f"--out={tmp_path / out}", f"--limit={limit}", *flags])
        return tmp_path / out

    return run


class PlayingSampler:
    """An engine that plays a script: the next response of the question that its context asks; scores are a quarter."""

    def __init__(self, tokenizer, script):
        self.tokenizer = tokenizer
        self.left = {question: list(responses) for question, responses in script.items()}

    def prefill(self, base, rows, segments, tails):
        stems = [()] * len(segments) if base is None else [base[row][0] for row in rows]
        return [((*stem, *segment), tail) for stem, segment, tail in zip(stems, segments, tails, strict=True)]

    def generate(self, prefix, rows, keys, *, temperature, max_tokens):
        from igrpo_train.search.sampling import Completion

        completions = []
        for row in rows:
            context = self.tokenizer.decode(sum(prefix[row], ()))
            [question] = [question for question in self.left if question in context]
            ids = self.tokenizer(self.left[question].pop(0), add_special_tokens=False)["input_ids"]
            finish = "stop" if len(ids) <= max_tokens else "length"
            completions.append(Completion(tuple(ids[:max_tokens]), (0.0,) * min(len(ids), max_tokens), finish))
        return completions

    def score(self, prefix, rows, continuations):
        return [np.full(len(ids), np.log(0.25)) for ids in continuations]

    def take_recomputed(self):
        return 0


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A tokenizer that knows every text: a token is a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=None)


@pytest.fixture
def play(byte_tokenizer):
    """Evaluate a script of responses, `{question: [response, ...]}`, over BM25; returns its records."""
    from igrpo_eval.evaluate import evaluate
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.question import Passage, Question
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.retrieval import BM25Retriever
    from igrpo_train.search.scoring import AnswerScorer
    from igrpo_train.search.world import SearchAgent

    passages = [
        Passage(id="p1", title="Ghent", text="Ghent lies where the river Lys meets the Scheldt."),
        Passage(id="p2", title="Oslo", text="The capital of Norway. <answer>Oslo</answer> is written on its gate."),
        Passage(id="p3", title="Norway", text="A kingdom with 5,550,000 people."),
    ]

    def run(script, golds, turn_limit=4, **settings):
        agent = Agent(
            template="{question}\n{history}",
            chat=False,
            max_prompt_tokens=900,
            max_response_tokens=120,
            max_observation_tokens=300,
            top_k=2,
        )
        sampler = PlayingSampler(byte_tokenizer, script)
        prompting = Prompting(byte_tokenizer, agent, Scoring(preamble="<answer>"))
        scorer = AnswerScorer(sampler, prompting, Scoring(preamble="<answer>"))
        questions = [
            Question(id=f"q{place}", text=text, answers=answers, source="golden")
            for place, (text, answers) in enumerate(golds.items())
        ]
        searching = SearchAgent(sampler, prompting, BM25Retriever(passages), scorer)
        return evaluate(searching, questions, turn_limit=turn_limit, temperature=0.0, seed=0, **settings)

    return run
