"""`python -m longtail`, for torchrun."""

import sys

from longtail.cli import main

sys.exit(main())
