"""Exceptions of dutyfree's own. Here, so that raising one does not take importing what raises it."""


class AuditError(RuntimeError):
    """A call differs from PyTorch's, or an operator that is declared pure wrote to an input."""
