"""Two processes of one launch, each with a vLLM engine of its own, for real."""

import importlib.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
import torch
from transformers import LlamaForCausalLM

from igrpo_train.config import Agent, Model, Sampling
from igrpo_train.policy import Policy, load_policy
from igrpo_train.search.transformers_sampler import TransformersSampler
from igrpo_train.search.vllm_sampler import VllmSampler

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
shipped = load_policy(Model(path="miniature:leak", dtype="float32"))
torch.manual_seed(0)
shipped.model.config.update({"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32})
policy = Policy(LlamaForCausalLM(shipped.model.config).eval(), shipped.tokenizer)
agent = Agent(max_prompt_tokens=100, max_response_tokens=20)
engine = VllmSampler(policy, Model(dtype="float32"), Sampling(engine="vllm", cache_gib=0.05), agent)
reference = TransformersSampler(policy.model, policy.tokenizer)
contexts = [tuple(range(5 + k, 50 + k)) for k in range(2 + 3 * rank)]
rows = np.arange(len(contexts))
forced = [(7, 8, 9)] * len(contexts)
tails = [(3, 4)] * len(contexts)
ours = engine.score(engine.prefill(None, rows, contexts, tails), rows, forced)
theirs = reference.score(reference.prefill(None, rows, contexts, tails), rows, forced)
np.testing.assert_allclose(np.stack(ours), np.stack(theirs), atol=1e-4)
# The launch's own group still works.
total = torch.tensor([len(contexts)])
torch.distributed.all_reduce(total)
assert total.item() == 7
"""


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: make test-vllm")
def test_each_of_two_processes_has_an_engine_of_its_own(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env={**os.environ, "JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
