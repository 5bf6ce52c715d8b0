"""What of gymnasium's spaces can be learned, and how it looks to a network and a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from ddrl.environments.worlds.spaces import acted, observed
from ddrl.errors import UserError

NAME = "gymnasium/some:Task-v0"


@pytest.mark.parametrize(
    ("shape", "seen"),
    [((210, 160, 3), (3, 210, 160)), ((84, 84, 1), (1, 84, 84)), ((4, 84, 84), (4, 84, 84)), ((64, 48), (1, 64, 48))],
)
def test_an_image_is_uint8_with_channels_first(shape: tuple[int, ...], seen: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    found = observed(space, NAME)
    image = space.sample()
    encoded = found.encode(image)
    assert (found.shape, found.dtype, encoded.shape, encoded.dtype) == (seen, "uint8", seen, np.dtype("uint8"))
    last = image[..., -1] if len(shape) == 3 and shape != seen else image[-1] if shape == seen else image
    np.testing.assert_array_equal(encoded[-1], last)


@pytest.mark.parametrize(
    ("space", "observation", "numbers"),
    [
        (spaces.Box(-1, 1, (2, 2)), np.array([[1, 2], [3, 4]]) / 8, [1 / 8, 2 / 8, 3 / 8, 4 / 8]),
        (spaces.Discrete(3), 2, [0, 0, 1]),
        (spaces.Discrete(3, start=5), 5, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], dtype=np.int8), [1, 0, 1]),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (1,)))), (1, np.array([4.0])), [0, 1, 4]),
        (spaces.Dict(b=spaces.Discrete(2), a=spaces.Box(0, 9, (1,))), {"b": 0, "a": np.array([7.0])}, [1, 0, 7]),
        (spaces.Box(0, 10, (2, 2, 3), np.uint8), np.arange(12).reshape(2, 2, 3) % 7, np.arange(12) % 7),  # no image
    ],
)
def test_everything_else_is_flattened_to_numbers(space: Any, observation: Any, numbers: Any) -> None:
    found = observed(space, NAME)
    encoded = found.encode(observation)
    assert found.shape == encoded.shape == (len(numbers),)
    assert found.dtype == "float32" == str(encoded.dtype)
    np.testing.assert_allclose(encoded, np.asarray(numbers, dtype=np.float32))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Text(5), "are of the space Text, which no network here takes; allowed: Box, Discrete"),
        (spaces.Sequence(spaces.Discrete(2)), "are of the space Sequence"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Text(3),))), "are of the space Text"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 255, (64, 64, 3), np.uint8)), "an image beside other parts"),
    ],
)
def test_an_observation_that_no_network_takes_is_one_line(space: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"^environment '{NAME}': its observations .*{says}"):
        observed(space, NAME)


def test_each_choice_and_each_combination_of_choices_is_an_action() -> None:
    shifted = acted(spaces.Discrete(3, start=-1), NAME)
    assert [shifted.decode(action) for action in range(shifted.num_actions)] == [-1, 0, 1]
    for space, number in ((spaces.MultiDiscrete([2, 3], start=[0, 4]), 6), (spaces.MultiBinary(3), 8)):
        found = acted(space, NAME)
        decoded = [found.decode(action) for action in range(found.num_actions)]
        assert (found.num_actions, found.size) == (number, 0)
        assert len({tuple(one.tolist()) for one in decoded}) == number
        assert all(space.contains(one) for one in decoded)


def test_a_box_of_actions_is_flat_and_scaled_to_its_bounds() -> None:
    space = spaces.Box(np.array([[0.0, -2.0]]), np.array([[1.0, 2.0]]), dtype=np.float32)
    found = acted(space, NAME)
    assert (found.num_actions, found.size) == (0, 2)
    for action, wanted in (([-1, -1], [[0, -2]]), ([0, 0], [[0.5, 0]]), ([1, 1], [[1, 2]])):
        decoded = found.decode(np.array(action, dtype=np.float32))
        assert decoded.tolist() == wanted
        assert space.contains(decoded)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Discrete(1), "has 1 action; allowed: at least 2"),
        (spaces.MultiBinary(11), "have 2,048 combinations; allowed: at most 1,024"),
        (spaces.MultiDiscrete([10**6] * 9), "combinations; allowed: at most 1,024"),
        (spaces.Box(0, 5, (2,), np.int32), "which no policy here gives; allowed: Discrete"),
        (spaces.Dict(a=spaces.Discrete(2)), "which no policy here gives"),
    ],
)
def test_an_action_that_no_policy_gives_is_one_line(space: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"^environment '{NAME}': .*{says}"):
        acted(space, NAME)
