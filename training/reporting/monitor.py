"""Monitors the steps: finds loss spikes, and logs means of metrics."""

from collections.abc import Mapping

import jax

from ...objectives import members_of
from ..optimizers import learning_rate_of, scheduled
from ..resuming import ResumableParts
from ..spikes import WATCHED
from ..step import metric_prefix
from ..throughput import causal_flops, peak_flops, step_flops
from ..unreported import StepMetrics
from .console import StepProgress
from .reports import Reports
from .wall_time import KINDS


class Monitor:
    """Collects every step's metrics; `report` writes and shows their means.

    A step's loss is read while the device computes the next one, so that the device never waits.
    """

    def __init__(self, parts: ResumableParts, reports: Reports, progress: StepProgress):
        plan = parts.plan
        self._spikes = parts.spikes
        self._unreported = parts.unreported
        self._writer = reports.writer
        self._wall_time = reports.wall_time
        self._progress = progress
        self._reported = dict.fromkeys(KINDS, 0.0)
        self._members = members_of(plan.recipe.objective)
        self._flops = step_flops(plan)
        self._causal_flops = causal_flops(plan)
        self._peak = peak_flops()
        rate = learning_rate_of(plan.run.optimizer)
        self._schedule = None if rate is None else scheduled(rate, plan.run.steps)
        self._unchecked: list[tuple[int, dict]] = []  # (step, metrics) pairs

    def add(self, step: int, metrics: dict) -> None:
        """Adds the metrics of a step. Raises LossSpike if an earlier step was a spike."""
        self.check()
        self._unchecked.append((step, metrics))

    def check(self) -> None:
        """Waits for all added steps. Raises LossSpike if one of them was a spike."""
        for step, metrics in self._unchecked:
            values = jax.device_get(metrics)
            self._spikes.check(step, {name: float(values[name]) for name in WATCHED})
            self._unreported.steps.append(self._step_metrics(values))
        self._unchecked.clear()

    def discard(self) -> None:
        """Drops the steps that were not checked, and the time since the last report.

        After a roll-back, these steps are taken again.
        """
        self._unchecked.clear()
        self._reported = self._wall_time.seconds()

    def state(self) -> dict[str, bytes]:
        """Returns a checkpoint's file with the steps that were checked since the last report."""
        return self._unreported.state(self._seconds())

    def report(self, step: int, read: Mapping[str, float]) -> None:
        """Writes and shows means over the steps that were checked since the last report.

        Without such steps it does nothing. `read` is `Batches.progress`.
        """
        if not self._unreported.steps:
            return
        line = self._unreported.means() | dict(read)
        passed = self._seconds()
        self._reported = self._wall_time.seconds()
        steps_per_second = len(self._unreported.steps) / (passed["data"] + passed["step"])
        flops = self._flops * steps_per_second
        line["tokens_per_second"] = line["text_tokens"] * steps_per_second
        line["tflops_per_second"] = flops / 1e12
        if self._peak:
            line["mfu"] = flops / self._peak
            if self._causal_flops is not None:
                line["mfu_causal"] = self._causal_flops * steps_per_second / self._peak
        if self._schedule is not None:
            line["learning_rate"] = float(self._schedule(step - 1))  # rate of the last step
        self._writer.write(step, line | {f"seconds/{kind}": x for kind, x in passed.items()})
        self._progress.update(step, line)
        self._unreported.clear()

    def _seconds(self) -> dict[str, float]:
        """Returns the seconds since the last report by kind, including those before a resume."""
        now = self._wall_time.seconds()
        earlier = self._unreported.seconds
        return {kind: earlier.get(kind, 0.0) + now[kind] - self._reported[kind] for kind in KINDS}

    def _step_metrics(self, metrics: dict) -> StepMetrics:
        values = {name: float(x) for name, x in metrics.items() if name != "member_terms"}
        members = {}
        if len(self._members) > 1:
            for name, term in metrics["member_terms"].items():
                for member, total, weight in zip(self._members, term.sums, term.weights):
                    key = f"{metric_prefix(term)}/{member.name}/{name}"
                    members[key] = (float(total), float(weight))
        return StepMetrics(values, members)
