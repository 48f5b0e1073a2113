"""Settings of recipes by the last part of their names: what is short to write in tests."""

from typing import Any

from headwise.config import changed, flat, to_json


def configured(config: Any, /, **changes: object) -> Any:
    """Return a config, or the default one of a class, with settings changed.

    `steps` stands for `fit.steps`, and `layers` for those of encoder and decoder alike.
    """
    config = config() if isinstance(config, type) else config
    known = flat(to_json(config))
    placed = {}
    for name, value in changes.items():
        wanted = (name,) if name != "layers" else ("layers", "encoder_layers", "decoder_layers")
        found = [one for one in known if one.rpartition(".")[2] in wanted]
        placed |= dict.fromkeys([name] if name in known or not found else found, value)
    return changed(config, placed)
