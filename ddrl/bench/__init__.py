"""How fast is a topology, and how fast could it be? Everything measured side by side, in one run.

The yardstick is the sum of parts: cores / (CPU seconds of simulation + inference + training per fresh agent step), each
part measured alone on one thread. A step is fresh once, however often it is learned from: the training part of a fresh
step is all epochs, replays and traversals of it. A run that keeps every core busy with nothing but these parts has
ratio 1.
"""

from ddrl.bench.architectures import bench_all, describe_all, system_configs
from ddrl.bench.defaults import default_config
from ddrl.bench.measure import Repeat, bench, measure
from ddrl.bench.parts import Part
from ddrl.bench.sweep import grid
from ddrl.bench.text import describe

__all__ = [
    "Part",
    "Repeat",
    "bench",
    "bench_all",
    "default_config",
    "describe",
    "describe_all",
    "grid",
    "measure",
    "system_configs",
]
