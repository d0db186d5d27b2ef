"""How do my images get in? `load` takes a benchmark's name, a path, or a data set object."""

from longtail.data.benchmarks import load as load
