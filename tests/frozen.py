"""Takes all that was imported before it out of the garbage collector's sight.

A process that is to be forked imports it last. Else each child goes through all of torch's objects whenever it
collects, and copies the memory pages that they are in.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
