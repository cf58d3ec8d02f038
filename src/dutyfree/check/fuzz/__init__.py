"""The differential fuzzer: generated operators, called by generated calls, compared with torch.library.custom_op's.

A case is a tree of dataclasses (``operators``, ``calls``) that renders to Python source (``source``). The fuzzer runs
that source and saves that source, so a saved script does what the run did.
"""
