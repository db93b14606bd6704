"""What a training will cost, as a table."""

from collections.abc import Callable, Mapping

from brctc.report.tables import NOTHING, Group, Table
from brctc.train.cost import Cost, StageCost
from brctc.train.devices import UTILISATION, Device, hours_on

GB = 1e9


def cost_table(title: str, cost: Cost, devices: Mapping[str, Device]) -> Table:
    """A column for each stage and one for all; a row of hours for each device."""
    several = len(cost.stages) > 1
    columns = (*cost.stages, "in all") if several else tuple(cost.stages)

    def row(name: str, of_stage: Callable[[StageCost], str], of_all: str = "") -> tuple[str, ...]:
        return (name, *map(of_stage, cost.stages.values()), *([of_all] if several else []))

    def hours(device: Device, flop: float) -> str:
        if cost.precision not in device.peak_flops:
            return NOTHING
        return _number(hours_on(device, cost.precision, flop, cost.devices))

    parts = dict.fromkeys(part for stage in cost.stages.values() for part in stage.parameters)
    per_device = "memory per GPU [GB]"
    most = cost.memory
    rows = [
        row("parameters [M]", lambda stage: _millions(sum(stage.parameters.values()))),
        *(row(f"  {part}", lambda stage, part=part: _millions(stage.parameters.get(part))) for part in parts),
        row("steps", _steps, f"{sum(stage.length.steps for stage in cost.stages.values()):,}"),
        row("epochs", lambda stage: NOTHING if stage.length.epochs is None else f"{stage.length.epochs:.4g}"),
        row("TFLOP per step", lambda stage: _number(stage.flop_per_step / 1e12)),
        row("EFLOP", lambda stage: _number(stage.flop / 1e18), _number(cost.flop / 1e18)),
        row(per_device, lambda stage: _number(stage.memory.total / GB), _number(most.total / GB)),
        *(
            row(f"  {what}", lambda stage, what=what: _number(getattr(stage.memory, what) / GB))
            for what in ("weights", "gradients", "optimiser", "activations")
        ),
        *(
            row(
                f"hours, {cost.devices} x {device.title}" if cost.devices > 1 else f"hours, {device.title}",
                lambda stage, device=device: hours(device, stage.flop),
                hours(device, cost.flop),
            )
            for device in devices.values()
        ),
    ]
    return Table((Group(title, columns),), tuple(rows), tuple(_notes(cost, devices)))


def _notes(cost: Cost, devices: Mapping[str, Device]) -> list[str]:
    largest = cost.data.shapes[-1]
    notes = [f"- {note}" for note in cost.data.notes]
    if cost.data.seconds is not None:
        notes.append(f"- an epoch: {cost.data.seconds / 3600:,.4g} h, all speeds together")
    elif cost.data.examples is not None:
        notes.append(f"- an epoch: {cost.data.examples:,} examples")
    notes.append(f"- the largest batch: {largest.examples} x {largest.frames} frames or tokens")
    notes.append(
        f"- estimates: hours at {UTILISATION[cost.precision]:.0%} of the peak in {cost.precision}; "
        "activations as autograd keeps them; data, validation and talk between GPUs are not counted"
    )
    if any(stage.trimmed for stage in cost.stages.values()):
        notes.append(
            "- trimming depends on what is learnt: a trimmed stage is counted as if nothing were cut"
        )
    small = [
        device.title
        for device in devices.values()
        if device.memory_gb is not None and cost.memory.total > device.memory_gb * GB
    ]
    if small:
        notes.append(f"- too much for the memory of {', '.join(small)}: raise optimiser.accumulate")
    return notes


def _steps(stage: StageCost) -> str:
    return f"{'' if stage.length.exact else 'about '}{stage.length.steps:,}"


def _millions(count: int | None) -> str:
    return NOTHING if count is None else f"{count / 1e6:,.3f}"


def _number(value: float) -> str:
    """Three digits that count."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
