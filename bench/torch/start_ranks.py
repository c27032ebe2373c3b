"""Ranks as forked processes of one host, which meet in a file of their own."""
import multiprocessing
import os
import tempfile


def start_ranks(body, options):
    """Runs body(rank, options, path of the store's file) in options.ranks processes; exits with 1 if one fails."""
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=body, args=(rank, options, os.path.join(directory, "store")))
                 for rank in range(options.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(process.exitcode != 0 for process in ranks))
