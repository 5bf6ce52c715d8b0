"""The workflow as a user meets it: commands typed in a copy of the project whose trainer is invented."""

import csv
import io
import os
import re
import signal
import time
from pathlib import Path

import pytest

from ddrl.experiments import expand
from tests_workflow import Project, copy_project

ROOT = Path(__file__).parents[2]
