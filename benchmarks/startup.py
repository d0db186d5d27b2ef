"""How long a person waits for `longtail --help` and for `import longtail`.

    python -m benchmarks.startup

Processor time of the whole process, for a busy machine lets everybody wait.
"""

import argparse
import os
import statistics
import subprocess
import sys

from benchmarks.harness import write_result

HELP_S, IMPORT_S = 0.5, 0.2  # at most
COMMANDS = {
    "help": [sys.executable, "-m", "longtail", "--help"],
    "longtail": [sys.executable, "-c", "import longtail"],
}


def processor_seconds(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(repeats + 1):
        for name, command in COMMANDS.items():
            seconds = processor_seconds(command)
            if turn:
                times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"longtail --help {medians['help']:.2f} s (at most {HELP_S})")
    print(
        f"import longtail {medians['longtail']:.2f} s (at most {IMPORT_S}; torch is imported when it is first needed)"
    )
    targets = {"help": HELP_S, "import": IMPORT_S}
    print(write_result("startup", {"targets": targets, "s": medians, "repeats": repeats}))


if __name__ == "__main__":
    main()
