"""Players that see the simulator's state, and act with the nine actions: they show that a task's reward can be had.

`python -m tests.environments.firstperson_oracles firstperson/miniworld_hallway ... --episodes 20` prints their returns.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import numpy as np

from ddrl.environments import firstperson
from ddrl.environments.base import registry
from ddrl.environments.firstperson import ACTIONS
from ddrl.environments.worlds.miniworld_world import MiniWorld
from ddrl.environments.worlds.vizdoom_world import DoomWorld

FORWARD, BACKWARD, STRAFE_LEFT, STRAFE_RIGHT, LEFT, RIGHT, FORWARD_LEFT, FORWARD_RIGHT, FIRE = range(len(ACTIONS))
Oracle = Callable[[], int]
CELL = 0.25
NEAR_ENOUGH = math.radians(11)


class Walker:
    """Walks in MiniWorld to what the task is about: the shortest way on a grid, and picks up or puts down there."""

    def __init__(self, world: MiniWorld) -> None:
        self.env = world.env
        self.before: Any = None
        self.wriggles = 0
        self.generator = np.random.default_rng(1)

    def __call__(self) -> int:
        """The next action; a few random ones where a corner holds the agent."""
        place = (*self.env.agent.pos, self.env.agent.dir)
        stuck, self.before = place == self.before, place
        self.wriggles = 3 if stuck else max(0, self.wriggles - 1)
        carries = bool(self.env.agent.carrying)
        if self.wriggles and not (carries and self._beside()):
            back = BACKWARD if carries else FORWARD
            return int(self.generator.choice([LEFT, RIGHT, FORWARD, FORWARD_LEFT, FORWARD_RIGHT, back]))
        return self._act()

    def _beside(self) -> bool:
        """Is the red box, which is carried, next to the yellow one?"""
        red, yellow = self.env.agent.carrying, self.env.yellow_box
        gap = float(np.linalg.norm(self._place(red) - self._place(yellow)))
        return gap < red.radius + yellow.radius + self.env.max_forward_step

    def _act(self) -> int:
        env, agent = self.env, self.env.agent
        kind = type(env).__name__
        if kind == "PutNext":
            if agent.carrying:
                return FIRE if self._beside() else self._steer(env.yellow_box.pos)
            return self._to(env.red_box, picks_up=True)
        if kind == "Sign":
            return self._to(env._objects[env._goal][env._color_index])
        if kind in ("CollectHealth", "PickupObjects"):
            loose = [entity for entity in env.entities if entity is not agent and not entity.is_static]
            return self._to(min(loose, key=self._frames), picks_up=True)
        return self._to(env.box)

    @staticmethod
    def _place(entity: Any) -> Any:
        return np.array(entity.pos)[[0, 2]]

    def _distance(self, entity: Any) -> float:
        return float(np.linalg.norm(self._place(entity) - self._place(self.env.agent)))

    def _frames(self, entity: Any) -> float:
        """Roughly, to turn to and reach it."""
        return math.degrees(abs(self._error(entity.pos))) / 5 + self._distance(entity) / 0.15

    def _error(self, point: Any) -> float:
        """By how much the agent must turn left to face a point."""
        offset = np.asarray(point) - self.env.agent.pos
        wanted = math.atan2(-offset[2], offset[0])
        return (wanted - self.env.agent.dir + math.pi) % (2 * math.pi) - math.pi

    def _steer(self, point: Any) -> int:
        error = self._error(point)
        if abs(error) > NEAR_ENOUGH:
            return LEFT if error > 0 else RIGHT
        return FORWARD

    def _to(self, entity: Any, *, picks_up: bool = False) -> int:
        if picks_up and self._distance(entity) < 1.0 + entity.radius and abs(self._error(entity.pos)) < NEAR_ENOUGH * 2:
            return FIRE
        way = self._way(entity, 0.05) or self._way(entity, 0.0) or [self._place(entity)]
        ahead = [point for point in way if np.linalg.norm(point - self.env.agent.pos[[0, 2]]) < 0.7]
        x, z = ahead[-1] if ahead and len(ahead) < len(way) else way[-1]
        return self._steer((x, 0, z))

    def _way(self, goal: Any, margin: float) -> list[Any]:
        """Points [x, z] from the agent to where it touches `goal`, at least `margin` from walls; empty: none."""
        start, target = self._place(self.env.agent), self._place(goal)
        reach = goal.radius + self.env.agent.radius + CELL
        counter = itertools.count()
        queue = [(0.0, next(counter), (0, 0), None)]
        came: dict[tuple[int, int], tuple[int, int] | None] = {}
        costs = {(0, 0): 0.0}
        while queue:
            _, _, cell, parent = heapq.heappop(queue)
            if cell in came:
                continue
            came[cell] = parent
            point = start + CELL * np.array(cell)
            if np.linalg.norm(point - target) < reach:
                way = []
                at: tuple[int, int] | None = cell
                while at is not None:
                    way.append(start + CELL * np.array(at))
                    at = came[at]
                return [*way[::-1], target]
            for step in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
                following = (cell[0] + step[0], cell[1] + step[1])
                cost = costs[cell] + math.hypot(*step)
                if cost < costs.get(following, math.inf) and self._free(
                    start + CELL * np.array(following), goal, margin
                ):
                    costs[following] = cost
                    left = np.linalg.norm(start + CELL * np.array(following) - target) / CELL
                    heapq.heappush(queue, (cost + float(left), next(counter), following, cell))
        return []

    def _free(self, point: Any, goal: Any, margin: float) -> bool:
        place = np.array([point[0], 0.0, point[1]])
        if not any(room.point_inside(place) for room in self.env.rooms):
            return False
        if getattr(self.env, "street", None) is not None and self.env.street.point_inside(
            place + self.env.agent.radius * np.array([1, 0, 0])
        ):
            return False
        hit = self.env.intersect(self.env.agent, place, self.env.agent.radius + margin)
        return hit is None or hit is goal


class Marksman:
    """Plays ViZDoom by what the engine says is in sight: turns to the nearest such thing, shoots it or goes there."""

    HARMLESS = (
        "Medikit",
        "CustomMedikit",
        "Vest",
        "Armor",
        "Bonus",
        "Item",
        "Clip",
        "Shell",
        "Box",
        "Stimpack",
        "Helmet",
    )

    def __init__(self, world: DoomWorld, task: str) -> None:
        world.game.close()
        world.game.set_labels_buffer_enabled(True)
        world.game.init()
        self.game, self.task = world.game, task
        given = [button.name for button in self.game.get_available_buttons()]
        self.turns, self.shoots = "TURN_LEFT" in given, "ATTACK" in given
        self.count, self.idea = 0, FORWARD
        self.generator = np.random.default_rng(1)
        self.roams = task.startswith(("vizdoom_deathmatch", "vizdoom_freedoom", "vizdoom_my"))
        self.gathers = task.startswith(("vizdoom_health", "vizdoom_my", "vizdoom_freedoom1"))

    def __call__(self) -> int:
        self.count += 1
        if self.task == "vizdoom_deadly_corridor":
            return FORWARD
        state = self.game.get_state()
        seen = [label for label in state.labels if self._wanted(label)] if state else []
        if self.task == "vizdoom_take_cover":
            return self._dodge(state)
        if not seen or (self.roams and self.count % 40 < 8):
            return self._wander()
        label = max(seen, key=lambda label: label.width * label.height)
        offset = label.x + label.width / 2 - 80
        if self.gathers:
            return self._towards(offset, 12)
        if self.task == "vizdoom_predict_position":
            offset += 6 * np.sign(label.object_velocity_x or label.object_velocity_y)
        aim = max(label.width / 2, 3 if self.turns else 2)
        if abs(offset) < aim:
            return FIRE
        if not self.turns:
            return STRAFE_RIGHT if offset > 0 else STRAFE_LEFT
        return RIGHT if offset > 0 else LEFT

    def _wanted(self, label: Any) -> bool:
        name = label.object_name
        if name == "DoomPlayer" or name.startswith(("Dead", "Blood", "Bullet", "Rocket", "DoomImpBall")):
            return False
        if self.gathers:
            return any(word in name for word in self.HARMLESS)
        return self._is_monster(name)

    @staticmethod
    def _is_monster(name: str) -> bool:
        monsters = (
            "Zombie",
            "Shotgun",
            "Chaingun",
            "Imp",
            "Demon",
            "Spectre",
            "Cacodemon",
            "Marine",
            "Knight",
            "Baron",
            "Lost",
        )
        return any(word in name for word in monsters) and name not in ("Shotgun", "SuperShotgun", "Chaingun")

    def _towards(self, offset: float, margin: float) -> int:
        if abs(offset) < margin:
            return FORWARD
        return FORWARD_RIGHT if offset > 0 else FORWARD_LEFT

    def _wander(self) -> int:
        if self.task in ("vizdoom_defend_the_center", "vizdoom_defend_the_line", "vizdoom_predict_position"):
            return RIGHT if self.count % 60 < 30 or self.task.endswith("center") else LEFT
        if not self.turns:
            return STRAFE_LEFT
        if self.count % 5 == 0:
            choices = (FORWARD, FORWARD, FORWARD_LEFT, FORWARD_RIGHT, STRAFE_LEFT, STRAFE_RIGHT, RIGHT, FIRE)
            self.idea = int(self.generator.choice(choices))
        return self.idea

    def _dodge(self, state: Any) -> int:
        balls = [label for label in state.labels if "Ball" in label.object_name] if state else []
        if balls:
            nearest = max(balls, key=lambda label: label.width)
            return STRAFE_LEFT if nearest.x + nearest.width / 2 > 80 else STRAFE_RIGHT
        return STRAFE_LEFT if self.count // 20 % 2 else STRAFE_RIGHT


def returns(name: str, seed: int = 0) -> Generator[float, None, None]:
    """Raw returns of an oracle's episodes, one after the other."""
    task = name.partition("/")[2]
    with closing(registry.make(name, 1, seed)) as env:
        (world,) = env.simulations  # type: ignore[attr-defined]
        oracle: Oracle = Marksman(world, task) if isinstance(world, DoomWorld) else Walker(world)
        env.reset()
        total = 0.0
        while True:
            step = env.step(np.array([oracle()]))
            total += float(step.reward[0])
            if step.ended[0]:
                yield total
                total = 0.0
                env.step(np.array([0]))


def main() -> None:
    """Prints mean, smallest and largest return."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[f"firstperson/{task}" for task in firstperson.TASKS])
    parser.add_argument("--episodes", type=int, default=20)
    given = parser.parse_args()
    for name in given.names:
        with closing(returns(name)) as episodes:
            found = list(itertools.islice(episodes, given.episodes))
        print(f"{name} {np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})", flush=True)


if __name__ == "__main__":
    main()
