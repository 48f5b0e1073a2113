"""How much arithmetic a training step of an encoder is, for its share of what a device could do."""

from headwise_papers.models.encoder import EncoderConfig

__all__ = ["training_flops"]

BACKWARD = 3  # a backward pass is two products for each one of the forward pass


def training_flops(
    config: EncoderConfig, *, texts: int, length: int, scored: int, judged: int = 0
) -> float:
    """Floating-point operations of the products of one step: forward and backward.

    Twice the multiplications of projections, feed-forward layers, scores and sums of values with
    softmax attention, of the head at the places where words are scored, and of ELECTRA's where
    tokens are judged. What is computed again in a backward pass, and everything that is no product
    of matrices, does not count.

    Args:
        config: of the encoder.
        texts: rows of a batch.
        length: positions of each.
        scored: at how many of these positions all words get a score.
        judged: at how many it is said whether a token was replaced, as `ReplacedToken` does.

    >>> config = EncoderConfig.roberta(50_265)
    >>> round(training_flops(config, texts=32, length=512, scored=2_458) / 1e12, 2)
    9.86
    """
    width, positions = config.width, texts * length
    linear = 4 * width**2 + 2 * width * config.feed_forward
    attention = 2 * length * width  # a score and a value for each pair of positions
    project = width * config.embedded if config.embedded != width else 0
    head = width * config.embedded + config.embedded * config.vocab
    replaced = width**2 + width
    products = positions * (config.layers * (linear + attention) + project)
    products += scored * head + judged * replaced
    return 2.0 * BACKWARD * products
