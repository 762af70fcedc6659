"""Waiting for jobs of the extension module: they run on its threads, Python's looks after signals and progress."""
TICK = 0.1  # seconds between two looks


def finish(job, on_progress=None):
    """The result of a job. What is raised meanwhile (KeyboardInterrupt, by `on_progress`) ends it first."""
    try:
        while not job.wait(TICK):
            if on_progress is not None:
                on_progress(*job.progress())
        if on_progress is not None:
            on_progress(*job.progress())
    except BaseException:
        job.stop()
        raise
    return job.result()
