"""The speed of topologies on this machine, measured side by side, beside the highest speed possible.

The bound is that of the parts: cores / (CPU seconds of simulation + inference + training per fresh agent step), each
part measured alone on one thread. A step is fresh once, however often it is learned from: the training of a fresh step
includes all its epochs, replays and traversals. A run that keeps every core busy with only these parts has ratio 1.
"""

from ddrl.bench.architectures import describe_all, system_configs
from ddrl.bench.defaults import default_config
from ddrl.bench.measure import Repeat, bench, measure
from ddrl.bench.parts import Part
from ddrl.bench.sweep import grid
from ddrl.bench.text import describe

__all__ = [
    "Part",
    "Repeat",
    "bench",
    "default_config",
    "describe",
    "describe_all",
    "grid",
    "measure",
    "system_configs",
]
