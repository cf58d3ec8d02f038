"""How many processes split a run, and by what: classifier-free guidance, and the sequence of video tokens."""

from dataclasses import dataclass

from dutyfree.workloads.ltx2.sizes import Sizes

# The model's forwards of a step: without the prompt, and with it.
PREDICTIONS = 2


@dataclass(frozen=True)
class Layout:
    """A run over ``guidance * ulysses`` processes; consecutive ranks have the same rows of the text embeddings.

    Attributes:
        guidance: 2 where one half of the ranks works without the prompt and the other with it, 1 where all do both.
        ulysses: Ranks that share the video tokens, and in attention the heads.
    """

    guidance: int = 1
    ulysses: int = 1

    @classmethod
    def of(cls, processes: int, ulysses: int | None = None) -> "Layout":
        """The split over so many processes: by guidance first, unless ``ulysses`` says otherwise.

        Raises:
            ValueError: There are none, or ``ulysses`` leaves something else than 1 or 2 for guidance.
        """
        if processes < 1:
            raise ValueError(f"processes={processes}: a run has at least one process.")
        if ulysses is None:
            guidance = 1 if processes % PREDICTIONS else PREDICTIONS
            return cls(guidance, processes // guidance)
        halves = [] if processes % PREDICTIONS else [processes // PREDICTIONS]
        if ulysses not in (*halves, processes):
            accepted = " or ".join(map(str, (*halves, processes)))
            raise ValueError(
                f"ulysses={ulysses} with {processes} processes: they all share the video tokens, or each half of them "
                f"where guidance is split; {accepted} is accepted."
            )
        return cls(processes // ulysses, ulysses)

    @property
    def processes(self) -> int:
        return self.guidance * self.ulysses

    def check(self, sizes: Sizes) -> None:
        """ValueError where a model of these sizes can't be split so."""
        for what, count in (("heads", sizes.heads), ("video tokens", sizes.video_tokens)):
            if count % self.ulysses:
                raise ValueError(
                    f"ulysses={self.ulysses}, of {self.processes} processes, does not divide the {count} {what}: each "
                    f"rank takes an equal part of the {sizes.video_tokens} video tokens and of the {sizes.heads} heads."
                )
