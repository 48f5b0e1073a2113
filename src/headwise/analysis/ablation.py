"""What a model loses when one head is switched off."""

from collections.abc import Callable, Mapping

from torch import nn

from headwise.sites import find_sites, masked


def ablate(
    model: nn.Module,
    measure: Callable[[], Mapping[str, float]],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, list[float]]]:
    """Measure the model once for each head, with that head alone switched off.

    Args:
        model: anything with sites.
        measure: evaluates the model as it is and names what it found, e.g. {"bleu": 93.1}.
        progress: called with (heads done, heads in all).

    Returns:
        {name: {site: value with that head off, one a head}}.
    """
    heads = [head for site in find_sites(model) for head in site.heads]
    columns: dict[str, dict[str, list[float]]] = {}
    for done, head in enumerate(heads):
        progress(done, len(heads))
        with masked(model, {head.site: [head.index]}):
            for name, value in measure().items():
                columns.setdefault(name, {}).setdefault(head.site, []).append(value)
    progress(len(heads), len(heads))
    return columns
