"""Where the tests are, and what their processes start with. (A name of its own: there is more than one conftest.)"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def clean_environment() -> dict[str, str]:
    """This process's environment without what points JAX somewhere."""
    return {
        key: value for key, value in os.environ.items() if not re.match(r"JAX_|IFRT_PROXY_|XLA_|TPU_|MEGASCALE_", key)
    }
