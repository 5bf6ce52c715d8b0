"""Claims of the replication that a test module plants runs of, as its paper has them and the other way round.

Such a module has `verdicts(planted, results)`, `AS_THE_PAPER_SAYS` and `THE_OTHER_WAY_ROUND`.
"""

import pandas as pd
import pytest


@pytest.fixture(scope="module")
def supporting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Claims by name."""
    return request.module.verdicts(request.module.AS_THE_PAPER_SAYS, tmp_path_factory.mktemp("supporting"))


@pytest.fixture(scope="module")
def contradicting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Claims by name."""
    return request.module.verdicts(request.module.THE_OTHER_WAY_ROUND, tmp_path_factory.mktemp("contradicting"))
