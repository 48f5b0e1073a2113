"""Sites: where attention happens in a model, and how to observe or change it there.

A model calls `self.site(q, k, v, ...)` and knows nothing of recording, sparsity or pruning. Tools
call `observe`, `replace`, `masked` and others. Each takes effect at once and is undone at the end
of a `with` block or by `.undo()`. They nest, and may be undone in any order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from operator import index as whole_number
from typing import Any, SupportsIndex, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from headwise.config import suggestion
from headwise.ops.attended import Attended
from headwise.ops.scores import Scores

PRUNED = "pruning_record"  # the attribute of a pruned model that records what was pruned
Attend = Callable[..., Attended]  # attend(q, k, v, *, mask, bias, causal, …) -> Attended
Watcher = Callable[["Site", Attended], None]
Tap = Callable[["Site", Scores], None]
Where = str | Callable[["Site"], bool]  # a pattern of names like "decoder.*.cross", or a predicate
Gate = Tensor | Callable[[], Tensor]  # factors of heads, or a function that returns them


@dataclass(frozen=True, order=True)
class Head:
    """Head of a site, the key of every table.

    >>> str(Head("encoder.3.self", 5))
    'encoder.3.self.5'
    """

    site: str
    index: int

    def __str__(self) -> str:
        return f"{self.site}.{self.index}"

    @staticmethod
    def parse(text: str) -> Head:
        """Read a head written by `str(head)`."""
        site, _, index = text.rpartition(".")
        if not site or not index.isdigit():
            raise ValueError(f"A head is written like encoder.3.self.5, got {text!r}.")
        return Head(site, int(index))


@dataclass(eq=False)
class Use:
    """Record of whether the sites of a change were called in a forward pass.

    Args:
        sites: their names.
        how: the change, e.g. "masked".
        ran: whether any site of the model was called.
        called: whether any of these sites was called.
    """

    sites: tuple[str, ...]
    how: str
    ran: bool = False
    called: bool = False

    def mark(self, site: str) -> None:
        """Record that a site of the model was called."""
        self.ran = True
        if site in self.sites:
            self.called = True


@dataclass(eq=False)
class Site:
    """Attention computation inside a model. Models call `site(q, k, v, ...)`.

    A name like `encoder.3.self` or `decoder.3.cross` is the stack, the layer, and whether it is
    self- or cross-attention.
    """

    name: str
    num_heads: int
    attend: Attend
    watchers: list[Watcher] = field(default_factory=list[Watcher])
    replacements: list[Attend] = field(default_factory=list[Attend])
    gates: list[Gate] = field(default_factory=list[Gate])
    taps: list[Tap] = field(default_factory=list[Tap])
    uses: list[Use] = field(default_factory=list[Use])  # of the changes in effect
    hosted: bool = False  # computed by a Hugging Face model, not by `attend`

    def __call__(
        self,
        q: Float[Tensor, "B H Q D"],
        k: Float[Tensor, "B G K D"],
        v: Float[Tensor, "B G K E"],
        *,
        mask: Bool[Tensor, ...] | None = None,
        bias: Float[Tensor, ...] | None = None,
        causal: bool = False,
        lengths: Int[Tensor, " B"] | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H Q E"]:
        self.mark_called()
        attend = self.replacements[-1] if self.replacements else self.attend
        attended = attend(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            causal=causal,
            lengths=lengths,
            scale=scale,
            dropout=dropout,
        )
        self.show(attended)
        self.call_taps(attended.scores)
        return self.gated(attended.out)

    @property
    def queries(self) -> str:
        """Stack of the queries: "encoder" or "decoder"."""
        return self.name.split(".")[-3] if self.name.count(".") >= 2 else self.name

    @property
    def keys(self) -> str:
        """Stack of the keys: "encoder" or "decoder"."""
        return "encoder" if self.name.endswith(".cross") else self.queries

    @property
    def changes(self) -> int:
        """Number of watchers, replacements, gates and taps in effect."""
        return sum(map(len, (self.watchers, self.replacements, self.gates, self.taps)))

    @property
    def kinds_of_change(self) -> list[str]:
        """Kinds of change in effect, as words."""
        words = ("observed", "replaced", "gated", "guided")
        kinds = (self.watchers, self.replacements, self.gates, self.taps)
        return [word for word, several in zip(words, kinds, strict=True) if several]

    @property
    def heads(self) -> list[Head]:
        """Heads of this site, in order."""
        return [Head(self.name, index) for index in range(self.num_heads)]

    def mark_called(self) -> None:
        """Record for the changes in effect that this site was called."""
        for use in self.uses:
            use.mark(self.name)

    def show(self, attended: Attended) -> None:
        """Call the watchers, but not when a backward pass repeats the computation."""
        if self.watchers and not in_backward():
            _call_uncompiled(self.watchers, self, attended)

    def call_taps(self, scores: Scores) -> None:
        """Call the taps if gradients are on, but not when a backward pass repeats this."""
        if self.taps and torch.is_grad_enabled() and not in_backward():
            for tap in self.taps:
                tap(self, scores)

    def gated(self, out: Float[Tensor, "B H Q E"]) -> Float[Tensor, "B H Q E"]:
        """Multiply each head's output by its gates, before the output projection mixes heads."""
        for gate in self.gates:
            factors = gate if isinstance(gate, Tensor) else gate()
            out = out * factors.to(out)[..., None, None]
        return out


class Change:
    """Change of a model that can be undone by `undo()` or a `with` block.

    Undoing warns of sites that no forward pass has called, because the change had no effect there.
    """

    def __init__(self, undo: Callable[[], None], uses: Iterable[Use] = ()):
        self._undo: Callable[[], None] | None = undo
        self._uses = uses

    def undo(self) -> None:
        """Undo the change. A second call does nothing."""
        if self._undo_once():
            self._warn_unused(stacklevel=3)

    def _undo_once(self) -> bool:
        """Undo the change if that was not done before; return whether it was done now."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
        return undo is not None

    def _warn_unused(self, stacklevel: int) -> None:
        for use in self._uses:
            if use.ran and not use.called:
                first, *more = use.sites
                others = f" (and {len(more)} more)" if more else ""
                warnings.warn(
                    f"{first}{others} was not called while it was {use.how}, so that had no "
                    "effect: the forward pass does not use this part of the model.",
                    stacklevel=stacklevel,
                )

    def __enter__(self) -> Change:
        if self._undo is None:
            raise ValueError("This change was undone already; make a new one.")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._undo_once() and error is None:
            self._warn_unused(stacklevel=3)


def find_sites(model: nn.Module, *, where: Where = "*") -> list[Site]:
    """Return the attention sites of a model that `where` chooses, in forward order.

    Raises if the model has none, if two have one name, or if `where` chooses none.
    """
    sites = list(dict.fromkeys(_sites_of(model)))
    if not sites:
        raise ValueError(
            all_pruned(model)
            or f"{type(model).__name__} has no attention sites. For a Hugging Face model call "
            "headwise.adopt(model) first; for your own, give attention modules a `site`."
        )
    _check_unique(model, sites)
    chosen = [site for site in sites if _chooses(where, site)]
    if not chosen:
        names = ", ".join(site.name for site in sites)
        raise ValueError(f"where={where!r} chooses none of the model's sites: {names}.")
    return chosen


def all_pruned(model: nn.Module) -> str:
    """Return a sentence if a model has no sites because all heads were pruned; else ""."""
    record: Any = model.__dict__.get(PRUNED)
    if record is None or any(record.kept.values()):
        return ""
    return (
        f"All {sum(record.heads.values())} heads of this {type(model).__name__} were pruned, so "
        "there are none to observe, to change or to prune."
    )


def what_is_changed(sites: Iterable[Site], *, of: str = "") -> str:
    """Return the beginning of a message that names changed sites and how; "" if there are none.

    Args:
        sites: to check.
        of: what they belong to, for the message.

    >>> site = Site("encoder.0.self", 4, attend=print)
    >>> what_is_changed([site])
    ''
    >>> site.gates.append(torch.ones(4))
    >>> what_is_changed([site, Site("encoder.1.self", 4, attend=print)], of="the model")
    'encoder.0.self of the model is gated'
    """
    busy = [site for site in sites if site.changes]
    if not busy:
        return ""
    kinds = dict.fromkeys(kind for site in busy for kind in site.kinds_of_change)
    names = ", ".join(site.name for site in busy) + (f" of {of}" if of else "")
    return f"{names} {'is' if len(busy) == 1 else 'are'} {' and '.join(kinds)}"


def observe(model: nn.Module, *watchers: Watcher, where: Where = "*") -> Change:
    """Call each watcher with (site, attended) after every attention computation.

    Observing changes no output; statistics are computed separately when a watcher reads them.

        with observe(model, lambda site, attended: print(site.name, attended.peak.mean())):
            model(batch)
    """
    sites = find_sites(model, where=where)
    entries = [(site.watchers, watch) for site in sites for watch in watchers]
    return _put(model, entries, [Use(_names(sites), "observed")])


def tapped(model: nn.Module, tap: Tap, *, where: Where = "*") -> Change:
    """Call a function with (site, scores) at each attention computation, to keep them for a loss.

    Scores hold q, k and masks, with gradients. The function is not called without gradients. Unlike
    a watcher, it is a part of compiled graphs, so it should only keep its arguments. What it keeps
    carries gradients also through gradient checkpointing.
    """
    sites = find_sites(model, where=where)
    return _put(model, [(site.taps, tap) for site in sites], [Use(_names(sites), "guided")])


def replace(model: nn.Module, attend: Attend, *, where: Where = "*") -> Change:
    """Compute attention with another op at the chosen sites.

    with replace(model, topk_attention, where="encoder.*"):
        model(batch)
    """
    sites = find_sites(model, where=where)
    entries = [(site.replacements, attend) for site in sites]
    return _put(model, entries, [Use(_names(sites), "replaced")])


def gated(model: nn.Module, gates: Mapping[str, Gate]) -> Change:
    """Multiply head outputs by gates, {site name: tensor of shape (H,) or (B, H)}.

    Gates may carry a gradient and may be updated in place. With (B, H) every item of the batch has
    its own gates. A gate may also be a function without arguments that returns the tensor; it is
    called at each attention computation, also when gradient checkpointing repeats one.
    """
    sites = {site.name: site for site in find_sites(model)}
    for name, gate in gates.items():
        num_heads = sites[_known(name, sites)].num_heads
        _check_gate(name, gate() if callable(gate) else gate, num_heads)
    uses = [Use((name,), "masked or gated") for name in gates]
    return _put(model, [(sites[name].gates, gate) for name, gate in gates.items()], uses)


def masked(model: nn.Module, heads: Mapping[str, Iterable[int]]) -> Change:
    """Switch heads off, {site name: head indices}, with any backend, also in compiled models.

    with masked(model, {"encoder.3.self": [0, 5]}):
        model(batch)
    """
    sites = {site.name: site for site in find_sites(model)}
    gates: dict[str, Tensor] = {}
    for name, indices in heads.items():
        gate_H = torch.ones(sites[_known(name, sites)].num_heads)
        for index in _head_indices(indices):
            if not 0 <= index < len(gate_H):
                raise ValueError(f"{name} has heads 0 to {len(gate_H) - 1}, got {index}.")
            gate_H[index] = 0
        gates[name] = gate_H
    return gated(model, gates)


def _sites_of(model: nn.Module) -> Iterator[Site]:
    for module in model.modules():
        site = module.__dict__.get("site")
        if isinstance(site, Site) and site.num_heads:  # 0 if all were pruned
            yield site


def _check_unique(model: nn.Module, sites: list[Site]) -> None:
    """Raise if two sites have the same name, because tables are keyed by name."""
    names = [site.name for site in sites]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{type(model).__name__} has {names.count(twice)} different sites called {twice!r}, "
            "so that name is ambiguous. Act on the parts of the model separately."
        )


def _chooses(where: Where, site: Site) -> bool:
    return fnmatchcase(site.name, where) if isinstance(where, str) else where(site)


def _known(name: str, sites: Mapping[str, Site]) -> str:
    if name not in sites:
        raise ValueError(f"The model has no site {name!r}. {suggestion(name, sites)}")
    return name


def _check_gate(name: str, gate: object, num_heads: int) -> None:
    wanted = f"A gate of {name} must be a tensor of shape ({num_heads},) or (batch, {num_heads})"
    if not isinstance(gate, Tensor):
        raise ValueError(f"{wanted}, got {gate!r}.")
    if gate.dim() not in (1, 2) or gate.shape[-1] != num_heads:
        raise ValueError(f"{wanted}, got {tuple(gate.shape)}.")


def _head_indices(heads: object) -> list[int]:
    """Read head indices from any list of whole numbers; refuse a mask of booleans."""
    listed: Any = heads.tolist() if isinstance(heads, Tensor) else heads
    entries = cast(Iterable[Any], listed) if isinstance(listed, Iterable) else [None]
    numbers: list[Any] = [
        entry.tolist() if isinstance(entry, Tensor) else entry for entry in entries
    ]
    if not all(isinstance(n, SupportsIndex) and not isinstance(n, bool) for n in numbers):
        raise ValueError(
            f"A list of head indices was wanted, e.g. [0, 5]; got {heads!r}. "
            "For a mask of 0 and 1 use gated."
        )
    return [whole_number(number) for number in numbers]


def _names(sites: list[Site]) -> tuple[str, ...]:
    """Return the names of sites for one shared `Use`: an input may need only some of them."""
    return tuple(site.name for site in sites)


def _put(model: nn.Module, entries: list[tuple[list[Any], Any]], uses: list[Use]) -> Change:
    """Add each entry to its list; undoing removes that same entry."""
    put = entries + [(site.uses, use) for site in find_sites(model) for use in uses]
    for holder, entry in put:
        holder.append(entry)
    return Change(partial(_remove, put), uses)


def _remove(entries: list[tuple[list[Any], Any]]) -> None:
    for holder, entry in entries:
        del holder[max(index for index, present in enumerate(holder) if present is entry)]


def _call(watchers: list[Watcher], site: Site, attended: Attended) -> None:
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore
        raise ValueError(
            f"{site.name} cannot be observed inside a transform of torch.func (grad, vmap, …). "
            "Observe a plain forward pass, or use torch.autograd."
        )
    with _separate_saved_tensors():
        for watch in list(watchers):
            watch(site, attended)


def _separate_saved_tensors() -> AbstractContextManager[object]:
    """Hide tensors that watchers save for backward from gradient checkpointing.

    The repeated pass calls no watcher, and checkpointing wants the same saved tensors in both.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:  # pyright: ignore
        return nullcontext()
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


# watchers are Python with side effects, so they must not be part of a compiled graph
_call_uncompiled = cast(
    Callable[[list[Watcher], Site, Attended], None], torch.compiler.disable(_call)
)


def in_backward() -> bool:
    """Return whether gradient checkpointing repeats a forward pass in a backward pass."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1  # pyright: ignore


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Put a model into eval mode; restore every module's own mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def constant_parameters(model: nn.Module) -> Generator[None]:
    """Disable gradients of parameters, which makes backward passes cheaper."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
