"""The loss plot of a run."""

from collections.abc import Sequence
from pathlib import Path

from ...settings import run_directory
from ...settings.system_errors import in_words
from ..heldout_scores import Score
from .metrics import read_metrics


def plot_losses(run_dir: str | Path, scores: Sequence[Score]) -> str | None:
    """Draws the training loss and each member's held-out loss and baseline to `RUN/loss.png`.

    Returns None, or a message if the plot failed. A failure does not affect the run's result.
    """
    try:
        _draw(Path(run_dir), scores)
    except Exception as error:  # matplotlib, fonts and disks raise many kinds of errors
        reason = in_words(error).rstrip(".")
        return f"{run_directory.LOSS_PLOT} could not be drawn ({reason}); all else is in {run_dir}."
    return None


def _draw(run_dir: Path, scores: Sequence[Score]) -> None:
    import matplotlib  # imported here: it takes half a second

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = read_metrics(run_dir)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    training = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    if training:
        axes.plot(*zip(*training), color="0.75", linewidth=1, label="training, all members")
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    losses = [score for score in scores if not score.metric]
    for score, color in zip(losses, colors * (1 + len(losses) // len(colors))):
        name = f"heldout/{score.name}"
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points:
            axes.plot(*zip(*points), marker="o", markersize=3, color=color, label=score.name)
        if score.baseline is not None:
            axes.axhline(score.baseline, color=color, linestyle=":", linewidth=1)
    axes.plot([], [], color="0.4", linestyle=":", label="baseline of each")
    axes.set(xlabel="step", ylabel="loss, nats per target", title=run_dir.name)
    axes.legend(fontsize="small", ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(run_dir / run_directory.LOSS_PLOT, dpi=150)
    finally:
        plt.close(figure)
