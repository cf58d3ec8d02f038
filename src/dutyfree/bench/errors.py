"""What ends a benchmark whose numbers would mean nothing."""


class BenchmarkError(RuntimeError):
    """What is compared is not alike, a call takes another path than it should, or a process failed."""
