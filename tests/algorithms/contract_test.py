"""What every algorithm owes the rest of the suite, whatever it learns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from ddrl import algorithms
from ddrl.errors import NonFiniteError, UserError
from ddrl.interfaces import Schedule, System
from ddrl.learners import optimizers
from ddrl.learners.optimizers import AdamConfig, RMSPropConfig
from ddrl.types import EnvSpec
from tests.algorithms.rigs import SPECS, Rig, spec_of
from tests.algorithms.sources import GENERAL, SOURCE, said, unsourced
from tests.runs import BATCHED, CONTINUOUS, DISCRETE, GRADIENTS, REPLAYING, SHARED

EXPORTS = ("VERSION", "SYSTEM", "Config", "make_network", "make_sampler", "Actor", "Learner", "check")
METRICS = {"gradient_norm", "learning_rate", "policy_lag_mean", "policy_lag_max"}
ACTOR_CRITIC = {"policy_loss", "value_loss", "entropy"}
Q_LEARNING = {"loss", "td_error", "q_mean", "target_updates"}
SURROGATE = {"kl", "clip_fraction", "explained_variance"}
STORE = {"traversals_mean", "batches_inserted", "batches_expired", "target_updates"}
OWN_METRICS = {
    "impala": ACTOR_CRITIC,
    "a2c": ACTOR_CRITIC,
    "a3c": ACTOR_CRITIC,
    "ga3c": ACTOR_CRITIC,
    "gorila": Q_LEARNING - {"target_updates"},
    "ppo": ACTOR_CRITIC | SURROGATE,
    "appo": ACTOR_CRITIC | SURROGATE | {"stale_fraction"},
    "impact": ACTOR_CRITIC | SURROGATE | STORE,
    "apex_dqn": Q_LEARNING,
    "d4pg": Q_LEARNING - {"loss"} | {"critic_loss", "policy_loss", "gradient_norm_critic", "gradient_norm_policy"},
    "r2d2": Q_LEARNING,
}
UPDATES = 7
"""Enough for every slot, traversal and refresh of a small rig."""

LEARNABLE = [
    (name, task)
    for name in algorithms.NAMES
    for task in sorted(SPECS)
    if name in (CONTINUOUS if task == "continuous" else DISCRETE)
]
every_algorithm = pytest.mark.parametrize("name", algorithms.NAMES)
every_task_of_every_algorithm = pytest.mark.parametrize(("name", "task"), LEARNABLE)
ACTOR_CRITICS = [(name, task) for name, task in LEARNABLE if hasattr(algorithms.load(name).Config(), "entropy_cost")]
every_task_of_every_actor_critic = pytest.mark.parametrize(("name", "task"), ACTOR_CRITICS)


@every_algorithm
def test_a_module_exports_its_parts(name: str) -> None:
    module = algorithms.load(name)
    assert [export for export in EXPORTS if not hasattr(module, export)] == []
    assert isinstance(module.VERSION, int)
    assert isinstance(module.SYSTEM, System)
    assert set(module.SYSTEM.schedules) <= set(get_args(Schedule)) and module.SYSTEM.schedules


@every_algorithm
def test_every_default_says_where_it_comes_from(name: str) -> None:
    module = algorithms.load(name)
    defaults = {field.name: getattr(module.Config(), field.name) for field in fields(module.Config)}
    path, general = Path(module.__file__), GENERAL.get(name, {})
    assert set(said(path, "Config")) == set(defaults)
    assert unsourced(path, "Config", defaults, general) == set()
    assert re.search(r"^Defaults: .*unless a line says otherwise", module.Config.__doc__) or not general
    assert SOURCE.search(module.Config.__doc__.splitlines()[0]) or not general
    assert re.search(r"et al\. \d{4}", module.__doc__)


@pytest.mark.parametrize(
    ("chosen", "general"),
    [
        (
            RMSPropConfig(),  # Espeholt et al. 2018, Table G.1; falls to 0 over all of training, 200 million frames
            {"name": "rmsprop", "learning_rate": 6e-4, "epsilon": 0.01, "momentum": 0.0, "decay_frames": 200_000_000},
        ),
        # Kingma and Ba 2015, Algorithm 1, whose learning rate stays what it is.
        (AdamConfig(), {"name": "adam", "beta1": 0.9, "beta2": 0.999, "decay_frames": None}),
    ],
    ids=["rmsprop", "adam"],
)
def test_every_default_of_an_optimizer_says_where_it_comes_from(chosen: Any, general: dict[str, Any]) -> None:
    defaults = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    assert unsourced(Path(optimizers.__file__), type(chosen).__name__, defaults, general) == set()


@pytest.mark.parametrize("name", DISCRETE)
def test_the_network_of_every_algorithm_sees_pixels_as_0_to_1_or_as_they_are(name: str) -> None:
    module = algorithms.load(name)
    spec = EnvSpec("test/images", (4, 84, 84), "uint8", num_actions=3, frame_skip=4, protocol="test")
    vectors = EnvSpec("test/vectors", (4,), "float32", num_actions=3, frame_skip=1, protocol="test")
    normalised = {"observation_normalisation"} & set(module.Config.__dataclass_fields__)
    config = replace(module.Config(), network="nature", **dict.fromkeys(normalised, False))
    raw = replace(config, scaled_pixels=False)
    module.check(raw, spec, 1)
    one, other = (module.make_network(spec, chosen, torch.Generator().manual_seed(1)) for chosen in (config, raw))
    assert (one.torso.pixel_scale, other.torso.pixel_scale) == (1 / 255, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    with pytest.raises(
        UserError, match=r"scaled_pixels': false would not be read; it goes with observations of pixels"
    ):
        module.check(replace(raw, network="mlp"), vectors, 1)


def unread(keys: Iterable[str]) -> set[str]:
    """Return the keys that no line of `ddrl/` mentions but those that declare them: they would change nothing."""
    sources = [path.read_text() for path in Path(algorithms.__file__).parents[1].rglob("*.py")]
    used = "\n".join(line for text in sources for line in text.splitlines() if not re.match(r"    \w+: ", line))
    return {key for key in keys if not re.search(rf"\b{key}\b", used)}


@every_algorithm
def test_every_key_is_read_by_somebody(name: str) -> None:
    keys = {field.name for field in fields(algorithms.load(name).Config)}
    assert unread(keys) == set()
    assert unread({"lstm_sise"}) == {"lstm_sise"}


PLANTED = '''
class Config:
    """Defaults: Table 1, unless a line says otherwise."""

    same: int = 1  # a unit
    departs: int = 2  # a unit
    departs_and_says_so: int = 3  # 30 in Table 1
    part_of_a_number: int = 3  # 30,000 frames
    not_in_the_table: int = 4  # a unit
    with_a_source: int = 5  # a unit; section 4
    under: int = 6
    """Table 2."""
    # Group of Table 3.
    one: int = 7
    two: int = 8  # a unit

    after_the_group: int = 9

    @property
    def none(self) -> int: ...
'''


def test_a_default_without_a_source_is_found(tmp_path: Path) -> None:
    path = tmp_path / "algorithm.py"
    path.write_text(PLANTED)
    names = said(path, "Config")
    general = {"same": 1, "departs": 20, "departs_and_says_so": 30, "part_of_a_number": 30}
    found = unsourced(path, "Config", dict(zip(names, (1, 2, 3, 3, 4, 5, 6, 7, 8, 9), strict=True)), general)
    assert found == {"departs", "part_of_a_number", "not_in_the_table", "after_the_group"}


@pytest.mark.parametrize("name", sorted(GENERAL))
def test_a_default_that_is_changed_without_a_word_is_found(name: str) -> None:
    module = algorithms.load(name)
    for field in GENERAL[name]:
        changed = GENERAL[name] | {field: "another"}
        assert unsourced(Path(module.__file__), "Config", changed, GENERAL[name]) >= {field}


@every_algorithm
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="no_such_key"):
        algorithms.load(name).Config(no_such_key=1)


@every_algorithm
def test_no_number_may_be_infinite_or_none_at_all(name: str) -> None:
    config = algorithms.load(name).Config()
    numbers, inner = (
        [field.name for field in fields(owner) if isinstance(getattr(owner, field.name), float)]
        for owner in (config, config.optimizer)
    )
    assert "discount" in numbers
    assert "learning_rate" in inner
    for wrong in (math.nan, math.inf, -math.inf):
        for key in numbers:
            with pytest.raises(ValidationError, match=key):
                type(config)(**{key: wrong})
        for key in inner:
            with pytest.raises(ValidationError, match=key):
                type(config)(optimizer={"name": config.optimizer.name, key: wrong})


@pytest.mark.parametrize("name", ["impact", "ppo"])
def test_a_target_for_a_penalty_that_is_off_is_refused(name: str) -> None:
    module = algorithms.load(name)
    for keys in ({"kl_cost": 0.0, "kl_target": None}, {"kl_cost": 0.5, "kl_target": 0.01}):
        module.check(module.Config(**keys), SPECS["discrete"], 1)
    with pytest.raises(UserError, match=r"^key 'hyperparameters.kl_target' .* 0; allowed: null, or a kl_cost above 0$"):
        module.check(module.Config(kl_cost=0.0, kl_target=0.01), SPECS["discrete"], 1)


@every_task_of_every_algorithm
def test_every_update_gives_finite_metrics_under_the_promised_names(name: str, task: str) -> None:
    rig = Rig(name, SPECS[task])
    for update in range(UPDATES):
        metrics = rig.step(seed=update, drift=0.1)
        missing = (METRICS | OWN_METRICS.get(name, set())) - set(metrics)
        assert not missing
        assert all(math.isfinite(value) for value in metrics.values()), metrics


@every_task_of_every_algorithm
def test_a_learner_publishes_what_it_learned(name: str, task: str) -> None:
    rig, other = Rig(name, SPECS[task]), Rig(name, SPECS[task], seed=1)
    before = rig.weights()
    for update in range(3):
        rig.step(seed=update)
        assert rig.params.pull_newest(other.network) == rig.learner.core.updates == update + 1
        own, pulled = rig.network.state_dict(), other.network.state_dict()
        assert all(torch.equal(own[key], pulled[key]) for key in own)
    assert not torch.equal(rig.weights(), before)


@every_algorithm
def test_a_learner_counts_fresh_valid_steps_and_frames_before_frame_skip(name: str) -> None:
    rig, valid = Rig(name), 0
    for update in range(UPDATES):
        while not rig.learner.ready():
            unroll = rig.unroll(update)
            valid += int(unroll.valid.sum())
            rig.queue.insert(unroll)
        rig.learner.step()
        assert rig.learner.core.agent_steps == valid
        assert rig.learner.core.env_frames == spec_of(name).frame_skip * valid
    assert valid < UPDATES * 24


@pytest.mark.parametrize("name", BATCHED)
def test_a_fresh_batch_is_first_used_in_the_update_that_the_gate_expects(name: str) -> None:
    rig, used = Rig(name), []
    for update in range(UPDATES):
        if not rig.learner.ready():
            used.append(update)
        rig.step(seed=update)
    assert used == [rig.config.first_update(batch) for batch in range(len(used))]
    assert used[0] == 0


@every_task_of_every_actor_critic
@pytest.mark.parametrize("where", ["reward", "observation"])
def test_a_nan_stops_the_learner_before_it_reaches_the_parameters(name: str, task: str, where: str) -> None:
    keys = ("observation_normalisation", "reward_normalisation")
    unnormalised = {key: False for key in keys if hasattr(algorithms.load(name).Config(), key)}
    rig = Rig(name, SPECS[task], **unnormalised)
    rig.step(seed=0)
    while rig.learner.ready():
        rig.learner.step()
    unroll, version = rig.unroll(1, ends=False), rig.params.version
    getattr(unroll, where)[2, 1] = float("nan")
    rig.queue.insert(unroll)
    with pytest.raises(NonFiniteError, match=rf"update {version + 1}\b.*loss"):
        rig.learner.step()
    assert rig.weights().isfinite().all()
    assert rig.params.version == rig.learner.core.updates == version


@every_task_of_every_actor_critic
@pytest.mark.parametrize("saved_after", range(5))
def test_a_restored_learner_continues_bit_for_bit(name: str, task: str, saved_after: int, tmp_path: Path) -> None:
    rig, copy = Rig(name, SPECS[task]), Rig(name, SPECS[task], seed=1)
    for update in range(saved_after):
        rig.step(seed=update, drift=0.3)
    torch.save({"learner": rig.learner.state_dict(), "params": rig.params.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    copy.learner.load_state_dict(state["learner"])
    copy.params.load_state_dict(state["params"])
    for update in range(saved_after, saved_after + UPDATES):
        assert rig.step(seed=update, drift=0.3) == copy.step(seed=update, drift=0.3)
    assert_same(rig.learner.state_dict(), copy.learner.state_dict())


def assert_same(one: Any, other: Any) -> None:
    """Two states hold the same bits."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


@every_task_of_every_actor_critic
def test_without_advantages_nothing_is_learned(name: str, task: str) -> None:
    rig = Rig(name, SPECS[task], entropy_cost=0.0)
    with torch.no_grad():
        rig.network.value.weight.zero_()
        rig.network.value.bias.zero_()
    before = rig.weights()
    unroll = rig.unroll()
    rig.queue.insert(replace(unroll, reward=torch.zeros_like(unroll.reward)))
    metrics = rig.learner.step()
    assert metrics["gradient_norm"] == pytest.approx(0.0, abs=1e-7)
    torch.testing.assert_close(rig.weights(), before, rtol=0.0, atol=1e-6)


@every_task_of_every_actor_critic
def test_dead_steps_do_not_count_whatever_they_hold(name: str, task: str) -> None:
    metrics = []
    for noise in (0.0, 5.0):
        rig = Rig(name, SPECS[task])
        unroll = rig.unroll(drift=0.1)
        assert not unroll.valid.all()
        dead = ~unroll.valid
        unroll.distribution[dead] += noise * torch.arange(unroll.distribution.shape[-1])
        unroll.action[dead] = 0
        rig.queue.insert(unroll)
        metrics.append((rig.learner.step(), rig.weights()))
    assert metrics[0][0] == metrics[1][0]
    assert torch.equal(metrics[0][1], metrics[1][1])


@pytest.mark.parametrize(("name", "task"), [(name, task) for name, task in LEARNABLE if name not in SHARED])
def test_gradient_threads_change_nothing_but_rounding(name: str, task: str) -> None:
    results = []
    for num_threads in (1, 3):
        rig = Rig(name, SPECS[task], num_threads=num_threads)
        results.append(rig.step(drift=0.1))
        rig.learner.core.close()
    for metric, value in results[0].items():
        assert results[1][metric] == pytest.approx(value, rel=1e-3, abs=1e-4), metric


@every_algorithm
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    rigs = [Rig(name) for _ in range(2)]
    assert [rigs[0].step(seed=n) for n in range(UPDATES)] == [rigs[1].step(seed=n) for n in range(UPDATES)]
    assert torch.equal(rigs[0].weights(), rigs[1].weights())


@pytest.mark.parametrize("name", sorted(REPLAYING))
def test_a_nan_stops_a_learner_with_a_replay_before_it_reaches_the_parameters(name: str) -> None:
    rig = Rig(name)
    rig.step(seed=0, ends=False)
    before, version = rig.weights(), rig.params.version
    with torch.no_grad():
        rig.learner.target_network.torso.layers[0].weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"update {version + 1}\b.*loss"):
        rig.step(seed=1, ends=False)
    assert torch.equal(rig.weights(), before)
    assert rig.params.version == rig.learner.core.updates == version


@pytest.mark.parametrize("name", sorted(REPLAYING))
@pytest.mark.parametrize("field", ["reward", "distribution"])
def test_a_nan_of_an_actor_is_refused_by_the_replay_in_one_line(name: str, field: str) -> None:
    rig = Rig(name)
    unroll = rig.unroll(ends=False)
    getattr(unroll, field)[2, 1] = float("nan")
    with pytest.raises(UserError, match=r"^replay: an actor gave the priority nan; allowed: 0 and above, and finite$"):
        rig.queue.insert(unroll)


@pytest.mark.parametrize("saved_after", range(5))
@pytest.mark.parametrize("name", sorted(REPLAYING))
def test_a_restored_learner_with_its_replay_continues_bit_for_bit(name: str, saved_after: int, tmp_path: Path) -> None:
    rig, copy = Rig(name), Rig(name, seed=1)
    for update in range(saved_after):
        rig.step(seed=update, drift=0.3)
    state = {"learner": rig.learner.state_dict(), "params": rig.params.state_dict()}
    state |= {"replay": rig.queue.replay.state_dict(), "items": rig.queue.items.state_dict()}
    torch.save(state, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    copy.learner.load_state_dict(state["learner"])
    copy.params.load_state_dict(state["params"])
    assert copy.queue.replay.load_state_dict(state["replay"]) is None
    copy.queue.items.load_state_dict(state["items"])
    for update in range(saved_after, saved_after + UPDATES):
        assert rig.step(seed=update, drift=0.3) == copy.step(seed=update, drift=0.3)
    assert_same(rig.learner.state_dict(), copy.learner.state_dict())


@pytest.mark.parametrize("name", [name for name, task in ACTOR_CRITICS if task == "discrete"])
def test_an_action_that_is_ruled_out_is_never_taken_and_training_goes_on(name: str) -> None:
    """A logit of -inf, as of an illegal action: through every loss, and the gradients of all other parameters."""
    rig = Rig(name)
    with torch.no_grad():
        for network in {rig.network, getattr(rig.learner, "target_network", rig.network)}:
            network.policy.bias[0] = -math.inf
    rig.params.publish(rig.network)
    before = rig.weights()
    for update in range(UPDATES):
        metrics = rig.step(seed=update, drift=0.1)
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert metrics["entropy"] <= math.log(rig.spec.num_actions - 1) + 1e-6
    assert (rig.unroll(UPDATES).action > 0).all()
    after = rig.weights()
    assert int((~after.isfinite()).sum()) == 1
    assert not torch.equal(before, after)


@every_algorithm
def test_what_a_default_is_can_be_read_and_compared(name: str) -> None:
    config = algorithms.load(name).Config()
    assert config == algorithms.load(name).Config()
    wanted = {"unroll_length", "discount", "network"} | ({"batch_size"} if name not in GRADIENTS else set())
    assert {field.name for field in fields(config)} >= wanted
