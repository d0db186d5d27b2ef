"""`longtail`, but the rank in $DIES, "1 at 12", is killed after that many steps of its first life."""

import os
import signal
import sys

from longtail.cli import main
from longtail.methods.method import Method

dies, steps = os.environ.get("DIES", "-1 at 0").split(" at ")
if dies == os.environ["RANK"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    after_step, done = Method.after_step, iter(range(10**9))

    def mortal(method: Method) -> None:
        after_step(method)
        if next(done) == int(steps):  # the first is preflight's
            os.kill(os.getpid(), signal.SIGKILL)

    Method.after_step = mortal  # type: ignore[method-assign]

sys.exit(main())
