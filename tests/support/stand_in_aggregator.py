"""Stands in for `workers.aggregator` in tests of the stack."""

from tests.support.stand_in_worker import serve
from workers.process import run_worker

if __name__ == "__main__":
    run_worker(lambda stop: serve(stop, "aggregators"))
