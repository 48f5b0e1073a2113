"""Switch heads off, and read a head's importance from the gradient of a gate.

    python examples/switch_heads_off.py

The model is a small random GPT-2, so the numbers mean nothing; the steps are those for any model.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headwise as hw

config = GPT2Config(
    vocab_size=200,
    n_embd=64,
    n_layer=2,
    n_head=4,
    n_positions=64,
    bos_token_id=0,
    eos_token_id=0,
    initializer_range=0.2,  # ten times the usual: an untrained model whose heads do something
    loss_type="ForCausalLM",
)
model = GPT2LMHeadModel(config).eval()
ids = torch.randint(1, 200, (8, 32))
batch = {"input_ids": ids, "labels": ids}

parity = hw.check_parity(model, batch)
print(f"Adopting changes nothing: {parity.equal}, {parity.calls_seen} attention calls seen.")

hw.adopt(model)
sites = hw.find_sites(model)
with torch.no_grad():
    whole = model(**batch).loss.item()
    print(f"\nloss with all heads: {whole:.4f}")
    for site in sites:
        for head in site.heads:
            with hw.masked(model, {site.name: [head.index]}):
                print(f"without {head}: {model(**batch).loss.item() - whole:+.5f}")

# One backward pass instead of one forward pass per head (Michel et al., 2019, Eq. 2).
gates = {site.name: torch.ones(site.num_heads, requires_grad=True) for site in sites}
with hw.gated(model, gates):
    model(**batch).loss.backward()
importance = hw.HeadTable.of(
    {"gate_gradient": {name: gate.grad.abs() for name, gate in gates.items()}}
)
print(f"\n{importance.sort('gate_gradient')}")

hw.release(model)
