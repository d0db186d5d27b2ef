"""All benchmarks, one after the other: `make bench`. Each prints its table and writes `results/bench/NAME.json`."""

from benchmarks import augment, mixture, segmentation, step

for benchmark in (mixture, step, segmentation, augment):
    print(f"\n== {benchmark.__name__.removeprefix('benchmarks.')}: {(benchmark.__doc__ or '').splitlines()[0]}")
    benchmark.main()
