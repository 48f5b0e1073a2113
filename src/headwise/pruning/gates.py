"""Gates: a factor between 0 and 1 for each head, learned with the model (Voita et al., 2019, §6).

    head_i  ->  g_i * head_i,   g_i ~ HardConcrete(log_alpha_i)
    loss    ->  loss + coefficient * sum_i P(g_i > 0)

The penalty closes the gates of heads that the loss does not need; most gates end fully open or
closed. While gates are on a model they are its submodule `model.head_gates`: they are moved,
trained, saved and loaded with it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from headwise.pruning.choosing import Keep
from headwise.recording import HeadTable
from headwise.sites import Site, Where, find_sites, gated, in_backward

Mode = Literal["paper", "reference_code"]
EPSILON = 1e-6  # the distance of u from 0 and 1


@dataclass(frozen=True)
class HardConcrete:
    """Gates that are exactly 0 or 1 with a learned probability, one for each `log_alpha`.

        s = sigmoid((log u - log(1 - u) + log_alpha) / temperature),  u uniform on (0, 1)
        g = clip(s * (high - low) + low, 0, 1),                       low < 0 < 1 < high

    (Louizos et al., 2018; constants of Voita et al., 2019, section 6.1.) The probability mass of
    the stretched s below 0 and above 1 becomes that of exactly 0 and exactly 1. A larger log_alpha
    is more probably open.

    Args:
        temperature: near 0, gates are rarely strictly between 0 and 1.
        limits: the interval to which s is stretched before it is clipped.

    >>> gate, log_alpha = HardConcrete(), torch.tensor([-2.0, 0.0, 2.5])
    >>> gate.prob_open(log_alpha)
    tensor([0.2299, 0.6881, 0.9641])
    >>> gate.deterministic(log_alpha)
    tensor([0., 1., 1.])
    """

    temperature: float = 0.33
    limits: tuple[float, float] = (-0.1, 1.1)

    def __post_init__(self) -> None:
        low, high = self.limits
        if not (low < 0 and high > 1):
            raise ValueError(
                f"limits must reach below 0 and above 1, or no gate is ever 0 or 1; got {low} and "
                f"{high}."
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}.")

    def sample(
        self, log_alpha: Float[Tensor, "*gates"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*gates"]:
        """Draw gates; gradients reach log_alpha, with u held fixed.

        Args:
            log_alpha: of each gate.
            generator: of the random numbers, on log_alpha's device; None is torch's own.
        """
        uniform = torch.rand(
            log_alpha.shape,
            generator=generator,
            dtype=log_alpha.dtype,
            device=log_alpha.device,
        )
        return self.with_noise(log_alpha, logistic(uniform))

    def with_noise(
        self, log_alpha: Float[Tensor, "*gates"], noise: Float[Tensor, "*gates"]
    ) -> Float[Tensor, "*gates"]:
        """Return the gates for given noise, log u - log(1 - u); see `logistic`."""
        low, high = self.limits
        open_by = torch.sigmoid((noise + log_alpha) / self.temperature)
        return (open_by * (high - low) + low).clamp(0, 1)

    def prob_open(self, log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
        """Return P(g > 0) = sigmoid(log_alpha - temperature * log(-low / high))."""
        return torch.sigmoid(log_alpha - self._zero_at)

    def prob_zero(self, log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
        """Return P(g = 0) = 1 - P(g > 0), accurate also if P(g > 0) is nearly 1."""
        return torch.sigmoid(self._zero_at - log_alpha)

    def prob_one(self, log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
        """Return P(g = 1) = sigmoid(log_alpha - temperature * log((1 - low) / (high - 1)))."""
        return torch.sigmoid(log_alpha - self._one_at)

    def deterministic(
        self, log_alpha: Float[Tensor, "*gates"], mode: Mode = "paper"
    ) -> Float[Tensor, "*gates"]:
        """Return the gates without noise, as they are used after training.

        Args:
            log_alpha: of each gate.
            mode: "paper" gives 0 or 1, whichever is more probable (footnote 7), and 1 for a tie;
                "reference_code" gives clip(sigmoid(log_alpha) * (high - low) + low, 0, 1), which
                with the usual limits lies strictly between 0 and 1 for |log_alpha| < 2.398.
        """
        if mode == "paper":
            return (self.prob_one(log_alpha) >= self.prob_zero(log_alpha)).to(log_alpha)
        if mode != "reference_code":
            raise ValueError(f"mode must be 'paper' or 'reference_code', got {mode!r}.")
        low, high = self.limits
        return (torch.sigmoid(log_alpha) * (high - low) + low).clamp(0, 1)

    @property
    def _zero_at(self) -> float:
        low, high = self.limits
        return self.temperature * math.log(-low / high)

    @property
    def _one_at(self) -> float:
        low, high = self.limits
        return self.temperature * math.log((1 - low) / (high - 1))


def logistic(uniform: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """Return log u - log(1 - u), with u from [0, 1] moved into [1e-6, 1 - 1e-6]."""
    inside = uniform * (1 - 2 * EPSILON) + EPSILON
    return inside.log() - (-inside).log1p()


_LOW = 0xFFFFFFFF  # numbers are kept to 32 bits, so that no product leaves an int64
_BITS = 23  # of the fraction of a float32


def counted_uniform(seed: int, draw: Int[Tensor, ""], count: int) -> Float[Tensor, " count"]:
    """Return `count` uniform numbers on (0, 1) in float32, a function of seed and draw alone.

    A generator object cannot be part of a compiled graph, gives other numbers on a GPU than on a
    CPU, and differs between processes. These are the same in all of them, and after a checkpoint.

    Args:
        seed: of the numbers, which are no good for secrets.
        draw: the number of the draw; a tensor, so that a compiled graph need not know its value.
        count: how many numbers.
    """
    place_N = torch.arange(count, device=draw.device, dtype=torch.int64)
    start = torch.full_like(place_N, seed & _LOW)
    mixed_N = _mixed(_mixed(_mixed(start) ^ (draw & _LOW)) ^ place_N)
    return ((mixed_N >> (32 - _BITS)).float() + 0.5) * 2.0**-_BITS


def _mixed(number: Tensor) -> Tensor:
    """Return a 32-bit hash in two rounds of shift and multiply; constants are below 2^31."""
    number = ((number ^ (number >> 16)) * 0x21F0AAAD) & _LOW
    number = ((number ^ (number >> 15)) * 0x735A2D97) & _LOW
    return number ^ (number >> 15)


Normalise = Literal["paper", "reference_code"]
NAME = "head_gates"  # the name of the gates as a submodule
CLEARLY = 0.9  # a gate is decided if it is open, or closed, with at least this probability


class SiteGates(nn.Module):
    """The gates of one site, which calls them for the factors of its heads.

    In training they are drawn from noise that stays until the next forward pass of the model, so
    that a forward pass repeated by gradient checkpointing is the same. In eval mode they are fixed.
    """

    noise: Tensor
    held: Tensor
    learned: Tensor

    def __init__(
        self,
        log_alpha: Float[Tensor, " G"],
        *,
        distribution: HardConcrete,
        mode: Mode,
        group: int,
    ) -> None:
        super().__init__()
        self.distribution, self.group = distribution, group
        self.mode: Mode = mode
        self.log_alpha = nn.Parameter(log_alpha)
        self.register_buffer("noise", torch.zeros_like(log_alpha), persistent=False)
        self.register_buffer("held", torch.zeros((), dtype=torch.bool, device=log_alpha.device))
        self.register_buffer("learned", log_alpha.clone())  # log_alpha before it was held

    def forward(self) -> Float[Tensor, " H"]:
        """Return one factor for each head."""
        if self.training:
            return self.by_head(self.distribution.with_noise(self.log_alpha, self.noise))
        return self.by_head(self.distribution.deterministic(self.log_alpha, self.mode))

    @torch.no_grad()
    def hold(self, chosen: Bool[Tensor, " G"], *, at: float, when: Bool[Tensor, ""]) -> None:
        """Set log_alpha of the chosen gates to at least `at` and of the others to at most -`at`.

        `learned` keeps log_alpha from before the first call. If `when` is False nothing happens; it
        is a tensor so that nothing waits for the device.
        """
        self.learned.copy_(torch.where(self.held, self.learned, self.log_alpha))
        self.held.logical_or_(when)
        held_G = torch.where(chosen, self.log_alpha.clamp(min=at), self.log_alpha.clamp(max=-at))
        self.log_alpha.copy_(torch.where(when, held_G, self.log_alpha))

    def learned_log_alpha(self) -> Float[Tensor, " G"]:
        """Return log_alpha as training left it, before gates were held."""
        return torch.where(self.held, self.learned, self.log_alpha)

    def by_head(self, values: Shaped[Tensor, " G"]) -> Shaped[Tensor, " H"]:
        """Repeat the value of each gate for its heads."""
        return values if self.group == 1 else values.repeat_interleave(self.group)


class _Attached(NamedTuple):
    """The state that `undo` needs; a tuple, so that the model does not become its own submodule."""

    model: nn.Module
    hook: Any  # a RemovableHandle
    frozen: list[nn.Parameter]


class Gates(nn.Module):
    """Gates for every head of the chosen sites; they take effect immediately.

        gates = Gates(model, where="encoder.*")
        optimizer = AdamW(gates.parameter_groups(model, learning_rate=0.05), lr=3e-5)
        for batch in batches:
            loss = task_loss(model, batch) + 0.05 * gates.penalty()
            ...
        prune(model, gates)  # and the gates are removed from the model

    In training each forward pass of the model draws once, the same for all rows of the batch and
    all processes. The numbers depend on `seed` and the count of draws alone, which is saved with
    the model, so that a resumed training repeats them. Add gates before a model is compiled or
    wrapped for several processes. With gradient checkpointing, run the backward pass before the
    next forward pass. Only `model.forward` draws; other methods use the last draw.

    Args:
        model: a model with sites; a Hugging Face model must be adopted before.
        where: the sites that get gates.
        distribution: the distribution of the gates.
        initial: log_alpha at the start. The paper does not give it. With 2.0, 94 % of the heads are
            open (77 % unchanged), which disturbs a trained model little and still has a gradient.
            "reference_code" is uniform between plus and minus sqrt(3 / H), as in the authors' code,
            and closes half of the heads of a trained model at first.
        mode: the gates of eval mode and of `keep`; see `HardConcrete.deterministic`.
        group: how many neighbouring heads share a gate, e.g. those that share keys and values.
        seed: of the draws.
    """

    draws: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        where: Where = "*",
        distribution: HardConcrete | None = None,
        initial: float | Literal["reference_code"] = 2.0,
        mode: Mode = "paper",
        group: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check_model(model)
        self.distribution, self.group = distribution or HardConcrete(), group
        self.mode: Mode = mode
        self.distribution.deterministic(torch.zeros(1), mode)  # raises for an unknown mode
        self.seed, self.sites = seed, find_sites(model, where=where)
        first = next(model.parameters())
        starts = _initial(self.sites, group, initial, seed)
        dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        for site, start_G in zip(self.sites, starts, strict=True):
            made = SiteGates(
                start_G.to(first.device, dtype),
                distribution=self.distribution,
                mode=mode,
                group=group,
            )
            self.add_module(_key(site), made)
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64, device=first.device))
        self._refill()
        self._attach(model)

    def _attach(self, model: nn.Module) -> None:
        gated(model, {site.name: self.of(site) for site in self.sites})
        self.train(model.training)
        model.add_module(NAME, self)
        hook = model.register_forward_pre_hook(self._before_forward)
        self._attached: _Attached | None = _Attached(model, hook, [])

    def undo(self) -> None:
        """Remove the gates from the model and unfreeze its parameters.

        The gates keep their values. A second call does nothing.
        """
        attached, self._attached = self._attached, None
        if attached is None:
            return
        attached.hook.remove()
        del attached.model._modules[NAME]
        for site in self.sites:
            mine = self.of(site)
            site.gates[:] = [gate for gate in site.gates if gate is not mine]
        for parameter in attached.frozen:
            parameter.requires_grad_(True)

    def __enter__(self) -> "Gates":
        if self._attached is None:
            raise ValueError("These gates were undone already; create new ones.")
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def of(self, site: Site) -> SiteGates:
        """Return the gates of one site."""
        found = self.get_submodule(_key(site))
        assert isinstance(found, SiteGates)
        return found

    def check_fit(self, model: nn.Module) -> None:
        """Raise if these gates are not on this model or, once undone, do not fit it."""
        if self._attached is not None and self._attached.model is not model:
            raise ValueError(f"These gates are not on this {type(model).__name__}.")
        here = {site.name: site.num_heads for site in find_sites(model)}
        for name, gate_H in self.deterministic().items():
            if here.get(name) != len(gate_H):
                raise ValueError(
                    f"These gates are for the {len(gate_H)} heads of {name}, of which this "
                    f"{type(model).__name__} has {here.get(name, 0)}."
                )

    @torch.no_grad()
    def _before_forward(self, model: nn.Module, inputs: object) -> None:
        if self.training and not in_backward():
            self.draws.add_(1)
            self._refill()

    @torch.no_grad()
    def _refill(self) -> None:
        """Give each site its noise of this draw."""
        parts = [self.of(site) for site in self.sites]
        sizes = [len(part.log_alpha) for part in parts]
        noise_N = logistic(counted_uniform(self.seed, self.draws, sum(sizes)))
        for part, noise_G in zip(parts, noise_N.split(sizes), strict=True):
            part.noise.copy_(noise_G)

    @property
    def heads(self) -> int:
        """The number of heads with gates."""
        return sum(site.num_heads for site in self.sites)

    @property
    def open_heads(self) -> int:
        """The number of heads that `keep` keeps."""
        return sum(len(kept) for kept in self.keep().values())

    def log_alpha(self) -> Float[Tensor, " N"]:
        """Return log_alpha of every gate, site after site."""
        return torch.cat([self.of(site).log_alpha for site in self.sites])

    def expected_open(self) -> Float[Tensor, ""]:
        """Return the expected number of open heads, sum_i P(g_i > 0)."""
        prob_N = self.distribution.prob_open(self.log_alpha())
        return prob_N.clamp(EPSILON, 1 - EPSILON).sum() * self.group

    def penalty(self, normalise: Normalise = "paper") -> Float[Tensor, ""]:
        """Return the penalty; add it to the loss, times a coefficient. P is clipped off 0 and 1.

        Args:
            normalise: "paper" is the sum of P(g > 0) over all heads; "reference_code" is the mean
                over sites of the sum over their heads, as in the authors' code.
        """
        _check_normalise(normalise)
        expected = self.expected_open()
        return expected if normalise == "paper" else expected / len(self.sites)

    def lambda_in_both(self, value: float, normalise: Normalise = "paper") -> str:
        """Return a sentence with the coefficient in both normalisations of the penalty."""
        paper, code = self.coefficients(value, normalise).values()
        return (
            f"lambda {paper:.6g} of the sum over all heads (paper) = {code:.6g} of the "
            f"mean over {len(self.sites)} attention layers (reference code)"
        )

    def coefficients(self, value: float, normalise: Normalise = "paper") -> dict[str, float]:
        """Return the coefficient for both normalisations of the penalty, to be logged."""
        _check_normalise(normalise)
        paper = value if normalise == "paper" else value / len(self.sites)
        return {
            "penalty_coefficient": paper,
            "penalty_coefficient_reference_code": paper * len(self.sites),
        }

    def prob_open(self) -> dict[str, Tensor]:
        """Return P(g > 0) of each head, {site name: (H,)}, as it was before gates were settled."""
        return self._learned_by_head(self.distribution.prob_open)

    @torch.no_grad()
    def deterministic(self) -> dict[str, Tensor]:
        """Return the gates of eval mode, {site name: (H,)}."""
        gates = {site.name: self.of(site) for site in self.sites}
        measure = self.distribution.deterministic
        return {name: x.by_head(measure(x.log_alpha, self.mode)) for name, x in gates.items()}

    def keep(self) -> Keep:
        """Return the heads whose gates are open in eval mode, for `prune`."""
        return {name: gate_H.nonzero().flatten().tolist() for name, gate_H in self._cpu_gates()}

    def scale(self) -> dict[str, Tensor]:
        """Return the gates of the heads that `keep` keeps, in its order; 1 in the mode "paper"."""
        return {name: gate_H[gate_H > 0] for name, gate_H in self._cpu_gates()}

    def _cpu_gates(self) -> list[tuple[str, Tensor]]:
        return [(name, gate_H.cpu()) for name, gate_H in self.deterministic().items()]

    @torch.no_grad()
    def _learned_by_head(self, measure: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        gates = {site.name: self.of(site) for site in self.sites}
        return {name: x.by_head(measure(x.learned_log_alpha())) for name, x in gates.items()}

    def table(self) -> HeadTable:
        """Return log_alpha, P(g > 0), P(g = 1) and the gate of eval mode for every head.

        If a `Target` settled the gates, the first three are from before that, because settling
        moves every gate far from the middle.
        """
        return HeadTable.of(
            {
                "log_alpha": self._learned_by_head(lambda log_alpha: log_alpha),
                "prob_open": self.prob_open(),
                "prob_one": self._learned_by_head(self.distribution.prob_one),
                "gate": self.deterministic(),
            }
        )

    def log(self, *, every_head: bool = False) -> dict[str, float]:
        """Return metrics: heads open in eval mode, expected open heads, and undecided heads.

        Args:
            every_head: add P(g > 0) of each head, as "prob_open.encoder.0.self.5".
        """
        table = self.table()
        open_by = [float(prob) for prob in table["prob_open"] if isinstance(prob, float)]
        one_by = [float(prob) for prob in table["prob_one"] if isinstance(prob, float)]
        decided = sum(
            one >= CLEARLY or 1 - up >= CLEARLY for up, one in zip(open_by, one_by, strict=True)
        )
        rows: dict[str, float] = {
            "open_heads": float(self.open_heads),
            "expected_open_heads": math.fsum(open_by),
            "undecided_heads": float(len(open_by) - decided),
        }
        if every_head:
            rows |= {f"prob_open.{head}": up for head, up in zip(table.heads, open_by, strict=True)}
        return rows

    def parameter_groups(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        freeze: Literal["decoder"] | None = None,
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimiser: the weights, and the gates.

        Gates have their own learning rate and no weight decay.

        Args:
            model: the model these gates are on.
            learning_rate: of the gates. They move about 4 units from open to closed, and Adam moves
                them by about the learning rate in a step.
            freeze: "decoder" freezes decoder, target embedding and output matrix, as the paper does
                when it prunes the encoder; `undo` unfreezes them.
        """
        self._freeze(model, freeze)
        own = {id(parameter) for parameter in self.parameters()}
        weights = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
        gates = {"params": list(self.parameters()), "lr": learning_rate, "weight_decay": 0.0}
        return [{"params": weights}, gates]

    def _freeze(self, model: nn.Module, freeze: str | None) -> None:
        if self._attached is None or self._attached.model is not model:
            raise ValueError(f"These gates are not on this {type(model).__name__}.")
        if freeze is None:
            return
        if freeze != "decoder":
            raise ValueError(f"freeze must be 'decoder' or None, got {freeze!r}.")
        own = {id(parameter) for parameter in self.parameters()}
        for parameter in decoder_parameters(model):
            if parameter.requires_grad and id(parameter) not in own:
                parameter.requires_grad_(False)
                self._attached.frozen.append(parameter)


def _check_model(model: nn.Module) -> None:
    if isinstance(getattr(model, NAME, None), Gates):
        raise ValueError(f"{type(model).__name__} has gates already; undo those first.")
    if hasattr(model, "_orig_mod") or isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"The model is inside {type(model).__name__} already; give it gates before it is "
            "compiled or wrapped."
        )


def _check_normalise(normalise: str) -> None:
    if normalise not in ("paper", "reference_code"):
        raise ValueError(f"normalise must be 'paper' or 'reference_code', got {normalise!r}.")


def _key(site: Site) -> str:
    """Return a name for a submodule, which may hold no dot."""
    return site.name.replace(".", "_")


def _initial(sites: list[Site], group: int, initial: float | str, seed: int) -> list[Tensor]:
    """Return the initial log_alpha of each site's gates."""
    generator = torch.Generator().manual_seed(seed)
    starts: list[Tensor] = []
    for site in sites:
        if group < 1 or site.num_heads % group:
            raise ValueError(
                f"{site.name} has {site.num_heads} heads, which cannot share gates by {group}; "
                "choose a group that divides them."
            )
        gates = site.num_heads // group
        if not isinstance(initial, str):
            starts.append(torch.full((gates,), float(initial)))
            continue
        if initial != "reference_code":
            raise ValueError(f"initial must be a number or 'reference_code', got {initial!r}.")
        # Glorot's bound for a variable of shape (1, H, 1, 1)
        starts.append((torch.rand(gates, generator=generator) * 2 - 1) * math.sqrt(3 / gates))
    return starts


ENCODER = frozenset({"encoder", "encoder_norm", "embed_source"})  # names of modules
DECODER = frozenset({"decoder"})


def decoder_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return every parameter that is not of the encoder or the source embedding alone.

    Voita et al. (2019) freeze these while the heads of the encoder are pruned, so that what the
    heads did cannot move elsewhere. Parameters that encoder and decoder share, as the embeddings of
    BART and T5, are the decoder's. Modules must be named as in Hugging Face models.
    """
    if not any(site.name.endswith(".cross") for site in find_sites(model)):
        raise ValueError(
            f"freeze='decoder' is for models with encoder and decoder; {type(model).__name__} has "
            "no cross-attention. Use freeze=None."
        )
    named = list(model.named_parameters(remove_duplicate=False))
    shared = {id(parameter) for name, parameter in named if not _of_encoder(name)}
    unique = {id(parameter): parameter for _, parameter in named if id(parameter) in shared}
    if not unique or len(unique) == len({id(parameter) for _, parameter in named}):
        raise ValueError(
            f"{type(model).__name__} has no modules named encoder and decoder; set requires_grad "
            "of its parameters yourself and use freeze=None."
        )
    return list(unique.values())


def _of_encoder(name: str) -> bool:
    """Return whether the outermost module with one of these names is an encoder."""
    said = next((part for part in name.split(".") if part in ENCODER | DECODER), None)
    return said in ENCODER
