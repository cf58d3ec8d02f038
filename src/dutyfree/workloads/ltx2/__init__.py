"""The LTX-2 denoising step: a model with the real number of blocks and narrow widths, and the published call trace.

:func:`register` comes before :mod:`dutyfree.ops` is imported, so that :mod:`.model` and :mod:`.denoise`, which do that,
are imported after it.
"""

from dutyfree.workloads.ltx2.registrations import PLAIN, REGISTRATIONS, register
from dutyfree.workloads.ltx2.sizes import Sizes

__all__ = ["PLAIN", "REGISTRATIONS", "Sizes", "register"]
