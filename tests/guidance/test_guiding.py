"""The handle of `guide`: on every kind of model, in every kind of training."""

import copy

import pytest
import torch
import transformers as hf
from torch.utils.checkpoint import checkpoint

import headwise as hw
from headwise.guidance import Plan, pattern
from headwise.pruning import prune
from headwise_papers.models import Encoder, EncoderConfig, Transformer, TransformerConfig
from tests.guidance.toy import Toy, written_out

PLAN = Plan(next=1, prev=1, first=1, period=1, tokens={"period": (5, 6, 7)})
# the same where attention is causal, and there is no next token to look at
BACK = Plan(prev=2, first=1, period=1, tokens={"period": (5, 6, 7)})
SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 16,
    "max_position_embeddings": 20,
}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20}
BART = {
    "vocab_size": 30,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
    "dropout": 0.0,
}
T5 = {"vocab_size": 30, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4}
HOSTS = {
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES, **DRY)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**SIZES, **DRY)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, bos_token_id=0, eos_token_id=0)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**SIZES, embedding_size=8)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)),
}
IDS = torch.tensor([[2, 5, 9, 12, 6, 7, 13], [2, 8, 5, 10, 1, 1, 1]])
REAL = IDS != 1


def host(name, backend="sdpa"):
    torch.manual_seed(0)
    model = HOSTS[name]()
    model.set_attn_implementation(backend)
    return model.eval()


def inputs(name):
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    if name == "bart":
        given |= {"decoder_input_ids": IDS, "decoder_attention_mask": REAL.long()}
    return given


def from_matrices(name):
    """The loss from what eager attention returns."""
    model = host(name, "eager")
    output = model(**inputs(name), output_attentions=True)
    ways = {
        "attentions": name in ("gpt2", "llama"),
        "encoder_attentions": False,
        "decoder_attentions": True,
        "cross_attentions": False,
    }
    losses = []
    for way, causal in ways.items():
        visible_BQK = REAL[:, None].expand(-1, 7, -1)
        visible_BQK = visible_BQK.tril() if causal else visible_BQK
        plan = BACK if causal else PLAN
        for weights in output.get(way) or ():
            common = {"ids": IDS, "first_BQ": torch.zeros_like(IDS), "real_BQ": REAL}
            losses.append(written_out(weights, visible_BQK, dict(plan.aims), **common))
    return torch.stack(losses).sum()


def everywhere(model):
    """A plan for every site: `BACK` where attention is causal."""
    names = [site.name for site in hw.find_sites(model)]
    return {n: BACK if n.startswith("decoder") and n.endswith("self") else PLAN for n in names}


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_hugging_face_model_has_the_loss_of_its_matrices(name, backend):
    model = host(name, backend)
    guidance = hw.guide(hw.adopt(model), everywhere(model), steps=10)
    before = model.config._attn_implementation
    model(**inputs(name))
    wanted = from_matrices(name)
    torch.testing.assert_close(guidance.unscaled, wanted.detach().to(torch.float32))
    assert model.config._attn_implementation == before  # the host's own backend computes


def test_a_host_is_guided_by_gradients_to_all_that_makes_its_queries_and_keys():
    model = host("roberta")
    guidance = hw.guide(hw.adopt(model), PLAN, schedule="constant")
    model(**inputs("roberta"))
    guidance.loss().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    last = {name for name in without if "encoder.layer.1" in name}
    assert all("value" in name or "output" in name or "dense" in name for name in last)
    assert {name for name in without if "embeddings" in name} == set()


def translator(**changes):
    torch.manual_seed(0)
    shape = TransformerConfig(30, 30, width=16, heads=4, dropout=0.0, **changes)
    return Transformer(shape).double()


@pytest.mark.parametrize("where", ["encoder.*", "decoder.*.self", "*.cross"])
def test_each_kind_of_attention_of_our_transformer_can_be_guided(where):
    model, lengths = translator(), REAL.sum(dim=1)
    plan = BACK if where == "decoder.*.self" else PLAN
    guidance = hw.guide(model, plan, steps=10, where=where, padding=1)
    weights = []
    with hw.observe(model, lambda site, seen: weights.append(seen.weights), where=where):
        model(IDS, lengths, IDS)
    visible_BQK = REAL[:, None].expand(-1, 7, -1)
    if where == "decoder.*.self":
        visible_BQK = torch.ones_like(visible_BQK).tril()
    common = {"ids": IDS, "first_BQ": torch.zeros_like(IDS), "real_BQ": REAL}
    losses = [written_out(seen, visible_BQK, dict(plan.aims), **common) for seen in weights]
    torch.testing.assert_close(guidance.unscaled, torch.stack(losses).sum().detach())


def test_scores_with_a_bias_are_guided_as_they_are():
    torch.manual_seed(0)
    model = hf.T5ForConditionalGeneration(hf.T5Config(**T5, decoder_start_token_id=0))
    hw.adopt(model.eval())
    guidance = hw.guide(model, PLAN, schedule="constant")
    weights = []
    with hw.observe(model, lambda site, seen: weights.append(seen.weights), where="encoder.*"):
        model(input_ids=IDS, attention_mask=REAL.long(), decoder_input_ids=IDS)
    common = {"ids": IDS, "first_BQ": torch.zeros_like(IDS), "real_BQ": REAL}
    visible_BQK = REAL[:, None].expand(-1, 7, -1)
    losses = [written_out(seen, visible_BQK, dict(PLAN.aims), **common) for seen in weights]
    wanted = torch.stack(losses).sum().detach()
    torch.testing.assert_close(guidance.unscaled, wanted.to(torch.float32))


def test_our_encoder_knows_where_packed_texts_begin_and_end():
    model = Encoder(EncoderConfig.tiny(30)).double().eval()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2, 2]])
    same_BQK = documents[:, :, None] == documents[:, None]
    guidance = hw.guide(model, PLAN, schedule="constant")
    weights = []
    with hw.observe(model, lambda site, seen: weights.append(seen.weights)):
        model(IDS, documents=documents)
    common = {"ids": IDS, "first_BQ": same_BQK.int().argmax(-1), "real_BQ": documents >= 0}
    losses = [written_out(seen, same_BQK, dict(PLAN.aims), **common) for seen in weights]
    torch.testing.assert_close(guidance.unscaled, torch.stack(losses).sum().detach())


def test_layers_and_stacks_may_have_plans_of_their_own():
    model, lengths = translator(), REAL.sum(dim=1)
    plans = {"encoder.0.*": Plan(next=2), "encoder.1.*": Plan({3: pattern("prev")})}
    apart = []
    for where, plan in plans.items():
        with hw.guide(model, plan, steps=10, where=where) as guidance:
            model(IDS, lengths, IDS)
            apart.append(guidance.unscaled)
    guidance = hw.guide(model, plans, steps=10)
    model(IDS, lengths, IDS)
    torch.testing.assert_close(guidance.unscaled, sum(apart))
    with pytest.raises(ValueError, match=r"encoder.0.self has two plans, the second by 'encoder"):
        hw.guide(model, {"encoder.0.*": Plan(next=1), "encoder.*": Plan(next=1)})


def test_a_top_k_model_is_guided_by_its_scores():
    """Weights are those of softmax over all keys, so that keys not selected have a gradient."""
    model, plain = translator(encoder_attention="topk:2"), translator()
    plain.load_state_dict(model.state_dict())
    losses = []
    for one in (model, plain):
        guidance = hw.guide(one, PLAN, steps=10, where="encoder.0.*")
        one(IDS, REAL.sum(dim=1), IDS)
        losses.append(guidance.unscaled)
    torch.testing.assert_close(losses[0], losses[1])


def test_the_loss_is_that_of_the_last_forward_pass():
    model = Toy().double()
    first, second = torch.randint(1, 8, (2, 3, 5))
    guidance = hw.guide(model, PLAN, alpha=2.0, schedule="constant")
    wanted = []
    for ids in (first, second):
        model(ids)
        wanted.append(guidance.loss())
        assert guidance.loss() is not wanted[-1] and guidance.loss() == wanted[-1]
    model(first)
    model(second)
    assert guidance.loss() == wanted[1]
    with torch.no_grad():
        model(first)  # an evaluation in between
    assert guidance.loss() == wanted[1]


def test_gradients_of_several_batches_can_be_accumulated():
    model, batches = Toy().double(), torch.randint(1, 8, (2, 3, 5))
    guidance = hw.guide(model, PLAN, schedule="constant")
    for ids in batches:  # one after the other
        (model(ids).square().mean() + guidance.loss()).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    losses = [model(ids).square().mean() + guidance.loss() for ids in batches]
    sum(losses).backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], gradients)


@pytest.mark.parametrize("name", ["roberta", "bart"])
def test_gradient_checkpointing_changes_no_gradient(name):
    model = hw.adopt(host(name)).train()
    guidance = hw.guide(model, everywhere(model), schedule="constant")
    gradients = []
    for repeated in (False, True):
        if repeated:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        # two passes before one backward pass: what is repeated must not mix them up
        losses = []
        for ids in (IDS, IDS.flip(1)):
            output = model(**{**inputs(name), "input_ids": ids})
            losses.append(output.logits.square().mean() + guidance.loss())
        sum(losses).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_reentrant_checkpointing_is_refused_rather_than_ignored():
    model = Toy().double()
    guidance = hw.guide(model, PLAN, schedule="constant")
    forward = model.forward
    model.forward = lambda ids: checkpoint(forward, ids, use_reentrant=True)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        model(torch.randint(1, 8, (2, 5)))
    with pytest.raises(ValueError, match="computed no guided site with gradients"):
        guidance.loss()


def test_mixed_precision_gives_nearly_the_same_loss_in_float32():
    model = host("roberta")
    guidance = hw.guide(hw.adopt(model), PLAN, schedule="constant")
    model(**inputs("roberta"))
    wanted = guidance.unscaled
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**inputs("roberta"))
        loss = output.logits.float().square().mean() + guidance.loss()
    loss.backward()
    assert guidance.unscaled.dtype == torch.float32
    torch.testing.assert_close(guidance.unscaled, wanted, rtol=0.02, atol=0)


def test_heads_learn_where_to_look():
    model = Toy()
    plan = Plan(delim=1, period=2, tokens={"delim": [1], "period": [5, 6]})
    guidance = hw.guide(model, plan, alpha=1.0, schedule="constant")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for step in range(30):
        guidance.at_step(step)
        model(torch.randint(1, 8, (8, 6)))
        optimizer.zero_grad()
        guidance.loss().backward()
        optimizer.step()
        losses.append(guidance.log()["guidance_loss"])
    assert losses[-1] < 0.7 * losses[0]


def test_alpha_is_set_by_the_step():
    model = Toy()
    guidance = hw.guide(model, PLAN, alpha=8, steps=100)
    model(torch.randint(1, 8, (2, 5)))
    guidance.at_step(0)
    whole = guidance.loss()
    guidance.at_step(75)
    assert guidance.alpha == 2.0
    torch.testing.assert_close(guidance.loss(), whole / 4)
    assert guidance.log() == {
        "guidance_loss": pytest.approx(whole.item() / 8),
        "guidance_alpha": 2.0,
    }


def test_undoing_leaves_nothing():
    model = Toy()
    ids = torch.randint(1, 8, (2, 5))
    with hw.guide(model, PLAN, schedule="constant") as guidance:
        model(ids)
        guidance.loss()
    assert all(site.changes == 0 for site in hw.find_sites(model))
    assert not model._forward_pre_hooks and not model._forward_hooks
    guidance.undo()


def test_a_guided_model_can_be_copied():
    model = Toy()
    guidance = hw.guide(model, PLAN, schedule="constant")
    ids = torch.randint(1, 8, (2, 5))
    output = model(ids)
    guidance.loss()
    torch.testing.assert_close(copy.deepcopy(model)(ids), output)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda g: g.loss(), "loss.. needs a forward pass of the guided model"),
        (lambda g: hw.guide(g.model, Plan(first=5)), "head 4, but encoder.0.self has heads 0 to 3"),
        (lambda g: hw.guide(g.model, PLAN, where="decoder.*"), "chooses none of the model's sites"),
        (lambda g: hw.guide(g.model, PLAN, convention="code"), "convention must be one of 'mean'"),
        (lambda g: hw.guide(g.model, PLAN, alpha=float("inf")), "alpha must be a finite number"),
        (
            lambda g: hw.guide(torch.compile(g.model, backend="eager"), PLAN),
            "guide it before it is compiled",
        ),
        (
            lambda g: hw.guide(torch.nn.DataParallel(g.model), PLAN),
            "start a process for each with torch",
        ),
        (lambda g: hw.guide(g.model, PLAN).at_step(1), "number of updates as steps="),
        (lambda g: hw.guide(g.model, {}), "has no plan in it; say e.g"),
        (lambda g: hw.guide(g.model, {"*": PLAN}, where="*.0.*"), r"says where; leave where= out"),
        (
            lambda g: hw.guide(g.model, {0: pattern("next")}),
            r"names of sites like 'encoder\.\*' as keys, got 0; patterns of heads are a plan",
        ),
        (lambda g: hw.guide(g.model, {0: PLAN}, where="*"), "names of sites like"),
        (lambda g: hw.guide(g.model, pattern("next")), r"A plan was wanted, .* got Aim\(name='ne"),
        (lambda g: hw.guide(g.model, {"*": {0: pattern("next")}}), r"was wanted, .* got {0: Aim"),
        (lambda g: hw.guide(g.model, PLAN, padding="[PAD]"), r"padding must be a whole .*'\[PAD"),
        (lambda g: hw.guide(g.model, PLAN, padding=-5), "token's number, 0 or more, got -5"),
        (lambda g: hw.guide(g.model, "next=1,nxt=1"), "There is no pattern 'nxt'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(act, said, unchecked):
    with pytest.raises(ValueError, match=said):
        act(hw.guide(Toy(), PLAN, steps=10))


def test_what_data_parallel_copies_is_refused_when_it_is_called():
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    guidance = hw.guide(model, PLAN, schedule="constant")
    model._is_replica = True  # as torch marks copies of a model on other GPUs
    with pytest.raises(ValueError, match="cannot follow a model inside DataParallel"):
        model(ids)
    del model._is_replica
    model(ids)
    assert guidance.loss() > 0


def test_a_loss_that_is_no_number_is_noticed_where_it_is_logged():
    model = Toy()
    with torch.no_grad():
        model.embed.weight.fill_(torch.nan)
    guidance = hw.guide(model, PLAN, schedule="constant")
    model(torch.randint(1, 8, (2, 5)))
    with pytest.raises(ValueError, match="guidance loss is nan: queries or keys"):
        guidance.log()


def test_token_patterns_need_the_ids():
    model = host("roberta")
    guidance = hw.guide(hw.adopt(model), PLAN, schedule="constant")
    model(inputs_embeds=torch.randn(2, 7, 16))
    with pytest.raises(ValueError, match=r"need the encoder's token ids.*give it input_ids"):
        guidance.loss()


def test_token_patterns_of_a_decoder_need_its_own():
    model, plan = host("bart"), Plan(delim=1, tokens={"delim": (3,)})
    guidance = hw.guide(hw.adopt(model), {"decoder.*.self": plan}, schedule="constant")
    ids = torch.randint(4, 9, (2, 7))
    model(input_ids=ids, labels=ids)
    with pytest.raises(ValueError, match=r"the decoder's token ids.*; give it decoder_input_ids\."):
        guidance.loss()


def test_a_guided_model_is_not_pruned_and_a_pruned_one_has_fewer_heads():
    model = translator()
    with (
        hw.guide(model, Plan(next=1), steps=10),
        pytest.raises(ValueError, match=r"self is guided; undo that before prune"),
    ):
        prune(model, {"encoder.0.self": [1, 2]})
    prune(model, {"encoder.0.self": [1, 2]})
    with pytest.raises(ValueError, match=r"head 2, but encoder\.0\.self has heads 0 to 1"):
        hw.guide(model, Plan(first=3), steps=10)


def test_heads_lost_after_guiding_are_noticed():
    model = Toy()
    site = hw.find_sites(model)[0]
    site.num_heads = 5  # as before they were cut out by hand
    guidance = hw.guide(model, PLAN, schedule="constant")
    model(torch.randint(1, 8, (2, 5)))
    with pytest.raises(ValueError, match=r"had 5 heads when guide was called, and has 4 now"):
        guidance.loss()


def test_attention_by_position_cannot_be_guided():
    model = translator(encoder_attention="gaussian:-1:1")
    guidance = hw.guide(model, Plan(next=1), steps=10)
    model(IDS, REAL.sum(dim=1), IDS)
    with pytest.raises(ValueError, match=r"encoder\.0\.self attends by position alone"):
        guidance.loss()
