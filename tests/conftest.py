"""Every test plans its programs anew: a fault planted in a pass must not be hidden by, or kept in, a plan on
disk."""

from __future__ import annotations

import os

os.environ["TRACEFUSE_PLANS"] = "0"
