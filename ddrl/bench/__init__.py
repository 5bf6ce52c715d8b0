"""The speed of topologies on this machine, measured side by side, beside the highest speed possible.

The bound is that of the parts: cores / (CPU seconds of simulation + inference + training per fresh agent step), each
part measured alone on one thread. A step is fresh once, however often it is learned from: the training of a fresh step
includes all its epochs, replays and traversals. A run that keeps every core busy with only these parts has ratio 1.
"""

from ddrl.bench.architectures import describe_all as describe_all
from ddrl.bench.architectures import system_configs as system_configs
from ddrl.bench.defaults import default_config as default_config
from ddrl.bench.measure import bench as bench
from ddrl.bench.measure import measure as measure
from ddrl.bench.parts import PartSpeed as PartSpeed
from ddrl.bench.sweep import grid as grid
from ddrl.bench.text import describe as describe
from ddrl.bench.topology import Repeat as Repeat
