"""Small random models of the families that headwise adopts, and batches for them."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from headwise.ops import Attended
from headwise.sites import Site

Batch = dict[str, Any]
BACKENDS = ("sdpa", "eager")
SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "attention_dropout": 0.1, "pad_token_id": 0}
TWO_STACKS = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 40,
    "attention_dropout": 0.1,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}


@dataclass(frozen=True)
class Family:
    """How to build one family's model, and what it is fed."""

    kind: str  # "text" sees both sides, "causal", "two stacks", "crossed" or "image"
    model: type[hf.PreTrainedModel]
    config: Callable[..., hf.PreTrainedConfig]
    settings: dict[str, Any]


FAMILIES = {
    "BERT": Family("text", hf.BertForMaskedLM, hf.BertConfig, SIZES),
    "RoBERTa": Family("text", hf.RobertaForMaskedLM, hf.RobertaConfig, SIZES),
    "DistilBERT": Family(
        "text",
        hf.DistilBertForMaskedLM,
        hf.DistilBertConfig,
        {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "ALBERT": Family(
        "text",
        hf.AlbertForMaskedLM,
        hf.AlbertConfig,
        {
            **SIZES,
            "embedding_size": 16,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
    ),
    "ELECTRA": Family(
        "text", hf.ElectraForMaskedLM, hf.ElectraConfig, {**SIZES, "embedding_size": 16}
    ),
    "ModernBERT": Family(
        "text",
        hf.ModernBertForMaskedLM,
        hf.ModernBertConfig,
        {
            **SIZES,
            "local_attention": 4,
            "global_attn_every_n_layers": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "attention_dropout": 0.1,
        },
    ),
    "GPT-2": Family(
        "causal",
        hf.GPT2LMHeadModel,
        hf.GPT2Config,
        {
            "vocab_size": 100,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "OPT": Family(
        "causal",
        hf.OPTForCausalLM,
        hf.OPTConfig,
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": 40,
            "attention_dropout": 0.1,
        },
    ),
    "Llama": Family("causal", hf.LlamaForCausalLM, hf.LlamaConfig, GROUPED),
    "Qwen2": Family("causal", hf.Qwen2ForCausalLM, hf.Qwen2Config, GROUPED),
    "BART": Family("two stacks", hf.BartForConditionalGeneration, hf.BartConfig, TWO_STACKS),
    "Marian": Family("two stacks", hf.MarianMTModel, hf.MarianConfig, TWO_STACKS),
    "T5": Family(
        "two stacks",
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        {
            "vocab_size": 100,
            "d_model": 32,
            "d_kv": 8,
            "num_layers": 2,
            "num_heads": 4,
            "d_ff": 64,
            "decoder_start_token_id": 0,
        },
    ),
    "ViT": Family(
        "image",
        hf.ViTForImageClassification,
        hf.ViTConfig,
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "image_size": 16,
            "patch_size": 4,
            "attention_probs_dropout_prob": 0.1,
        },
    ),
    "BERT decoder": Family(
        "crossed",
        hf.BertLMHeadModel,
        hf.BertConfig,
        {**SIZES, "is_decoder": True, "add_cross_attention": True},
    ),
    "GPT-2 crossed": Family(
        "crossed",
        hf.GPT2LMHeadModel,
        hf.GPT2Config,
        {
            "vocab_size": 100,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "add_cross_attention": True,
            "eos_token_id": 2,
            "bos_token_id": 1,
        },
    ),
}
# Hosts that do not ask the attention interface, for which headwise has adapters.
ADAPTED = {
    "MPNet": Family("text", hf.MPNetForMaskedLM, hf.MPNetConfig, SIZES),
    "DeBERTa-v2": Family(
        "text",
        hf.DebertaV2ForMaskedLM,
        hf.DebertaV2Config,
        {**SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    ),
    "DeBERTa-v3": Family(
        "text",
        hf.DebertaV2ForMaskedLM,
        hf.DebertaV2Config,
        {
            **SIZES,
            "relative_attention": True,
            "pos_att_type": "p2c|c2p",
            "share_att_key": True,
            "position_buckets": 4,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
            "conv_kernel_size": 3,
        },
    ),
}
EVERY = {**FAMILIES, **ADAPTED}
CELLS = [(name, backend) for name in FAMILIES for backend in BACKENDS] + [
    (name, "eager") for name in ADAPTED
]
WITH_CACHE = [name for name, family in FAMILIES.items() if family.kind not in ("text", "image")]


def build(name: str, backend: str = "sdpa", **settings: Any) -> hf.PreTrainedModel:
    """A fresh model in eval mode; the same name, backend and settings give the same weights."""
    return copy.deepcopy(_build(name, backend, tuple(settings.items())))


def batch_of(name: str, *, padding: str = "none") -> Batch:
    """Three inputs of one family, with padding on no side, the "right" or the "left"."""
    rng = torch.Generator().manual_seed(1)
    kind = EVERY[name].kind
    if kind == "image":
        return {"pixel_values": torch.randn(3, 3, 16, 16, generator=rng)}
    batch: Batch = {"input_ids": torch.randint(5, 95, (3, 9), generator=rng)}
    if padding != "none":
        batch["attention_mask"] = padding_mask(9, padding)
    if kind == "two stacks":
        batch["decoder_input_ids"] = torch.randint(5, 95, (3, 5), generator=rng)
    if kind == "crossed":
        batch["encoder_hidden_states"] = torch.randn(3, 6, 32, generator=rng)
        if padding != "none":
            batch["encoder_attention_mask"] = padding_mask(6, padding)
    return batch


def padding_mask(n: int, side: str) -> Tensor:
    """1 where a token is real: the second item lacks 3 tokens, the third all but 1."""
    missing_B = torch.tensor([0, 3, n - 1])
    position_T = torch.arange(n)
    real_BT = position_T < (n - missing_B)[:, None]
    return (real_BT if side == "right" else real_BT.flip(1)).long()


def outputs(model: nn.Module, batch: Batch, **options: Any) -> Tensor:
    """The logits of one batch, without gradients."""
    with torch.no_grad():
        return model(**batch, **options).logits


def cached_steps(model: nn.Module, name: str, **options: Any) -> Iterator[Any]:
    """What the model returns for two tokens, one more, and two more, each using the cache."""
    batch = batch_of(name)
    key = "decoder_input_ids" if EVERY[name].kind == "two stacks" else "input_ids"
    tokens_BT = batch.pop(key)
    cache = None
    for part in (tokens_BT[:, :2], tokens_BT[:, 2:3], tokens_BT[:, 3:5]):
        with torch.no_grad():
            step = model(**batch, **options, **{key: part}, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        yield step


class Watch:
    """A watcher that reads everything there is to read, and keeps it in order of calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Attended]] = []

    def __call__(self, site: Site, attended: Attended) -> None:
        assert attended.peak.shape == attended.entropy.shape == attended.out.shape[:3]
        assert attended.weights.shape[:3] == attended.peak.shape
        self.seen.append((site.name, attended))

    @property
    def names(self) -> list[str]:
        """The site of each call."""
        return [name for name, _ in self.seen]


@cache
def _build(name: str, backend: str, settings: tuple[tuple[str, Any], ...]) -> hf.PreTrainedModel:
    family = EVERY[name]
    config = family.config(**{**family.settings, **dict(settings)}, attn_implementation=backend)
    model = family.model(config)
    assert config._attn_implementation == backend
    return randomised(model).eval()


def randomised(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Weights large enough for attention to differ from uniform, the same at every call."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2, generator=rng)
    return model
