"""Independent, simple implementations of cache policies, to which `flashmoe bench replay` is
compared.

Every policy is a function of (tokens, n_warm, n_slots), with tokens as [token][layer] of
ascending experts, and returns the share of hits after the first n_warm tokens."""
import math
import struct

HALF_LIFE, FADE, MARGIN = 8, 32, 1


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def share_of(hits, tokens, n_warm):
    return hits / ((len(tokens) - n_warm) * len(tokens[0]) * len(tokens[0][0]))


# ---- the engine's pool ------------------------------------------------------------------------


class Pool:
    def __init__(self, policy, n_layers, n_used, n_slots):
        self.policy, self.n_slots = policy, n_slots
        self.floor = min(n_used, n_slots // n_layers)
        self.held = [set() for _ in range(n_layers)]
        self.pinned = set()  # of the layer whose plan is open
        self.counts, self.lasts, self.keys = {}, {}, {}
        self.clocks = [1 << 20] * n_layers
        self.n_uses = 0

    def use(self, layer, expert):
        at = layer, expert
        gap = self.clocks[layer] - self.lasts.get(at, 0)
        self.counts[at] = single(self.counts.get(at, 0) * 0.5 ** (gap / FADE) + 1)
        self.lasts[at] = self.clocks[layer]
        self.n_uses += 1
        self.keys[at] = self.n_uses if self.policy == "lru" else \
            math.log2(self.counts[at]) + self.lasts[at] / HALF_LIFE

    def coldest_of(self, layer, pinned):
        """Returns (heat, expert) that the layer would evict first."""
        age = 0 if self.policy == "lru" else self.clocks[layer] / HALF_LIFE
        cold = min(((self.keys[layer, e], e) for e in self.held[layer] - pinned), default=None)
        return cold and (cold[0] - age, cold[1])

    def make_room(self, layer):
        if sum(map(len, self.held)) < self.n_slots:
            return True
        own, other = self.coldest_of(layer, self.pinned), None
        for i, held in enumerate(self.held):
            cold = self.coldest_of(i, self.pinned if i == layer else set())
            if len(held) > self.floor and cold and (other is None or cold[0] < other[0]):
                other = *cold, i
        margin = MARGIN if self.policy == "lcp" else 0
        if own and not (other and other[0] + margin < own[0]):
            self.held[layer].remove(own[1])
        elif other:
            self.held[other[2]].remove(other[1])
        return bool(own or other)

    def start_reads(self, layer, missing):
        while missing and self.make_room(layer):
            self.held[layer].add(missing[0])
            self.pinned.add(missing.pop(0))

    def plan(self, layer, experts):
        """Resident experts are handed out first, then as many as fit at a time."""
        self.clocks[layer] += 1
        hits = {e for e in experts if e in self.held[layer]}
        missing = [e for e in experts if e not in hits]
        for e in experts:
            self.use(layer, e)
        self.pinned = set(hits)
        self.start_reads(layer, missing)
        self.pinned -= hits
        self.start_reads(layer, missing)
        while self.pinned:
            self.pinned = set()
            self.start_reads(layer, missing)
        assert not missing
        return len(hits)


def pool(policy):
    def run(tokens, n_warm, n_slots):
        cache = Pool(policy, len(tokens[0]), len(tokens[0][0]), n_slots)
        hits = 0
        for t, layers in enumerate(tokens):
            for layer, experts in enumerate(layers):
                n = cache.plan(layer, experts)
                hits += n if t >= n_warm else 0
        return share_of(hits, tokens, n_warm)
    return run


# ---- two tiers --------------------------------------------------------------------------------


MAX_TRANSFERS = 16


class Tiers(Pool):
    """`held` is the second tier; `above` has the (layer, expert) of the first. `left` has those
    whose bytes are still in empty slots of the second, the oldest first."""
    def __init__(self, moves, n_layers, n_used, n_above, n_below):
        super().__init__("lcp", n_layers, n_used, n_below)
        self.moves, self.n_above, self.above = moves, n_above, set()
        self.left, self.n_left = {}, 0
        self.hits_above = self.hits_below = self.n_up = self.n_down = 0

    def heat(self, at):
        return self.keys[at] - self.clocks[at[0]] / HALF_LIFE

    def level(self, at):
        gap = self.clocks[at[0]] - self.lasts[at]
        return min(1, self.counts[at] * (1 - 0.5 ** (1 / FADE)) * 0.5 ** (gap / FADE))

    def hold(self, at):
        self.held[at[0]].add(at[1])
        while sum(map(len, self.held)) + len(self.left) > self.n_slots:
            del self.left[next(iter(self.left))]

    def start_reads(self, layer, missing):
        while missing:
            if len(self.above) < self.n_above:
                self.above.add((layer, missing.pop(0)))
            elif self.make_room(layer):
                self.hold((layer, missing[0]))
                self.pinned.add(missing.pop(0))
            else:
                return

    def leave(self, at):
        """An expert of the first tier makes room for a hotter one."""
        self.above.remove(at)
        if at in self.left:
            del self.left[at]
            self.held[at[0]].add(at[1])
            return
        if self.moves == "drop":
            return
        if sum(map(len, self.held)) == self.n_slots:
            spare = [(self.heat((i, e)), i, e) for i, held in enumerate(self.held)
                     if len(held) > self.floor for e in held]
            if not spare or min(spare)[0] >= self.heat(at):
                return
            _, i, e = min(spare)
            self.held[i].remove(e)
        self.hold(at)
        self.n_down += 1

    def move_up(self, layer, expert):
        if expert not in self.held[layer]:
            return
        if len(self.above) == self.n_above:
            coldest = min(self.above, key=lambda at: (self.heat(at), at))
            level, once = self.level((layer, expert)), 1 - 0.5 ** (1 / FADE)
            cost = 1 if coldest in self.left else 2
            is_worth = level > 1.5 * once and level >= 1.5 * self.level(coldest)
            if self.n_left < cost or not is_worth:
                return
            self.n_left -= cost
            self.leave(coldest)
        if expert in self.held[layer]: # it may have made room itself
            self.held[layer].remove(expert)
            self.above.add((layer, expert))
            self.left[layer, expert] = True
            self.n_up += 1

    def plan(self, layer, experts):
        above = [e for e in experts if (layer, e) in self.above]
        below = [e for e in experts if e in self.held[layer]]
        self.hits_above += len(above)
        self.hits_below += len(below)
        self.clocks[layer] += 1
        missing = [e for e in experts if e not in above + below]
        for e in experts:
            self.use(layer, e)
        self.pinned = set(below)
        self.start_reads(layer, missing)
        self.pinned -= set(below)
        self.start_reads(layer, missing)
        while self.pinned:
            self.pinned = set()
            self.start_reads(layer, missing)
        assert not missing
        self.n_left = min(MAX_TRANSFERS, self.n_left + 1)
        for e in below if self.moves != "none" else ():
            self.move_up(layer, e)


def tiers(moves, tokens, n_warm, n_above, n_below):
    """Returns hits in each tier and moves up and down, after the first n_warm tokens."""
    cache = Tiers(moves, len(tokens[0]), len(tokens[0][0]), n_above, n_below)
    for t, layers in enumerate(tokens):
        if t == n_warm:
            cache.hits_above = cache.hits_below = cache.n_up = cache.n_down = 0
        for layer, experts in enumerate(layers):
            cache.plan(layer, experts)
    return cache.hits_above, cache.hits_below, cache.n_up, cache.n_down


# ---- a cache for each layer -------------------------------------------------------------------


def layered(policy):
    """Experts with the largest `policy`(tokens, t, layer, expert) are kept."""
    def run(tokens, n_warm, n_slots):
        hits = 0
        for layer in range(len(tokens[0])):
            here, keys = set(), {}
            for t, layers in enumerate(tokens):
                experts = layers[layer]
                hits += len(here & set(experts)) if t >= n_warm else 0
                for e in experts:
                    keys[e] = policy(tokens, t, layer, e)
                here |= set(experts)
                while len(here) > n_slots // len(tokens[0]):
                    here.remove(min(here, key=lambda e: keys[e]))
        return share_of(hits, tokens, n_warm)
    return run


def latest(_, t, __, expert):
    return t, expert


def next_use(tokens, t, layer, expert):
    return next((u for u in range(t + 1, len(tokens)) if expert in tokens[u][layer]), math.inf)


def soonest(tokens, t, layer, expert):
    return -next_use(tokens, t, layer, expert)


def layer_lfu(tokens, n_warm, n_slots):
    """A token's experts do not evict each other unless there is nothing else."""
    hits = 0
    for layer in range(len(tokens[0])):
        here, uses, last = set(), {}, {}
        for t, layers in enumerate(tokens):
            experts = layers[layer]
            hits += len(here & set(experts)) if t >= n_warm else 0
            for e in experts:
                uses[e], last[e] = uses.get(e, 0) + 1, t
            here |= set(experts)
            while len(here) > n_slots // len(tokens[0]):
                old = here - set(experts)
                here.remove(min(old or here, key=lambda e: (uses[e], last[e], e)))
    return share_of(hits, tokens, n_warm)


def belady(tokens, n_warm, n_slots):
    """Over all layers: evicts the expert whose next use is the latest."""
    hits, here = 0, {}
    for t, layers in enumerate(tokens):
        for layer, experts in enumerate(layers):
            hits += sum((layer, e) in here for e in experts) if t >= n_warm else 0
            for e in experts:
                here[layer, e] = next_use(tokens, t, layer, e), layer
            while len(here) > n_slots:
                del here[max(here, key=here.get)]
    return share_of(hits, tokens, n_warm)


POLICIES = {"lru": pool("lru"), "lcp": pool("lcp"), "layer-lru": layered(latest),
            "layer-lfu": layer_lfu, "layer-belady": layered(soonest), "belady": belady}
