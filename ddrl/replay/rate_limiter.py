"""A limiter that keeps the ratio of samples to inserts, whatever the speed of actors and learner.

The rule is Reverb's `SampleToInsertRatio` (google-deepmind/reverb, reverb/rate_limiters.py). Items are counted: a
transition, or a sequence.
"""

from __future__ import annotations

from ddrl.errors import UserError


class Limiter:
    """Decides when the learner may sample and when actors may insert. One thread at a time uses it."""

    def __init__(self, min_size: int, samples_per_insert: float | None, error_buffer: float, batch_size: int) -> None:
        """`samples_per_insert` None: no bound, as in the papers, whose learner and actors run freely.

        `error_buffer`: by how many samples either side may be ahead; actors besides by the unroll that each was sending
        when they were stopped. Raise UserError where both sides could wait for each other for ever.
        """
        if samples_per_insert is not None and 2 * error_buffer < batch_size:
            raise UserError(
                f"key 'hyperparameters.error_buffer' must be at least {batch_size / 2:g}, half a batch (got "
                f"{error_buffer:g}): with less, the learner would wait for the inserts of {batch_size} samples, while "
                "actors wait for the learner"
            )
        self._min_size = min_size
        self._ratio = samples_per_insert
        self._buffer = error_buffer
        self.inserted = 0
        """Items."""
        self.sampled = 0
        """Items, a batch at a time."""
        self.offset: int | None = None
        """Items inserted when there were first enough to sample from: those before earn no samples."""

    @property
    def credit(self) -> float:
        """Samples that the inserts so far have earned and that were not taken; 0 without a ratio."""
        if self._ratio is None or self.offset is None:
            return 0.0
        return self._ratio * (self.inserted - self.offset) - self.sampled

    @property
    def samples_per_insert(self) -> float:
        """The ratio since sampling was first possible; 0 before."""
        inserted = self.inserted - (self.inserted if self.offset is None else self.offset)
        return self.sampled / inserted if inserted else 0.0

    def can_insert(self) -> bool:
        """Return whether actors may insert."""
        return self.offset is None or self.credit <= self._buffer

    def can_sample(self, count: int) -> bool:
        """Return whether a batch of `count` items may be drawn."""
        return self.offset is not None and (self._ratio is None or count <= self.credit + self._buffer)

    def insert(self, count: int, size: int) -> None:
        """Count `count` inserted items; `size` are in the replay now."""
        self.inserted += count
        if self.offset is None and size >= self._min_size:
            self.begin()

    def begin(self) -> None:
        """Allow drawing from now on, with as many items as there are."""
        self.offset = self.inserted

    def sample(self, count: int) -> None:
        """Count a batch of `count` items as drawn."""
        self.sampled += count

    def refill(self, size: int, min_size: int) -> None:
        """Begin anew with `size` items, since the contents were lost; allow no samples before there are `min_size`."""
        self._min_size = min_size
        self.inserted = self.sampled = 0
        self.offset = None
        self.insert(0, size)

    def state_dict(self) -> list[int | None]:
        """Return the counters and the minimum size."""
        return [self.inserted, self.sampled, self.offset, self._min_size]

    def load_state_dict(self, state: list[int | None]) -> None:
        """Continue where `state` was taken."""
        inserted, sampled, self.offset, min_size = state
        assert inserted is not None and sampled is not None and min_size is not None
        self.inserted, self.sampled, self._min_size = inserted, sampled, min_size
