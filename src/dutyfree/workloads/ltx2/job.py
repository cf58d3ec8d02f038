"""What a run of the workload is asked to do, and all that can be wrong with it before a process is started."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from dutyfree.workloads.ltx2.diffusers_parts import check_diffusers
from dutyfree.workloads.ltx2.layout import Layout
from dutyfree.workloads.ltx2.registrations import check_registration
from dutyfree.workloads.ltx2.sizes import Sizes

# Seconds, 30 years. torch.distributed counts them in nanoseconds of 64 bits.
LONGEST_TIMEOUT = 1e9


@dataclass(frozen=True)
class Job:
    """A run of the denoising loop.

    Attributes:
        registration: See :func:`~dutyfree.workloads.ltx2.register`.
        steps: Of the scheduler; each is timed.
        sizes: Of the model.
        seed: Of weights, latents and text embeddings.
        layout: Of the processes.
        tuning: A tuning cache, whose section of rank 0 every rank loads, so that all round alike. None: an untimed step
            measures the tactics, and ranks agree on them.
        threads: That each process computes with.
        compiled: Compile the blocks.
        timeout: Seconds without progress until the run is given up, as :func:`.launch.run` says; in a rank, until an
            exchange with the others is.
    """

    registration: str
    steps: int
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    seed: int = 0
    layout: Layout = dataclasses.field(default_factory=Layout)
    tuning: Path | None = None
    threads: int = 1
    compiled: bool = False
    timeout: float = 120.0

    def check(self) -> None:
        """Raises what is wrong with it, or with this machine.

        Raises:
            ValueError: A value that is not accepted, or a layout that does not divide the sizes.
            FileNotFoundError: There is no such tuning cache.
            ImportError: diffusers is missing, or is another release.
            RuntimeError: This PyTorch was built without torch.distributed, which several processes need.
        """
        check_registration(self.registration)
        for name in ("steps", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: a number from 1 is expected.")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:  # false of a NaN, too
            raise ValueError(
                f"timeout={self.timeout}: a number of seconds above 0, and up to {LONGEST_TIMEOUT:g}, is expected."
            )
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: a number of 64 bits is expected.")
        self.layout.check(self.sizes)
        if self.tuning is not None and not self.tuning.is_file():
            raise FileNotFoundError(f"tuning={str(self.tuning)!r}: there is no such file; `dutyfree tune` makes one.")
        check_diffusers()
        if self.layout.processes > 1:
            _check_distributed()

    def sizes_as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self.sizes))


def sizes_of(text: str) -> Sizes:
    """Of a JSON object with some of the attributes of :class:`Sizes`. ValueError where it is none."""
    try:
        return Sizes(**json.loads(text))
    except (TypeError, ValueError) as error:
        names = ", ".join(field.name for field in dataclasses.fields(Sizes))
        raise ValueError(f"sizes {text!r}: a JSON object with numbers is expected, of {names} ({error}).") from None


def _check_distributed() -> None:
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError(
            f"this PyTorch, {torch.__version__}, was built without torch.distributed, which several processes need; "
            "processes=1 runs without it."
        )
