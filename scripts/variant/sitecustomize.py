"""Makes the package beside this file the one that is imported; scripts/variant.sh links it into each variant's folder.

Python imports a sitecustomize at every start, so PYTHONPATH alone chooses the variant, for child processes too. The
checkout's own package has to step back for that: it is installed editable, by a finder that comes before the path.
"""

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "_editable_skbc_dutyfree"]
