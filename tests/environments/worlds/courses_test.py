"""Courses: boxes in order, the height of the ground, and where obstacles are hard."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.environments.worlds import courses
from ddrl.environments.worlds.courses import COURSES, FULL_DIFFICULTY_AT, LENGTH, PIT, START, Course, draw

every_kind = pytest.mark.parametrize("kind", sorted(COURSES))


def one(kind: str, seed: int = 0, *, curriculum: bool = True, difficulty: float = 1.0) -> Course:
    return draw(kind, np.random.default_rng(seed), curriculum=curriculum, difficulty=difficulty)


@every_kind
def test_boxes_are_in_order_do_not_overlap_and_reach_the_end(kind: str) -> None:
    for seed in range(20):
        course = one(kind, seed)
        assert (course.right > course.left).all()
        assert (course.left[1:] >= course.right[:-1]).all()
        assert (course.top >= 0).all()
        if kind != "flat":
            assert course.right[-1] >= LENGTH - 5.0
            assert course.height(np.array([-3.0, 0.0, START - 0.01])).tolist() == [0.0, 0.0, 0.0], "a free start"


def test_the_height_of_the_ground_is_that_of_the_box_at_a_place() -> None:
    course = Course(np.array([1.0, 3.0]), np.array([2.0, 4.0]), np.array([0.5, 0.25]), -1.0)
    places = np.array([-9.0, 0.99, 1.0, 1.99, 2.0, 2.5, 3.0, 3.99, 4.0, 99.0])
    assert course.height(places).tolist() == [-1.0, -1.0, 0.5, 0.5, -1.0, -1.0, 0.25, 0.25, -1.0, -1.0]
    assert course.highest(1.5, 3.5) == 0.5
    assert course.highest(2.1, 2.9) == -1.0
    assert course.highest(2.1, 3.0) == 0.25
    assert one("flat").height(places).tolist() == [0.0] * 10


@pytest.mark.parametrize("kind", ["hurdles", "gaps", "steps"])
def test_a_curriculum_is_easy_at_first_and_a_stationary_course_is_not(kind: str) -> None:
    def hardness(course: Course) -> tuple[np.ndarray, np.ndarray]:
        if kind == "hurdles":
            return course.left, course.top
        if kind == "gaps":
            return course.right[:-1], course.left[1:] - course.right[:-1]
        return course.right[:-1], np.abs(np.diff(course.top))

    early = {True: [], False: []}
    late = {True: [], False: []}
    for curriculum in early:
        for seed in range(30):
            places, found = hardness(one(kind, seed, curriculum=curriculum))
            early[curriculum] += found[places < FULL_DIFFICULTY_AT / 5].tolist()
            late[curriculum] += found[places > FULL_DIFFICULTY_AT].tolist()
    assert max(early[True]) < 0.4 * min(late[True])
    assert np.ptp(late[True]) == pytest.approx(0.0, abs=1e-9), "all as hard as can be"
    assert np.mean(early[False]) == pytest.approx(np.mean(late[False]), rel=0.15)
    assert max(early[False]) <= max(late[True]) + 1e-9, "the same hardest obstacles"


@pytest.mark.parametrize("kind", ["hurdles", "gaps", "steps"])
def test_courses_follow_from_the_seed_alone_and_difficulty_scales_them(kind: str) -> None:
    same, other = one(kind, 3), one(kind, 4)
    assert np.array_equal(one(kind, 3).left, same.left)
    assert not np.array_equal(other.left, same.left)
    easy = one(kind, 3, difficulty=0.0)
    assert easy.base in (0.0, PIT)
    if kind == "hurdles":
        assert np.ptp(easy.top) == 0.0
    assert courses.FULL_DIFFICULTY_AT < LENGTH
