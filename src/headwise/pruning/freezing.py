"""What of an encoder-decoder stays as it is while the heads of its encoder are pruned.

Voita et al. (2019) train the encoder and the source embedding only: decoder, target embedding and
output matrix are frozen, so that what the encoder's heads did cannot move elsewhere.
"""

from torch import nn

from headwise.sites import find_sites

ENCODER = frozenset({"encoder", "encoder_norm", "embed_source"})  # names of modules
DECODER = frozenset({"decoder"})


def decoder_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Every parameter that is not the encoder's or the source embedding's alone.

    A matrix that encoder and decoder share, as the embeddings of BART and T5, is the decoder's.
    Told by names of modules: those of Headwise's Transformer and of Hugging Face's models.
    """
    if not any(site.name.endswith(".cross") for site in find_sites(model)):
        raise ValueError(
            f"freeze='decoder' is for models with encoder and decoder; {type(model).__name__} has "
            "no site that looks from one to the other. Use freeze=None."
        )
    named = list(model.named_parameters(remove_duplicate=False))
    shared = {id(parameter) for name, parameter in named if not _of_encoder(name)}
    unique = {id(parameter): parameter for _, parameter in named if id(parameter) in shared}
    if not unique or len(unique) == len({id(parameter) for _, parameter in named}):
        raise ValueError(
            f"{type(model).__name__} has no modules called encoder and decoder to tell apart; set "
            "requires_grad of its parameters yourself and use freeze=None."
        )
    return list(unique.values())


def _of_encoder(name: str) -> bool:
    """Whether the outermost module that says so says encoder."""
    said = next((part for part in name.split(".") if part in ENCODER | DECODER), None)
    return said in ENCODER
