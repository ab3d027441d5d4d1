"""config: settings -> one checked `Recipe`.

In: values from `recipes.load_recipe` (a TOML recipe and flags), or from keyword arguments.
Out: a tree of frozen dataclasses; the line under a field is its comment, its `--help` and its page in the docs.
The defaults are the paper's IGRPO run of Qwen2.5-3B-Instruct. Every check here runs before a model loads.
Source: [igrpo] for the defaults.

Example:
    >>> Recipe(tree=Tree(budget=8)).growth_rule(step=0).budget
    8
"""

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from igrpo_theory.expansion import BudgetMode, Scheme, cap_at_step
from igrpo_theory.growth import GrowthRule
from igrpo_theory.values import Criterion
from igrpo_train.checks import amount, check, check_fields, count, fraction, is_url, natural, positive, seed
from igrpo_train.rewards import TruncatedRule
from igrpo_train.systems import System

Aliases = Literal["first", "max", "mean"]
AdvantageUnit = Literal["row", "trajectory"]
Aggregation = Literal["token_mean", "sequence_mean"]
Engine = Literal["transformers", "vllm"]
History = Literal["documents", "everything"]
OldLogprobs = Literal["auto", "sampler", "policy"]
Packing = Literal["tree", "path"]
RatioLevel = Literal["token", "sequence"]
Weights = Literal["none", "mu", "pi"]
Sharding = Literal["auto", "fsdp2"]

FREE_ON_RESUME: Final = (
    "run.",
    "retrieval.url",
    "retrieval.timeout_s",
    "retrieval.retries",
    "retrieval.connections",
    "retrieval.device",
    "sampling.timeout_s",
)
"""Names, or what they start with, that may change when a run goes on: places, how passages are reached, time limits."""

_TEMPLATE: Final = """\
Answer the question below. You may look things up in an encyclopedia before you answer.
In every turn, first reason between <think> and </think>: what is known already, and what is still missing.
Then do exactly one of two things:
<search> words to look up </search> brings passages, which come back between <information> and </information>;
<answer> the answer </answer> ends the task. Keep it short: a name, a number, a date, or yes or no.
Searches made so far, with what they brought, stand below the question.

Question: {question}
{history}"""

_PREAMBLE: Final = """\
<think>
The information gathered so far is enough to give the answer.
</think>
<answer>
"""


def _is_document(form: str) -> bool:
    try:
        return form.format(rank=1, title="", text="T") != form.format(rank=1, title="", text="")
    except (KeyError, IndexError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The policy."""

    path: str = "Qwen/Qwen2.5-3B-Instruct"
    """Hub id, folder of a checkpoint, or miniature:NAME for a policy that ships with the package."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of weights and activations; float32 on CPUs."""
    device: str = "auto"
    """auto takes the accelerator where there is one; else a torch device such as cpu or cuda:0."""
    lora_rank: int = 0
    """Rank of low-rank adapters, of which alone is trained then; 0 trains all weights."""
    lora_alpha: float = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = ()
    """Names of the linear layers that get adapters, such as q_proj; none for all but the output layer."""

    def __post_init__(self) -> None:
        check("model.path", self.path, bool(self.path), "a hub id, a folder or miniature:NAME")
        check_fields("model.", self, "lora_rank", natural, "at least 0")
        check_fields("model.", self, "lora_alpha", positive, "finite and above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Questions and passages: a .jsonl, .jsonl.gz or .parquet file, hf://datasets/OWNER/REPO/FILE, or miniature:..."""

    train: str = "hf://datasets/RUC-NLPIR/FlashRAG_datasets/hotpotqa/train.jsonl"
    """Questions to train on."""
    validation: str = "hf://datasets/RUC-NLPIR/FlashRAG_datasets/hotpotqa/dev.jsonl"
    """Questions to validate on."""
    corpus: str = "hf://datasets/PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz"
    """Passages that the retriever searches."""
    hops: tuple[int, ...] = ()
    """Keep only questions with these numbers of hops; empty keeps all."""

    def __post_init__(self) -> None:
        check("data.hops", self.hops, all(hop >= 1 for hop in self.hops), "positive numbers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    """The search protocol: what the policy reads, and how long turns may be."""

    template: str = _TEMPLATE
    """The user message, with {question} and then {history} to fill in: history last lets a tree share its prefixes."""
    history: History = "documents"
    """What later turns see of a turn: documents (its query and finds; the paper) or everything (its thoughts too)."""
    max_turns: int = 4
    """Turns before an episode is closed; a search on the last turn is not carried out."""
    max_prompt_tokens: int = 4096
    """Longest prompt in tokens; retrieved documents give way, never instructions, question or earlier turns."""
    max_response_tokens: int = 512
    """Longest response of one turn in tokens."""
    max_observation_tokens: int = 500
    """Longest result of one search in tokens."""
    top_k: int = 3
    """Passages that one search brings."""
    document: str = "Doc {rank}(Title: {title}) {text}\n"
    """How one passage is written; {rank}, {title} and {text} are filled in."""
    observation_open: str = "\n\n<information>"
    """Text before the passages."""
    observation_close: str = "</information>\n\n"
    """Text after the passages."""
    no_documents: str = "Nothing found."
    """Stands for the passages when a search finds none."""
    chat: bool = True
    """Send the message through the tokenizer's chat template; false sends it as it is."""

    def __post_init__(self) -> None:
        names = "max_turns max_prompt_tokens max_response_tokens max_observation_tokens top_k"
        check_fields("agent.", self, names, count, "at least 1")
        for part in ("{question}", "{history}"):
            check("agent.template", self.template, self.template.count(part) == 1, f"a text with one {part}")
        check(
            "agent.document", self.document, _is_document(self.document), "a text with {text}, {title} or {rank} only"
        )
        ordered = self.template.index("{question}") < self.template.index("{history}")
        remedy = "a tree shares its prefixes only when history is last"
        check("agent.template", self.template, ordered, "a text with {question} before {history}", remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrieval:
    """The search engine behind <search>."""

    kind: Literal["bm25", "dense", "http", "miniature"] = "bm25"
    """bm25 indexes data.corpus, dense searches retrieval.index, http asks a server, miniature its built-in world."""
    k1: float = 0.9
    """BM25: how fast repeated words stop counting."""
    b: float = 0.4
    """BM25: how much long passages are discounted, 0 to 1."""
    index: str = ""
    """Dense: folder that `igrpo-train index` wrote for data.corpus."""
    encoder: str = ""
    """Dense: model that encodes queries, a hub id or a folder; empty takes the one that the index names."""
    device: str = "cpu"
    """Dense: where queries are encoded and, with faiss-gpu, searched; cpu, cuda or cuda:0."""
    url: str = "http://127.0.0.1:8000/retrieve"
    """HTTP: address of a Search-R1-compatible server, such as `igrpo-train serve`."""
    timeout_s: float = 60.0
    """HTTP: longest wait for one reply, in seconds."""
    retries: int = 10
    """HTTP: further tries of a failed request, after 0.5 s at first and 30 s at last: 10 wait for 2 to 3 minutes."""
    batch: int = 256
    """Queries that one request (http) or one pass of the encoder (dense) holds at most."""
    connections: int = 4
    """HTTP: requests under way at the same time."""

    def __post_init__(self) -> None:
        check("retrieval.k1", self.k1, amount(self.k1), "finite and at least 0")
        check("retrieval.b", self.b, fraction(self.b), "between 0 and 1")
        remedy = "build one with igrpo-train index"
        check("retrieval.index", self.index, self.kind != "dense" or bool(self.index.strip()), "a folder", remedy)
        # Not shown: the address is what may hold a password.
        check(
            "retrieval.url", "one with '@'", "@" not in self.url, "free of passwords", "it is written into run folders"
        )
        check("retrieval.url", self.url, is_url(self.url), "an address like http://127.0.0.1:8000/retrieve")
        # Sockets count their time in 64 bits of nanoseconds.
        day = positive(self.timeout_s) and self.timeout_s <= 86400
        check("retrieval.timeout_s", self.timeout_s, day, "above 0 and at most 86400")
        check_fields("retrieval.", self, "retries", natural, "at least 0")
        check_fields("retrieval.", self, "batch connections", count, "at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """How a question grows into a tree."""

    budget: int = 5
    """Children of the root, and the most expansions that a later stage spends on one question."""
    cap: int = 2
    """Most children of one node after the root; cap = budget means no cap, 1 grows chains."""
    gamma: float = 1.0
    """Sharpness of guidance: nodes are drawn in proportion to exp(gamma * value); 0 draws evenly."""
    budget_mode: BudgetMode = "full"
    """Expansions of a stage: full (budget), low (one an active node) or mid (half way)."""
    scheme: Scheme = "capped"
    """capped draws one by one up to the cap, calibrated undoes its bias; residual, stratified, systematic: no cap."""
    criterion: Criterion = "mean"
    """Value of a node from its answer score: score, gain over its parent, mean of both (the paper), or zero."""
    root_score: Literal["zero", "evaluate"] = "zero"
    """Answer score of the root as a parent: zero (the paper) or evaluated."""
    cap_decay_steps: int = 0
    """Lower the cap by 1 (never below 1) each time this many steps are done; 0 keeps it."""
    weights: Weights = "none"
    """Paths count alike (none; the paper), or as a sample of the teacher law (mu) or the policy (pi), without bias."""

    def __post_init__(self) -> None:
        check_fields("tree.", self, "budget cap", count, "at least 1")
        check("tree.gamma", self.gamma, amount(self.gamma), "finite and at least 0")
        check("tree.cap_decay_steps", self.cap_decay_steps, self.cap_decay_steps >= 0, "at least 0")
        if self.scheme not in ("capped", "calibrated"):
            uncapped = self.cap >= self.budget and self.cap_decay_steps == 0
            remedy = f"{self.scheme} resampling takes no cap; set tree.cap = {self.budget} and tree.cap_decay_steps = 0"
            check(
                "tree.scheme", self.scheme, uncapped, "'capped' where tree.cap is below tree.budget or decays", remedy
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """The answer score of a node: geometric-mean probability of the gold answer's tokens after its history."""

    preamble: str = _PREAMBLE
    """Text between the prompt and the gold answer; the policy must find it likely, or scores mean little."""
    aliases: Aliases = "first"
    """Which accepted answers are scored: the first (the paper), or all of them by their max or mean."""
    warn_below: float = 0.02
    """Warn when the preamble's own geometric-mean token probability falls below this; 0 never warns."""
    always: bool = False
    """Score nodes even where nothing needs it (chains), for the record."""

    def __post_init__(self) -> None:
        check("scoring.warn_below", self.warn_below, fraction(self.warn_below), "between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How training turns are sampled; validation has its own temperature."""

    temperature: float = 1.0
    """Softmax temperature of training rollouts; log-probabilities are taken at the same one."""
    engine: Engine = "transformers"
    """transformers runs the policy itself; vllm keeps a faster engine with a copy of it in the same process."""
    memory_share: float = 0.3
    """vllm: share of the device's memory for its weights and key-value cache; training needs the rest."""
    cache_gib: float = 0.0
    """vllm: GiB of its key-value cache, whatever the share says; 0 takes what the share leaves."""
    block_tokens: int = 32
    """vllm: tokens of a cache block; a shared prefix is shared in whole blocks, small ones cost some speed."""
    timeout_s: float = 0.0
    """vllm: longest time of one call of the engine, which is one stage of all trees, in seconds; 0 is no limit."""
    warn_difference: float = 0.05
    """Warn when engine and trainer differ by more nats a token in the mean; 0 never warns."""
    cache_tokens: int = 0
    """transformers: most key-value columns, over all rows, kept or worked on at once; 0 is no bound."""

    def __post_init__(self) -> None:
        remedy = "a greedy policy has nothing to compare; validation.temperature may be 0"
        check("sampling.temperature", self.temperature, positive(self.temperature), "finite and above 0", remedy)
        check_fields("sampling.", self, "cache_tokens", natural, "at least 0")
        share = 0 < self.memory_share < 1
        check("sampling.memory_share", self.memory_share, share, "above 0 and below 1")
        timed = amount(self.timeout_s) and self.timeout_s <= 86400
        check("sampling.timeout_s", self.timeout_s, timed, "between 0 (no limit) and 86400")
        check_fields("sampling.", self, "cache_gib warn_difference", amount, "finite and at least 0")
        blocks = self.block_tokens > 0 and self.block_tokens % 16 == 0
        check("sampling.block_tokens", self.block_tokens, blocks, "a multiple of 16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """What a path is worth."""

    truncated: TruncatedRule = "rescaled"
    """A leaf cut off by expansion, s its answer score: rescaled (0.5 s, later s), score, zero, threshold, or drop."""
    switch_fraction: float = 0.75
    """Share of the run after which rescaled and threshold change."""
    invalid_penalty: float = 0.01
    """Taken from a turn without one clear action."""

    def __post_init__(self) -> None:
        check("reward.switch_fraction", self.switch_fraction, fraction(self.switch_fraction), "between 0 and 1")
        check("reward.invalid_penalty", self.invalid_penalty, amount(self.invalid_penalty), "finite and at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantage:
    """How rewards of one question are compared."""

    unit: AdvantageUnit = "row"
    """What mean and deviation count once: row (a turn of a path; the paper) or trajectory (a path)."""
    std_floor: float = 0.0
    """Smallest deviation to divide by; keeps groups that hardly differ from being blown up."""

    def __post_init__(self) -> None:
        check("advantage.std_floor", self.std_floor, amount(self.std_floor), "finite and at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The clipped policy loss."""

    clip_low: float = 0.2
    """The probability ratio is clipped at 1 - clip_low."""
    clip_high: float = 0.2
    """The probability ratio is clipped at 1 + clip_high."""
    dual_clip: float = 3.0
    """Bound on the ratio where the advantage is negative; 0 turns it off."""
    kl_coefficient: float = 0.001
    """Weight of the KL estimate (k3) to the starting policy; 0 loads no reference."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    aggregation: Aggregation = "token_mean"
    """token_mean averages over all tokens, sequence_mean over rows after tokens."""
    ratio_level: RatioLevel = "token"
    """The ratio of each token, or one geometric-mean ratio a sequence."""
    old_logprobs: OldLogprobs = "auto"
    """Denominator of the ratio: from the sampler, the policy before its first update, or auto: sampler where exact."""
    importance_cap: float = 0.0
    """Weigh a token's policy loss with its probability under trainer / engine, at most this; 0 is off, 2 is usual."""

    def __post_init__(self) -> None:
        check_fields("loss.", self, "clip_high kl_coefficient entropy_coefficient", amount, "finite and at least 0")
        check("loss.clip_low", self.clip_low, fraction(self.clip_low), "between 0 and 1")
        dual = self.dual_clip == 0 or (math.isfinite(self.dual_clip) and self.dual_clip > 1)
        check("loss.dual_clip", self.dual_clip, dual, "0 (off) or above 1")
        capped = self.importance_cap == 0 or (math.isfinite(self.importance_cap) and self.importance_cap >= 1)
        check("loss.importance_cap", self.importance_cap, capped, "0 (off) or at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimiser:
    """AdamW and the size of its steps."""

    learning_rate: float = 1e-6
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = 0.01
    """AdamW's weight decay."""
    warmup_fraction: float = 0.1
    """Share of the run in which the learning rate rises from 0 to its peak, where it stays."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient."""
    update_rows: int = 256
    """Rows (turns of paths) that one optimiser step aims at; steps are cut between questions."""
    tokens_per_micro_batch: int = 16384
    """Most tokens in one forward pass; lower it when memory runs out."""
    packing: Packing = "tree"
    """tree computes each shared prefix of a pass once; path computes every row whole, with the same result."""
    nonfinite_limit: int = 10
    """End the run after so many optimiser steps in a row whose loss or gradient was not finite; 0 never does."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping its activations: less memory, more time."""

    def __post_init__(self) -> None:
        check_fields("optimiser.", self, "update_rows tokens_per_micro_batch", count, "at least 1")
        check_fields("optimiser.", self, "learning_rate gradient_clip", positive, "finite and above 0")
        check("optimiser.betas", self.betas, all(0 <= beta < 1 for beta in self.betas), "two numbers in [0, 1)")
        check_fields("optimiser.", self, "weight_decay", amount, "finite and at least 0")
        check_fields("optimiser.", self, "nonfinite_limit", natural, "at least 0")
        check("optimiser.warmup_fraction", self.warmup_fraction, fraction(self.warmup_fraction), "between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Exact match on held-out questions during the run."""

    every: int = 10
    """Steps between two validations; 0 validates never."""
    questions: int = 256
    """Questions of one validation, always the same ones."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    seed: int = 0
    """Picks the questions, and samples where temperature is above 0."""

    def __post_init__(self) -> None:
        check_fields("validation.", self, "every", natural, "at least 0")
        check_fields("validation.", self, "seed", seed, "between 0 and 2**64 - 1")
        check(
            "validation.questions",
            self.questions,
            self.questions >= 1,
            "at least 1",
            "validation.every = 0 turns it off",
        )
        check("validation.temperature", self.temperature, amount(self.temperature), "finite and at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Where the run is written, and how often."""

    folder: str = "runs/igrpo"
    """Folder of the run: recipe, metrics, trees, checkpoints."""
    checkpoint_every: int = 10
    """Steps between two checkpoints; 0 writes only the last."""
    keep_last: int = 2
    """Checkpoints to keep."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its default."""
    trees_every: int = 1
    """Steps between two records of the grown trees; 0 records none."""
    processes: int = 0
    """Processes that must train together, or the run is refused; 0 takes as many as were launched."""
    sharding: Sharding = "auto"
    """fsdp2 spreads weights and optimiser over the processes; auto does what accelerate's configuration says."""
    process_timeout_s: float = 1800.0
    """Longest wait of a process for the others, in seconds; then the run ends."""

    def __post_init__(self) -> None:
        check("run.folder", self.folder, bool(self.folder.strip()), "a path", "runs/NAME is a good one")
        check_fields("run.", self, "checkpoint_every threads trees_every processes", natural, "at least 0")
        # OpenMP ends the process, without a word, when it cannot start them.
        check("run.threads", self.threads, self.threads <= 1024, "at most 1024", "more than the cores are no help")
        check_fields("run.", self, "process_timeout_s", positive, "finite and above 0")
        check("run.keep_last", self.keep_last, self.keep_last >= 1, "at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All settings of one training run."""

    system: System = "igrpo"
    """Named setting of the axes; the recipe file and flags override what it sets."""
    seed: int = 0
    """With the recipe, fixes every random draw."""
    steps: int = 200
    """Training steps; each grows trees for a batch of questions and updates the policy on them."""
    questions_per_step: int = 256
    """Questions whose trees are grown in one step."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    agent: Agent = field(default_factory=Agent)
    retrieval: Retrieval = field(default_factory=Retrieval)
    tree: Tree = field(default_factory=Tree)
    scoring: Scoring = field(default_factory=Scoring)
    sampling: Sampling = field(default_factory=Sampling)
    reward: Reward = field(default_factory=Reward)
    advantage: Advantage = field(default_factory=Advantage)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)
    validation: Validation = field(default_factory=Validation)
    run: Run = field(default_factory=Run)

    def __post_init__(self) -> None:
        check_fields("", self, "steps questions_per_step", count, "at least 1")
        check_fields("", self, "seed", seed, "between 0 and 2**64 - 1")
        served = self.retrieval.kind != "miniature" or self.data.corpus.startswith("miniature:")
        remedy = "retrieval.kind = 'miniature' serves only its own world"
        check("data.corpus", self.data.corpus, served, "miniature:NAME/SPLIT", remedy)
        cuts_unscored = self.tree.cap > 1 and self.tree.criterion == "zero" and not self.scoring.always
        scoreless = self.reward.truncated in ("zero", "drop")
        score = "set scoring.always = true (--scoring.always True)"
        remedy = f"tree.criterion = 'zero' scores no node; {score} to keep the rule"
        check("reward.truncated", self.reward.truncated, scoreless or not cuts_unscored, "'zero' or 'drop'", remedy)
        tilted = self.tree.criterion != "zero" and self.tree.gamma > 0
        unscored = tilted and not self.growth_rule(self.steps - 1).needs_scores
        remedy = f"a cap of 1, which this run starts or ends with, scores no node; {score}"
        check("tree.weights", self.tree.weights, self.tree.weights != "mu" or not unscored, "'none' or 'pi'", remedy)
        inexact = self.sampling.engine == "vllm" or self.model.dtype == "bfloat16"
        own = self.loss.old_logprobs == "policy" or (self.loss.old_logprobs == "auto" and inexact)
        remedy = "the sampler stands below the ratio already; loss.old_logprobs = 'policy' puts the policy there"
        check("loss.importance_cap", self.loss.importance_cap, own or not self.loss.importance_cap, "0", remedy)
        bound = self.sampling.cache_tokens
        least = 4 * (self.agent.max_prompt_tokens + self.agent.max_response_tokens)
        rule = f"0 or at least {least}, 4 (agent.max_prompt_tokens + agent.max_response_tokens)"
        remedy = "half of it is kept, and half must hold a turn and its prompt computed again"
        check("sampling.cache_tokens", bound, bound == 0 or bound >= least, rule, remedy)

    def growth_rule(self, step: int) -> GrowthRule:
        """The rule by which trees of this 0-based step grow.

        Example:
            >>> Recipe(tree=Tree(cap=2, cap_decay_steps=100)).growth_rule(step=100).cap
            1
        """
        return GrowthRule(
            budget=self.tree.budget,
            cap=cap_at_step(self.tree.cap, self.tree.cap_decay_steps, step),
            gamma=self.tree.gamma,
            budget_mode=self.tree.budget_mode,
            scheme=self.tree.scheme,
            criterion=self.tree.criterion,
            turn_limit=self.agent.max_turns,
            root_score=self.tree.root_score,
            score_chains=self.scoring.always,
        )
