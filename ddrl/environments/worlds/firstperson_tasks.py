"""The actions and the 30 tasks of `firstperson`: where each comes from, what it pays, and how long it lasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Family = Literal["vizdoom", "miniworld"]
"""Simulators. A task's name begins with its own."""
Group = Literal["navigation", "collection", "memory", "combat", "language"]

ACTIONS = (
    "forward",
    "backward",
    "strafe left",
    "strafe right",
    "look left",
    "look right",
    "forward + look left",
    "forward + look right",
    "fire",
)
"""The nine actions of all tasks: those of IMPALA's Table D.2, in its order (Espeholt et al. 2018)."""


@dataclass(frozen=True)
class Task:
    """One task; its reference score stands in `replications/references/firstperson.csv`."""

    name: str
    group: Group
    source: str
    """ViZDoom: the scenario's settings, and a map after ':'. MiniWorld: the class."""
    limit: int
    """Frames after which an episode is truncated."""
    pays: str
    """The agent's pay, in words; scores are in the same scale."""
    rewards: dict[str, float] = field(default_factory=dict)
    """ViZDoom's own rewards, beside what the scenario gives."""
    reward_scale: float = 1.0
    """The factor of the simulator's rewards, with which an achievement pays about 1 in all tasks."""

    @property
    def family(self) -> Family:
        return "vizdoom" if self.name.startswith("vizdoom_") else "miniworld"


_KILLS = {"kill": 1.0}
_ITEMS = {"item": 1.0}
_TO_THE_BOX = "1 - 0.2 frames / limit at the red box, which ends it"
_FREEDOOM_KILLS = "+1 for each kill (this suite's), +1 for the map's exit (ViZDoom's)"
_FREEDOOM_ITEMS = "+1 for each bonus item (this suite's), +1 for the map's exit (ViZDoom's)"
_ALIVE = "+0.01 for each frame alive, -1 for dying"
_BASIC = "+1.06 for the monster, which ends it, -0.05 for each shot, -0.01 for each frame"
_CORRIDOR = "the distance gained towards the vest (about 13), +10 for the vest, -1 for dying"
_WAY_HOME = "+1 for the vest, which ends it, -0.0001 for each frame"
_ONE_ROCKET = "+1 for the monster, -0.001 for each frame; the only rocket ends it"
_HEALTH = "+0.02 for each frame alive, -1 for dying; health lasts for 50 frames, and a medkit picked up restores it"
_FIVE_OBJECTS = "+1 for each of five objects picked up; the last ends it"
_PUT_NEXT = "1 - 0.2 frames / limit for the red box put down next to the yellow one, which ends it"
_SIGN = "+1 for the object of the sign's colour and the instruction's kind, -1 for any other; either ends it"

# Limits of ViZDoom are the scenarios' own, but for those without one (2100) and for Freedoom's maps (126000 there).
# Those of MiniWorld are twice its own: looks take three times as long. CollectHealth keeps its own, and Sign has 400,
# since its own 20 steps are of 0.7 m and 45 degrees.
ALL: tuple[Task, ...] = (
    Task("vizdoom_basic", "combat", "basic", 300, _BASIC, reward_scale=0.01),
    Task("vizdoom_deadly_corridor", "combat", "deadly_corridor", 2100, _CORRIDOR, reward_scale=0.01),
    Task("vizdoom_deathmatch", "combat", "deathmatch", 4200, "for each kill, more for stronger monsters"),
    Task("vizdoom_defend_the_center", "combat", "defend_the_center", 2100, "+1 for each kill, -1 for dying"),
    Task("vizdoom_defend_the_line", "combat", "defend_the_line", 2100, "+1 for each kill, -1 for dying"),
    Task("vizdoom_health_gathering", "collection", "health_gathering", 2100, _ALIVE, reward_scale=0.01),
    Task("vizdoom_health_gathering_supreme", "collection", "health_gathering_supreme", 2100, _ALIVE, reward_scale=0.01),
    Task("vizdoom_my_way_home", "memory", "my_way_home", 2100, _WAY_HOME),
    Task("vizdoom_predict_position", "combat", "predict_position", 300, _ONE_ROCKET),
    Task("vizdoom_take_cover", "combat", "take_cover", 2100, "+0.01 for each frame alive", reward_scale=0.01),
    Task("vizdoom_freedoom2_map01", "combat", "freedoom2:MAP01", 4200, _FREEDOOM_KILLS, _KILLS),
    Task("vizdoom_freedoom2_map02", "combat", "freedoom2:MAP02", 4200, _FREEDOOM_KILLS, _KILLS),
    Task("vizdoom_freedoom2_map03", "combat", "freedoom2:MAP03", 4200, _FREEDOOM_KILLS, _KILLS),
    Task("vizdoom_freedoom2_map04", "combat", "freedoom2:MAP04", 4200, _FREEDOOM_KILLS, _KILLS),
    Task("vizdoom_freedoom1_e1m1", "collection", "freedoom1:E1M1", 4200, _FREEDOOM_ITEMS, _ITEMS),
    Task("vizdoom_freedoom1_e1m2", "collection", "freedoom1:E1M2", 4200, _FREEDOOM_ITEMS, _ITEMS),
    Task("vizdoom_freedoom1_e1m3", "collection", "freedoom1:E1M3", 4200, _FREEDOOM_ITEMS, _ITEMS),
    Task("miniworld_collect_health", "collection", "CollectHealth", 1000, _HEALTH, reward_scale=0.01),
    Task("miniworld_four_rooms", "navigation", "FourRooms", 500, _TO_THE_BOX),
    Task("miniworld_hallway", "navigation", "Hallway", 500, _TO_THE_BOX),
    Task("miniworld_maze_s2", "memory", "MazeS2", 192, _TO_THE_BOX),
    Task("miniworld_maze_s3", "memory", "MazeS3", 432, _TO_THE_BOX),
    Task("miniworld_one_room", "navigation", "OneRoom", 360, _TO_THE_BOX),
    Task("miniworld_pickup_objects", "collection", "PickupObjects", 800, _FIVE_OBJECTS),
    Task("miniworld_put_next", "collection", "PutNext", 500, _PUT_NEXT),
    Task("miniworld_sidewalk", "navigation", "Sidewalk", 300, f"{_TO_THE_BOX}; the street ends it without reward"),
    Task("miniworld_sign", "language", "Sign", 400, _SIGN),
    Task("miniworld_t_maze", "memory", "TMaze", 560, _TO_THE_BOX),
    Task("miniworld_wall_gap", "navigation", "WallGap", 600, _TO_THE_BOX),
    Task("miniworld_y_maze", "memory", "YMaze", 560, _TO_THE_BOX),
)
